//! A case over SCTP: sessions on the streams of one association (RFC 5043).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{Failure, Session, Stop};
use crate::case::Transport;
use crate::decode::Decoder;
use crate::encode::{self, Frame, Numbers};
use crate::link::Received;
use crate::message::{Kind, Message};
use crate::sctp::association::Options;
use crate::sctp::order::Inbound;
use crate::sctp::{CONTROL, Chunk, SEGMENT, control};
use crate::value::{Arguments, payload};

/// Wait for a message after the session's Terminate, if the case expects a close. A TCP receiver sees a FIN on every
/// read, but a Terminate arrives only once: without a message in this time, the session counts as closed.
pub(super) const AFTER_END: Duration = Duration::from_millis(200);
/// Maximum number of streams whose messages are held.
const MAX_STREAMS: usize = 1024;

/// Streams of an association, and received messages that are in order.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<u16, Stream>,
    ready: VecDeque<(Chunk, bool)>,
    /// True if the last message was the device's Terminate of the session on stream 0.
    ended: bool,
}

/// Session on one stream pair.
#[derive(Debug, Default)]
struct Stream {
    /// DDP-SSN of the tester's next message.
    outbound: u16,
    inbound: Inbound,
    numbers: Numbers,
    decoder: Decoder,
    /// Properties of the chunks of an incomplete message.
    found: Found,
}

/// Properties of the chunks of a message.
#[derive(Clone, Copy, Debug)]
struct Found {
    unordered: bool,
    whole: bool,
    sequence: bool,
}

impl Default for Found {
    fn default() -> Found {
        Found { unordered: true, whole: true, sequence: true }
    }
}

