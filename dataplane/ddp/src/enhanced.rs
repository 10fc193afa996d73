//! Negotiation of an enhanced start-up, for any lower layer (RFC 6581 §9). The ends agree on their IRD and ORD: the
//! maximum numbers of outstanding RDMA Reads that an end accepts and issues. The ends also agree on the
//! ready-to-receive message, with which the initiator permits the responder to send first.
//!
//! ```text
//!  initiator          IRD, ORD, A=1, B C D: messages it can send           responder
//!     |  --------------------------------------------------------------->    |  build_reply
//!     |  accept_reply <---------------------------------------------------    |
//!     |           IRD, ORD as it uses them, A=1, B C D: messages it accepts  |
//!     |  ==== the ready-to-receive message: no bytes, first ULPDU =====>     |  may send now
//! ```
//!
//! A, B, C, D: flags of the enhanced data. A requests the peer-to-peer model. B, C and D stand for the possible
//! ready-to-receive messages: a Send, an RDMA Write and an RDMA Read.

use thiserror::Error;

pub use wire::mpa::{ENHANCED_LEN, EnhancedRepr, MAX_DEPTH, NO_LIMIT, RtrSet};

#[cfg(test)]
mod tests;

/// Configured choices for the negotiation, other than IRD and ORD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enhanced {
    /// True to request the peer-to-peer model as initiator. The responder may then send first.
    pub peer_to_peer: bool,
    /// Ready-to-receive messages that this end sends or accepts.
    pub rtr: RtrSet,
    /// As responder: minimum ORD, the number of Read Requests that this end's ULP must be able to have outstanding. A
    /// request with a lower IRD is rejected (RFC 6581 §9.1).
    pub required_ord: u16,
}

impl Enhanced {
    /// Returns the usable ready-to-receive messages (RFC 6581 §9.2). If the set would be empty, it contains the
    /// zero-length RDMA Write, which needs no resources at either end.
    fn rtr(&self, without_reads: bool) -> RtrSet {
        let rtr = RtrSet { read: self.rtr.read && !without_reads, ..self.rtr };
        if rtr.is_empty() { RtrSet { write: true, ..rtr } } else { rtr }
    }
}

impl Default for Enhanced {
    /// Returns the defaults: no peer-to-peer model requested as initiator, all ready-to-receive messages, no minimum
    /// ORD as responder.
    fn default() -> Self {
        Enhanced { peer_to_peer: false, rtr: RtrSet::ALL, required_ord: 0 }
    }
}

/// IRD and ORD of one end, each 0 to [`MAX_DEPTH`], or [`NO_LIMIT`] in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    /// IRD: maximum number of outstanding Read Requests of the peer.
    pub ird: u16,
    /// ORD: maximum number of outstanding Read Requests of this end.
    pub ord: u16,
}

impl Depths {
    /// IRD and ORD 0: no Reads in either direction, as with bare DDP.
    pub const NONE: Depths = Depths { ird: 0, ord: 0 };
}

impl From<EnhancedRepr> for Depths {
    fn from(repr: EnhancedRepr) -> Self {
        Depths { ird: repr.ird, ord: repr.ord }
    }
}

/// A ready-to-receive message (RFC 6581 §9.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rtr {
    /// A zero-length Send.
    Send,
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read.
    Read,
}

impl Rtr {
    /// Returns true if the set contains this message.
    pub fn is_in(self, set: RtrSet) -> bool {
        match self {
            Rtr::Send => set.send,
            Rtr::Write => set.write,
            Rtr::Read => set.read,
        }
    }
}

/// This end's role in the peer-to-peer model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// Client-server model: the initiator's ULP sends first.
    ClientServer,
    /// The initiator sends this message before any other.
    SendsRtr(Rtr),
    /// The responder may send after one of these messages has arrived.
    AwaitsRtr(RtrSet),
}

/// Result of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// Depths in effect at this end.
    pub depths: Depths,
    /// Depths in the peer's frame, for the ULP (RFC 6581 §9.1).
    pub peer: Depths,
    /// Connection model, and the ready-to-receive message that this end sends or awaits.
    pub readiness: Readiness,
}

/// Reasons for a failed negotiation. The error is sent to the peer (RFC 6581 §8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NegotiationError {
    /// One end accepts fewer RDMA Reads than the other must issue (§9.1, code 6).
    #[error("insufficient IRD: {needed} needed, {offered} offered")]
    InsufficientIrd {
        /// IRD of the end that accepts the Reads.
        offered: u16,
        /// ORD of the end that issues the Reads.
        needed: u16,
    },
    /// The ends have no ready-to-receive message or no connection model in common (§9.2, code 7).
    #[error("no matching ready-to-receive message")]
    NoRtr,
}

