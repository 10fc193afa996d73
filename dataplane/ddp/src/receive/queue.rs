//! One queue of untagged buffers: the range of MSNs that may arrive, and the reassembly of messages (RFC 5041
//! §5.1.2, §7.1).
//!
//! ```text
//!   MSN ->   delivered | next ....... next + posted - 1 | not yet possible
//! ```
//!
//! A buffer is taken from the pool when the first byte of its message arrives. In a queue with posted receives, the
//! [receiver](super::posted) places the payload into the memory of the message's receive.

use base::LazyDeque;
use wire::ddp::UntaggedRepr;
use wire::rdmap::IMMEDIATE_LEN;
use wire::{Msn, Qn};

use super::{InsertError, Ranges};
use crate::buffers::{Account, BufferPool};
use crate::checks::{ReceiveUse, Reject};
use crate::config::QueueConfig;
use crate::error::{ErrorCode, Field, Mismatch, PostError};
use crate::llp::OrderKey;

/// Maximum number of posted buffers: half of the MSN space, so that MSNs can be compared across the wrap.
const MAX_POSTED: u32 = i32::MAX as u32;
/// Maximum number of bytes of a message that are delivered and not placed: Immediate Data (RFC 7306 §6).
pub(super) const INLINE_LEN: usize = IMMEDIATE_LEN;

#[derive(Debug)]
pub(super) struct Queue {
    qn: Qn,
    /// Without posted receives: length of each pooled buffer, bytes. With posted receives, or with receives of a shared
    /// source: maximum number of receives; 0 once no further receive can be posted or taken from the source.
    limit: u32,
    /// MSN of the oldest message that is not delivered.
    next: Msn,
    /// Unused buffers or posted receives, for the message `next` and those after it. With a shared source: equal to
    /// `limit`.
    posted: u32,
    /// Messages in reassembly, by MSN.
    assemblies: LazyDeque<Assembly>,
}

/// A message in reassembly.
#[derive(Debug)]
struct Assembly {
    msn: Msn,
    data: Vec<u8>,
    /// Byte ranges of the segments processed in order.
    ranges: Ranges,
    /// Key of the segment with the Last flag, once it has arrived.
    last: Option<OrderKey>,
    /// True if the pool accounts the buffer as reserved in order, not beyond a gap.
    in_order: bool,
    storage: Storage,
}

/// Storage of an assembly's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Storage {
    /// A pooled buffer: `data`.
    Pooled,
    /// A posted receive; no byte has arrived.
    Unused,
    /// The memory of a posted receive.
    Placed,
    /// The first bytes are in `data`; the message uses up a receive.
    Inline,
    /// Some segments were placed in the receive, others were inline.
    Mixed,
}

impl Storage {
    /// Returns the storage of a message for a posted receive after one more segment.
    fn with_segment(self, usage: ReceiveUse) -> Storage {
        match (self, usage) {
            (_, ReceiveUse::Ready | ReceiveUse::Undecided) => self,
            (Storage::Unused | Storage::Placed, ReceiveUse::Placed) => Storage::Placed,
            (Storage::Unused | Storage::Inline, ReceiveUse::Inline) => Storage::Inline,
            _ => Storage::Mixed,
        }
    }
}

impl Queue {
    pub(super) fn new(config: &QueueConfig) -> Self {
        Queue {
            qn: config.qn,
            limit: config.buffer_size,
            next: Msn::FIRST,
            posted: config.buffers.min(MAX_POSTED),
            assemblies: LazyDeque::new(),
        }
    }

    pub(super) fn qn(&self) -> Qn {
        self.qn
    }

    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    pub(super) fn post(&mut self, n: u32) {
        self.posted = self.posted.saturating_add(n).min(MAX_POSTED);
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, msn: Msn) {
        self.next = msn;
    }

    pub(super) fn shrink(&mut self) {
        self.assemblies.shrink();
    }

    pub(super) fn has_unfinished(&self) -> bool {
        !self.assemblies.is_empty()
    }

    pub(super) fn release(&mut self, buffers: &mut BufferPool, account: &mut Account) {
        for assembly in self.assemblies.take() {
            release_assembly(&assembly, self.limit, buffers, account);
            buffers.recycle(assembly.data);
        }
    }

