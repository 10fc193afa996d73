//! Segments of one flow, written in place: room behind the headers in a packet buffer, then headers and
//! checksum when the segment is complete.

use tcp_lite::seam::TxBatch;

use crate::api::Counters;
use crate::io::{Frame, PortIo};
use crate::net::path::{Path, TxChecksum};

/// A turn of one flow at a port's transmit queue.
pub(super) struct Batch<'a, Io: PortIo> {
    io: &'a mut Io,
    path: &'a Path,
    how: TxChecksum,
    counters: &'a Counters,
    frame: Option<Io::Frame>,
    /// The segment being written is ECN-capable.
    ect: bool,
    quota: usize,
    /// See [`TxBatch::keep_limit`].
    keep_limit: u64,
    ended: Option<Ended>,
}

/// Why a batch refused a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The flow has had its turn.
    Quota,
    /// The transmit ring is full.
    RingFull,
    /// There is no packet buffer.
    NoBuffer,
}

impl<'a, Io: PortIo> Batch<'a, Io> {
    /// Up to `quota` segments along `path`.
    pub(super) fn new(
        io: &'a mut Io,
        path: &'a Path,
        how: TxChecksum,
        quota: usize,
        counters: &'a Counters,
    ) -> Self {
        let (frame, ect, keep_limit, ended) = (None, false, u64::MAX, None);
        Batch { io, path, how, counters, frame, ect, quota, keep_limit, ended }
    }

    /// The flow may keep so many bytes of what it sends.
    pub(super) fn keeping(mut self, limit: u64) -> Self {
        self.keep_limit = limit;
        self
    }

    /// Why it refused a segment, if it did: the flow may have more to send.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }
}

impl<Io: PortIo> TxBatch for Batch<'_, Io> {
    fn segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.quota == 0 {
            self.ended = Some(Ended::Quota);
            return None;
        }
        if self.io.room() == 0 {
            self.ended = Some(Ended::RingFull);
            return None;
        }
        self.ect = false;
        let header = self.path.header_len();
        let unused = self.frame.take().filter(|f| f.octets().len() >= header + len);
        self.frame = unused.or_else(|| self.io.allocate(header + len));
        match &mut self.frame {
            Some(frame) => Some(&mut frame.octets_mut()[header..header + len]),
            None => {
                self.ended = Some(Ended::NoBuffer);
                None
            }
        }
    }

    fn ecn_capable(&mut self) {
        self.ect = true;
    }

    fn keep_limit(&self) -> u64 {
        self.keep_limit
    }

    fn keep_limited(&mut self) {
        self.counters.keep_waits.add(1);
    }

    fn commit(&mut self, len: usize) {
        let Some(mut frame) = self.frame.take() else { return };
        frame.truncate(self.path.header_len() + len);
        self.path.finish(frame.octets_mut(), self.how, core::mem::take(&mut self.ect));
        if self.how.needs_device() {
            let (l2, l3) = (self.path.l2_len(), self.path.l3_len());
            frame.offload(self.how, l2, l3, self.path.is_v6());
        }
        self.counters.tx_frames.add(1);
        self.counters.tx_octets.add(frame.octets().len() as u64);
        self.quota -= 1;
        self.io.send(frame);
    }
}
