//! Segments of one flow, written in place. The payload is written to a packet buffer, after the room for the headers.
//! Headers and checksum follow once the segment is complete.

use base::Instant;
use ipsec::strength::Strength;
use tcp_lite::endpoint::Endpoint;
use tcp_lite::seam::TxBatch;
use tcp_lite::tcp::State;
use wire::crc32c::Sum;

use crate::api::{Counters, Stall};
use crate::io::{Frame, PortIo};
use crate::memory::Memory;
use crate::net::path::{Path, TxChecksum};
use crate::port::ChecksumSite;
use crate::worker::flows::carrier::{CarrierEndpoint, Refusal, TransmitContext, TransmitOutcome};
use crate::worker::flows::schedule::CarrierKind;

/// Batch of one flow's segments, written into a port's transmit queue while the flow is served.
pub(in crate::worker) struct SegmentBatch<'a, Io: PortIo> {
    io: &'a mut Io,
    path: &'a Path,
    checksum: TxChecksum,
    counters: &'a Counters,
    frame: Option<Io::Frame>,
    /// True if the current segment is ECN-capable.
    ect: bool,
    /// True if the current segment is the flow's last segment for now.
    last: bool,
    /// True if the last segment is passed to the device at once.
    offer_last: bool,
    quota: usize,
    /// Maximum bytes of copies of unacknowledged data ([`TxBatch::keep_limit`]).
    keep_limit: u64,
    /// True if many streams share the port ([`TxBatch::is_shared`]).
    shared: bool,
    min_strength: Strength,
    looped: bool,
    refused: Option<Refusal>,
}

/// Returns `len` bytes after room for `header` bytes: in `frame` if it is long enough, else in a new buffer from `io`.
/// Returns `None` if the buffer pool is empty.
#[inline]
pub(in crate::worker) fn reserve_payload<'f, Io: PortIo>(
    frame: &'f mut Option<Io::Frame>,
    io: &mut Io,
    header: usize,
    len: usize,
) -> Option<&'f mut [u8]> {
    let unused = frame.take().filter(|f| f.bytes().len() >= header + len);
    *frame = unused.or_else(|| io.allocate(header + len));
    Some(&mut frame.as_mut()?.bytes_mut()[header..header + len])
}

/// Returns the free slots of the transmit ring, or of the loopback queue if `looped`.
#[inline]
pub(in crate::worker) fn free_slots<Io: PortIo>(io: &mut Io, looped: bool) -> usize {
    if looped { io.free_loopback_slots() } else { io.free_tx_slots() }
}

impl<'a, Io: PortIo> SegmentBatch<'a, Io> {
    /// Creates a batch of at most `quota` segments along `path`.
    pub(in crate::worker) fn new(
        io: &'a mut Io,
        path: &'a Path,
        checksum: TxChecksum,
        quota: usize,
        counters: &'a Counters,
    ) -> Self {
        let looped = path.is_loopback();
        let checksum = if looped { TxChecksum::LOOPBACK } else { checksum.for_tcp() };
        let (frame, ect, keep_limit, refused) = (None, false, u64::MAX, None);
        let (shared, last, offers) = (false, false, false);
        SegmentBatch {
            io,
            path,
            checksum,
            counters,
            frame,
            ect,
            last,
            offer_last: offers,
            quota,
            keep_limit,
            shared,
            min_strength: Strength::CLEAR,
            looped,
            refused,
        }
    }
}

impl<Io: PortIo> TxBatch for SegmentBatch<'_, Io> {
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.quota == 0 {
            self.refused = Some(Refusal::Quota);
            return None;
        }
        if free_slots(self.io, self.looped) == 0 {
            self.refused = Some(Refusal::RingFull);
            return None;
        }
        (self.ect, self.last) = (false, false);
        let header = self.path.header_len();
        let room = reserve_payload(&mut self.frame, self.io, header, len);
        if room.is_none() {
            self.refused = Some(Refusal::NoBuffer);
        }
        room
    }

    fn set_ecn_capable(&mut self) {
        self.ect = true;
    }

    fn mark_last(&mut self) {
        self.last = true;
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn keep_limit(&self) -> u64 {
        self.keep_limit
    }

    fn report_keep_limited(&mut self) {
        self.counters.memory.keep_waits.add(1);
    }

    fn commit(&mut self, len: usize) {
        self.commit_with_sum(len, None);
    }

    fn uses_sum(&self) -> bool {
        self.checksum.tcp == ChecksumSite::Software
    }

    fn commit_with_sum(&mut self, len: usize, sum: Option<Sum>) {
        let Some(mut frame) = self.frame.take() else { return };
        frame.truncate(self.path.header_len() + len);
        self.path.finish(frame.bytes_mut(), self.checksum, core::mem::take(&mut self.ect), sum);
        if self.checksum.needs_device() {
            let (l2, l3) = (self.path.l2_len(), self.path.l3_len());
            frame.offload(self.checksum, l2, l3, self.path.is_v6());
        }
        let bytes = frame.bytes().len();
        match self.looped {
            false => self.io.send_protected(frame, self.min_strength),
            true => {
                self.io.loop_back(frame);
                self.counters.frames.looped_frames.add(1);
            }
        }
        if self.last && self.offer_last {
            self.io.offer();
        }
        self.counters.frames.tx_frames.add(1);
        self.counters.frames.tx_bytes.add(bytes as u64);
        self.quota -= 1;
    }
}

impl CarrierEndpoint for Endpoint<Memory> {
    type Path = Path;
    const KIND: CarrierKind = CarrierKind::Connection;
    const SUSPENDS_TIMERS: bool = false;

    #[inline]
    fn ports(&self) -> (u16, u16) {
        self.connection().ports()
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }

    #[inline]
    fn kept(&self) -> u64 {
        self.kept_bytes()
    }

    #[inline]
    fn bytes_acknowledged(&self) -> u64 {
        self.connection().bytes_acknowledged()
    }

    #[inline]
    fn path_suspect(&self) -> bool {
        self.connection().is_path_suspect()
    }

    fn is_timing_out(&self) -> bool {
        self.connection().is_timing_out()
    }

    fn is_closed(&self) -> bool {
        self.connection().state() == State::Closed
    }

    fn stall(&self, now: Instant) -> Option<Stall> {
        self.connection().stall(now)
    }

    fn path_len(&self) -> usize {
        self.connection().path_mss().into()
    }

    #[inline]
    fn confirmed_path(&self, path: &Path) -> Option<(usize, u16)> {
        let mss = self.connection().confirmed_path_mss()?;
        Some((mss.into(), mss + path.tcp_headers()))
    }

    fn limit_path(&mut self, path: &Path, mtu: u16, now: Instant) -> bool {
        let mss = mtu.saturating_sub(path.tcp_headers());
        let less = mss < self.connection().path_mss();
        if less {
            self.set_path_mss(now, mss);
        }
        less
    }

    #[inline]
    fn transmit<Io: PortIo>(
        &mut self,
        path: &Path,
        out: TransmitContext<'_, Io>,
        now: Instant,
    ) -> TransmitOutcome {
        let quota = out.quota;
        let mut batch = SegmentBatch::new(out.io, path, out.checksum, quota, out.counters);
        batch.keep_limit = out.keep_limit;
        batch.shared = out.shared;
        batch.offer_last = out.offer_last;
        batch.min_strength = out.min_strength;
        self.poll_transmit(now, &mut batch);
        TransmitOutcome { has_sent: batch.quota < quota, refusal: batch.refused }
    }
}
