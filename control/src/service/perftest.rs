//! The server side of perftest 4.5 with `-R`: `ib_write_bw`, `ib_write_lat`, `ib_read_bw`,
//! `ib_read_lat`, `ib_send_bw` and `ib_send_lat`.
//!
//! A client opens two streams to the same port. The *control* stream carries the parameters of both ends, the *data*
//! stream the measured traffic. All control messages are Sends of the client. Each is answered by a Send of the same
//! length:
//!
//! ```text
//!   number of the message, its length in bytes, its contents:
//!
//!   1  16  version, such as "6.06"                5  56  before the data stream is opened
//!   2   4  cycle buffer                           6  56  after the data stream is opened
//!   3   4  cache line                             7  56  the client's memory, repeated in 8, 9 and 10
//!   4   2  MTU                                   ..      reports and the end: echoed
//! ```
//!
//! No message contains the program's name. The server infers it from the traffic:
//!
//! | traffic | program |
//! |---|---|
//! | Writes on the data stream | bandwidth of Writes: no action |
//! | Reads on the data stream | bandwidth or latency of Reads: no action |
//! | Sends, client's address not page-aligned | bandwidth of Sends: the server writes their count to the address |
//! | Sends, client's address page-aligned | latency of Sends: the server sends each message back |
//! | ten control messages, then silence | latency of Writes: the server writes first, then answers each Write |
//!
//! *Pairing data and control streams.* The server delays two answers. It answers message 5 when no other client at the
//! same address is opening its data stream. It answers message 6 when the data stream is identified: the only stream
//! from this address that was opened after the answer to message 5 and has not sent a message. A client must open its
//! data stream within [`OPENING_TIMEOUT`], so that it does not block other clients at its address.

pub mod client;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ddp::{Stag, StreamId};

use super::{AcceptedStream, Action, Actions, Input, RemoteBuffer, Slot};

/// Time of silence after the tenth control message from which the server infers the write latency test. In all other
/// programs the client's first message is then in flight, and is received completely within this time.
const WRITE_LATENCY_IDLE: Duration = Duration::from_secs(3);
/// Maximum time from the answer to message 5 until the client has opened its data stream.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// Length of a control message that describes memory, bytes.
const MEMORY_MESSAGE_LEN: usize = 56;
/// Length of the first control message, bytes.
const VERSION_MESSAGE_LEN: usize = 16;
/// Alignment of perftest's data buffers, bytes. perftest's credit counter is not page-aligned.
const PAGE: u64 = 4096;
/// Maximum number of unacknowledged answers in the write latency test. perftest waits for each answer before it writes
/// again, so it never has more than one.
const MAX_ANSWERING: u32 = 4;

/// All perftest streams of one listener.
#[derive(Debug)]
pub struct Perftest {
    conns: BTreeMap<StreamId, Conn>,
    /// Number of streams opened so far.
    arrivals: u64,
    /// Length of the server's first Write in the write latency test, bytes.
    message_size: u32,
}

/// A stream of a client.
#[derive(Debug)]
struct Conn {
    peer: IpAddr,
    /// Value of `arrivals` when the stream was opened.
    number: u64,
    slot: Option<Slot>,
    /// True if the peer announced that it will issue Reads (its ORD is not 0).
    reads: bool,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// No message was received yet.
    Unknown,
    Control(Control),
    Data(Data),
}

/// State of a control stream.
#[derive(Debug, Default)]
struct Control {
    /// Number of received messages.
    messages: u32,
    /// Set from the answer to message 5 until the data stream is identified.
    opening: Option<Opening>,
    /// The client's data stream, once identified.
    data: Option<StreamId>,
    /// A control message whose answer is delayed.
    delayed: Option<Vec<u8>>,
    /// The client's advertised memory.
    memory: Option<RemoteBuffer>,
    /// Time at which silence on the data stream identifies the write latency test.
    idle_deadline: Option<Instant>,
}

/// A client's permission to open its data stream.
#[derive(Clone, Copy, Debug)]
struct Opening {
    /// Number of the newest stream when the client was allowed to open its data stream, which has a higher number.
    opened_after: u64,
    /// Time by which the client must have opened the data stream.
    deadline: Instant,
}

/// State of a data stream.
#[derive(Debug)]
struct Data {
    /// The client's control stream.
    control: StreamId,
    /// Number of received Sends.
    sends: u32,
    /// Last credit written to the client: a number of received Sends.
    credit: u32,
    /// True until the Write of this credit is acknowledged.
    credit_in_flight: bool,
    /// Number of received Writes.
    writes: u64,
    /// Number of answered Writes; `None` unless this is a write latency test.
    answered_writes: Option<u64>,
    /// Number of unacknowledged answers, including the first Write.
    answers_in_flight: u32,
}