    /// Returns true if this segment, which is in order, is a whole message and no message is in reassembly.
    pub(super) fn would_complete(&self, header: &UntaggedRepr) -> bool {
        header.last && header.mo.0 == 0 && self.assemblies.is_empty()
    }

    /// Checks a segment for which [`would_complete`](Self::would_complete) is true (RFC 5041 §7.1). The pool must have
    /// room for its buffer, although the message is delivered at once.
    pub(super) fn admit_whole<E>(
        &self,
        header: &UntaggedRepr,
        len: u32,
        buffers: &mut BufferPool,
    ) -> Result<(), Reject<E>> {
        self.check_msn(header.msn, true)?;
        check_mo(0, len, self.limit)?;
        if buffers.admit_transient(self.limit) { Ok(()) } else { Err(Reject::Refused) }
    }

    /// Checks a segment to this queue (RFC 5041 §7.1), and reserves a
    /// buffer for its message if the message has none yet.
    pub(super) fn prepare<E>(
        &mut self,
        key: OrderKey,
        header: &UntaggedRepr,
        len: u32,
        in_order: bool,
        buffers: &mut BufferPool,
        account: &mut Account,
    ) -> Result<(), Reject<E>> {
        self.check_msn(header.msn, in_order)?;
        check_mo(header.mo.0, len, self.limit)?;
        let at = match self.find(header.msn) {
            Ok(at) => at,
            Err(at) => {
                if !buffers.reserve(account, self.limit, in_order) {
                    return Err(Reject::Refused);
                }
                let data = buffers.take(self.limit as usize);
                let ranges = Ranges::default();
                let (last, storage) = (None, Storage::Pooled);
                let msn = header.msn;
                let assembly = Assembly { msn, data, ranges, last, in_order, storage };
                self.assemblies.insert(at, assembly);
                at
            }
        };
        self.check_last(at, key, header)
    }

    /// Checks that a segment does not follow the last segment of its message, the assembly at index `at`. Records the
    /// key of the last segment.
    #[inline]
    fn check_last<E>(
        &mut self,
        at: usize,
        key: OrderKey,
        header: &UntaggedRepr,
    ) -> Result<(), Reject<E>> {
        let assembly = &mut self.assemblies[at];
        match assembly.last {
            // RFC 5041 §4.1: the segment with L is the last of its message.
            Some(last) if last < key => return Err(self.msn_range(header.msn)),
            Some(_) => {}
            None if header.last => assembly.last = Some(key),
            None => {}
        }
        Ok(())
    }

    /// Checks the MSN (RFC 5041 §7.1 (2), (5)), even if the segment has no payload.
    fn check_msn<E>(&self, msn: Msn, in_order: bool) -> Result<(), Reject<E>> {
        let distance = msn.distance_from(self.next);
        if in_order {
            if distance != 0 {
                return Err(self.msn_range(msn));
            }
            if self.posted == 0 {
                return Err(no_buffer());
            }
        } else if msn.before(self.next) {
            return Err(self.msn_range(msn));
        } else if distance >= self.posted {
            // A buffer may be posted by the time all earlier segments have arrived, so the segment is refused. RFC 5041
            // §7.1 leaves recovery to the LLP, and the retransmitted segment is checked again.
            return Err(Reject::Refused);
        }
        Ok(())
    }

    /// Switches the queue to at most `max` receives: posted receives, or with `is_shared` receives of a shared source.
    pub(super) fn set_max_receives(&mut self, max: u32, is_shared: bool) {
        self.limit = max.min(MAX_POSTED);
        // Messages that take their receives from a shared source need no receive in advance.
        self.posted = if is_shared { self.limit } else { 0 };
    }

    /// Counts one more posted receive.
    pub(super) fn post_receive(&mut self) -> Result<(), PostError> {
        match self.limit {
            0 => return Err(PostError::Closed),
            max if self.posted >= max => return Err(PostError::Full),
            _ => self.posted += 1,
        }
        Ok(())
    }

    /// Discards all posted receives. No more can be posted.
    pub(super) fn shut(&mut self) {
        (self.limit, self.posted) = (0, 0);
    }

