//! A TCP for tests, sans-IO: the owner decides which bytes of the stream each segment contains, and sees the boundaries
//! of received segments.
//!
//! ```text
//!  sent bytes       0 ..... acknowledged ..... window_end
//!  received bytes   0 ..... next ..... next + WINDOW
//! ```
//!
//! The owner sends segments in any order, possibly with holes between them. Segments wait until they fit into the
//! peer's window. Received segments beyond a hole wait until the hole is filled.
//!
//! After each call of [`Tcp::input`], [`Tcp::send`] and [`Tcp::handle_timeout`] the owner drains
//! [`Tcp::poll_transmit`] and [`Tcp::poll_arrival`].
//!
//! Not included: congestion control, window scale, SACK, probes of a closed window, TIME-WAIT. Positions and lengths
//! are bytes; position 0 is the byte after the SYN.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base::Instant;
use dialogue::segment::{Flags, Options, Segment};

/// Window to announce, bytes. Segments that end beyond the window are dropped.
const WINDOW: u16 = 65535;
/// First retransmission time-out. It doubles up to [`MAX_RTO`].
const MIN_RTO: Duration = Duration::from_millis(150);
const MAX_RTO: Duration = Duration::from_secs(2);
/// MSS of a peer that announces none (RFC 9293 §3.7.1).
const DEFAULT_MSS: u16 = 536;
/// Length of the timestamps option with its padding (RFC 7323 §3.2, appendix A), bytes.
const TIMESTAMPS: usize = 12;
/// Maximum number of segments that wait for transmission or acknowledgement.
const MAX_SEGMENTS: usize = 4096;

/// Behaviour of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// MSS to announce, bytes.
    pub mss: u16,
    /// True to use timestamps if the peer also does (RFC 7323).
    pub timestamps: bool,
    /// Flaw: takes each segment's payload as the next bytes of the stream, even if earlier bytes are missing.
    pub ignores_holes: bool,
    /// Flaw: delivers bytes again when they arrive again.
    pub takes_repeats: bool,
    /// Flaw: retransmits bytes in segments of this length (bytes) instead of the owner's segments.
    pub resegments: Option<usize>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mss: 1460,
            timestamps: false,
            ignores_holes: false,
            takes_repeats: false,
            resegments: None,
        }
    }
}

/// Event for the owner: received payload, FIN or RST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Payload of one segment, without bytes that were delivered before. Payloads are in stream order.
    Payload(Vec<u8>),
    /// FIN, after all bytes.
    Fin,
    /// RST of the peer.
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    SynSent,
    SynReceived,
    Open,
    Closed,
}

/// A segment of the owner: payload, or the FIN.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    position: u64,
    bytes: Vec<u8>,
    fin: bool,
}