impl Perftest {
    pub(super) fn new(message_size: u32) -> Perftest {
        Perftest { conns: BTreeMap::new(), arrivals: 0, message_size }
    }

    pub(super) fn on_opened(&mut self, stream: StreamId, arrival: AcceptedStream) {
        let AcceptedStream { peer, slot, reads } = arrival;
        self.arrivals += 1;
        let number = self.arrivals;
        self.conns.insert(stream, Conn { peer, number, slot, reads, role: Role::Unknown });
    }

    pub(super) fn sessions(&self) -> usize {
        self.conns.len()
    }

    pub(super) fn input(
        &mut self,
        stream: StreamId,
        input: Input,
        now: Instant,
        out: &mut Actions,
    ) {
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        match (&mut conn.role, input) {
            (Role::Unknown, Input::Received(bytes)) if is_version(&bytes) => {
                conn.role = Role::Control(Control { messages: 1, ..Control::default() });
                let peer = conn.peer;
                answer(stream, bytes, out);
                // This stream is no longer a candidate for the data stream of another client.
                self.send_delayed_answers(peer, now, out);
            }
            (Role::Unknown, Input::Received(_)) => {
                let sentence =
                    "perftest: the first Send is not the version that perftest sends with -R";
                out.push_back((stream, Action::End(sentence.into())));
            }
            (Role::Control(control), Input::Received(bytes)) => {
                control.messages = control.messages.saturating_add(1);
                let peer = conn.peer;
                self.on_control_message(stream, bytes, now, out);
                self.send_delayed_answers(peer, now, out);
            }
            (Role::Data(_), input) => self.on_data_event(stream, input, out),
            (Role::Unknown | Role::Control(_), _) => {}
        }
    }

    pub(super) fn on_closed(&mut self, stream: StreamId, now: Instant, out: &mut Actions) {
        let Some(conn) = self.conns.remove(&stream) else { return };
        if let Role::Control(Control { data: Some(data), .. }) = conn.role
            && self.conns.contains_key(&data)
        {
            let sentence = "perftest: its control stream has ended".to_owned();
            out.push_back((data, Action::End(sentence)));
        }
        // Other clients at the peer's address no longer wait for this client's data stream.
        self.send_delayed_answers(conn.peer, now, out);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = |control: &Control| {
            [control.idle_deadline, control.opening.map(|opening| opening.deadline)]
        };
        self.controls().flat_map(|(_, control)| deadlines(control)).flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Actions) {
        self.expire_openings(now, out);
        self.expire_idle_timers(now, out);
    }

    /// Ends clients that did not open their data stream in time. The next client at their address continues.
    fn expire_openings(&mut self, now: Instant, out: &mut Actions) {
        let mut expired = Vec::new();
        for (&id, conn) in &mut self.conns {
            if let Role::Control(control) = &mut conn.role
                && control.opening.take_if(|opening| opening.deadline <= now).is_some()
            {
                expired.push((id, conn.peer));
            }
        }
        for (id, peer) in expired {
            let seconds = OPENING_TIMEOUT.as_secs();
            let sentence = format!("perftest: no second stream for its data within {seconds} s");
            out.push_back((id, Action::End(sentence)));
            self.send_delayed_answers(peer, now, out);
        }
    }

    /// Handles expired silence timers. Silence on a data stream means a write latency test: the server writes first.
    fn expire_idle_timers(&mut self, now: Instant, out: &mut Actions) {
        let mut silent = Vec::new();
        for (&id, conn) in &mut self.conns {
            if let Role::Control(control) = &mut conn.role
                && control.idle_deadline.is_some_and(|until| until <= now)
            {
                control.idle_deadline = None;
                silent.push((id, control.data, control.memory));
            }
        }
        for (_, data, memory) in silent {
            let (Some(data), Some(at)) = (data, memory) else { continue };
            if let Some(Conn { role: Role::Data(known), .. }) = self.conns.get_mut(&data)
                && known.sends == 0
                && known.writes == 0
            {
                (known.answered_writes, known.answers_in_flight) = (Some(0), 1);
                // The client polls the last byte of a message of its size `-s`, which is unknown to the server.
                // Therefore all bytes are 1.
                let bytes = vec![1; self.message_size as usize];
                out.push_back((data, Action::AllowSend));
                out.push_back((data, Action::WriteBytes { bytes, destination: at }));
            }
        }
    }

