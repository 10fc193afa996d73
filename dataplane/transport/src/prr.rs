//! Proportional Rate Reduction (RFC 6937): during recovery the congestion window falls to ssthresh in proportion to the
//! delivered bytes. If losses leave less than ssthresh in the network, the window grows back to ssthresh, limited by
//! the delivered bytes.

/// State of one reduction (RFC 6937 §3), bytes.
#[derive(Clone, Copy, Debug)]
pub struct Prr {
    /// prr_delivered: bytes delivered since recovery began.
    delivered: u64,
    /// prr_out: bytes sent since recovery began.
    out: u64,
    /// RecoverFS: bytes outstanding when recovery began, at least 1.
    recover_fs: u64,
}

impl Prr {
    /// Creates the state of a recovery that begins with `flight` bytes outstanding.
    pub fn new(flight: u64) -> Self {
        Prr { delivered: 0, out: 0, recover_fs: flight.max(1) }
    }

    /// Records that `bytes` were sent, new or retransmitted.
    pub fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Returns the congestion window, bytes, after an acknowledgement that delivered `delivered` bytes and left `pipe`
    /// bytes in the network. `safe`: SND.UNA advanced and no further loss was found (RFC 9937 §6). Below ssthresh, a
    /// safe acknowledgement releases one segment more than was delivered (slow-start reduction bound, RFC 6937 §3). Any
    /// other acknowledgement releases only the delivered bytes (conservative reduction bound).
    pub fn on_ack(
        &mut self,
        delivered: u64,
        pipe: u64,
        ssthresh: u64,
        smss: u64,
        safe: bool,
    ) -> u64 {
        self.delivered += delivered;
        let may_send = if pipe > ssthresh {
            let target = (u128::from(self.delivered) * u128::from(ssthresh))
                .div_ceil(u128::from(self.recover_fs));
            u64::try_from(target).unwrap_or(u64::MAX).saturating_sub(self.out)
        } else {
            let owed = self.delivered.saturating_sub(self.out).max(delivered);
            let limit = owed + if safe { smss } else { 0 };
            round_to_segments(limit.min(ssthresh - pipe), smss)
        };
        // The fast retransmit is sent even if the window is full.
        let least = if self.out == 0 { smss } else { 0 };
        pipe + may_send.max(least)
    }
}

/// Rounds to the nearest number of whole segments. Without rounding, the delivery of a segment that is a few bytes
/// short would not release the next full segment. Later calls correct the rounding, because prr_delivered and prr_out
/// are exact.
fn round_to_segments(bytes: u64, smss: u64) -> u64 {
    bytes.saturating_add(smss / 2) / smss * smss
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 6937 §3: the delivery of one segment releases one full segment, although the delivered segment was four bytes
    // short.
    #[test]
    fn delivery_of_short_segment_releases_full_segment() {
        let mut prr = Prr::new(4344);
        prr.on_sent(1448);
        assert_eq!(prr.on_ack(1444, 1448, 2896, 1448, false), 1448 + 1448);
        prr.on_sent(1448);
        assert_eq!(prr.on_ack(20, 2896, 4344, 1448, false), 2896, "not for a few bytes");
    }

    /// The first figure of RFC 6937 §3.1: 20 segments in flight, the first lost, ssthresh 10.
    #[test]
    fn prr_sends_one_segment_for_two_delivered() {
        let mut prr = Prr::new(20);
        let (mut pipe, mut sent) = (19, 0);
        for _ in 0..19 {
            pipe -= 1;
            let cwnd = prr.on_ack(1, pipe, 10, 1, false);
            let n = cwnd - pipe;
            prr.on_sent(n);
            sent += n;
            pipe += n;
        }
        assert_eq!((sent, pipe), (10, 10), "as many as the threshold at the end");
    }

    /// The second figure of RFC 6937 §3.1: most of the flight is lost. The sender sends the delivered amount, plus one
    /// segment for each safe acknowledgement while below the threshold.
    #[test]
    fn heavy_loss_is_bounded_by_delivery() {
        let mut prr = Prr::new(20);
        let mut pipe = 4; // 15 lost
        let cwnd = prr.on_ack(1, pipe, 10, 1, false);
        assert_eq!(cwnd - pipe, 1, "conservative while losses are found");
        prr.on_sent(1);
        pipe = 4;
        let cwnd = prr.on_ack(1, pipe, 10, 1, true);
        assert_eq!(cwnd - pipe, 2, "slow start while none are");
    }

    // RFC 6937 §3: the window does not exceed ssthresh.
    #[test]
    fn prr_stops_at_ssthresh() {
        let mut prr = Prr::new(20);
        prr.on_sent(1);
        assert_eq!(prr.on_ack(8, 9, 10, 1, true), 10);
    }

    // RFC 6937 §3, RFC 6675 §5 (4.3): the first retransmission is never held back.
    #[test]
    fn prr_never_holds_back_first_resend() {
        let mut prr = Prr::new(3000);
        assert_eq!(prr.on_ack(0, 2000, 1500, 1000, false), 3000);
        prr.on_sent(1000);
        assert_eq!(prr.on_ack(0, 3000, 1500, 1000, false), 3000);
    }
}