    /// Checks the MSN of a segment for a posted receive (RFC 5041 §7.1 (2), (5)). Returns the distance of this MSN from
    /// the next MSN to be delivered.
    pub(super) fn check_receive<E>(
        &self,
        msn: Msn,
        in_order: bool,
        usage: ReceiveUse,
    ) -> Result<u32, Reject<E>> {
        let distance = msn.distance_from(self.next);
        let in_range = if in_order { distance == 0 } else { !msn.before(self.next) };
        if !in_range {
            return Err(self.msn_range(msn));
        }
        let usable = in_order || usage != ReceiveUse::Undecided;
        if (distance < self.posted && usable) || (in_order && usage == ReceiveUse::Ready) {
            return Ok(distance);
        }
        // As with pooled buffers, a receive may be posted by the time the segment is in order, unless the queue is
        // shut.
        if in_order || self.limit == 0 { Err(no_buffer()) } else { Err(Reject::Refused) }
    }

    /// Begins or continues the message of a segment for a posted receive.
    pub(super) fn begin_receive<E>(
        &mut self,
        key: OrderKey,
        header: &UntaggedRepr,
        in_order: bool,
        usage: ReceiveUse,
    ) -> Result<(), Reject<E>> {
        let at = self.find(header.msn).unwrap_or_else(|at| {
            let (data, ranges, last) = (Vec::new(), Ranges::default(), None);
            let (msn, storage) = (header.msn, Storage::Unused);
            self.assemblies.insert(at, Assembly { msn, data, ranges, last, in_order, storage });
            at
        });
        let assembly = &mut self.assemblies[at];
        assembly.storage = assembly.storage.with_segment(usage);
        self.check_last(at, key, header)
    }

