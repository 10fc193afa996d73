//! The send half of a session, and its retransmissions.
//!
//! ```text
//!   DDP-SSN ->   base                       next
//!   acknowledged | Initiate | segment | ... |
//!                  unacknowledged, a record each
//! ```
//!
//! Each unacknowledged message has a record of 12 bytes. A retransmission reads the segment again from its source, if
//! the source guarantees that the bytes cannot change. Otherwise a copy is kept. Control messages are always copied.

use super::ssn_order::MAX_OUTSTANDING;
use crate::seam::{MessageRef, WrittenMessage};
use ddp::llp::{Outgoing, UlpduSource, UlpduToken};
use std::collections::VecDeque;
use transport::retransmit_buffer::{MemoryUse, RetransmitBuffer};
use wire::crc32c::{Digest, Target};
use wire::sctp::ddp::{
    ControlRepr, DdpSsn, Function, PPID_CONTROL, PPID_SEGMENT, SEGMENT_HEADER_LEN, emit_ssn,
};

/// Largest capacity, in records, that stays allocated when the record queue is empty.
const IDLE_RECORDS: usize = 64;

/// Counters of a session's send half.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SenderStats {
    /// DDP segments written for the first time.
    pub segments: u64,
    /// Session control messages written for the first time.
    pub controls: u64,
    /// Bytes of messages retransmitted.
    pub retransmitted: u64,
    /// Bytes of messages copied at present, because their source may change or is closed.
    pub kept: u64,
    /// Largest value of `kept` so far.
    pub kept_max: u64,
}

/// The send half of a session.
#[derive(Debug)]
pub struct Sender {
    stream: u16,
    /// Number of the first record's message: its DDP-SSN extended to 64 bits.
    base: u64,
    records: VecDeque<Record>,
    /// Copies of unacknowledged messages, by number.
    kept: RetransmitBuffer,
    /// True if the CRC32c of segments is computed during the copy.
    computes_crc: bool,
    /// Counters; the field `kept` is not used.
    stats: SenderStats,
}

/// An unacknowledged message.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Message and offset of the segment's [`UlpduToken`]; zero if `header_len` is zero.
    message: u32,
    offset: u32,
    payload_len: u16,
    /// Length of the DDP header, bytes. Zero for control messages and lone segments (`write_lone_segment`), whose
    /// acknowledgement is not reported to the segment source.
    header_len: u8,
    kept: bool,
}

const _: () = assert!(size_of::<Record>() == 12);

impl Record {
    fn token(&self) -> UlpduToken {
        UlpduToken { message: self.message, offset: self.offset }
    }
}