    /// Handles a control message, already counted in `messages`. Answers it or delays the answer.
    fn on_control_message(
        &mut self,
        stream: StreamId,
        bytes: Vec<u8>,
        now: Instant,
        out: &mut Actions,
    ) {
        let slot = self.data_slot(stream);
        let Some(control) = self.control_of(stream) else { return };
        if control.delayed.is_some() {
            let sentence = "perftest: a control message before the last one was answered";
            out.push_back((stream, Action::End(sentence.into())));
            return;
        }
        match control.messages {
            // These answers depend on other clients; see `send_delayed_answers`.
            5 | 6 => control.delayed = Some(bytes),
            7.. if bytes.len() == MEMORY_MESSAGE_LEN => {
                control.memory = parse_memory(&bytes).or(control.memory);
                control.idle_deadline = (control.messages == 10).then(|| now + WRITE_LATENCY_IDLE);
                let own = slot.map_or(bytes.clone(), |slot| memory_message(bytes, slot));
                answer(stream, own, out);
                self.stop_idle_timer(stream);
            }
            _ => {
                control.idle_deadline = None;
                answer(stream, bytes, out);
            }
        }
    }

    /// Returns the slot of the data stream that belongs to a control stream. `None` if there is no such stream or it
    /// has no slot.
    fn data_slot(&self, control: StreamId) -> Option<Slot> {
        match &self.conns.get(&control)?.role {
            Role::Control(control) => self.conns.get(&control.data?)?.slot,
            _ => None,
        }
    }

    /// Stops the silence timer if the client will read or has already sent.
    fn stop_idle_timer(&mut self, stream: StreamId) {
        let Some(control) = self.control_of(stream) else { return };
        let data = control.data;
        let silent = data.and_then(|data| self.conns.get(&data)).is_some_and(|conn| {
            let sent = |data: &Data| data.sends > 0 || data.writes > 0;
            matches!(&conn.role, Role::Data(data) if !conn.reads && !sent(data))
        });
        if let Some(control) = self.control_of(stream)
            && !silent
        {
            control.idle_deadline = None;
        }
    }

    /// Pairs streams if possible, and sends the delayed answers that are permitted then. At most one client at an
    /// address opens its data stream at a time.
    fn send_delayed_answers(&mut self, peer: IpAddr, now: Instant, out: &mut Actions) {
        let opening = |conn: &Conn| matches!(&conn.role, Role::Control(c) if c.opening.is_some());
        let of_peer = |(_, conn): &(&StreamId, &Conn)| conn.peer == peer;
        if let Some((&stream, _)) = self.conns.iter().filter(of_peer).find(|(_, c)| opening(c)) {
            self.pair_streams(stream, peer, out);
        }
        if self.conns.iter().filter(of_peer).any(|(_, conn)| opening(conn)) {
            return;
        }
        let waits = |conn: &Conn| matches!(&conn.role, Role::Control(c) if c.messages == 5 && c.delayed.is_some());
        let next = self.conns.iter().filter(of_peer).find(|(_, conn)| waits(conn));
        let Some((&stream, _)) = next else { return };
        let opening = Opening { opened_after: self.arrivals, deadline: now + OPENING_TIMEOUT };
        if let Some(control) = self.control_of(stream) {
            control.opening = Some(opening);
            if let Some(bytes) = control.delayed.take() {
                answer(stream, bytes, out);
            }
        }
    }

    /// Pairs a control stream with its data stream once the client reports, by message 6, that the data stream is open.
    /// The data stream is the only new stream without received messages.
    fn pair_streams(&mut self, stream: StreamId, peer: IpAddr, out: &mut Actions) {
        let Some(control) = self.control_of(stream) else { return };
        let Some(Opening { opened_after: after, .. }) = control.opening else { return };
        if control.messages < 6 || control.delayed.is_none() {
            return;
        }
        let unknown = |(_, conn): &(&StreamId, &Conn)| {
            conn.peer == peer && conn.number > after && matches!(conn.role, Role::Unknown)
        };
        let mut candidates = self.conns.iter().filter(unknown).map(|(&id, _)| id);
        let data = match (candidates.next(), candidates.next()) {
            (None, _) => {
                let sentence = "perftest: the client has no second stream for its data";
                out.push_back((stream, Action::End(sentence.into())));
                return;
            }
            (Some(data), None) => data,
            // All candidates but one are control streams of other clients, which have not sent their version yet. The
            // pairing is tried again when one of them has sent it.
            (Some(_), Some(_)) => return,
        };
        if let Some(conn) = self.conns.get_mut(&data) {
            let fresh = Data {
                control: stream,
                sends: 0,
                credit: 0,
                credit_in_flight: false,
                writes: 0,
                answered_writes: None,
                answers_in_flight: 0,
            };
            conn.role = Role::Data(fresh);
        }
        if let Some(control) = self.control_of(stream) {
            control.opening = None;
            control.data = Some(data);
            if let Some(bytes) = control.delayed.take() {
                answer(stream, bytes, out);
            }
        }
    }