    /// Stores payload that is delivered and not placed. Bytes beyond [`INLINE_LEN`] are dropped.
    pub(super) fn place_inline<'a>(
        &mut self,
        header: &UntaggedRepr,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) {
        let Ok(at) = self.find(header.msn) else { return };
        let data = &mut self.assemblies[at].data;
        data.resize(INLINE_LEN, 0);
        let room = data.iter_mut().skip(header.mo.0 as usize);
        room.zip(pieces.flatten()).for_each(|(to, from)| *to = *from);
    }

    /// Removes the complete message at the front. Returns its inline payload (at most [`INLINE_LEN`] bytes; empty if
    /// the payload was placed in the receive), and true if some segments were placed and others inline.
    pub(super) fn finish_receive(
        &mut self,
        buffers: &mut BufferPool,
        account: &mut Account,
    ) -> (Vec<u8>, bool) {
        let Some(assembly) = self.assemblies.pop_front() else { return (Vec::new(), false) };
        release_assembly(&assembly, self.limit, buffers, account);
        let mut data = assembly.data;
        data.truncate(assembly.ranges.prefix() as usize);
        (data, assembly.storage == Storage::Mixed)
    }

    /// Counts a delivered message that uses up no receive.
    pub(super) fn skip_message(&mut self) {
        self.next = self.next.next();
    }

    fn msn_range<E>(&self, msn: Msn) -> Reject<E> {
        let last = self.next.0.wrapping_add(self.posted).wrapping_sub(1);
        let mismatch = Mismatch::new(Field::Msn, msn.0.into(), self.next.0.into(), last.into());
        Reject::Ddp(ErrorCode::MsnRange, mismatch)
    }

    fn find(&self, msn: Msn) -> Result<usize, usize> {
        let distance = msn.distance_from(self.next);
        self.assemblies.binary_search_by_key(&distance, |a| a.msn.distance_from(self.next))
    }

    /// Copies the payload into the buffer that [`prepare`](Self::prepare) took.
    pub(super) fn place<'a>(
        &mut self,
        header: &UntaggedRepr,
        len: u32,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) {
        let Ok(at) = self.find(header.msn) else { return };
        let data = &mut self.assemblies[at].data;
        let mut mo = header.mo.0 as usize;
        if len == 0 {
            return;
        }
        if mo >= data.len() {
            data.reserve(mo - data.len() + len as usize);
            data.resize(mo, 0);
            pieces.for_each(|piece| data.extend_from_slice(piece));
            return;
        }
        let end = mo + len as usize;
        if end > data.len() {
            data.resize(end, 0);
        }
        for piece in pieces {
            data[mo..mo + piece.len()].copy_from_slice(piece);
            mo += piece.len();
        }
    }

    /// Advances the message by its next segment in order. Returns true if the segment completes the
    /// message.
    pub(super) fn advance<E>(
        &mut self,
        header: &UntaggedRepr,
        len: u32,
    ) -> Result<bool, Reject<E>> {
        // RFC 5041 §4.3: the MSN grows by one with each message to the queue.
        let Some(front) =
            self.assemblies.front_mut().filter(|a| header.msn == self.next && a.msn == self.next)
        else {
            return Err(self.msn_range(header.msn));
        };
        let (start, end) = (header.mo.0, header.mo.0 + len);
        let missing = front.ranges.prefix();
        let fits = match front.ranges.insert(start, end) {
            Ok(()) => true,
            Err(InsertError::Overlap) => false,
            Err(InsertError::TooMany) => return Err(Reject::NoRangeRoom),
        };
        let whole = fits && (!header.last || front.ranges.is_exactly(end));
        if !whole {
            // RFC 5041 §5.2: the segments of a message neither overlap nor leave holes. §4.1: the segment with L has
            // the highest MO.
            let mismatch = Mismatch::exact(Field::MessageOffset, start.into(), missing.into());
            return Err(Reject::Ddp(ErrorCode::InvalidMo, mismatch));
        }
        Ok(header.last)
    }

    /// Raises the bound on separate ranges of the next message by `STEP_RANGES`. The caller has reserved
    /// [`STEP_BYTES`](super::ranges::STEP_BYTES) for these ranges.
    pub(super) fn grow_ranges(&mut self) {
        if let Some(front) = self.assemblies.front_mut() {
            front.ranges.grow();
        }
    }

    /// Returns the bytes of the oldest message, which is complete, and uses up its buffer.
    pub(super) fn deliver(&mut self, buffers: &mut BufferPool, account: &mut Account) -> Vec<u8> {
        let Some(assembly) = self.assemblies.pop_front() else { return Vec::new() };
        release_assembly(&assembly, self.limit, buffers, account);
        self.consume_buffer();
        let mut data = assembly.data;
        data.truncate(assembly.ranges.prefix() as usize);
        buffers.compact(data)
    }

    /// Uses up the buffer of the delivered message. RFC 5041 §4.3: the MSN grows by one with each message.
    pub(super) fn consume_buffer(&mut self) {
        self.next = self.next.next();
        self.posted = self.posted.saturating_sub(1);
    }
}

/// Checks MO and length for a buffer of `size` bytes (RFC 5041 §7.1 (3), (4)).
#[inline]
pub(super) fn check_mo<E>(mo: u32, len: u32, size: u32) -> Result<(), Reject<E>> {
    let size = u64::from(size);
    if u64::from(mo) > size {
        let mismatch = Mismatch::new(Field::MessageOffset, mo.into(), 0, size);
        return Err(Reject::Ddp(ErrorCode::InvalidMo, mismatch));
    }
    let end = u64::from(mo) + u64::from(len);
    if end > size {
        let mismatch = Mismatch::new(Field::MessageEnd, end, 0, size);
        return Err(Reject::Ddp(ErrorCode::MessageTooLong, mismatch));
    }
    Ok(())
}

pub(super) fn no_buffer<E>() -> Reject<E> {
    let mismatch = Mismatch::new(Field::Buffers, 0, 1, MAX_POSTED.into());
    Reject::Ddp(ErrorCode::NoBuffer, mismatch)
}

/// Releases a message's share of the worker's buffer pool: its buffer, and the memory for its ranges.
fn release_assembly(
    assembly: &Assembly,
    size: u32,
    buffers: &mut BufferPool,
    account: &mut Account,
) {
    if assembly.storage == Storage::Pooled {
        buffers.release(account, size.into(), assembly.in_order);
    }
    let charged = assembly.ranges.reserved_bytes();
    if charged > 0 {
        buffers.release(account, charged, true);
    }
}
