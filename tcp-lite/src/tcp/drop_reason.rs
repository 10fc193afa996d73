//! Reasons why a segment was dropped, entirely or in part.

use core::fmt;

/// Reason why a segment was dropped. Segments whose only effect is an acknowledgement or a reset count as dropped, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The header does not fit the bytes, or a port is zero (RFC 9293 §3.1).
    BadHeader,
    /// An option with an illegal length (RFC 9293 §3.2).
    BadOption,
    /// The connection is closed.
    Closed,
    /// Outside the receive window (RFC 9293 §3.10.7.4, first check).
    OutOfWindow,
    /// A timestamp older than TS.Recent (RFC 7323 §5.3 R1).
    OldTimestamp,
    /// No timestamp although both sides use timestamps (RFC 7323 §3.2).
    NoTimestamp,
    /// A reset inside the window but not at RCV.NXT, or without ACK in SYN-SENT (RFC 5961 §3).
    BlindReset,
    /// A SYN in SYN-RECEIVED or a synchronized state (RFC 9293 §3.10.7.4, RFC 5961 §4).
    UnexpectedSyn,
    /// No ACK flag where it is required, or neither SYN nor RST in SYN-SENT (RFC 9293 §3.10.7).
    NoAck,
    /// An acknowledgement number beyond SND.NXT, or too old (RFC 5961 §5, RFC 9293 §3.10.7).
    BadAck,
    /// Data refused by the upper layer, or by the limit of ranges beyond a gap.
    Refused,
    /// Data or a FIN beyond the peer's FIN.
    PastFin,
}

impl DropReason {
    /// All reasons, in the order of [`index`](Self::index).
    pub const ALL: [DropReason; 12] = [
        DropReason::BadHeader,
        DropReason::BadOption,
        DropReason::Closed,
        DropReason::OutOfWindow,
        DropReason::OldTimestamp,
        DropReason::NoTimestamp,
        DropReason::BlindReset,
        DropReason::UnexpectedSyn,
        DropReason::NoAck,
        DropReason::BadAck,
        DropReason::Refused,
        DropReason::PastFin,
    ];

    /// Returns the position in [`ALL`](Self::ALL), for tables of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns a stable name for counters and machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::BadHeader => "tcp_bad_header",
            DropReason::BadOption => "tcp_bad_option",
            DropReason::Closed => "tcp_closed",
            DropReason::OutOfWindow => "tcp_out_of_window",
            DropReason::OldTimestamp => "tcp_old_timestamp",
            DropReason::NoTimestamp => "tcp_no_timestamp",
            DropReason::BlindReset => "tcp_blind_reset",
            DropReason::UnexpectedSyn => "tcp_unexpected_syn",
            DropReason::NoAck => "tcp_no_ack",
            DropReason::BadAck => "tcp_bad_ack",
            DropReason::Refused => "tcp_refused",
            DropReason::PastFin => "tcp_past_fin",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_reason_indices_are_dense_and_names_distinct() {
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i);
            assert!(DropReason::ALL[..i].iter().all(|r| r.name() != reason.name()));
        }
    }
}
