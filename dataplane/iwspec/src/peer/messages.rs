//! DDP and RDMAP of the reference peer: checks, placement and answers. The triples are layer, type and code of a
//! Terminate (RFC 5040 §4.8).

use std::sync::PoisonError;

use oracle::segment::{Model, READ_HEADER, ReadRequest, Segment, TAGGED_HEADER, UNTAGGED_HEADER};

use super::connection::{Connection, End};
use super::memory::{BUFFER, REGIONS};
use super::numbers::{access, opcode, rdmap, tagged, untagged};
use crate::device::Service;
use crate::message::Kind;
use crate::stream::Stream;

/// Maximum MULPDU, and maximum payload of an untagged segment, bytes. Longer messages have several segments.
const MULPDU: usize = 1024;
/// Size of rping's buffer, bytes.
const PING: u64 = 64;
/// Maximum MO at which the peer places data, even if a flaw disables the check.
const MAX_OFFSET: usize = 1 << 20;

/// Length of the timestamps option with its padding (RFC 7323 §3.2, appendix A), bytes.
const TIMESTAMPS: usize = 12;

/// Returns the MULPDU with markers and CRC for an EMSS (RFC 5044 §4.5), bytes; at least 128 and at most [`MULPDU`].
fn mulpdu(emss: usize) -> usize {
    emss.saturating_sub(6 + 4 * emss.div_ceil(512) + emss % 4).clamp(128, MULPDU)
}

/// Returns RsvdULP of an untagged segment as fields of a frame.
fn rsvd_ulp(s: &Segment, invalidate: u32) -> String {
    let (rv, reserved, op) = (s.rdmap_version(), s.rdmap_reserved(), s.opcode());
    format!("rv={rv} rdmap-reserved={reserved} op={op} inv={invalidate}")
}

