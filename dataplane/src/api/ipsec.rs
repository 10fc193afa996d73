//! IPsec as the control thread configures and sees it.

use std::sync::Arc;
use std::time::Duration;

pub use ipsec::guard::{
    Direction as SaDirection, Drop as IpsecDrop, Notice as IpsecNotice, Protection, ReplayWindows,
    SaId, SaInfo,
};
use ipsec::policy::Spd;
use ipsec::sa::Parameters;

use crate::ids::WorkerId;

/// What is protected, and how. The same for all workers.
#[derive(Debug)]
pub struct IpsecConfig {
    /// The policies. What none of them names is dropped.
    pub policies: Spd<Protection>,
    /// The worker that has the SAs of each [`Protection`], by place.
    pub owners: Vec<WorkerId>,
    /// SAs that there are from the beginning.
    pub sas: Vec<SaConfig>,
    /// Nobody else seals: what the host of a shared port has sealed is not sent.
    pub alone: bool,
    /// Anti-replay windows of SAs that end, for those that come back with their keys.
    pub windows: ReplayWindows,
}

/// An SA. Each worker gets it; its owner uses it.
#[derive(Clone, Debug)]
pub struct SaConfig {
    /// Which it is.
    pub id: SaId,
    /// Whose it is.
    pub protection: Protection,
    /// What both ends agreed on.
    pub parameters: Arc<Parameters>,
    /// What its direction needs.
    pub way: SaWay,
}

/// What an SA of one direction needs.
#[derive(Clone, Copy, Debug)]
pub enum SaWay {
    /// From the peer.
    In {
        /// Packets of the anti-replay window, 64 to 4096.
        window: u16,
        /// All sequence numbers up to this were received before, and those that an SA with the same SPI and keys received
        /// that ended.
        top: u64,
    },
    /// To the peer.
    Out {
        /// The first sequence number that may be used, and how many from there are reserved; `None`: all.
        reserve: Option<(u64, u64)>,
        /// Without a packet for so long one is sent that keeps the ports of NATs on the way (RFC 3948 §4), if it goes in UDP.
        keepalive: Option<Duration>,
    },
}

impl SaConfig {
    /// Which way it carries packets.
    pub fn direction(&self) -> SaDirection {
        match self.way {
            SaWay::In { .. } => SaDirection::In,
            SaWay::Out { .. } => SaDirection::Out,
        }
    }
}

/// A change of what is protected.
#[derive(Clone, Debug)]
pub enum SaChange {
    /// Other policies; `owners` as in [`IpsecConfig`], of which those that were there stay as they are.
    Policies {
        /// The policies.
        policies: Arc<Spd<Protection>>,
        /// The worker that has the SAs of each [`Protection`], by place.
        owners: Arc<[WorkerId]>,
    },
    /// One more SA. On the way out it is used from now on.
    Add(SaConfig),
    /// This one to the peer is used, although it is not the newest.
    Select(SaId),
    /// An SA ends.
    Remove(SaId, SaDirection),
    /// Of this one to the peer, sequence numbers up to this may be used.
    Reserve(SaId, u64),
}