impl Piece {
    fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64 + u64::from(self.fin)
    }

    /// Cuts payload into segments of at most `size` bytes.
    fn cut(self, size: usize) -> Vec<Piece> {
        if self.fin {
            return vec![self];
        }
        let part = |(index, part): (usize, &[u8])| Piece {
            position: self.position + (index * size) as u64,
            bytes: part.to_vec(),
            fin: false,
        };
        self.bytes.chunks(size).enumerate().map(part).collect()
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Tcp {
    settings: Settings,
    state: State,
    /// Port of this end, port of the peer.
    ports: (u16, u16),
    own_iss: u32,
    peer_iss: u32,
    peer_mss: u16,
    timestamps: bool,
    /// The peer's last timestamp value, to be echoed.
    echo: u32,
    now: Instant,
    /// Position up to which the peer has acknowledged the sent bytes.
    acknowledged: u64,
    /// End of the peer's window, a position in the sent bytes.
    window_end: u64,
    /// Highest position sent.
    sent_end: u64,
    /// Segments that do not fit into the peer's window yet.
    waiting: VecDeque<Piece>,
    /// Sent segments that the peer has not acknowledged completely.
    flight: Vec<Piece>,
    rto: Duration,
    timer: Option<Instant>,
    received: Received,
    output: VecDeque<Segment>,
    /// Number of received segments with payload that are still to be dropped.
    lose: usize,
}

/// The received bytes.
#[derive(Debug, Default)]
struct Received {
    /// Position of the next byte to deliver.
    next: u64,
    /// Payloads beyond a hole, by position.
    behind_hole: BTreeMap<u64, Vec<u8>>,
    /// Position of a received FIN that is not delivered yet.
    fin: Option<u64>,
    arrivals: VecDeque<Arrival>,
}

impl Tcp {
    /// Opens a connection: the first segment is the SYN.
    pub fn connect(settings: Settings, ports: (u16, u16), iss: u32, now: Instant) -> Tcp {
        let mut tcp = Tcp::new(settings, State::SynSent, ports, iss, now);
        tcp.send_syn();
        tcp
    }

    /// Accepts a connection: answers the received SYN.
    pub fn accept(settings: Settings, syn: &Segment, iss: u32, now: Instant) -> Tcp {
        let ports = (syn.dst_port, syn.src_port);
        let mut tcp = Tcp::new(settings, State::SynReceived, ports, iss, now);
        tcp.take_syn(syn);
        tcp.send_syn();
        tcp
    }

    fn new(settings: Settings, state: State, ports: (u16, u16), own_iss: u32, now: Instant) -> Tcp {
        Tcp {
            settings,
            state,
            ports,
            own_iss,
            peer_iss: 0,
            peer_mss: DEFAULT_MSS,
            timestamps: settings.timestamps,
            echo: 0,
            now,
            acknowledged: 0,
            window_end: 0,
            sent_end: 0,
            waiting: VecDeque::new(),
            flight: Vec::new(),
            rto: MIN_RTO,
            timer: None,
            received: Received::default(),
            output: VecDeque::new(),
            lose: 0,
        }
    }

    /// Returns true from the end of the handshake until a RST of either end.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns true after a RST of either end.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns the longest payload of a segment to the peer (EMSS of RFC 5044), bytes.
    pub fn emss(&self) -> usize {
        let options = if self.timestamps { TIMESTAMPS } else { 0 };
        usize::from(self.peer_mss).saturating_sub(options).max(1)
    }

    /// Limits the peer's MSS to `mss`, for a path with a smaller MTU. If the peer's MSS decreases, cuts longer segments
    /// and retransmits all data in flight.
    pub fn lower_mss(&mut self, mss: u16) {
        if mss < self.peer_mss {
            self.peer_mss = mss;
            let emss = self.emss();
            let cut = |piece: Piece| piece.cut(emss);
            self.flight = std::mem::take(&mut self.flight).into_iter().flat_map(cut).collect();
            self.waiting = std::mem::take(&mut self.waiting).into_iter().flat_map(cut).collect();
            self.retransmit();
        }
    }

    /// Drops the next `segments` received segments with payload.
    pub fn lose(&mut self, segments: usize) {
        self.lose = segments;
    }

    /// Sends `bytes` at `position` of the stream, as one segment unless they are longer than [`emss`](Self::emss).
    /// Returns false and sends nothing if too many segments wait for transmission or acknowledgement.
    pub fn send(&mut self, position: u64, bytes: &[u8]) -> bool {
        if self.waiting.len() + self.flight.len() >= MAX_SEGMENTS {
            return false;
        }
        let piece = Piece { position, bytes: bytes.to_vec(), fin: false };
        self.waiting.extend(piece.cut(self.emss()));
        self.transmit();
        true
    }

    /// Sends a FIN at `end`, the position after the last byte.
    pub fn finish(&mut self, end: u64) {
        self.waiting.push_back(Piece { position: end, bytes: vec![], fin: true });
        self.transmit();
    }

    /// Resets the connection. The peer accepts a RST only at its RCV.NXT (RFC 5961 §3.2), which is unknown while data
    /// is in flight. Sends one RST after the acknowledged bytes, and one after all sent bytes if these differ.
    pub fn reset(&mut self) {
        self.state = State::Closed;
        self.timer = None;
        let mut positions = vec![self.acknowledged, self.sent_end];
        positions.dedup();
        for position in positions {
            let reset = self.segment(position);
            self.output.push_back(Segment { flags: Flags::RST.with(Flags::ACK), ..reset });
        }
    }

    /// Returns the next segment to transmit.
    pub fn poll_transmit(&mut self) -> Option<Segment> {
        self.output.pop_front()
    }

    /// Returns the next event for the owner.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.received.arrivals.pop_front()
    }

    /// Returns the time at which to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    /// Retransmits if the time-out has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.timer.is_none_or(|time| now < time) {
            return;
        }
        self.rto = (self.rto * 2).min(MAX_RTO);
        self.timer = None;
        match self.state {
            State::SynSent | State::SynReceived => self.send_syn(),
            State::Open => self.retransmit(),
            State::Closed => {}
        }
    }

    /// Processes a segment of the peer.
    pub fn input(&mut self, now: Instant, segment: &Segment) {
        self.now = now;
        if (segment.dst_port, segment.src_port) != self.ports || self.state == State::Closed {
            return;
        }
        if segment.flags.has(Flags::RST) {
            return self.input_reset(segment);
        }
        if let Some((value, _)) = segment.options.timestamps {
            self.echo = value;
        }
        let is_syn = segment.flags.has(Flags::SYN);
        match self.state {
            State::SynSent => {
                let acknowledges = segment.ack == self.own_iss.wrapping_add(1);
                if is_syn && segment.flags.has(Flags::ACK) && acknowledges {
                    self.take_syn(segment);
                    self.open(segment);
                    self.acknowledge();
                }
                return;
            }
            State::SynReceived if is_syn => return self.send_syn(),
            State::SynReceived => {
                if segment.flags.has(Flags::ACK) && segment.ack == self.own_iss.wrapping_add(1) {
                    self.open(segment);
                }
            }
            State::Open if is_syn => return self.acknowledge(),
            State::Open | State::Closed => {}
        }
        if self.state == State::Open {
            self.input_ack(segment);
            self.input_payload(segment);
            self.transmit();
        }
    }

    fn input_reset(&mut self, segment: &Segment) {
        let offset = segment.seq.wrapping_sub(self.peer_iss.wrapping_add(1));
        let in_window = offset.wrapping_sub(self.received.next as u32) <= u32::from(WINDOW);
        let refused = self.state == State::SynSent && segment.ack == self.own_iss.wrapping_add(1);
        if refused || (self.state != State::SynSent && in_window) {
            self.state = State::Closed;
            self.timer = None;
            self.received.arrivals.push_back(Arrival::Reset);
        }
    }

    fn take_syn(&mut self, syn: &Segment) {
        self.peer_iss = syn.seq;
        self.peer_mss = syn.options.mss.unwrap_or(DEFAULT_MSS);
        self.timestamps = self.settings.timestamps && syn.options.timestamps.is_some();
        self.echo = syn.options.timestamps.map_or(0, |(value, _)| value);
        self.window_end = u64::from(syn.window);
    }

    fn open(&mut self, segment: &Segment) {
        self.state = State::Open;
        self.window_end = u64::from(segment.window);
        self.rto = MIN_RTO;
        self.timer = None;
    }

    fn input_ack(&mut self, segment: &Segment) {
        if !segment.flags.has(Flags::ACK) {
            return;
        }
        // The distance from the oldest unacknowledged byte, below 2^32.
        let sent = self.own_iss.wrapping_add(1).wrapping_add(self.acknowledged as u32);
        let advance = u64::from(segment.ack.wrapping_sub(sent));
        if self.acknowledged + advance > self.sent_end {
            return;
        }
        self.acknowledged += advance;
        self.window_end = self.window_end.max(self.acknowledged + u64::from(segment.window));
        let acknowledged = self.acknowledged;
        self.flight.retain(|piece| piece.end() > acknowledged);
        if advance > 0 {
            self.rto = MIN_RTO;
            self.timer = None;
        }
        self.arm();
    }

    fn input_payload(&mut self, segment: &Segment) {
        if segment.payload.is_empty() && !segment.flags.has(Flags::FIN) {
            return;
        }
        if !segment.payload.is_empty() && self.lose > 0 {
            self.lose -= 1;
            return;
        }
        let base = self.peer_iss.wrapping_add(1).wrapping_add(self.received.next as u32);
        // Signed: negative if the segment begins with bytes that were delivered before.
        let offset = i64::from(segment.seq.wrapping_sub(base) as i32);
        let position =
            self.received.next as i64 + if self.settings.ignores_holes { 0 } else { offset };
        self.received.place(position, &segment.payload, self.settings.takes_repeats);
        if segment.flags.has(Flags::FIN) {
            self.received.fin = u64::try_from(position + segment.payload.len() as i64).ok();
        }
        self.received.drain();
        self.acknowledge();
    }

    /// Sends waiting segments that fit into the peer's window.
    fn transmit(&mut self) {
        while self.state == State::Open
            && self.waiting.front().is_some_and(|piece| piece.end() <= self.window_end)
        {
            let Some(piece) = self.waiting.pop_front() else { break };
            self.sent_end = self.sent_end.max(piece.end());
            self.emit(&piece);
            if piece.end() > self.acknowledged {
                self.flight.push(piece);
            }
        }
        self.arm();
    }

    fn retransmit(&mut self) {
        if let Some(size) = self.settings.resegments {
            self.resegment(size);
        }
        for piece in self.flight.clone() {
            self.emit(&piece);
        }
        self.arm();
    }

    /// Flaw: joins the segments in flight, and cuts their bytes into segments of `size` bytes.
    fn resegment(&mut self, size: usize) {
        let fin = self.flight.iter().find(|piece| piece.fin).cloned();
        let Some(first) = self.flight.first().map(|piece| piece.position) else { return };
        let bytes: Vec<u8> = self.flight.iter().flat_map(|piece| piece.bytes.clone()).collect();
        let all = Piece { position: first, bytes, fin: false };
        self.flight = all.cut(size).into_iter().chain(fin).collect();
    }

    fn arm(&mut self) {
        let unanswered = matches!(self.state, State::SynSent | State::SynReceived);
        match unanswered || !self.flight.is_empty() {
            true => {
                self.timer.get_or_insert(self.now + self.rto);
            }
            false => self.timer = None,
        }
    }

    fn emit(&mut self, piece: &Piece) {
        let mut segment = self.segment(piece.position);
        segment.flags = if piece.fin { Flags::FIN } else { Flags::PSH }.with(Flags::ACK);
        segment.payload.clone_from(&piece.bytes);
        self.output.push_back(segment);
    }

    fn acknowledge(&mut self) {
        let segment = self.segment(self.sent_end);
        self.output.push_back(segment);
    }

    fn send_syn(&mut self) {
        let accepts = self.state == State::SynReceived;
        let mut segment = self.segment(0);
        segment.seq = self.own_iss;
        segment.flags = if accepts { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        segment.ack = if accepts { self.peer_iss.wrapping_add(1) } else { 0 };
        segment.options.mss = Some(self.settings.mss);
        self.output.push_back(segment);
        self.arm();
    }

    /// Returns an empty segment at `position`.
    fn segment(&self, position: u64) -> Segment {
        let value = (self.now.saturating_since(Instant::ZERO).as_millis() as u32).wrapping_add(1);
        Segment {
            src_port: self.ports.0,
            dst_port: self.ports.1,
            seq: self.own_iss.wrapping_add(1).wrapping_add(position as u32),
            ack: self.peer_iss.wrapping_add(1).wrapping_add(self.received.next as u32),
            flags: Flags::ACK,
            window: WINDOW,
            options: Options {
                timestamps: self.timestamps.then_some((value, self.echo)),
                ..Options::default()
            },
            ..Segment::default()
        }
    }
}