impl NegotiationError {
    /// Returns a stable name for counters and machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            NegotiationError::InsufficientIrd { .. } => "insufficient_ird",
            NegotiationError::NoRtr => "no_rtr",
        }
    }

    /// Returns the error code of RFC 6581 §8, for layer 2 and error type 0.
    pub fn code(self) -> u8 {
        match self {
            NegotiationError::InsufficientIrd { .. } => 6,
            NegotiationError::NoRtr => 7,
        }
    }
}

/// Returns the enhanced data of an initiator's request.
pub fn build_request(local: Depths, enhanced: &Enhanced) -> EnhancedRepr {
    let rtr = enhanced.peer_to_peer.then(|| enhanced.rtr(false));
    EnhancedRepr { ird: local.ird, ord: local.ord, rtr }
}

/// Returns a responder's reply to a request, and the agreement that is in effect once the reply is sent.
///
/// # Errors
/// The initiator accepts fewer Reads than this end's ULP must be able to issue.
pub fn build_reply(
    request: &EnhancedRepr,
    local: Depths,
    enhanced: &Enhanced,
) -> Result<(EnhancedRepr, Agreement), NegotiationError> {
    if request.ird < enhanced.required_ord {
        let (offered, needed) = (request.ird, enhanced.required_ord);
        return Err(NegotiationError::InsufficientIrd { offered, needed });
    }
    // RFC 6581 §9.1: our ORD is at most the initiator's IRD, and our IRD at most the initiator's ORD. 0x3FFF leaves our
    // value unchanged and is echoed.
    let (ord, reply_ord) = limit_depth(local.ord, request.ird);
    let (mut ird, mut reply_ird) = limit_depth(local.ird, request.ord);
    let (mut rtr, mut readiness) = (None, Readiness::ClientServer);
    if let Some(theirs) = request.rtr {
        // A Read needs a slot in this end's IRD.
        let ours = enhanced.rtr(local.ird == 0);
        let both = ours.intersection(theirs);
        // RFC 6581 §9.2: without a common message the responder lists the messages that it accepts.
        let accepted = if both.is_empty() { ours } else { both };
        if accepted.read && reply_ird == 0 {
            // RFC 6581 §9.1: the ready-to-receive message itself needs one slot.
            (ird, reply_ird) = (1, 1);
        }
        rtr = Some(accepted);
        readiness = Readiness::AwaitsRtr(accepted);
    }
    let agreed = Agreement { depths: Depths { ird, ord }, peer: Depths::from(*request), readiness };
    Ok((EnhancedRepr { ird: reply_ird, ord: reply_ord, rtr }, agreed))
}

/// Returns the agreement for an initiator that has sent `request` and received `reply`. `preference` orders the
/// ready-to-receive messages, the preferred message first.
///
/// # Errors
/// The responder would issue more Reads than this end accepts, or the ends have no ready-to-receive message in
/// common. The caller must send a Terminate.
pub fn accept_reply(
    request: &EnhancedRepr,
    reply: &EnhancedRepr,
    local: Depths,
    preference: [Rtr; 3],
) -> Result<Agreement, NegotiationError> {
    if reply.ord != NO_LIMIT && reply.ord > local.ird {
        // RFC 6581 §9.1: this end has no resources for so many Reads.
        let (offered, needed) = (local.ird, reply.ord);
        return Err(NegotiationError::InsufficientIrd { offered, needed });
    }
    // RFC 6581 §9.1: our ORD is at most the responder's IRD; 0x3FFF leaves our ORD unchanged.
    let (mut ord, _) = limit_depth(local.ord, reply.ird);
    let readiness = match (request.rtr, reply.rtr) {
        // Flag A of the reply is ignored if the request did not set it.
        (None, _) => Readiness::ClientServer,
        (Some(_), None) => return Err(NegotiationError::NoRtr),
        (Some(ours), Some(theirs)) => {
            let both = ours.intersection(theirs);
            let usable = |rtr: &Rtr| rtr.is_in(both) && (*rtr != Rtr::Read || reply.ird > 0);
            let rtr = preference.into_iter().find(usable).ok_or(NegotiationError::NoRtr)?;
            if rtr == Rtr::Read {
                // RFC 6581 §9.1: the ready-to-receive Read, which this end has offered, counts towards ORD.
                ord = ord.max(1);
            }
            Readiness::SendsRtr(rtr)
        }
    };
    Ok(Agreement { depths: Depths { ird: local.ird, ord }, peer: Depths::from(*reply), readiness })
}

/// Limits a depth of this end to the matching depth of the peer. Returns the depth in effect at this end and the depth
/// to send.
fn limit_depth(local: u16, peer: u16) -> (u16, u16) {
    if peer == NO_LIMIT { (local, NO_LIMIT) } else { (local.min(peer), local.min(peer)) }
}
