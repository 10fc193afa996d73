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

/// Policies and SAs, the same for all workers.
#[derive(Debug)]
pub struct IpsecConfig {
    /// The policies, with the action for packets that match none.
    pub policies: Spd<Protection>,
    /// Owner of the SAs of each [`Protection`], by index.
    pub owners: Vec<WorkerId>,
    /// SAs that are installed at the start.
    pub sas: Vec<SaConfig>,
    /// True if only the workers encrypt: ESP from the host's kernel on a shared port is then dropped.
    pub sole_sealer: bool,
    /// Anti-replay windows of removed SAs, for SAs that are added again with the same keys.
    pub windows: ReplayWindows,
}

/// A security association. Every worker receives it, and its owner uses it.
#[derive(Clone, Debug)]
pub struct SaConfig {
    /// Identifies the SA in commands and events.
    pub id: SaId,
    /// Protection that the SA belongs to.
    pub protection: Protection,
    /// Parameters negotiated with the peer, including keys.
    pub parameters: Arc<Parameters>,
    /// Direction, with the parameters that depend on it.
    pub direction_config: SaDirectionConfig,
}

/// Parameters of an SA that depend on its direction.
#[derive(Clone, Copy, Debug)]
pub enum SaDirectionConfig {
    /// Inbound, from the peer.
    In {
        /// Size of the anti-replay window in packets, 64 to 4096.
        window: u16,
        /// Highest sequence number considered received. This number and all lower ones are replays, as are those that a
        /// removed SA with the same SPI and keys has received.
        top: u64,
    },
    /// Outbound, to the peer.
    Out {
        /// First usable sequence number, and the number of reserved ones from there; `None` for all.
        reserve: Option<(u64, u64)>,
        /// Idle time after which a NAT keepalive is sent (RFC 3948 §4), if encapsulated in UDP; `None` for no
        /// keepalives.
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
    /// Replaces the policies. Existing protections keep their owners.
    Policies {
        /// The new policies.
        policies: Arc<Spd<Protection>>,
        /// Owner of the SAs of each [`Protection`], by index.
        owners: Arc<[WorkerId]>,
    },
    /// Adds an SA. An outbound SA is used from now on.
    Add(SaConfig),
    /// Uses this outbound SA, although it is not the newest of its protection.
    Select(SaId),
    /// Removes the SA of this direction. An unknown one is ignored.
    Remove(SaId, SaDirection),
    /// Reserves sequence numbers up to this one for an outbound SA.
    Reserve(SaId, u64),
}
