//! Checks of each segment that the endpoint sends.

use tcp_lite::seam::TxBatch;
use tcp_lite::tcp::{Flags, Segment, SeqNumber};

use super::{End, LOCAL, MARK, MSS, REMOTE};

/// Segments written by one call of `poll_transmit`, at most 16.
#[derive(Default)]
pub(super) struct Tx {
    buffer: Vec<u8>,
    pub(super) segments: Vec<Vec<u8>>,
}

impl TxBatch for Tx {
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() >= 16 {
            return None;
        }
        self.buffer = vec![0; len];
        Some(&mut self.buffer)
    }

    fn commit(&mut self, len: usize) {
        self.segments.push(self.buffer[..len].to_vec());
    }
}

/// Receive window that the endpoint has advertised.
#[derive(Default)]
pub(super) struct Window {
    /// Furthest right edge; `None` before the first segment.
    edge: Option<SeqNumber>,
    /// Shift count of the endpoint's window scale option.
    shift: u8,
    /// Total number of bytes that the endpoint had refused before the previous segment.
    refused: u64,
}

impl Window {
    /// Checks that a segment does not shrink the window, unless the endpoint has refused bytes since the previous
    /// segment. `refused` is the total number of refused bytes.
    fn check(&mut self, segment: &Segment<'_>, refused: u64) {
        if core::mem::replace(&mut self.refused, refused) < refused {
            self.edge = None;
        }
        let edge = segment.ack.add(u32::from(segment.window) << self.shift);
        // RFC 9293 §3.8.6 (SHLD-14): the window does not shrink, except by less than one unit of its scale.
        if let Some(before) = self.edge {
            let back = before.0.wrapping_sub(edge.0).cast_signed();
            assert!(back < 1 << self.shift, "the window's edge went back by {back}");
        }
        self.edge = Some(match self.edge {
            Some(before) if before.after(edge) => before,
            _ => edge,
        });
    }
}

impl End {
    /// Checks a segment. Retransmitted bytes are unchanged, only received sequence numbers are acknowledged, and the
    /// window shrinks only after a refusal. Bytes of memory without rights for peers ([`MARK`]) are not sent.
    pub(super) fn check_segment(&mut self, bytes: &[u8]) {
        let segment =
            Segment::parse(bytes).unwrap_or_else(|e| panic!("a segment of the endpoint: {e}"));
        assert_eq!((segment.src_port, segment.dst_port), (LOCAL, REMOTE));
        assert!(segment.payload.len() <= usize::from(MSS));
        if segment.flags.has(Flags::RST) {
            return;
        }
        if let Some(stamps) = segment.options.timestamps {
            self.stamp = stamps.val;
        }
        if segment.flags.has(Flags::SYN) {
            self.window.shift = segment.options.window_scale.unwrap_or(0);
            return;
        }
        let acknowledged = segment.ack.0.wrapping_sub(self.peer_iss.add(1).0) as usize;
        assert!(
            acknowledged <= self.most_sent + 1,
            "acknowledges {acknowledged} of {}",
            self.most_sent
        );
        let refused = self.endpoint.stats().tcp.recv.bytes_refused;
        self.window.check(&segment, refused);
        let at = segment.seq.0.wrapping_sub(self.iss.add(1).0).cast_signed();
        let end = at as i64 + segment.payload.len() as i64;
        if !segment.payload.is_empty() {
            assert!(at >= 0 && at as usize <= self.received.len(), "the sent bytes have a gap");
            let at = at as usize;
            let known = self.received.len().min(end as usize) - at;
            assert!(
                segment.payload[..known] == self.received[at..at + known],
                "other bytes than before"
            );
            assert!(known == segment.payload.len() || !self.fin, "bytes after the FIN");
            self.received.extend(&segment.payload[known..]);
            let leaks = segment.payload.windows(MARK.len()).any(|bytes| bytes == MARK);
            assert!(!(leaks && self.hidden), "bytes of a region without rights were sent");
        }
        if segment.flags.has(Flags::FIN) {
            assert_eq!(end, self.received.len() as i64, "a FIN that is not at the end");
            self.fin = true;
        }
    }
}
