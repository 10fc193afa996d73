//! Explicit Congestion Notification (RFC 3168): negotiation, echo and reaction. With DCTCP the echo is exact
//! (RFC 8257 §3.2): ECE is set if the acknowledged segments were marked.
//!
//! ```text
//!   SYN  ECE+CWR ------------------>           offered
//!   <------------------ SYN,ACK  ECE           agreed
//!   data ECT(0)  --- marked CE --->            the receiver echoes
//!   <------------------ ACK  ECE               in every acknowledgement, until
//!   data CWR  --------------------->           the sender has reduced its window
//! ```
//!
//! ```text
//!                  CE: acknowledge at once, ECE=1
//!   DCTCP.CE = 0 ---------------------------------> DCTCP.CE = 1
//!    ECE=0       <---------------------------------  ECE=1
//!                  no CE: acknowledge at once, ECE=0
//! ```
//!
//! At a change of state, segments not yet acknowledged are first acknowledged with the old state, because several
//! segments of a burst arrive before any acknowledgement is sent.
//!
//! The ECN field is read and written with the IP header: [`Segment::ce`](super::Segment::ce) on arrival, and
//! [`TxBatch::ecn_capable`](crate::seam::TxBatch::ecn_capable) for segments to send with ECT(0).

use transport::seq::ExtSeq;

use super::segment::{Flags, Segment};

/// The ECN state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ecn {
    /// Our SYN asks for it.
    offered: bool,
    /// It asked once, and then went without (RFC 3168 §6.1.1.1).
    withdrawn: bool,
    /// Data is sent as ECN-capable, and the peer's echo is heeded.
    sends: bool,
    /// Marks on what arrives are echoed.
    receives: bool,
    /// A mark arrived and the peer has not answered the echo yet. With an exact echo, DCTCP.CE (RFC 8257 §3.2):
    /// the last data segment was marked.
    echoing: bool,
    /// Marks are echoed exactly, and SYN and RST are sent as ECN-capable (RFC 8257).
    exact: bool,
    /// Reductions of the congestion window for which CWR was sent, or need not be.
    reported: u16,
    /// SND.NXT at the last reaction: an echo for what was sent before is ignored.
    reacted_until: ExtSeq,
}

/// What a data segment asks of the receiver because of its mark, or for want of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// Nothing.
    Usual,
    /// An acknowledgement now.
    AckNow,
    /// The same; what came before it is acknowledged with the echo as it was, set or not.
    Changed {
        /// It was set.
        was: bool,
    },
}

impl Ecn {
    /// Before an active open. `exact`: as DCTCP.
    pub(crate) fn offering(wanted: bool, exact: bool) -> Ecn {
        Ecn { offered: wanted, exact, ..Ecn::default() }
    }

    /// True when a SYN, or its answer, is sent as ECN-capable (RFC 8257 §3.6).
    pub(crate) fn is_syn_capable(&self, reply: bool) -> bool {
        self.exact && if reply { self.receives } else { self.offered }
    }

    /// The same of a reset.
    pub(crate) fn is_reset_capable(&self) -> bool {
        self.exact && self.sends
    }

    /// True when the peer is taken to echo each mark (RFC 8257 §3.3).
    pub(crate) fn measures(&self) -> bool {
        self.exact && self.sends
    }

    /// Flags of a SYN, or of its answer (RFC 3168 §6.1.1).
    pub(crate) fn syn_flags(&self, reply: bool) -> Flags {
        match reply {
            true if self.receives => Flags::ECE,
            false if self.offered => Flags::ECE.with(Flags::CWR),
            _ => Flags::default(),
        }
    }

    /// RFC 3168 §6.1.1.1: a SYN that asked for it got no answer, or a reset. Returns whether it did ask.
    pub(crate) fn withdraw(&mut self) -> bool {
        self.withdrawn |= self.offered;
        core::mem::take(&mut self.offered)
    }

    /// The peer's SYN, or SYN and ACK, arrived.
    pub(crate) fn negotiate(&mut self, syn: &Segment<'_>, wanted: bool) {
        let (ece, cwr) = (syn.flags.has(Flags::ECE), syn.flags.has(Flags::CWR));
        if syn.flags.has(Flags::ACK) {
            // RFC 3168 §6.1.1: ECE without CWR; both set is a peer that reflects what it got. §6.1.1.1:
            // who has also sent a SYN without sends no ECT, though the peer may.
            self.receives = ece && !cwr && (self.offered || self.withdrawn);
            self.sends = self.receives && !self.withdrawn;
        } else {
            self.receives = wanted && ece && cwr;
            self.sends = self.receives && !self.withdrawn;
        }
    }

    /// True when data is sent as ECN-capable.
    pub(crate) fn sends(&self) -> bool {
        self.sends
    }

    /// True when [`data_arrived`](Self::data_arrived) can change anything: marks are echoed, and there is one here, or
    /// an echo under way.
    #[inline]
    pub(crate) fn concerns(&self, seg: &Segment<'_>) -> bool {
        self.receives && (seg.ce || self.echoing || seg.flags.has(Flags::CWR))
    }

    /// A data segment in the window arrived.
    pub(crate) fn data_arrived(&mut self, seg: &Segment<'_>) -> Arrival {
        if self.exact {
            let was = core::mem::replace(&mut self.echoing, seg.ce);
            return if was != seg.ce { Arrival::Changed { was } } else { Arrival::Usual };
        }
        // RFC 3168 §6.1.3: CWR ends the echo; a mark on that very segment begins it anew.
        if seg.flags.has(Flags::CWR) {
            self.echoing = false;
        }
        let marked = seg.ce && !seg.payload.is_empty();
        self.echoing |= marked;
        if marked { Arrival::AckNow } else { Arrival::Usual }
    }

    /// ECE, while marks are echoed: for every segment that acknowledges (RFC 3168 §6.1.3, RFC 8257 §3.2).
    pub(crate) fn ack_flags(&self) -> Flags {
        if self.echoing { Flags::ECE } else { Flags::default() }
    }

    /// An acknowledgement of everything below `ack` arrived; whether the congestion window has to shrink:
    /// once per window of data (RFC 3168 §6.1.2).
    pub(crate) fn must_slow_down(&mut self, seg: &Segment<'_>, ack: ExtSeq, nxt: ExtSeq) -> bool {
        let due = self.sends && seg.flags.has(Flags::ECE) && ack > self.reacted_until;
        if due {
            self.reacted_until = nxt;
        }
        due
    }

    /// True when the next new data segment has CWR: see [`data_flags`](Self::data_flags).
    pub(crate) fn owes_cwr(&self, reductions: u64) -> bool {
        self.sends && reductions as u16 != self.reported
    }

    /// Flags of a new data segment: CWR on the first one after a reduction for any reason, of which there
    /// were `reductions` (RFC 3168 §6.1.2).
    pub(crate) fn data_flags(&mut self, reductions: u64) -> Flags {
        if !self.owes_cwr(reductions) {
            return Flags::default();
        }
        self.reported = reductions as u16;
        Flags::CWR
    }
}
