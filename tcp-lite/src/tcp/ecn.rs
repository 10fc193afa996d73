//! Explicit Congestion Notification (RFC 3168): negotiation, echo and reaction. With DCTCP the echo is exact (RFC 8257
//! §3.2): an acknowledgement has ECE if and only if the segments that it acknowledges were marked CE.
//!
//! ```text
//!   SYN  ECE+CWR ------------------>           offered
//!   <------------------ SYN,ACK  ECE           agreed
//!   data ECT(0)  --- marked CE --->            the receiver echoes
//!   <------------------ ACK  ECE               in every acknowledgement, until
//!   data CWR  --------------------->           the sender has reduced its window
//! ```
//!
//! Receiver with DCTCP (RFC 8257 §3.2, figure 1):
//!
//! ```text
//!                  CE: acknowledge at once, ECE=1
//!   DCTCP.CE = 0 ---------------------------------> DCTCP.CE = 1
//!    ECE=0       <---------------------------------  ECE=1
//!                  no CE: acknowledge at once, ECE=0
//! ```
//!
//! Several segments of a burst are received before any acknowledgement is sent. When DCTCP.CE changes, the segments
//! before the change are therefore acknowledged first, with the old state.
//!
//! The ECN field is read and written with the IP header: [`Segment::ce`](super::Segment::ce) of received segments, and
//! [`TxBatch::set_ecn_capable`](crate::seam::TxBatch::set_ecn_capable) for ECT(0) on sent segments.

use transport::seq::ExtSeq;

use super::config::Config;
use super::segment::{Flags, Segment};

/// The ECN state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ecn {
    /// True if our SYN offers ECN.
    offered: bool,
    /// True if a SYN offered ECN and a later SYN did not (RFC 3168 §6.1.1.1).
    withdrawn: bool,
    /// True if data is sent as ECN-capable and ECE flags from the peer are processed.
    sends_ect: bool,
    /// True if CE marks on received data are echoed with ECE.
    echoes_marks: bool,
    /// RFC 3168: true from a received CE mark until the peer sends CWR. RFC 8257 §3.2: DCTCP.CE, true if the last data
    /// segment was marked.
    echoing: bool,
    /// True with DCTCP (RFC 8257): the echo is exact, and SYN and RST are sent as ECN-capable.
    exact: bool,
    /// Number of congestion window reductions at the last CWR sent, modulo 2^16.
    reported: u16,
    /// SND.NXT at the last reduction by ECN. ECE on acknowledgements at or below it is ignored.
    reacted_until: ExtSeq,
}

/// Reaction of the receiver to a data segment's CE mark, or its absence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EchoAction {
    /// Acknowledge as usual, perhaps delayed.
    NoAction,
    /// Acknowledge at once.
    AckNow,
    /// Acknowledge at once. Earlier segments are acknowledged first, with the old echo state.
    Changed {
        /// DCTCP.CE before this segment: true if ECE was set.
        old_echo: bool,
    },
}

impl Ecn {
    /// Creates the state of an active open.
    pub(crate) fn for_active_open(config: &Config) -> Ecn {
        let exact = config.congestion.exact_ecn();
        Ecn { offered: config.extensions.ecn, exact, ..Ecn::default() }
    }

    /// Returns true if the SYN or, with `reply`, the SYN-ACK is sent as ECN-capable (RFC 8257 §3.6).
    pub(crate) fn is_syn_capable(&self, reply: bool) -> bool {
        self.exact && if reply { self.echoes_marks } else { self.offered }
    }

    /// Returns true if a reset is sent as ECN-capable: with DCTCP, after ECN was negotiated.
    pub(crate) fn is_reset_capable(&self) -> bool {
        self.exact && self.sends_ect
    }

    /// Returns true if the peer is expected to echo each mark exactly (RFC 8257 §3.3).
    pub(crate) fn expects_exact_echo(&self) -> bool {
        self.exact && self.sends_ect
    }

    /// Returns the ECN flags of the SYN or, with `reply`, of the SYN-ACK (RFC 3168 §6.1.1).
    pub(crate) fn syn_flags(&self, reply: bool) -> Flags {
        match reply {
            true if self.echoes_marks => Flags::ECE,
            false if self.offered => Flags::ECE.with(Flags::CWR),
            _ => Flags::default(),
        }
    }