impl Sender {
    /// Creates a sender whose first message has DDP-SSN 0 (RFC 5043 §6.1).
    pub fn new(stream: u16) -> Self {
        Sender {
            stream,
            base: 0,
            records: VecDeque::new(),
            kept: RetransmitBuffer::new(),
            computes_crc: true,
            stats: SenderStats::default(),
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> SenderStats {
        SenderStats { kept: self.kept.bytes(), ..self.stats }
    }

    /// Returns the memory used by copies of unacknowledged messages.
    #[inline]
    pub fn kept_memory(&self) -> MemoryUse {
        self.kept.memory_use()
    }

    /// Limits the memory for copies of unacknowledged messages, bytes. One message may exceed the limit.
    #[inline]
    pub fn limit_kept(&mut self, bytes: u64) {
        self.kept.set_limit(bytes);
    }

    /// Sets whether the CRC32c of segments is computed. The CRC32c is not needed if a device inserts the packet's
    /// checksum.
    #[inline]
    pub fn set_crc(&mut self, enabled: bool) {
        self.computes_crc = enabled;
    }

    /// Returns true if all messages written are acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the number of acknowledged messages.
    pub fn acknowledged_count(&self) -> u64 {
        self.base
    }

    /// Returns true if another message may be outstanding (RFC 5043 §10).
    pub fn has_room(&self) -> bool {
        self.records.len() < MAX_OUTSTANDING
    }

    /// Writes the next DDP segment, at most `mulpdu` bytes, if it fits `out` and another message may be outstanding.
    /// `next_len`: length of this segment as reported by the source, bytes.
    pub fn write_segment(
        &mut self,
        source: &mut impl UlpduSource,
        mulpdu: usize,
        next_len: usize,
        out: &mut [u8],
    ) -> Option<WrittenMessage> {
        if !self.has_room() || SEGMENT_HEADER_LEN + next_len > out.len() {
            return None;
        }
        // Borrowed, not moved: a move would read the fields with wide loads directly after narrower stores, which
        // stalls the loads.
        let next = source.next(mulpdu);
        let outgoing = next.as_ref()?;
        let (ssn, len) = (self.next_ssn(), SEGMENT_HEADER_LEN + outgoing.len());
        let crc = match self.computes_crc {
            true => write_digested(ssn, outgoing, source, &mut out[..len]),
            false => {
                write(ssn, outgoing, source, &mut out[..len]);
                None
            }
        };
        let record = Record {
            message: outgoing.token.message,
            offset: outgoing.token.offset,
            payload_len: outgoing.payload_len as u16,
            header_len: outgoing.header.len() as u8,
            kept: false,
        };
        // The last available segment requests an immediate SACK, because its poster waits for the acknowledgement.
        let following_len = source.next_len(mulpdu).map(|len| (SEGMENT_HEADER_LEN + len) as u16);
        let immediate = following_len.is_none() || self.records.len() + 1 >= MAX_OUTSTANDING;
        self.stats.segments += 1;
        let bytes = (!outgoing.stable).then(|| &out[..len]);
        let message = self.push_record(record, bytes, len);
        Some(WrittenMessage {
            message,
            ppid: PPID_SEGMENT,
            immediate,
            crc,
            next_len: following_len,
        })
    }

    /// Writes a control message if it fits `out`.
    pub fn write_control(
        &mut self,
        function: Function,
        private_data: &[u8],
        out: &mut [u8],
    ) -> Option<WrittenMessage> {
        let repr = ControlRepr { ssn: self.next_ssn(), function, private_data };
        let len = repr.wire_len();
        let out = out.get_mut(..len)?;
        repr.emit(out);
        let record = Record { message: 0, offset: 0, payload_len: 0, header_len: 0, kept: false };
        self.stats.controls += 1;
        let message = self.push_record(record, Some(out), len);
        Some(WrittenMessage {
            message,
            ppid: PPID_CONTROL,
            immediate: true,
            crc: None,
            next_len: None,
        })
    }

    /// Writes a DDP segment that has no source, if it fits `out`.
    pub fn write_lone_segment(&mut self, segment: &[u8], out: &mut [u8]) -> Option<WrittenMessage> {
        let len = SEGMENT_HEADER_LEN + segment.len();
        let out = out.get_mut(..len)?;
        emit_ssn(self.next_ssn(), out);
        out[SEGMENT_HEADER_LEN..].copy_from_slice(segment);
        let record = Record { message: 0, offset: 0, payload_len: 0, header_len: 0, kept: false };
        self.stats.segments += 1;
        let message = self.push_record(record, Some(out), len);
        Some(WrittenMessage {
            message,
            ppid: PPID_SEGMENT,
            immediate: true,
            crc: None,
            next_len: None,
        })
    }

    fn next_ssn(&self) -> DdpSsn {
        // RFC 5043 §6: DDP-SSNs have no gaps.
        DdpSsn((self.base + self.records.len() as u64) as u16)
    }

    /// Adds the record of a message, and a copy of the message if `keep` contains it. Inlined, so the fields of the
    /// record stay in registers. Otherwise the record would be written field by field and read as a whole. Such a load
    /// waits for all earlier stores, including the payload's.
    #[inline(always)]
    fn push_record(&mut self, record: Record, keep: Option<&[u8]>, len: usize) -> MessageRef {
        let at = self.base + self.records.len() as u64;
        self.records.push_back(record);
        if let Some(bytes) = keep {
            self.keep(at, bytes);
        }
        MessageRef { stream: self.stream, len: len as u16, tag: at }
    }

    fn keep(&mut self, at: u64, bytes: &[u8]) {
        self.kept.keep(at, bytes);
        self.mark_kept(at);
    }

    /// Marks a message as kept, and updates `kept_max`.
    fn mark_kept(&mut self, at: u64) {
        self.records[(at - self.base) as usize].kept = true;
        self.stats.kept_max = self.stats.kept_max.max(self.kept.bytes());
    }

    /// Writes an unacknowledged message again, with the same bytes. Without a source, all messages must be kept
    /// ([`keep_all`](Self::keep_all)).
    pub fn rewrite(
        &mut self,
        source: Option<&impl UlpduSource>,
        message: MessageRef,
        out: &mut [u8],
    ) {
        self.stats.retransmitted += out.len() as u64;
        let at = message.tag;
        let Some(record) = self.record(at) else { return out.fill(0) };
        if record.kept {
            let bytes = self.kept.get(at).expect("a message that is kept");
            return out.copy_from_slice(bytes);
        }
        if let Some(source) = source {
            let outgoing = source.reframe(record.token(), usize::from(record.payload_len));
            write(DdpSsn(at as u16), &outgoing, source, out);
        }
    }

    /// Keeps a copy of all unacknowledged messages before their source is closed.
    pub fn keep_all(&mut self, source: &impl UlpduSource) {
        for at in self.base..self.base + self.records.len() as u64 {
            let record = self.records[(at - self.base) as usize];
            if record.kept {
                continue;
            }
            let outgoing = source.reframe(record.token(), usize::from(record.payload_len));
            self.kept.keep_with(at, SEGMENT_HEADER_LEN + outgoing.len(), |out| {
                write(DdpSsn(at as u16), &outgoing, source, out);
            });
            self.mark_kept(at);
        }
    }

    /// Processes the acknowledgement of the oldest outstanding message.
    pub fn on_acknowledged(&mut self, source: Option<&mut impl UlpduSource>, message: MessageRef) {
        debug_assert_eq!(message.tag, self.base);
        let Some(record) = self.records.pop_front() else { return };
        self.base += 1;
        if record.kept {
            self.kept.free_first();
        }
        if record.header_len > 0
            && let Some(source) = source
        {
            source.on_acknowledged(record.token(), usize::from(record.payload_len));
        }
        if self.records.is_empty() && self.records.capacity() > IDLE_RECORDS {
            self.records = VecDeque::new();
            self.kept = RetransmitBuffer::new();
        }
    }

    fn record(&self, at: u64) -> Option<Record> {
        let i = at.checked_sub(self.base)?;
        self.records.get(usize::try_from(i).ok()?).copied()
    }
}

/// Writes DDP-SSN, DDP header and payload into `out`, which has their length.
fn write(ssn: DdpSsn, outgoing: &Outgoing, source: &impl UlpduSource, out: &mut [u8]) {
    source.read_payload(outgoing.token, 0, write_headers(ssn, outgoing, out));
}

/// Does the same as `write`. Returns the CRC32c of the bytes written; `None` if this CPU does not copy and digest a
/// payload of this length in one pass ([`Digest::is_one_pass`]).
#[inline]
fn write_digested(
    ssn: DdpSsn,
    outgoing: &Outgoing,
    source: &impl UlpduSource,
    out: &mut [u8],
) -> Option<u32> {
    const _: () = assert!(SEGMENT_HEADER_LEN == size_of::<u16>());
    if !Digest::is_one_pass(outgoing.payload_len) {
        write(ssn, outgoing, source, out);
        return None;
    }
    let mut digest = Digest::new(false);
    outgoing.header.digest_after_length(ssn.0, &mut digest);
    let payload = write_headers(ssn, outgoing, out);
    let mut target = Target::new(payload, digest);
    source.read_digested(outgoing.token, 0, &mut target);
    Some(target.into_digest().crc())
}

/// Writes DDP-SSN and DDP header to the front of `out`. Returns the room for the payload.
#[inline]
fn write_headers<'a>(ssn: DdpSsn, outgoing: &Outgoing, out: &'a mut [u8]) -> &'a mut [u8] {
    emit_ssn(ssn, out);
    let (header, payload) = out[SEGMENT_HEADER_LEN..].split_at_mut(outgoing.header.len());
    outgoing.header.write(header);
    payload
}

