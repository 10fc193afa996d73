//! Configuration and events of IPsec for the control thread.

use std::sync::Arc;
use std::time::Duration;

pub use ipsec::guard::{
    Direction as SaDirection, IpsecDrop, Notice as IpsecNotice, Protection, ReplayWindows, SaId,
    SaInfo,
};
use ipsec::policy::Spd;
use ipsec::sa::Parameters;

use crate::ids::WorkerId;

/// Policies and security associations, the same for all workers.
#[derive(Debug)]
pub struct IpsecConfig {
    /// The policies. Packets that match none are dropped.
    pub policies: Spd<Protection>,
    /// The worker that owns the SAs of each [`Protection`], by index.
    pub owners: Vec<WorkerId>,
    /// SAs installed at the start.
    pub sas: Vec<SaConfig>,
    /// True if no other part of the host encrypts: frames of a shared port that the host has sealed are not sent.
    pub sole_sealer: bool,
    /// Anti-replay windows of ended SAs, for SAs that are added again with the same keys.
    pub windows: ReplayWindows,
}

/// A security association. Each worker receives it; its owner uses it.
#[derive(Clone, Debug)]
pub struct SaConfig {
    /// Identifier of the SA.
    pub id: SaId,
    /// The protection that it belongs to.
    pub protection: Protection,
    /// Parameters negotiated with the peer.
    pub parameters: Arc<Parameters>,
    /// Parameters of its direction.
    pub direction_config: SaDirectionConfig,
}

/// Parameters of an SA that depend on its direction.
#[derive(Clone, Copy, Debug)]
pub enum SaDirectionConfig {
    /// Inbound, from the peer.
    In {
        /// Size of the anti-replay window in packets, 64 to 4096.
        window: u16,
        /// Highest sequence number considered received: it and all below are replays, as are those that an ended
        /// SA with the same SPI and keys has received.
        top: u64,
    },
    /// Outbound, to the peer.
    Out {
        /// First usable sequence number, and how many from there are reserved; `None` for all.
        reserve: Option<(u64, u64)>,
        /// Idle time after which a keepalive is sent that preserves NAT mappings (RFC 3948 §4), if encapsulated
        /// in UDP.
        keepalive: Option<Duration>,
    },
}

impl SaConfig {
    /// Returns the direction of the SA.
    pub fn direction(&self) -> SaDirection {
        match self.direction_config {
            SaDirectionConfig::In { .. } => SaDirection::In,
            SaDirectionConfig::Out { .. } => SaDirection::Out,
        }
    }
}

/// A change of policies or SAs.
#[derive(Clone, Debug)]
pub enum SaChange {
    /// Replaces the policies. `owners` as in [`IpsecConfig`]; the entries of existing protections stay the same.
    Policies {
        /// The policies.
        policies: Arc<Spd<Protection>>,
        /// The worker that owns the SAs of each [`Protection`], by index.
        owners: Arc<[WorkerId]>,
    },
    /// Adds an SA. An outbound one is used from now on.
    Add(SaConfig),
    /// Uses this outbound SA, although it is not the newest.
    Select(SaId),
    /// Removes an SA.
    Remove(SaId, SaDirection),
    /// Allows sequence numbers up to this one for an outbound SA.
    Reserve(SaId, u64),
}
