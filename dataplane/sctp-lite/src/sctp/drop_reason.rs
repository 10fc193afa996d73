//! Reasons for dropping a packet or a chunk.

use core::fmt;

use super::receive::Refusal;

base::explained! {
    /// Reason why a packet, or its first unused chunk, was dropped. A packet whose only effect is a reply, such
    /// as an ABORT, also counts as dropped.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum DropReason {
        /// A packet that is shorter than the common header, has a zero port, or has no chunk (RFC 9260 §3.1).
        #[explain("sctp_bad_header",
            cause = "A scanner or a fuzzer.",
            remedy = "`ddpctl capture PORT --filter \"sctp and dropped\"` shows the sender.")]
        BadHeader,
        /// The checksum is wrong (RFC 9260 §6.8).
        #[explain("sctp_bad_checksum",
            cause = "On a veth the peer leaves the CRC32c to a device that does not fill it in; its associations time \
                     out. Rarely a device that corrupts frames, or a sender of the old Adler-32.",
            remedy = concat!("`", base::veth_peer_offloads_off!(), "` in the peer's network namespace, where PEER is its interface."))]
        BadChecksum,
        /// A chunk, parameter or cause whose length is wrong (RFC 9260 §3.2).
        #[explain("sctp_bad_chunk",
            cause = "A fuzzer, or a peer whose SCTP is defective.",
            remedy = "`ddpctl capture PORT --filter \"sctp and dropped\"` shows the chunk; update the peer.")]
        BadChunk,
        /// A verification tag that is not this association's (RFC 9260 §8.5).
        #[explain("sctp_bad_tag",
            cause = "The peer continues an association that this end has lost by a restart, or a blind attack.",
            remedy = "None: the peer's association ends by its own time-out or by an ABORT.")]
        BadTag,
        /// A packet that belongs to no association (RFC 9260 §8.4).
        #[explain("sctp_out_of_the_blue",
            cause = "The association has ended here, or nothing listens on that port; a NAT that changed the peer's \
                     port looks the same.",
            remedy = "Compare port and transport with `ddpctl listeners`. Through a NAT use SCTP in UDP \
                      (`udp_encapsulation` in `[sctp]`).")]
        OutOfTheBlue,
        /// The association is closed.
        #[explain("sctp_closed",
            cause = "The association ended while packets of the peer were in flight.",
            remedy = "None.")]
        Closed,
        /// A chunk that is invalid in the present state, or that is bundled although it must be alone in its
        /// packet.
        #[explain("sctp_unexpected_chunk",
            cause = "Duplicates of handshake chunks that the network delayed, or a peer whose SCTP is defective.",
            remedy = "None while it is rare.")]
        UnexpectedChunk,
        /// A chunk of an unknown type that ends its packet (RFC 9260 §3.2).
        #[explain("sctp_unknown_chunk",
            cause = "The peer uses an extension that is not supported here, such as I-DATA or authentication, without \
                     negotiating it.",
            remedy = "Disable the extension at the peer.")]
        UnknownChunk,
        /// An INIT or INIT ACK with an illegal value or without a mandatory parameter (RFC 9260 §3.3.2, §3.3.3).
        #[explain("sctp_bad_init",
            cause = "A scanner, or a peer that offers no streams, no window or a zero tag.",
            remedy = "The event `handshake_failed` has the peer; see its version and its SCTP settings.")]
        BadInit,
        /// The peer does not indicate the required adaptation (RFC 5043 §7.1).
        #[explain("sctp_other_adaptation",
            cause = "The peer is not a DDP client: it indicates no adaptation, or another one.",
            remedy = "Have its program set the adaptation indication 1 (RFC 5043 §11.1), or connect to another port.")]
        OtherAdaptation,
        /// A cookie not issued here, or issued for other ends or another association (RFC 9260 §5.1.5, §5.2.4).
        #[explain("sctp_bad_cookie",
            cause = "A forged cookie, or one from before a restart of the appliance.",
            remedy = "None: a regular peer begins again with an INIT.")]
        BadCookie,
        /// An expired cookie (RFC 9260 §5.1.5).
        #[explain("sctp_stale_cookie",
            cause = "The round-trip time exceeds the lifetime of the cookie, or a cookie was replayed.",
            remedy = "Raise `cookie_life` in `[sctp]` on paths with very long delays or much loss.")]
        StaleCookie,
        /// An outdated SACK, or a SACK with an impossible Gap Ack Block (RFC 9260 §6.2.1).
        #[explain("sctp_bad_sack",
            cause = "Reordered SACKs. A SACK of data never sent ends the association.",
            remedy = "None while it is rare.")]
        BadSack,
        /// A DATA chunk whose TSN is too far ahead for a Gap Ack Block.
        #[explain("sctp_beyond_window",
            cause = "The peer sends far ahead of a gap that has not been filled, or a forged TSN.",
            remedy = "None: the peer retransmits. Look for loss on the path if it grows.")]
        BeyondWindow,
        /// A DATA chunk that would exceed the limit of out-of-order ranges.
        #[explain("sctp_too_many_gaps",
            cause = "Heavy loss or reordering.",
            remedy = "Look for loss on the path; raise `held_per_stream` in `[limits]`.")]
        TooManyGaps,
        /// A DATA chunk while the window is closed (RFC 9260 §6.2).
        #[explain("sctp_window_closed",
            cause = "The peer probes a window that is closed because a region or queue accepts no data, or the peer \
                     ignores the window.",
            remedy = "`ddpctl streams show` has the cause for which the stream waits; raise `receive_window_limit` in \
                      `[sctp]`.")]
        WindowClosed,
        /// A fragment that exceeds the association's budget for fragments.
        #[explain("sctp_too_many_fragments",
            cause = "Messages larger than a packet arrive with losses, so that fragments wait for others.",
            remedy = "Raise the path MTU or lower the peer's message size, so that a DDP segment fits a packet; look \
                      for loss.")]
        TooManyFragments,
        /// A fragment that exceeds the worker's budget for held bytes, or the peer's share of it.
        #[explain("sctp_hold_budget",
            cause = "Many streams with losses hold fragments at the same time.",
            remedy = "Raise `held_per_worker` in `[limits]`, and look for loss on the path.")]
        HoldBudget,
        /// A message that the upper layer refused.
        #[explain("sctp_not_taken",
            cause = "DDP has no room for the message at present: a queue without a buffer, or the limit of held bytes.",
            remedy = "More `buffers` in `[[listener.queue]]`; else `held_per_stream` in `[limits]`. The peer \
                      retransmits.")]
        NotTaken,
        /// A DATA chunk that violates the protocol: the association was aborted.
        #[explain("sctp_violation",
            cause = "The peer's SCTP is defective, or an attacker knows the verification tag.",
            remedy = "`ddpctl why PEER` has the error; update the peer.")]
        Violation,
        /// An INIT that could not be answered for lack of room. The peer retransmits it.
        #[explain("sctp_no_room",
            cause = "A flood of INITs, or a transmit ring without room.",
            remedy = "See `tx_dropped` and `no_buffer` of the port in `ddpctl stats`; raise `tx_descriptors`.")]
        NoRoom,
    }
}

impl DropReason {
    /// Returns a dense number from zero, for tables of counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl From<Refusal> for DropReason {
    fn from(refusal: Refusal) -> DropReason {
        match refusal {
            Refusal::BeyondWindow => DropReason::BeyondWindow,
            Refusal::TooManyGaps => DropReason::TooManyGaps,
            Refusal::WindowClosed => DropReason::WindowClosed,
            Refusal::TooManyFragments => DropReason::TooManyFragments,
            Refusal::HoldBudget => DropReason::HoldBudget,
            Refusal::NotTaken => DropReason::NotTaken,
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
    fn indices_are_dense_and_names_distinct() {
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i);
            assert!(DropReason::ALL[..i].iter().all(|r| r.name() != reason.name()));
        }
    }
}
