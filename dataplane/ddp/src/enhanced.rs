//! Negotiation of an enhanced start-up, for any lower layer (RFC 6581 §9): IRD and ORD, the RDMA Reads that each end may
//! have outstanding, and the message by which an initiator permits the responder to
//! send first.
//!
//! ```text
//!  initiator          IRD, ORD, A=1, B C D: messages it can send           responder
//!     |  --------------------------------------------------------------->    |  answer
//!     |  settle   <------------------------------------------------------    |
//!     |           IRD, ORD as it uses them, A=1, B C D: those it takes       |
//!     |  ==== the ready-to-receive message: no bytes, first ULPDU =====>     |  may send now
//! ```

use thiserror::Error;

pub use wire::mpa::{ENHANCED_LEN, EnhancedRepr, MAX_DEPTH, NO_LIMIT, RtrSet};

#[cfg(test)]
mod tests;

/// What an operator chooses about it, besides the depths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enhanced {
    /// An initiator asks for the peer-to-peer model, in which the responder may be the first to send.
    pub peer_to_peer: bool,
    /// Ready-to-receive messages that this end sends or takes.
    pub rtr: RtrSet,
    /// Read Requests that a responder must be able to issue at once. A request whose IRD is less is
    /// rejected (RFC 6581 §9.1).
    pub required_ord: u16,
}

impl Enhanced {
    /// Its ready-to-receive messages, of which there is always one (RFC 6581 §9.2): a Write of no bytes takes nothing
    /// at either end.
    fn rtr(&self, without_reads: bool) -> RtrSet {
        let rtr = RtrSet { read: self.rtr.read && !without_reads, ..self.rtr };
        if rtr.is_empty() { RtrSet { write: true, ..rtr } } else { rtr }
    }
}

impl Default for Enhanced {
    /// Client-server as initiator, all ready-to-receive messages, no Reads needed.
    fn default() -> Self {
        Enhanced { peer_to_peer: false, rtr: RtrSet::ALL, required_ord: 0 }
    }
}

/// Numbers of RDMA Reads, each 0 to [`MAX_DEPTH`], or [`NO_LIMIT`] in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    /// Read Requests of the peer that this end takes at once.
    pub ird: u16,
    /// Read Requests that this end issues at once.
    pub ord: u16,
}

impl Depths {
    /// No Reads either way, as with bare DDP.
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
    /// True when it is in the set.
    pub fn is_in(self, set: RtrSet) -> bool {
        match self {
            Rtr::Send => set.send,
            Rtr::Write => set.write,
            Rtr::Read => set.read,
        }
    }
}

/// This end's part in the peer-to-peer model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// Client-server model: the initiator's ULP sends first.
    ClientServer,
    /// The initiator: sends this before anything else.
    Sends(Rtr),
    /// The responder: one of these comes, and then it may send.
    Awaits(RtrSet),
}

/// What was negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// What this end keeps to.
    pub depths: Depths,
    /// What the peer's frame said, for the ULP (RFC 6581 §9.1).
    pub peer: Depths,
    /// Who sends first.
    pub readiness: Readiness,
}

/// Why two ends cannot have a stream; sent to the peer (RFC 6581 §8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unsuitable {
    /// An end takes fewer RDMA Reads than the other must issue (§9.1, code 6).
    #[error("insufficient IRD: {needed} needed, {offered} offered")]
    InsufficientIrd {
        /// IRD of the end that takes them.
        offered: u16,
        /// ORD of the end that issues them.
        needed: u16,
    },
    /// No ready-to-receive message, or connection model, in common (§9.2, code 7).
    #[error("no matching ready-to-receive message")]
    NoRtr,
}

impl Unsuitable {
    /// A stable name for counters and machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Unsuitable::InsufficientIrd { .. } => "insufficient_ird",
            Unsuitable::NoRtr => "no_rtr",
        }
    }

    /// The error code of RFC 6581 §8, of layer 2, type 0.
    pub fn code(self) -> u8 {
        match self {
            Unsuitable::InsufficientIrd { .. } => 6,
            Unsuitable::NoRtr => 7,
        }
    }
}