impl Received {
    /// Stores the new bytes of a payload. Drops them if they end beyond the window, or if more than [`WINDOW`] bytes
    /// would be stored. With `takes_repeats`, immediately delivers a payload that begins with bytes delivered before.
    fn place(&mut self, position: i64, payload: &[u8], takes_repeats: bool) {
        let old = (self.next as i64 - position).max(0) as usize;
        if old > 0 && takes_repeats && !payload.is_empty() {
            self.arrivals.push_back(Arrival::Payload(payload.to_vec()));
        }
        let Some(new) = payload.get(old..).filter(|new| !new.is_empty()) else { return };
        let position = (position + old as i64) as u64;
        let fits = position + new.len() as u64 <= self.next + u64::from(WINDOW);
        // The total of stored bytes is also limited, because stored segments may overlap.
        let kept: usize = self.behind_hole.values().map(Vec::len).sum();
        if fits && kept + new.len() <= usize::from(WINDOW) {
            let stored = self.behind_hole.entry(position).or_default();
            if stored.len() < new.len() {
                *stored = new.to_vec();
            }
        }
    }

    /// Delivers the bytes from `next` to the first hole, and the FIN after the last byte.
    fn drain(&mut self) {
        while let Some(entry) = self.behind_hole.first_entry() {
            if *entry.key() > self.next {
                break;
            }
            let (position, bytes) = entry.remove_entry();
            let old = (self.next - position) as usize;
            if let Some(new) = bytes.get(old..).filter(|new| !new.is_empty()) {
                self.next += new.len() as u64;
                self.arrivals.push_back(Arrival::Payload(new.to_vec()));
            }
        }
        if self.fin == Some(self.next) {
            self.fin = None;
            self.next += 1;
            self.arrivals.push_back(Arrival::Fin);
        }
    }
}

#[cfg(test)]
mod tests;