    /// Stops offering ECN after a SYN was unanswered or answered with a reset (RFC 3168 §6.1.1.1). Returns true if ECN
    /// was offered.
    pub(crate) fn withdraw(&mut self) -> bool {
        self.withdrawn |= self.offered;
        core::mem::take(&mut self.offered)
    }

    /// Processes the ECN flags of the peer's SYN or SYN-ACK. `wanted`: the configuration enables ECN.
    pub(crate) fn negotiate(&mut self, syn: &Segment<'_>, wanted: bool) {
        let (ece, cwr) = (syn.flags.has(Flags::ECE), syn.flags.has(Flags::CWR));
        if syn.flags.has(Flags::ACK) {
            // RFC 3168 §6.1.1: the peer accepts ECN by ECE without CWR. A peer that sets ECE and CWR only reflects our
            // flags. §6.1.1.1: after a SYN without ECN this end sends no ECT, but the peer may.
            self.echoes_marks = ece && !cwr && (self.offered || self.withdrawn);
            self.sends_ect = self.echoes_marks && !self.withdrawn;
        } else {
            self.echoes_marks = wanted && ece && cwr;
            self.sends_ect = self.echoes_marks && !self.withdrawn;
        }
    }

    /// Returns true if data is sent as ECN-capable.
    pub(crate) fn sends_ect(&self) -> bool {
        self.sends_ect
    }

    /// Returns true if [`on_data`](Self::on_data) may have an effect: marks are echoed, and the segment has a mark or
    /// CWR, or an echo is active.
    #[inline]
    pub(crate) fn affects_echo(&self, seg: &Segment<'_>) -> bool {
        self.echoes_marks && (seg.ce || self.echoing || seg.flags.has(Flags::CWR))
    }

    /// Processes the CE mark and the CWR flag of a data segment in the window. Returns how the segment must be
    /// acknowledged.
    pub(crate) fn on_data(&mut self, seg: &Segment<'_>) -> EchoAction {
        if self.exact {
            let was = core::mem::replace(&mut self.echoing, seg.ce);
            return if was != seg.ce {
                EchoAction::Changed { old_echo: was }
            } else {
                EchoAction::NoAction
            };
        }
        // RFC 3168 §6.1.3: CWR ends the echo. A CE mark on the same segment starts the echo again.
        if seg.flags.has(Flags::CWR) {
            self.echoing = false;
        }
        let marked = seg.ce && !seg.payload.is_empty();
        self.echoing |= marked;
        if marked { EchoAction::AckNow } else { EchoAction::NoAction }
    }

    /// Returns the ECN flags of an acknowledgement: ECE while marks are echoed (RFC 3168 §6.1.3, RFC 8257 §3.2).
    pub(crate) fn ack_flags(&self) -> Flags {
        if self.echoing { Flags::ECE } else { Flags::default() }
    }

    /// Returns true if ECE in `seg` must reduce the congestion window: at most once per window of data (RFC 3168
    /// §6.1.2). `ack`, `nxt`: SEG.ACK and SND.NXT.
    pub(crate) fn must_reduce_cwnd(&mut self, seg: &Segment<'_>, ack: ExtSeq, nxt: ExtSeq) -> bool {
        let due = self.sends_ect && seg.flags.has(Flags::ECE) && ack > self.reacted_until;
        if due {
            self.reacted_until = nxt;
        }
        due
    }

    /// Returns true if the next new data segment carries CWR. `reductions`: number of window reductions so far.
    pub(crate) fn is_cwr_due(&self, reductions: u64) -> bool {
        self.sends_ect && reductions as u16 != self.reported
    }

    /// Returns the flags of a new data segment: CWR on the first segment after a window reduction for any reason (RFC
    /// 3168 §6.1.2).
    pub(crate) fn data_flags(&mut self, reductions: u64) -> Flags {
        if !self.is_cwr_due(reductions) {
            return Flags::default();
        }
        self.reported = reductions as u16;
        Flags::CWR
    }
}
