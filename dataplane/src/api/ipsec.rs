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
    /// Policies, and the action for packets that match none.
    pub policies: Spd<Protection>,
    /// Owner of each [`Protection`] (a policy that requires IPsec), by index: the worker that uses its SAs.
    pub owners: Vec<WorkerId>,
    /// SAs to install at the start.
    pub sas: Vec<SaConfig>,
    /// True if only the workers may send ESP. ESP that the host's kernel sends on a shared port is then dropped.
    pub sole_sealer: bool,
    /// Anti-replay windows of removed SAs. An SA that is added again with the same keys continues with its window.
    pub windows: ReplayWindows,
}

/// A security association. Every worker receives the configuration, but only the owner of the SA's [`Protection`] uses
/// the SA.
#[derive(Clone, Debug)]
pub struct SaConfig {
    /// Identifies the SA in commands and events.
    pub id: SaId,
    /// Policy whose packets the SA protects.
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
        /// Packets with sequence numbers up to this number are dropped as replays. So are packets with sequence numbers
        /// that a removed SA with the same SPI and keys has received.
        top: u64,
    },
    /// Outbound, to the peer.
    Out {
        /// First usable sequence number, and the number of sequence numbers reserved, including the first; `None` if
        /// all numbers may be used.
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
    /// Replaces the policies. Each existing [`Protection`] keeps its owner.
    Policies {
        /// The new policies.
        policies: Arc<Spd<Protection>>,
        /// Owner of each [`Protection`] (a policy that requires IPsec), by index: the worker that uses its SAs.
        owners: Arc<[WorkerId]>,
    },
    /// Adds an SA. An outbound SA seals its policy's packets from then on.
    Add(SaConfig),
    /// Selects the outbound SA that seals its policy's packets. The SA need not be the newest.
    Select(SaId),
    /// Removes the SA with this identifier and direction. An unknown SA is ignored.
    Remove(SaId, SaDirection),
    /// Permits an outbound SA to use sequence numbers up to this number, inclusive.
    Reserve(SaId, u64),
}
