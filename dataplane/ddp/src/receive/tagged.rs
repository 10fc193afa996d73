//! Tagged segments and messages (RFC 5041 §5.3): placed by STag and TO, delivered at the last segment.

use wire::ddp::{HeaderRepr, TAGGED_HEADER_LEN, TaggedRepr};
use wire::{Stag, TaggedOffset};

use super::check::{TaggedTarget, check_tagged};
use super::{Env, Receiver, Segment};
use crate::checks::{Reject, UlpChecks};
use crate::error::{ErrorCode, Field, Mismatch};
use crate::llp::Ulpdu;
use crate::memory::RegionMemory;
use crate::message::Event;

/// A tagged message of which only a part has arrived in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaggedMessage {
    /// STag and lowest TO of its segments with payload; valid only if `has_payload`.
    stag: Stag,
    to: TaggedOffset,
    has_payload: bool,
    /// Payload bytes of the segments processed in order so far.
    len: u64,
}

const _: () = assert!(size_of::<Option<TaggedMessage>>() == 24);

impl TaggedMessage {
    const EMPTY: TaggedMessage =
        TaggedMessage { stag: Stag(0), to: TaggedOffset(0), has_payload: false, len: 0 };

    fn start(&self) -> Option<(Stag, TaggedOffset)> {
        self.has_payload.then_some((self.stag, self.to))
    }
}

impl<M: RegionMemory, E: Copy> Receiver<M, E> {
    /// Processes, on the fast path, a tagged segment in order whose header is in its first piece, as most segments of
    /// a bulk transfer are. Has the same effect as [`accept`](Self::accept), without the checks for other segments.
    /// Returns the payload bytes.
    #[inline]
    pub(super) fn accept_next_tagged<C: UlpChecks<Code = E>>(
        &mut self,
        header: &TaggedRepr,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Result<u32, Reject<E>> {
        let len = (ulpdu.len() - TAGGED_HEADER_LEN) as u32;
        let whole = HeaderRepr::Tagged(*header);
        self.check_version(&whole)?;
        let target = check_tagged(header, len, env)?;
        env.checks.admit(&whole, len)?;
        self.version = Some(header.version);
        let advanced = match env.checks.advance(header, len) {
            Ok(()) => self.advance_tagged(header, len),
            Err(reject) => Err(reject),
        };
        let complete = match advanced {
            Ok(complete) => complete,
            Err(reject) => {
                self.retry_advance(reject, &Segment { header: whole, len, queue: 0 }, env)?
            }
        };
        place(target, ulpdu, len);
        self.count_placed(len, true, env.counters);
        if complete {
            self.deliver_tagged(header, env);
        }
        Ok(len)
    }

    /// Validates and places a segment with this header. If the segment is in order and completes its message, delivers
    /// the message.
    pub(super) fn accept_tagged<C: UlpChecks<Code = E>>(
        &mut self,
        header: &TaggedRepr,
        in_order: bool,
        segment: &Segment,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Result<(), Reject<E>> {
        let len = segment.len;
        let target = check_tagged(header, len, env)?;
        env.checks.admit(&segment.header, len)?;
        let complete = in_order && self.advance_or_grow(segment, env)?;
        place(target, ulpdu, len);
        self.count_placed(len, in_order, env.counters);
        if complete {
            self.deliver_tagged(header, env);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn advance_tagged(
        &mut self,
        header: &TaggedRepr,
        len: u32,
    ) -> Result<bool, Reject<E>> {
        let message = self.unfinished.tagged.get_or_insert(TaggedMessage::EMPTY);
        if len > 0 {
            (message.stag, message.to) = match message.start() {
                None => (header.stag, header.to),
                Some((stag, to)) if stag == header.stag => (stag, to.min(header.to)),
                // RFC 5041 §4.2: all segments of a message have one STag.
                Some((stag, _)) => {
                    let (seen, expected) = (header.stag.0.into(), stag.0.into());
                    let mismatch = Mismatch::exact(Field::Stag, seen, expected);
                    return Err(Reject::Ddp(ErrorCode::InvalidStag, mismatch));
                }
            };
            message.has_payload = true;
            message.len += u64::from(len);
        }
        Ok(header.last)
    }

    /// Delivers the message that this segment completes (RFC 5041 §5.4).
    pub(super) fn deliver_tagged<C: UlpChecks<Code = E>>(
        &mut self,
        &TaggedRepr { rsvd_ulp, stag, to, .. }: &TaggedRepr,
        env: &mut Env<'_, M, C>,
    ) {
        let message = self.unfinished.tagged.take();
        let len = message.map_or(0, |m| m.len);
        if self.tagged_events {
            let (stag, to) = message.and_then(|m| m.start()).unwrap_or((stag, to));
            env.events.push_back(Event::TaggedDelivered { stag, to, len, rsvd_ulp });
        }
        env.counters.tagged_delivered += 1;
        env.counters.delivered_bytes += len;
    }
}

/// Writes the payload of a segment, `len` bytes, to its target.
#[inline(always)]
fn place<M: RegionMemory>(target: Option<TaggedTarget<'_, M>>, ulpdu: Ulpdu<'_>, len: u32) {
    let Some((entry, offset)) = target else { return };
    match ulpdu.front_piece().filter(|front| front.len() == ulpdu.len()) {
        Some(whole) => entry.memory.write(offset, &whole[TAGGED_HEADER_LEN..]),
        None => {
            let pieces = ulpdu.pieces_from(TAGGED_HEADER_LEN);
            entry.memory.write_pieces(offset, len as usize, pieces);
        }
    }
}
