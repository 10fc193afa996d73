//! The server side of perftest 4.5 with `-R`: `ib_write_bw`, `ib_write_lat`, `ib_read_bw`, `ib_read_lat`,
//! `ib_send_bw` and `ib_send_lat`.
//!
//! A client opens two streams to the same port: over the *control* stream both say who they are, over the
//! *data* stream goes what is measured. All control messages are Sends of the client, each answered by one
//! of the same length:
//!
//! ```text
//!   1  16  version, such as "6.06"                5  56  before the data stream is opened
//!   2   4  cycle buffer                           6  56  after it
//!   3   4  cache line                             7  56  where its memory is, and 8, 9, 10 once more
//!   4   2  MTU                                   ..      reports and the end: echoed
//! ```
//!
//! Nothing says which program it is, so that is seen from what it does:
//!
//! | seen | program |
//! |---|---|
//! | Writes, or Reads, on the data stream | bandwidth of Writes; bandwidth or latency of Reads: nothing to do |
//! | Sends, the client's address is no page | bandwidth of Sends: their number is written there as a credit |
//! | Sends, the address is one | latency of Sends: each is answered by one like it |
//! | ten control messages, then silence | latency of Writes: the server writes first, then answers each Write |
//!
//! *Which data stream belongs to which control stream.* Answers to message 5 wait for each other, so that
//! one client of a host opens its data stream at a time; at its message 6 the one stream of that host that
//! came since and has not said a version is its data stream. A client has [`OPENING`] for that: one that
//! does nothing does not keep the others of its host waiting.

pub mod client;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ddp::{Stag, StreamId};

use super::{Action, Actions, Arrival, Input, Place, Slot};

/// Silence after the tenth control message that means the latency of Writes. No other program is silent:
/// its first message is on the way, and has arrived whole by then.
const WRITE_LATENCY_SILENCE: Duration = Duration::from_secs(3);
/// Time in which a client has to open its data stream once it has been sent the request.
const OPENING: Duration = Duration::from_secs(10);
/// Bytes of a control message with the place of memory.
const DEST: usize = 56;
/// Bytes of the first control message.
const VERSION: usize = 16;
/// Pages are where perftest's own buffers begin; a credit counter does not.
const PAGE: u64 = 4096;
/// Answers to Writes on their way. A client waits for each before it writes again, and its Write
/// acknowledges it.
const MAX_ANSWERING: u32 = 4;

/// All clients of one listener.
#[derive(Debug)]
pub struct Perftest {
    conns: BTreeMap<StreamId, Conn>,
    /// Streams that have come so far.
    arrivals: u64,
    /// Bytes of the first Write of the latency test.
    message_size: u32,
}

#[derive(Debug)]
struct Conn {
    peer: IpAddr,
    /// The how many-th stream it is.
    number: u64,
    slot: Option<Slot>,
    reads: bool,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// Nothing was received yet.
    Unknown,
    Control(Control),
    Data(Data),
}

#[derive(Debug, Default)]
struct Control {
    /// Messages received.
    messages: u32,
    /// Its client was asked to open the data stream and has not confirmed it.
    opening: Option<Opening>,
    data: Option<StreamId>,
    /// A message whose answer waits.
    held: Option<Vec<u8>>,
    /// Where the client's memory is.
    memory: Option<Place>,
    /// When silence on the data stream has its meaning.
    silent_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Opening {
    /// Streams that had come before; none of them is the data stream.
    after: u64,
    /// When it is given up.
    until: Instant,
}

#[derive(Debug)]
struct Data {
    control: StreamId,
    /// Sends received.
    sends: u32,
    /// The credit that was written last, and whether it is still on its way.
    credit: u32,
    crediting: bool,
    /// Writes received.
    writes: u64,
    /// The client measures the latency of Writes; this many were answered.
    answered: Option<u64>,
    /// Answers, and the first Write, that the client has not acknowledged.
    answering: u32,
}

impl Perftest {
    pub(super) fn new(message_size: u32) -> Perftest {
        Perftest { conns: BTreeMap::new(), arrivals: 0, message_size }
    }