impl Session<'_> {
    pub(super) fn is_over_sctp(&self) -> bool {
        self.setup.target.transport() == Transport::Sctp
    }

    /// Returns true if the session on stream 0 has ended and no message has followed.
    pub(super) fn has_ended(&self) -> bool {
        self.sctp.ended
    }

    /// Opens an association. Also succeeds if the device refuses an association with an unusual adaptation
    /// indication; the association has then ended.
    pub(super) fn open_association(&mut self, arguments: &Arguments) -> Result<(), Stop> {
        self.sctp = Streams::default();
        let default = Options::default();
        let adaptation = self.number(arguments, "adaptation", 1)? as u32;
        let streams = self.number(arguments, "streams", default.streams.into())?;
        let options = Options {
            adaptation: (adaptation != 0).then_some(adaptation),
            streams: streams.clamp(1, 0xffff) as u16,
        };
        let deadline = self.deadline(self.setup.timing.connect);
        self.link.associate(&self.setup.target, options, deadline).map_err(Stop::Inconclusive)?;
        let greeting = self.link.association().and_then(|a| a.greeting);
        if greeting.is_none() && options.adaptation == default.adaptation {
            return Err(Stop::Inconclusive("the device refuses the association".into()));
        }
        if let Some(g) = greeting {
            self.set("peer.adaptation", u64::from(g.adaptation.unwrap_or(0)));
            // RFC 9260 §5.1.1: each direction uses the smaller of the sender's outbound and the receiver's inbound
            // streams.
            self.set("peer.outbound", u64::from(g.outbound).min(streams));
            self.set("peer.inbound", u64::from(g.inbound).min(streams));
        }
        Ok(())
    }

    /// Encodes a user message, and queues it for the next flush.
    pub(super) fn send_message(&mut self, kind: Kind, arguments: &Arguments) -> Result<(), Stop> {
        let id = self.number(arguments, "stream", 0)? as u16;
        let mut stream = self.sctp.streams.remove(&id).unwrap_or_default();
        if kind == Kind::Initiate && arguments.get("ssn").is_none() {
            stream = Stream::default();
        }
        for (queue, msn) in (0..).zip(stream.numbers.next()) {
            self.set(&format!("msn.{queue}"), u64::from(msn));
        }
        self.set("ssn", stream.outbound.into());
        let built = self.build(kind, arguments, &mut stream);
        self.sctp.streams.insert(id, stream);
        let (ppid, data) = built?;
        self.note(kind, arguments);
        let ppid = self.number(arguments, "ppid", ppid.into())? as u32;
        let unordered = self.number(arguments, "ordered", 0)? == 0;
        if self.link.send_chunk(Chunk { stream: id, ppid, unordered, whole: true, data }) {
            Ok(())
        } else {
            Err(Stop::NotApplicable("the message is longer than an SCTP packet".into()))
        }
    }

    /// Builds the PPID and user data of a message.
    fn build(
        &mut self,
        kind: Kind,
        arguments: &Arguments,
        stream: &mut Stream,
    ) -> Result<(u32, Vec<u8>), Stop> {
        let unknown =
            |e| Stop::NotApplicable(format!("this message cannot be built for the device: {e}"));
        if kind == Kind::Chunk {
            let length = self.number(arguments, "len", 0)?.min(0xffff) as usize;
            let text = arguments.get("data").unwrap_or("pattern");
            let data = payload(text, length, 0, &self.variables).map_err(unknown)?;
            return Ok((SEGMENT, data));
        }
        let ssn = self.number(arguments, "ssn", stream.outbound.into())? as u16;
        if arguments.get("ssn").is_none() {
            stream.outbound = stream.outbound.wrapping_add(1);
        }
        let mut data = ssn.to_be_bytes().to_vec();
        if kind.is_control() {
            data.extend(control::encode(kind, arguments, &self.variables).map_err(unknown)?);
            return Ok((CONTROL, data));
        }
        let frame = encode::frame(kind, arguments, &self.variables, &mut stream.numbers);
        match frame.map_err(unknown)? {
            Frame::Fpdu(ulpdu, oracle::Flaw::None) => {
                self.note_bad(&ulpdu, arguments);
                data.extend(ulpdu);
                Ok((SEGMENT, data))
            }
            Frame::Fpdu(..) | Frame::Raw(_) => {
                Err(Stop::NotApplicable("the frame is one of MPA".into()))
            }
        }
    }

    /// Receives the next message or event until `deadline`.
    pub(super) fn receive_message(&mut self, deadline: Instant) -> Result<Option<Message>, Stop> {
        loop {
            while let Some((chunk, in_order)) = self.sctp.ready.pop_front() {
                if let Some(mut message) = self.decode_chunk(&chunk, in_order)? {
                    self.sctp.ended = message.kind == Kind::End && chunk.stream == 0;
                    self.arrived(&mut message);
                    return Ok(Some(message));
                }
            }
            match self.link.receive(deadline) {
                Received::Chunk(chunk) => self.sort(chunk)?,
                Received::Shutdown => return Ok(Some(Message::event(Kind::Shutdown))),
                Received::Reset => return Ok(Some(Message::event(Kind::Reset))),
                Received::Nothing => match self.take_early() {
                    Some(chunk) => self.sctp.ready.push_back((chunk, false)),
                    None => return Ok(None),
                },
                Received::Failed(why) => return Err(Stop::Inconclusive(why)),
                // These occur only over TCP.
                Received::Bytes(_) | Received::Segment(_) | Received::Fin => {}
            }
        }
    }

    fn sort(&mut self, chunk: Chunk) -> Result<(), Stop> {
        let count = self.sctp.streams.len();
        if count >= MAX_STREAMS && !self.sctp.streams.contains_key(&chunk.stream) {
            return Err(undecodable("the device uses more streams than the case".into()));
        }
        let mut ready = vec![];
        self.sctp.streams.entry(chunk.stream).or_default().inbound.arrive(chunk, &mut ready);
        self.sctp.ready.extend(ready);
        Ok(())
    }

    /// Removes and returns a message that is held because an earlier message is missing.
    fn take_early(&mut self) -> Option<Chunk> {
        self.sctp.streams.values_mut().find_map(|s| s.inbound.take_early())
    }

    fn decode_chunk(&mut self, chunk: &Chunk, in_order: bool) -> Result<Option<Message>, Stop> {
        let stream = self.sctp.streams.entry(chunk.stream).or_default();
        stream.found.unordered &= chunk.unordered;
        stream.found.whole &= chunk.whole;
        stream.found.sequence &= in_order;
        let unknown = || Message {
            kind: Kind::Chunk,
            fields: vec![("len", chunk.data.len() as u64)],
            data: chunk.data.clone(),
            raw: chunk.data.clone(),
        };
        let message = match (chunk.ppid, chunk.data.get(2..)) {
            (SEGMENT, Some(ulpdu)) => {
                stream.decoder.segment(ulpdu, &chunk.data).map_err(undecodable)?
            }
            (CONTROL, _) => Some(control::decode(chunk).unwrap_or_else(unknown)),
            _ => Some(unknown()),
        };
        Ok(message.map(|mut message| {
            let found = std::mem::take(&mut stream.found);
            message.fields.extend([
                ("stream", u64::from(chunk.stream)),
                ("ssn", chunk.ssn().unwrap_or(0).into()),
                ("ppid", chunk.ppid.into()),
                ("unordered", found.unordered.into()),
                ("whole", found.whole.into()),
                ("sequence", found.sequence.into()),
            ]);
            message
        }))
    }
}