impl Connection<'_> {
    /// Returns true if the peer uses DDP without RDMAP.
    pub(super) fn is_bare(&self) -> bool {
        self.config.service == Service::Ddp
    }

    /// Processes the segment in `current`.
    pub(super) fn segment(&mut self) -> Result<(), End> {
        let tagged = self.current.first().is_some_and(|c| c & 0x80 != 0);
        let length = self.current.len();
        self.check("tagged-short", tagged && length < TAGGED_HEADER, tagged::INVALID_VERSION)?;
        self.check(
            "untagged-short",
            !tagged && length < UNTAGGED_HEADER,
            untagged::INVALID_VERSION,
        )?;
        let Some(s) = Segment::parse(&self.current) else { return Ok(()) };
        let version = (
            if tagged { "tagged-version" } else { "untagged-version" },
            if tagged { tagged::INVALID_VERSION } else { untagged::INVALID_VERSION },
        );
        self.check(version.0, s.version != u8::from(!self.draft), version.1)?;
        if s.reserved != 0 && !self.makes("ddp-reserved-is-ignored") {
            return Err(End::Error);
        }
        match s.model {
            Model::Tagged { stag, to } => self.tagged(&s, stag, to),
            Model::Untagged { invalidate, qn, msn, mo } => {
                self.untagged(&s, invalidate, qn, msn, mo)
            }
        }
    }

    /// Checks the fields of RDMAP. Bare DDP does not interpret RsvdULP.
    fn rdmap(&mut self, s: &Segment, allowed: bool) -> Result<(), End> {
        if self.is_bare() {
            let wrong = s.rdmap != 0 && self.behaves("check-rsvdulp");
            return if wrong { Err(End::Error) } else { Ok(()) };
        }
        self.check("rdmap-version", s.rdmap_version() != 1, rdmap::INVALID_VERSION)?;
        self.check("opcode", !allowed, rdmap::UNEXPECTED_OPCODE)?;
        if s.rdmap_reserved() != 0 && !self.makes("rdmap-reserved-is-ignored") {
            return Err(End::Error);
        }
        Ok(())
    }

    fn tagged(&mut self, s: &Segment, stag: u32, to: u64) -> Result<(), End> {
        let length = s.payload.len();
        let response = s.opcode() == opcode::READ_RESPONSE && !self.is_bare();
        if length > 0 || !self.makes("zero-length-is-unchecked") {
            let region = self.region(stag);
            let reading = self.queues.reading.is_some_and(|(sink, _, _)| sink == stag);
            let writable = region.is_some_and(|at| REGIONS[at].access & access::WRITE != 0)
                || response && reading;
            self.check("stag", !writable, tagged::INVALID_STAG)?;
            let Some(at) = region else { return Ok(()) };
            let end = to.checked_add(length as u64);
            self.check("wrap", end.is_none(), tagged::TO_WRAP)?;
            let inside = to >= REGIONS[at].base && end.is_some_and(|e| e <= self.limit(at));
            if !inside && self.behaves("place-before-check") {
                self.place(at, to, &s.payload);
            }
            self.check("bounds", !inside, tagged::BOUNDS)?;
            self.rdmap(s, matches!(s.opcode(), opcode::WRITE | opcode::READ_RESPONSE))?;
            let behind = std::mem::replace(&mut self.queues.within_write, !s.last);
            let lost = behind && self.behaves("lose-later-segments");
            if !self.behaves("lose-writes") && !lost {
                self.place(at, to.wrapping_add(u64::from(self.behaves("misplace"))), &s.payload);
            }
        } else {
            self.rdmap(s, matches!(s.opcode(), opcode::WRITE | opcode::READ_RESPONSE))?;
            if self.behaves("clear-on-zero") {
                self.place(0, REGIONS[0].base, &[0; 64]);
            }
        }
        if response {
            self.response(s, stag, to)?;
        } else if self.behaves("answer-writes") {
            self.hold(Kind::Send, "len=4".into());
        }
        Ok(())
    }

    /// Returns the index of the region with this STag; `None` if the STag is unknown or invalidated.
    pub(super) fn region(&self, stag: u32) -> Option<usize> {
        let invalid = self.queues.invalidated.contains(&stag);
        REGIONS.iter().position(|r| r.stag == stag).filter(|_| !invalid)
    }

    /// Returns the TO after the last byte that the peer permits to access in a region.
    pub(super) fn limit(&self, region: usize) -> u64 {
        let length = match self.config.service {
            Service::Rping => PING as usize,
            _ => REGIONS[region].length,
        };
        REGIONS[region].base + length as u64 - u64::from(self.behaves("short-region"))
    }

    fn place(&mut self, region: usize, to: u64, payload: &[u8]) {
        let from = to.wrapping_sub(REGIONS[region].base);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, &byte) in (0..).zip(payload) {
            if let Some(place) = memory[region].get_mut(from.wrapping_add(index) as usize) {
                *place = byte;
            }
        }
    }

    /// Checks that a Read Response matches the outstanding Read Request (RFC 5040 §5.2.2). After the last segment,
    /// completes the Read and queues a Send.
    fn response(&mut self, s: &Segment, stag: u32, to: u64) -> Result<(), End> {
        let length = s.payload.len() as u32;
        let wrong = match self.queues.reading {
            Some((sink, next, left)) => {
                sink != stag
                    || next != to && length > 0
                    || length > left
                    || s.last && length != left
            }
            None => true,
        };
        self.check("response", wrong, tagged::INVALID_STAG)?;
        let Some((sink, next, left)) = self.queues.reading else { return Ok(()) };
        self.queues.reading = Some((sink, next + u64::from(length), left.saturating_sub(length)));
        if s.last {
            self.queues.reading = None;
            self.hold(Kind::Send, "len=16 data=fill:0".into());
        }
        Ok(())
    }

    fn untagged(
        &mut self,
        s: &Segment,
        invalidate: u32,
        qn: u32,
        msn: u32,
        mo: u32,
    ) -> Result<(), End> {
        // Bare DDP has queue 0 for messages, and queue 2 for the last message.
        let unknown = qn > 2 || self.is_bare() && qn == 1;
        self.check("queue", unknown, untagged::INVALID_QN)?;
        let queue = qn.min(3) as usize;
        let ahead = msn.wrapping_sub(self.queues.msn[queue]);
        self.check("buffer", (1..1 << 16).contains(&ahead), untagged::NO_BUFFER)?;
        self.check("msn", ahead != 0, untagged::INVALID_MSN)?;
        let (from, have) = (mo as usize, self.queues.partial[queue].bytes);
        self.check("too-long", have + s.payload.len() > BUFFER, untagged::TOO_LONG)?;
        let early = from != have && self.behaves("increasing-only");
        let hole = s.last && from.saturating_add(s.payload.len()) != have + s.payload.len();
        self.check("mo", hole || early || from > MAX_OFFSET, untagged::INVALID_MO)?;
        let allowed = match s.opcode() {
            opcode::SEND..=opcode::SEND_SE_INVALIDATE
            | opcode::IMMEDIATE
            | opcode::IMMEDIATE_SE => qn == 0,
            opcode::READ_REQUEST | opcode::ATOMIC_REQUEST => qn == 1,
            opcode::TERMINATE => qn == 2,
            _ => false,
        };
        self.rdmap(s, allowed)?;
        self.queues.partial[queue].place(from.min(MAX_OFFSET), &s.payload);
        if !s.last && !self.behaves("deliver-segments") {
            return Ok(());
        }
        let message = std::mem::take(&mut self.queues.partial[queue]).data;
        let counter = if self.behaves("one-counter") { 0..4 } else { queue..queue + 1 };
        self.queues.msn[counter].fill(msn.wrapping_add(1));
        if self.is_bare() {
            if qn == 2 {
                return Err(End::Error);
            }
            self.echo(&message, &rsvd_ulp(s, invalidate));
            return Ok(());
        }
        match s.opcode() {
            opcode::READ_REQUEST => self.read_request(&message),
            opcode::ATOMIC_REQUEST => self.atomic(&message),
            opcode::IMMEDIATE | opcode::IMMEDIATE_SE => {
                self.check("immediate-length", message.len() != 8, rdmap::CATASTROPHIC)?;
                self.deliver(&message);
                Ok(())
            }
            opcode::TERMINATE if self.behaves("continue-after-terminate") => Ok(()),
            opcode::TERMINATE => {
                if self.behaves("answer-terminate") {
                    self.send(Kind::Terminate, "layer=0 type=2 code=7");
                    self.flush()?;
                }
                Err(End::Error)
            }
            send => {
                let invalidates =
                    matches!(send, opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
                if invalidate != 0
                    && matches!(send, opcode::SEND | opcode::SEND_SE)
                    && !self.makes("invalidate-is-ignored")
                {
                    return Err(End::Error);
                }
                let known = self.region(invalidate).is_some();
                if std::mem::take(&mut self.ready) && message.is_empty() {
                    return if self.behaves("ready-to-ulp") { Err(End::Error) } else { Ok(()) };
                }
                self.check("invalidate", invalidates && !known, rdmap::INVALID_STAG)?;
                if invalidates && !self.behaves("keep-invalidated") {
                    self.queues.invalidated.push(invalidate);
                }
                self.deliver(&message);
                Ok(())
            }
        }
    }

    fn read_request(&mut self, message: &[u8]) -> Result<(), End> {
        self.check("read-length", message.len() != READ_HEADER, rdmap::CATASTROPHIC)?;
        let Some(r) = ReadRequest::parse(message) else { return Ok(()) };
        let mut data = vec![];
        if r.size > 0 || !self.makes("zero-length-is-unchecked") {
            let region = self.region(r.source_stag);
            self.check("read-stag", region.is_none(), rdmap::INVALID_STAG)?;
            let at = region.unwrap_or(0);
            self.check("read-access", REGIONS[at].access & access::READ == 0, rdmap::ACCESS)?;
            let end = r.source_to.checked_add(u64::from(r.size));
            self.check("read-wrap", end.is_none(), rdmap::TO_WRAP)?;
            let limit = self.limit(at);
            let inside = r.source_to >= REGIONS[at].base && end.is_some_and(|e| e <= limit);
            self.check("read-bounds", !inside, rdmap::BOUNDS)?;
            let from = r.source_to.wrapping_sub(REGIONS[at].base) as usize;
            let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            data = memory[at].iter().copied().skip(from).take(r.size as usize).collect();
        }
        let room = self.payload_room();
        let chunks: Vec<&[u8]> =
            if data.is_empty() { vec![&[]] } else { data.chunks(room).collect() };
        let mut frames = String::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let digits: String = chunk.iter().map(|b| format!("{b:02x}")).collect();
            let to = r.sink_to.wrapping_add((index * room) as u64);
            let last = u8::from(index + 1 == chunks.len());
            frames += &format!("stag={} to={to} last={last} data=hex:{digits}\n", r.sink_stag);
        }
        self.hold(Kind::Response, frames);
        Ok(())
    }

    /// Returns the maximum payload of a tagged segment, bytes: MULPDU (RFC 5044 §4.5) minus the header.
    fn payload_room(&self) -> usize {
        let emss = self.stream.as_ref().map_or(MULPDU, Stream::emss);
        let mulpdu = match (self.behaves("big-fpdus"), self.behaves("tiny-fpdus")) {
            (true, _) => MULPDU,
            (_, true) => 64,
            _ if self.behaves("options-are-free") => mulpdu(emss + TIMESTAMPS),
            _ if self.behaves("first-emss") => mulpdu(self.first_emss),
            _ => mulpdu(emss),
        };
        mulpdu - TAGGED_HEADER
    }

    /// Queues the frames of an answer. Each line of `frames` has the arguments of one frame. The frames are sent after
    /// the input is processed.
    pub(super) fn hold(&mut self, kind: Kind, frames: String) {
        self.held.push((kind, frames));
    }

    /// Appends the frames of the queued answers to the output.
    pub(super) fn release(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        if self.behaves("reorder") {
            held.reverse();
        }
        for (kind, frames) in held {
            frames.lines().for_each(|frame| self.send(kind, frame));
        }
    }

    /// Passes the data of a Send or of Immediate Data to the service.
    fn deliver(&mut self, message: &[u8]) {
        match self.config.service {
            Service::Echo | Service::Peer => self.echo(message, ""),
            Service::Rping => self.rping(message),
            Service::Perftest => self.perftest(message),
            Service::Region | Service::Sink | Service::Ddp => {}
        }
    }

    /// Answers a control message of perftest with the same bytes. The seventh answer announces the peer's buffer.
    fn perftest(&mut self, message: &[u8]) {
        self.queues.rounds += 1;
        let mut answer = message.to_vec();
        if self.queues.rounds == 7 && answer.len() == 56 {
            answer[16..20].copy_from_slice(&REGIONS[0].stag.to_be_bytes());
            answer[24..32].copy_from_slice(&REGIONS[0].base.to_be_bytes());
        }
        let digits: String = answer.iter().map(|b| format!("{b:02x}")).collect();
        self.hold(Kind::Send, format!("data=hex:{digits}"));
    }

    /// Answers a message with the same bytes, in segments of at most [`MULPDU`] bytes. `words` are more fields of each
    /// segment.
    fn echo(&mut self, message: &[u8], words: &str) {
        let chunks: Vec<&[u8]> =
            if message.is_empty() { vec![&[]] } else { message.chunks(MULPDU).collect() };
        let mut frames = String::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let digits: String = chunk.iter().map(|b| format!("{b:02x}")).collect();
            let last = u8::from(index + 1 == chunks.len());
            frames += &format!("mo={} last={last} data=hex:{digits} {words}\n", index * MULPDU);
        }
        self.hold(Kind::Send, frames);
    }

    fn rping(&mut self, message: &[u8]) {
        self.queues.rounds += 1;
        if message.len() != 16 {
            return;
        }
        let number = |from: usize, to: usize| {
            message[from..to].iter().fold(0u64, |n, &b| n << 8 | u64::from(b))
        };
        let (to, stag, size) = (number(0, 8), number(8, 12), number(12, 16).min(PING));
        if stag == 0 {
            // The server requests the announcement of the next buffer.
            self.announce();
            return;
        }
        let (sink, base) = (REGIONS[0].stag, REGIONS[0].base);
        if self.queues.rounds % 2 == 1 {
            self.queues.reading = Some((sink, base, size as u32));
            self.hold(
                Kind::Read,
                format!("sink={sink} sink-to={base} stag={stag} to={to} len={size}"),
            );
        } else {
            self.hold(Kind::Write, format!("stag={stag} to={to} len={size}"));
            self.hold(Kind::Send, "len=16 data=fill:0".into());
        }
    }

    /// Announces the buffer of an rping client, which is source and sink.
    pub(super) fn announce(&mut self) {
        let (stag, base) = (REGIONS[0].stag, REGIONS[0].base);
        self.hold(Kind::Send, format!("data=hex:{base:016x}{stag:08x}{PING:08x}"));
        self.release();
    }
}