    pub(super) fn opened(&mut self, stream: StreamId, arrival: Arrival) {
        let Arrival { peer, slot, reads } = arrival;
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
                // One stream less that could be another client's data stream.
                self.go_on(peer, now, out);
            }
            (Role::Unknown, Input::Received(_)) => {
                let sentence =
                    "perftest: the first Send is not the version that perftest sends with -R";
                out.push_back((stream, Action::End(sentence.into())));
            }
            (Role::Control(control), Input::Received(bytes)) => {
                control.messages = control.messages.saturating_add(1);
                let peer = conn.peer;
                self.control(stream, bytes, now, out);
                self.go_on(peer, now, out);
            }
            (Role::Data(_), input) => self.data(stream, input, out),
            (Role::Unknown | Role::Control(_), _) => {}
        }
    }

    pub(super) fn closed(&mut self, stream: StreamId, now: Instant, out: &mut Actions) {
        let Some(conn) = self.conns.remove(&stream) else { return };
        if let Role::Control(Control { data: Some(data), .. }) = conn.role
            && self.conns.contains_key(&data)
        {
            let sentence = "perftest: its control stream has ended".to_owned();
            out.push_back((data, Action::End(sentence)));
        }
        // Who waited for it to open its data stream need not any more.
        self.go_on(conn.peer, now, out);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = |control: &Control| {
            [control.silent_until, control.opening.map(|opening| opening.until)]
        };
        self.controls().flat_map(|(_, control)| deadlines(control)).flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Actions) {
        self.expire_openings(now, out);
        self.end_silences(now, out);
    }

    /// Who was to open a data stream and has not makes room for the others of its host.
    fn expire_openings(&mut self, now: Instant, out: &mut Actions) {
        let mut late = Vec::new();
        for (&id, conn) in &mut self.conns {
            if let Role::Control(control) = &mut conn.role
                && control.opening.take_if(|opening| opening.until <= now).is_some()
            {
                late.push((id, conn.peer));
            }
        }
        for (id, peer) in late {
            let seconds = OPENING.as_secs();
            let sentence = format!("perftest: no second stream for its data within {seconds} s");
            out.push_back((id, Action::End(sentence)));
            self.go_on(peer, now, out);
        }
    }

    /// Silence on a data stream has lasted: its client measures the latency of Writes.
    fn end_silences(&mut self, now: Instant, out: &mut Actions) {
        let mut silent = Vec::new();
        for (&id, conn) in &mut self.conns {
            if let Role::Control(control) = &mut conn.role
                && control.silent_until.is_some_and(|until| until <= now)
            {
                control.silent_until = None;
                silent.push((id, control.data, control.memory));
            }
        }
        for (_, data, memory) in silent {
            let (Some(data), Some(at)) = (data, memory) else { continue };
            if let Some(Conn { role: Role::Data(known), .. }) = self.conns.get_mut(&data)
                && known.sends == 0
                && known.writes == 0
            {
                (known.answered, known.answering) = (Some(0), 1);
                // The client looks at the last byte of as many as it was configured to measure: all are 1.
                let bytes = vec![1; self.message_size as usize];
                out.push_back((data, Action::PeerIsReady));
                out.push_back((data, Action::WriteBytes { bytes, at }));
            }
        }
    }

    /// A control message; its number has been counted.
    fn control(&mut self, stream: StreamId, bytes: Vec<u8>, now: Instant, out: &mut Actions) {
        let slot = self.data_slot(stream);
        let Some(control) = self.control_of(stream) else { return };
        if control.held.is_some() {
            let sentence = "perftest: a control message before the last one was answered";
            out.push_back((stream, Action::End(sentence.into())));
            return;
        }
        match control.messages {
            // The answers to these wait for others, see `go_on`.
            5 | 6 => control.held = Some(bytes),
            7.. if bytes.len() == DEST => {
                control.memory = memory_of(&bytes).or(control.memory);
                control.silent_until =
                    (control.messages == 10).then(|| now + WRITE_LATENCY_SILENCE);
                let own = slot.map_or(bytes.clone(), |slot| dest(bytes, slot));
                answer(stream, own, out);
                self.wait_for_silence(stream);
            }
            _ => {
                control.silent_until = None;
                answer(stream, bytes, out);
            }
        }
    }

    /// Memory of the data stream of a control stream.
    fn data_slot(&self, control: StreamId) -> Option<Slot> {
        match &self.conns.get(&control)?.role {
            Role::Control(control) => self.conns.get(&control.data?)?.slot,
            _ => None,
        }
    }

    /// Silence means nothing if the client reads, or has sent something already.
    fn wait_for_silence(&mut self, stream: StreamId) {
        let Some(control) = self.control_of(stream) else { return };
        let data = control.data;
        let silent = data.and_then(|data| self.conns.get(&data)).is_some_and(|conn| {
            let sent = |data: &Data| data.sends > 0 || data.writes > 0;
            matches!(&conn.role, Role::Data(data) if !conn.reads && !sent(data))
        });
        if let Some(control) = self.control_of(stream)
            && !silent
        {
            control.silent_until = None;
        }
    }

    /// Answers what had to wait: one client of a host opens its data stream at a time.
    fn go_on(&mut self, peer: IpAddr, now: Instant, out: &mut Actions) {
        let opening = |conn: &Conn| matches!(&conn.role, Role::Control(c) if c.opening.is_some());
        let of_peer = |(_, conn): &(&StreamId, &Conn)| conn.peer == peer;
        if let Some((&stream, _)) = self.conns.iter().filter(of_peer).find(|(_, c)| opening(c)) {
            self.pair(stream, peer, out);
        }
        if self.conns.iter().filter(of_peer).any(|(_, conn)| opening(conn)) {
            return;
        }
        let waits = |conn: &Conn| matches!(&conn.role, Role::Control(c) if c.messages == 5 && c.held.is_some());
        let next = self.conns.iter().filter(of_peer).find(|(_, conn)| waits(conn));
        let Some((&stream, _)) = next else { return };
        let opening = Opening { after: self.arrivals, until: now + OPENING };
        if let Some(control) = self.control_of(stream) {
            control.opening = Some(opening);
            if let Some(bytes) = control.held.take() {
                answer(stream, bytes, out);
            }
        }
    }

    /// The client reports that its data stream is open: it is the one that has sent nothing.
    fn pair(&mut self, stream: StreamId, peer: IpAddr, out: &mut Actions) {
        let Some(control) = self.control_of(stream) else { return };
        let Some(Opening { after, .. }) = control.opening else { return };
        if control.messages < 6 || control.held.is_none() {
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
            // Another client has begun, and will soon say so.
            (Some(_), Some(_)) => return,
        };
        if let Some(conn) = self.conns.get_mut(&data) {
            let fresh = Data {
                control: stream,
                sends: 0,
                credit: 0,
                crediting: false,
                writes: 0,
                answered: None,
                answering: 0,
            };
            conn.role = Role::Data(fresh);
        }
        if let Some(control) = self.control_of(stream) {
            control.opening = None;
            control.data = Some(data);
            if let Some(bytes) = control.held.take() {
                answer(stream, bytes, out);
            }
        }
    }

    /// Something on a data stream.
    fn data(&mut self, stream: StreamId, input: Input, out: &mut Actions) {
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
                out.push_back((stream, Action::GiveBack));
                data.write_credit(stream, memory, out);
            }
            (Input::WriteDone, _) => {
                data.crediting = false;
                data.answering = data.answering.saturating_sub(1);
                if data.answered.is_none() {
                    data.write_credit(stream, memory, out);
                }
            }
            (Input::Written { len }, Some(at)) => {
                data.writes += 1;
                if let Some(answered) = &mut data.answered {
                    // An answer is as long as the Write, and stays until it is acknowledged.
                    if len > most || data.answering >= MAX_ANSWERING {
                        let sentence = "perftest: more or longer Writes than a latency test has";
                        out.push_back((stream, Action::End(sentence.into())));
                        return;
                    }
                    *answered += 1;
                    data.answering += 1;
                    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
                    // The first Write from here was number 1.
                    if let Some(last) = bytes.last_mut() {
                        *last = (*answered + 1) as u8;
                    }
                    out.push_back((stream, Action::WriteBytes { bytes, at }));
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
    /// Tells the client how many of its Sends were received, one Write at a time.
    fn write_credit(&mut self, stream: StreamId, memory: Option<Place>, out: &mut Actions) {
        if self.crediting || self.credit == self.sends {
            return;
        }
        if let Some(at) = memory {
            self.crediting = true;
            self.credit = self.sends;
            // As perftest has it: in the byte order of its host.
            let bytes = self.sends.to_le_bytes().to_vec();
            out.push_back((stream, Action::WriteBytes { bytes, at }));
        }
    }
}

fn answer(stream: StreamId, bytes: Vec<u8>, out: &mut Actions) {
    out.push_back((stream, Action::Send { bytes, answers: true }));
}

/// Digits, a dot, digits, then zeros.
fn is_version(bytes: &[u8]) -> bool {
    let text = bytes.iter().position(|&byte| byte == 0).map(|end| bytes.split_at(end));
    let Some((text, rest)) = text else { return false };
    bytes.len() == VERSION
        && text.first().is_some_and(u8::is_ascii_digit)
        && text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
        && rest.iter().all(|&byte| byte == 0)
}

// Bytes of perftest's `pingpong_dest`:
//
//   0 lid   4 out_reads   8 qpn   12 psn   16 rkey   20 (pad)   24 vaddr   32 gid   48 srqn   52 gid_index

fn memory_of(bytes: &[u8]) -> Option<Place> {
    let stag = u32::from_be_bytes(bytes.get(16..20)?.try_into().ok()?);
    let to = u64::from_be_bytes(bytes.get(24..32)?.try_into().ok()?);
    (stag != 0).then_some(Place { stag: Stag(stag), to })
}

/// The client's own message with our memory in it.
fn dest(mut bytes: Vec<u8>, slot: Slot) -> Vec<u8> {
    bytes[16..20].copy_from_slice(&slot.stag.0.to_be_bytes());
    bytes[24..32].copy_from_slice(&slot.to.to_be_bytes());
    bytes
}