/// Returns the MULPDU, bytes, for packets with messages of at most `max_message` bytes and `control_room` bytes for
/// control chunks (RFC 5043 §9). The MULPDU is at most 65,000 bytes, and at least 516 if `max_message` permits.
pub fn mulpdu(max_message: usize, control_room: usize) -> usize {
    let max_segment = max_message.saturating_sub(SEGMENT_HEADER_LEN);
    // The 16-bit length field of a DATA chunk limits the length of a ULPDU.
    max_segment.saturating_sub(control_room).max(MIN_SEGMENT).min(max_segment).min(MAX_SEGMENT)
}

/// Lower bound of the MULPDU, bytes (RFC 5043 §9).
const MIN_SEGMENT: usize = 516;
const MAX_SEGMENT: usize = 65_000;

#[cfg(test)]
mod tests {
    use super::*;
    use ddp::{
        Cookie, Message, PdId, Source, Stag, Stream, StreamConfig, StreamId, TaggedOffset,
        VecMemory,
    };

    /// RFC 5043 §10: at most 32,767 messages are outstanding, regardless of the number posted. Each acknowledgement
    /// makes room for one more.
    #[test]
    fn outstanding_messages_are_bounded() {
        let config = StreamConfig { max_posts: 40_000, ..StreamConfig::default() };
        let mut stream: Stream<VecMemory> = Stream::new(StreamId(1), PdId(1), config);
        let source: Source<VecMemory> = Source::Bytes(b"x"[..].into());
        for cookie in 0..40_000 {
            let (stag, to, source) = (Stag(1), TaggedOffset(0), source.clone());
            let message =
                Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(cookie) };
            stream.post(message).expect("room");
        }
        let (mut sender, mut out) = (Sender::new(3), [0; 64]);
        let mut sent = VecDeque::new();
        let next = |sender: &mut Sender, stream: &mut Stream<VecMemory>, out: &mut [u8]| {
            let len = stream.next_len(516)?;
            sender.write_segment(stream, 516, len, out)
        };
        while let Some(written) = next(&mut sender, &mut stream, &mut out) {
            let ssn = sent.len() as u16;
            assert_eq!(out[..2], ssn.to_be_bytes());
            // The message that fills the limit requests an immediate acknowledgement.
            assert_eq!(written.immediate, sent.len() + 1 == MAX_OUTSTANDING);
            sent.push_back(written.message);
        }
        assert_eq!(sent.len(), MAX_OUTSTANDING);
        assert!(!sender.has_room());
        for _ in 0..10 {
            let first = sent.pop_front().expect("one is outstanding");
            sender.on_acknowledged(Some(&mut stream), first);
            assert!(next(&mut sender, &mut stream, &mut out).is_some());
            assert!(next(&mut sender, &mut stream, &mut out).is_none());
        }
        assert_eq!(out[..2], 32_776_u16.to_be_bytes());
        // A large capacity is freed with the last message; a small capacity remains.
        let last = *sent.back().expect("outstanding messages");
        sent.extend((1..=10).map(|n| MessageRef { tag: last.tag + n, ..last }));
        for message in sent {
            sender.on_acknowledged(Some(&mut stream), message);
        }
        assert!(sender.is_acknowledged());
        assert_eq!(sender.records.capacity(), 0);
        let written = next(&mut sender, &mut stream, &mut out).expect("another message");
        sender.on_acknowledged(Some(&mut stream), written.message);
        assert!(sender.is_acknowledged() && sender.records.capacity() > 0);
    }

    #[test]
    fn messages_kept_in_any_order_are_retransmitted_intact() {
        let mut stream: Stream<VecMemory> =
            Stream::new(StreamId(1), PdId(1), StreamConfig::default());
        let (mut sender, mut out) = (Sender::new(3), [0; 64]);
        let mut sent = Vec::new();
        for cookie in 0..4 {
            let (stag, to, cookie) = (Stag(1), TaggedOffset(0), Cookie::user(cookie));
            let source = Source::Bytes(b"x"[..].into());
            stream.post(Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie }).expect("room");
            let len = stream.next_len(516).expect("one is posted");
            let written = sender.write_segment(&mut stream, 516, len, &mut out).expect("room");
            sent.push(written.message);
        }
        for at in [0, 2, 1, 3] {
            sender.kept.keep(at, &[at as u8; 9]);
            sender.mark_kept(at);
        }
        for (at, message) in sent.into_iter().enumerate() {
            let mut again = [0xee; 9];
            sender.rewrite(None::<&Stream<VecMemory>>, message, &mut again);
            assert_eq!(again, [at as u8; 9]);
        }
        assert_eq!(sender.stats().kept, 36);
    }
}
