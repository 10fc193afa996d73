//! The server of librdmacm's rping, for one stream.
//!
//! ```text
//!  client                                                  server
//!    | -- Send: address, STag, length of its source ---------> |
//!    | <------------------------------- Read of the source --- |
//!    | <-------------------- Send of 16 bytes: source read --- |
//!    | -- Send: address, STag, length of its sink -----------> |
//!    | <----------------- Write of these bytes to the sink --- |
//!    | <------------------- Send of 16 bytes: data written --- |      (next round)
//! ```

use ddp::Stag;

use super::{Action, Input, RemoteBuffer, Slot};

/// Length of every Send: 64 bits address, 32 bits STag, 32 bits length, big-endian.
pub(super) const MESSAGE_LEN: usize = 16;

/// A buffer that a client's Send advertises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Buffer {
    pub memory: RemoteBuffer,
    /// Length, bytes.
    pub len: u32,
}

impl Buffer {
    pub(super) fn parse(bytes: &[u8]) -> Option<Buffer> {
        let bytes: &[u8; MESSAGE_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let to = u64::from(word(0)) << 32 | u64::from(word(4));
        Some(Buffer { memory: RemoteBuffer { stag: Stag(word(8)), to }, len: word(12) })
    }

    pub(super) fn emit(self) -> Vec<u8> {
        let mut bytes = self.memory.to.to_be_bytes().to_vec();
        bytes.extend(self.memory.stag.0.to_be_bytes());
        bytes.extend(self.len.to_be_bytes());
        bytes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Waits for the client's source buffer.
    AwaitsSource,
    /// Reads `len` bytes from the source buffer into the slot.
    Reading { len: u32 },
    /// Has read `len` bytes, and waits for the client's sink buffer.
    AwaitsSink { len: u32 },
}

/// State of one client.
#[derive(Debug)]
pub struct Rping {
    slot: Slot,
    state: State,
}

impl Rping {
    pub(super) fn new(slot: Slot) -> Rping {
        Rping { slot, state: State::AwaitsSource }
    }

    pub(super) fn input(&mut self, input: Input, mut emit_action: impl FnMut(Action)) {
        let bytes = match input {
            Input::Received(bytes) => bytes,
            Input::ReadDone => {
                if let State::Reading { len } = self.state {
                    self.state = State::AwaitsSink { len };
                    emit_action(Action::Send { bytes: vec![0; MESSAGE_LEN], answers: true });
                }
                return;
            }
            Input::Written { .. } | Input::WriteDone => return,
        };
        let Some(buffer) = Buffer::parse(&bytes) else {
            let bytes = bytes.len();
            emit_action(Action::End(format!(
                "rping: a Send of {bytes} bytes, {MESSAGE_LEN} are expected"
            )));
            return;
        };
        match self.state {
            State::AwaitsSource if u64::from(buffer.len) > self.slot.len => {
                let (requested, max_len) = (buffer.len, self.slot.len);
                emit_action(Action::End(format!(
                    "rping: the client's buffer has {requested} bytes, more than a stream's {max_len} at this listener"
                )));
            }
            State::AwaitsSource => {
                self.state = State::Reading { len: buffer.len };
                emit_action(Action::Read { len: buffer.len, source: buffer.memory });
            }
            State::AwaitsSink { len } if buffer.len < len => {
                let sink = buffer.len;
                emit_action(Action::End(format!(
                    "rping: the sink has {sink} bytes, {len} are needed"
                )));
            }
            State::AwaitsSink { len } => {
                self.state = State::AwaitsSource;
                emit_action(Action::Write { len, destination: buffer.memory });
                emit_action(Action::Send { bytes: vec![0; MESSAGE_LEN], answers: true });
            }
            State::Reading { .. } => {
                emit_action(Action::End("rping: a Send while the source is being read".into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Rping {
        Rping::new(Slot { stag: Stag(5), to: 0, len: 100 })
    }

    fn turn(session: &mut Rping, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        session.input(input, |action| actions.push(action));
        actions
    }

    fn buffer(to: u64, len: u32) -> Buffer {
        Buffer { memory: RemoteBuffer { stag: Stag(0x01020304), to }, len }
    }

    fn send(buffer: Buffer) -> Input {
        Input::Received(buffer.emit())
    }

    #[test]
    fn rping_message_round_trips() {
        let bytes = buffer(0x1122334455667788, 64).emit();
        assert_eq!(bytes[..12], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 1, 2, 3, 4]);
        assert_eq!(Buffer::parse(&bytes), Some(buffer(0x1122334455667788, 64)));
        assert_eq!(Buffer::parse(&bytes[1..]), None);
    }

    #[test]
    fn rping_server_serves_two_rounds() {
        let mut session = session();
        let answer = Action::Send { bytes: vec![0; 16], answers: true };
        for len in [64, 100] {
            let (source, sink) = (buffer(1000, len), buffer(2000, len));
            assert_eq!(
                turn(&mut session, send(source)),
                [Action::Read { len, source: source.memory }]
            );
            assert_eq!(turn(&mut session, Input::ReadDone), std::slice::from_ref(&answer));
            let write = Action::Write { len, destination: sink.memory };
            assert_eq!(turn(&mut session, send(sink)), [write, answer.clone()]);
        }
    }

    #[test]
    fn malformed_rping_message_ends_the_stream() {
        let ends = |actions: Vec<Action>| matches!(actions[..], [Action::End(_)]);
        assert!(ends(turn(&mut session(), Input::Received(vec![0; 15]))));
        assert!(ends(turn(&mut session(), send(buffer(0, 101)))), "more than the slot");
        let mut early = session();
        turn(&mut early, send(buffer(0, 10)));
        assert!(ends(turn(&mut early, send(buffer(0, 10)))), "a Send during the server's Read");
        let mut short = session();
        turn(&mut short, send(buffer(0, 10)));
        turn(&mut short, Input::ReadDone);
        assert!(ends(turn(&mut short, send(buffer(0, 9)))), "the sink is too short");
    }
}
