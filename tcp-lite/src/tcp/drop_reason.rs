//! Reasons why a segment was dropped, entirely or in part.

use core::fmt;

base::explained! {
    /// Reason why a segment was dropped. A segment whose only effect is that an acknowledgement or a reset is sent
    /// also counts as dropped.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum DropReason {
        /// The segment is shorter than its header, the data offset is invalid, or a port is zero (RFC 9293 §3.1).
        #[explain("tcp_bad_header",
            cause = "A defective or hostile sender, a scanner with port 0, or a link that corrupts frames under \
                     `checksum = \"trusted\"`.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the sender.")]
        BadHeader,
        /// An option with an illegal length (RFC 9293 §3.1).
        #[explain("tcp_bad_option",
            cause = "A fuzzer, or a middlebox that rewrites TCP options wrongly.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the option. Disable the rewriting in the \
                      middlebox, or remove it from the path.")]
        BadOption,
        /// A segment of a connection in state CLOSED.
        #[explain("tcp_closed",
            cause = "The stream ended while segments of the peer were in flight.",
            remedy = "None.")]
        Closed,
        /// A segment outside the receive window (RFC 9293 §3.10.7.4, first check).
        #[explain("tcp_out_of_window",
            cause = "Duplicates: the peer retransmitted received data, because acknowledgements were lost or late. \
                     Also keepalive and zero-window probes, and blind attacks.",
            remedy = "None while it is rare. If it grows with `retransmitted_segments` of the peer, look for loss or \
                      reordering on the path back to it.")]
        OutOfWindow,
        /// A segment with an old timestamp (RFC 7323 §5.3 R1).
        #[explain("tcp_old_timestamp",
            cause = "A duplicate that the network delayed, or strong reordering on the path.",
            remedy = "None while it is rare. Else look for paths of unequal delay (per-packet load balancing, bonds \
                      in round robin).")]
        OldTimestamp,
        /// A segment without a timestamp, although both ends negotiated timestamps (RFC 7323 §3.2).
        #[explain("tcp_no_timestamp",
            cause = "A middlebox that strips options of some segments, or a forged segment.",
            remedy = "Disable option stripping in the middlebox, or disable `timestamps` in `[tcp]`.")]
        NoTimestamp,
        /// A reset inside the window but not at RCV.NXT, or without an acceptable acknowledgement in
        /// SYN-SENT (RFC 5961 §3).
        #[explain("tcp_blind_reset",
            cause = "A blind reset attack, or a middlebox that resets connections with an old sequence number. The \
                     stream continues after a challenge ACK (RFC 5961).",
            remedy = "If streams hang, look for a firewall on the path that ended the connection by its own time-out.")]
        BlindReset,
        /// A SYN for an existing connection in SYN-RECEIVED or a synchronized state (RFC 5961 §4).
        #[explain("tcp_unexpected_syn",
            cause = "The peer's host has restarted and reuses the port, the SYN-ACK was lost, or a blind attack.",
            remedy = "None: the challenge ACK makes a restarted peer reset the old stream. `ddpctl streams close` \
                      ends it at once.")]
        UnexpectedSyn,
        /// A segment without the ACK flag where it is required, or with neither SYN nor RST in SYN-SENT (RFC 9293
        /// §3.10.7).
        #[explain("tcp_no_ack",
            cause = "A scanner, or a segment forged without knowledge of the connection.",
            remedy = "None.")]
        NoAck,
        /// An acknowledgement of data that was never sent, or one that is too old (RFC 5961 §5, RFC 9293 §3.10.7).
        #[explain("tcp_bad_ack",
            cause = "The peer or a middlebox acknowledges data that was never sent: an old incarnation of the \
                     connection, a restored connection table, or an attack.",
            remedy = "Look for a firewall or load balancer that answers in the peer's name; restart the peer's \
                      connection.")]
        BadAck,
        /// Data that the upper layer refused, or that would exceed the maximum number of out-of-order ranges.
        #[explain("tcp_refused",
            cause = "Loss or reordering left more gaps than are tracked, or held bytes have reached their limit, so \
                     that out-of-order data waits for retransmission.",
            remedy = "Raise `held_per_stream` and `held_per_worker` in `[limits]`, use markers, and look for loss on \
                      the path.")]
        Refused,
        /// Data beyond the peer's FIN, or a FIN that contradicts received data or an earlier FIN.
        #[explain("tcp_past_fin",
            cause = "The peer, or another host in its name, sends after its own FIN: its stack is defective, or a \
                     middlebox merged two connections.",
            remedy = "`ddpctl why STREAM` has the headers; update the peer's stack.")]
        PastFin,
    }
}

impl DropReason {
    /// Returns the position in `ALL`, from zero without gaps: an index into tables of counters.
    pub const fn index(self) -> usize {
        self as usize
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