fn undecodable(why: String) -> Stop {
    let expected = "messages that end".into();
    Stop::Fail(Failure { expected, received: why, bytes: vec![], timed_out: false })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::{Permits, Service, Setup, Timing};
    use crate::link::Target;
    use proptest::prelude::*;

    fn setup() -> Setup {
        let address = ([127, 0, 0, 1], 7471).into();
        Setup {
            target: Arc::new(Target::Sctp { address, udp_port: 9 }),
            service: Service::Region,
            timing: Timing::default(),
            lane: (0, 1),
            revision: 1,
            permits: Permits::default(),
        }
    }

    fn chunk() -> impl Strategy<Value = Chunk> {
        let data = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            // First segments of many messages that never end.
            any::<u32>().prop_map(|msn| {
                [&[0, 0, 1, 0x43, 0, 0, 0, 0, 0, 0, 0, 0][..], &msn.to_be_bytes(), &[0; 4]].concat()
            }),
        ];
        (0u16..3, 15u32..19, any::<bool>(), any::<bool>(), 0u16..8, data).prop_map(
            |(stream, ppid, unordered, whole, ssn, mut data)| {
                if let Some(field) = data.get_mut(..2) {
                    field.copy_from_slice(&ssn.to_be_bytes());
                }
                Chunk { stream, ppid, unordered, whole, data }
            },
        )
    }

    proptest! {
        /// Decodes any messages of a device, each at most once, and terminates.
        #[test]
        fn any_messages_are_received_without_panic(
            chunks in proptest::collection::vec(chunk(), 0..100),
        ) {
            let setup = setup();
            let mut session = Session::new(&setup);
            let count = chunks.len();
            for chunk in chunks {
                prop_assert!(session.sort(chunk).is_ok());
            }
            let mut received = 0;
            while let Ok(Some(_)) = session.receive_message(Instant::now()) {
                received += 1;
                prop_assert!(received <= count);
            }
        }
    }

    #[test]
    fn streams_are_bounded() {
        let setup = setup();
        let mut session = Session::new(&setup);
        let chunk = |stream: u16| Chunk {
            stream,
            ppid: 16,
            unordered: true,
            whole: true,
            data: vec![0; 2],
        };
        let refused = (0..2000).filter(|&s| session.sort(chunk(s)).is_err()).count();
        assert_eq!(refused, 2000 - MAX_STREAMS);
    }
}