    fn on_data_event(&mut self, stream: StreamId, input: Input, out: &mut Actions) {
        let Some(Conn { role: Role::Data(data), .. }) = self.conns.get(&stream) else { return };
        let memory = match self.conns.get(&data.control).map(|conn| &conn.role) {
            Some(Role::Control(control)) => control.memory,
            _ => None,
        };
        let Some(Conn { role: Role::Data(data), slot, .. }) = self.conns.get_mut(&stream) else {
            return;
        };
        let most = slot.map_or(0, |slot| slot.len);
        match (input, memory) {
            (Input::Received(bytes), Some(at)) if at.to % PAGE == 0 => {
                data.sends = data.sends.wrapping_add(1);
                answer(stream, bytes, out);
            }
            (Input::Received(_), _) => {
                data.sends = data.sends.wrapping_add(1);
                out.push_back((stream, Action::RepostBuffer));
                data.write_credit(stream, memory, out);
            }
            (Input::WriteDone, _) => {
                data.credit_in_flight = false;
                data.answers_in_flight = data.answers_in_flight.saturating_sub(1);
                if data.answered_writes.is_none() {
                    data.write_credit(stream, memory, out);
                }
            }
            (Input::Written { len }, Some(at)) => {
                data.writes += 1;
                if let Some(answered) = &mut data.answered_writes {
                    // An answer has the length of the Write, and is buffered until acknowledged. Therefore both length
                    // and number are bounded.
                    if len > most || data.answers_in_flight >= MAX_ANSWERING {
                        let sentence = "perftest: more or longer Writes than a latency test has";
                        out.push_back((stream, Action::End(sentence.into())));
                        return;
                    }
                    *answered += 1;
                    data.answers_in_flight += 1;
                    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
                    // The last byte of each Write of the server is the number of that Write. The first one had number
                    // 1.
                    if let Some(last) = bytes.last_mut() {
                        *last = (*answered + 1) as u8;
                    }
                    out.push_back((stream, Action::WriteBytes { bytes, destination: at }));
                }
            }
            (Input::Written { .. }, None) => data.writes += 1,
            (Input::ReadDone, _) => {}
        }
    }

    fn control_of(&mut self, stream: StreamId) -> Option<&mut Control> {
        match &mut self.conns.get_mut(&stream)?.role {
            Role::Control(control) => Some(control),
            _ => None,
        }
    }

    fn controls(&self) -> impl Iterator<Item = (&StreamId, &Control)> {
        self.conns.iter().filter_map(|(id, conn)| match &conn.role {
            Role::Control(control) => Some((id, control)),
            _ => None,
        })
    }
}

impl Data {
    /// Writes the number of received Sends to the client as its credit. At most one such Write is in flight.
    fn write_credit(&mut self, stream: StreamId, memory: Option<RemoteBuffer>, out: &mut Actions) {
        if self.credit_in_flight || self.credit == self.sends {
            return;
        }
        if let Some(at) = memory {
            self.credit_in_flight = true;
            self.credit = self.sends;
            // perftest uses the host's byte order; the client's host is assumed to be little-endian.
            let bytes = self.sends.to_le_bytes().to_vec();
            out.push_back((stream, Action::WriteBytes { bytes, destination: at }));
        }
    }
}

fn answer(stream: StreamId, bytes: Vec<u8>, out: &mut Actions) {
    out.push_back((stream, Action::Send { bytes, answers: true }));
}

/// Returns true for a version: digits and dots, padded with zeros.
fn is_version(bytes: &[u8]) -> bool {
    let text = bytes.iter().position(|&byte| byte == 0).map(|end| bytes.split_at(end));
    let Some((text, rest)) = text else { return false };
    bytes.len() == VERSION_MESSAGE_LEN
        && text.first().is_some_and(u8::is_ascii_digit)
        && text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
        && rest.iter().all(|&byte| byte == 0)
}

// Layout of perftest's `pingpong_dest`, offsets in bytes:
//
//   0 lid   4 out_reads   8 qpn   12 psn   16 rkey   20 (pad)   24 vaddr   32 gid   48 srqn   52 gid_index

fn parse_memory(bytes: &[u8]) -> Option<RemoteBuffer> {
    let stag = u32::from_be_bytes(bytes.get(16..20)?.try_into().ok()?);
    let to = u64::from_be_bytes(bytes.get(24..32)?.try_into().ok()?);
    (stag != 0).then_some(RemoteBuffer { stag: Stag(stag), to })
}

/// Returns the client's own message with the slot in place of the client's memory.
fn memory_message(mut bytes: Vec<u8>, slot: Slot) -> Vec<u8> {
    bytes[16..20].copy_from_slice(&slot.stag.0.to_be_bytes());
    bytes[24..32].copy_from_slice(&slot.to.to_be_bytes());
    bytes
}
