//! Errors of segments: recorded at arrival, reported when all earlier segments have arrived (RFC 5041 §7.1).

use arrayvec::ArrayVec;

use super::check::received_header;
use super::ranges::STEP_BYTES;
use super::{Env, Receiver};
use crate::checks::{Reject, UlpChecks, UlpError};
use crate::error::{DdpError, ErrorCode, Field, Mismatch};
use crate::llp::{Disposition, MAX_DDP_HEADER, OrderKey, Ulpdu};
use crate::memory::RegionMemory;
use crate::message::Event;

/// An error found at arrival, with the order key of its segment.
#[derive(Clone, Debug)]
pub(super) struct OrderedError<E> {
    pub(super) key: OrderKey,
    reported: bool,
    error: FoundError<E>,
}

/// An error, by the layer that found it.
#[derive(Clone, Debug)]
enum FoundError<E> {
    Ddp(DdpError),
    Ulp(UlpError<E>),
}

impl<M: RegionMemory, E: Copy> Receiver<M, E> {
    pub(crate) fn reported_error(&self) -> Option<&DdpError> {
        match self.error.as_ref().filter(|e| e.reported).map(|e| &e.error) {
            Some(FoundError::Ddp(error)) => Some(error),
            _ => None,
        }
    }

    /// Refuses a segment, which the peer then retransmits, or records its error.
    #[cold]
    pub(super) fn reject<C: UlpChecks<Code = E>>(
        &mut self,
        key: OrderKey,
        reject: Reject<E>,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Disposition {
        if let Reject::Refused = reject {
            env.counters.segments_refused += 1;
            return Disposition::Refused;
        }
        let mut bytes = [0; MAX_DDP_HEADER];
        let seen = ulpdu.copy_prefix(&mut bytes);
        self.reject_at(key, reject, received_header(&bytes[..seen]), ulpdu.len() as u32);
        self.deliver_in_order(env);
        Disposition::Ignored
    }

    /// Reports the recorded error once, if all earlier segments have arrived.
    pub(super) fn report_reached_error<C: UlpChecks<Code = E>>(&mut self, env: &mut Env<'_, M, C>) {
        let reached = self.error.as_mut().filter(|e| e.key <= self.order && !e.reported);
        if let Some(OrderedError { error, reported, .. }) = reached.map(|reached| &mut **reached) {
            *reported = true;
            match error {
                FoundError::Ddp(error) => {
                    let count = &mut env.counters.errors[error.code.index()];
                    *count = count.saturating_add(1);
                    env.events.push_back(Event::Error(error.clone()));
                }
                FoundError::Ulp(error) => env.checks.on_error_reached(error.clone()),
            }
            self.release(env.buffers);
        }
    }

    /// Records the error of a segment. That segment and all later segments are ignored (RFC 5041 §7.1).
    pub(super) fn reject_at(
        &mut self,
        key: OrderKey,
        reject: Reject<E>,
        header: ArrayVec<u8, MAX_DDP_HEADER>,
        segment_len: u32,
    ) {
        if self.error.as_ref().is_some_and(|e| e.key <= key) {
            return;
        }
        let error = match reject {
            Reject::Ddp(code, mismatch) => {
                FoundError::Ddp(DdpError { code, mismatch, key, header, segment_len })
            }
            Reject::Ulp(code, mismatch) => {
                FoundError::Ulp(UlpError { code, mismatch, header, segment_len })
            }
            // The segment has been placed and acknowledged, but no memory is left to record its range. This is a local
            // failure.
            Reject::Refused | Reject::NoRangeRoom => {
                let code = ErrorCode::LocalCatastrophic;
                let mismatch = Mismatch::exact(Field::RangeMemory, 0, STEP_BYTES.into());
                FoundError::Ddp(DdpError { code, mismatch, key, header, segment_len })
            }
        };
        let keep = self.records.partition_point(|r| r.key < key);
        self.records.truncate(keep);
        self.error = Some(Box::new(OrderedError { key, reported: false, error }));
    }
}