/// The enhanced data of an initiator's request.
pub fn ask(here: Depths, enhanced: &Enhanced) -> EnhancedRepr {
    let rtr = enhanced.peer_to_peer.then(|| enhanced.rtr(false));
    EnhancedRepr { ird: here.ird, ord: here.ord, rtr }
}

/// A responder's reply to what a request asks for, and what holds once it is sent.
///
/// # Errors
/// The initiator takes fewer Reads than this end's ULP must issue.
pub fn answer(
    asked: &EnhancedRepr,
    here: Depths,
    enhanced: &Enhanced,
) -> Result<(EnhancedRepr, Agreed), Unsuitable> {
    if asked.ird < enhanced.required_ord {
        let (offered, needed) = (asked.ird, enhanced.required_ord);
        return Err(Unsuitable::InsufficientIrd { offered, needed });
    }
    // RFC 6581 §9.1: at most the initiator's IRD; 0x3FFF leaves ours as it is and is echoed.
    let (ord, said_ord) = limit(here.ord, asked.ird);
    let (mut ird, mut said_ird) = limit(here.ird, asked.ord);
    let (mut rtr, mut readiness) = (None, Readiness::ClientServer);
    if let Some(theirs) = asked.rtr {
        // A Read needs a place among the Reads that this end takes.
        let ours = enhanced.rtr(here.ird == 0);
        let both = ours.and(theirs);
        // RFC 6581 §9.2: without a common one the responder says which ones it takes.
        let takes = if both.is_empty() { ours } else { both };
        if takes.read && said_ird == 0 {
            // RFC 6581 §9.1: one for the ready-to-receive message itself.
            (ird, said_ird) = (1, 1);
        }
        rtr = Some(takes);
        readiness = Readiness::Awaits(takes);
    }
    let agreed = Agreed { depths: Depths { ird, ord }, peer: Depths::from(*asked), readiness };
    Ok((EnhancedRepr { ird: said_ird, ord: said_ord, rtr }, agreed))
}

/// What an initiator that has `asked` makes of the reply. `preference`: its messages, best first.
///
/// # Errors
/// The responder wants to issue more Reads than this end takes, or they have no ready-to-receive
/// message in common. The peer is to be sent a Terminate.
pub fn settle(
    asked: &EnhancedRepr,
    reply: &EnhancedRepr,
    here: Depths,
    preference: [Rtr; 3],
) -> Result<Agreed, Unsuitable> {
    if reply.ord != NO_LIMIT && reply.ord > here.ird {
        // RFC 6581 §9.1: there are no resources for more.
        let (offered, needed) = (here.ird, reply.ord);
        return Err(Unsuitable::InsufficientIrd { offered, needed });
    }
    // RFC 6581 §9.1: ORD at most the responder's IRD; 0x3FFF leaves it as it is.
    let (mut ord, _) = limit(here.ord, reply.ird);
    let readiness = match (asked.rtr, reply.rtr) {
        // A flag that was not asked for says nothing.
        (None, _) => Readiness::ClientServer,
        (Some(_), None) => return Err(Unsuitable::NoRtr),
        (Some(ours), Some(theirs)) => {
            let both = ours.and(theirs);
            let usable = |rtr: &Rtr| rtr.is_in(both) && (*rtr != Rtr::Read || reply.ird > 0);
            let rtr = preference.into_iter().find(usable).ok_or(Unsuitable::NoRtr)?;
            if rtr == Rtr::Read {
                // RFC 6581 §9.1: one for the ready-to-receive message itself, which this end has offered.
                ord = ord.max(1);
            }
            Readiness::Sends(rtr)
        }
    };
    Ok(Agreed { depths: Depths { ird: here.ird, ord }, peer: Depths::from(*reply), readiness })
}

/// A depth of this end under the peer's limit: what holds here, and what is sent of it.
fn limit(here: u16, peers: u16) -> (u16, u16) {
    if peers == NO_LIMIT { (here, NO_LIMIT) } else { (here.min(peers), here.min(peers)) }
}
