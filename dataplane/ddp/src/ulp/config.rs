//! Configuration of the protocol above an LLP, and parameters to open a stream.

use crate::config::{StreamConfig, VersionPolicy};
use crate::enhanced::Depths;
use crate::rdmap;
use crate::stag::PdId;

/// Configuration of a stream of either protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UlpConfig {
    /// Bare DDP.
    Ddp(StreamConfig),
    /// RDMAP.
    Rdmap(rdmap::Config),
}

impl UlpConfig {
    /// Returns the DDP version for modification: the LLP's start-up sets it.
    pub fn version_mut(&mut self) -> &mut VersionPolicy {
        match self {
            UlpConfig::Ddp(config) => &mut config.version,
            UlpConfig::Rdmap(config) => &mut config.version,
        }
    }

    /// Requests that the ULP confirms received data: see [`StreamConfig::hold_confirmations`].
    pub fn set_hold_confirmations(&mut self) {
        match self {
            UlpConfig::Ddp(config) => config.hold_confirmations = true,
            UlpConfig::Rdmap(config) => config.hold_confirmations = true,
        }
    }

    /// Returns IRD and ORD of this end before negotiation (RFC 6581 §9.1).
    pub fn depths(&self) -> Depths {
        match self {
            UlpConfig::Ddp(_) => Depths::NONE,
            UlpConfig::Rdmap(config) => Depths { ird: config.ird, ord: config.ord },
        }
    }
}

impl From<StreamConfig> for UlpConfig {
    fn from(config: StreamConfig) -> Self {
        UlpConfig::Ddp(config)
    }
}

impl From<rdmap::Config> for UlpConfig {
    fn from(config: rdmap::Config) -> Self {
        UlpConfig::Rdmap(config)
    }
}

/// The protocol above an LLP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UlpKind {
    /// Bare DDP.
    Ddp,
    /// RDMAP.
    Rdmap,
}

impl UlpKind {
    /// Returns the protocol of a configuration.
    pub fn from_config(config: &UlpConfig) -> UlpKind {
        match config {
            UlpConfig::Ddp(_) => UlpKind::Ddp,
            UlpConfig::Rdmap(_) => UlpKind::Rdmap,
        }
    }

    /// Returns a stable name for people and for machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            UlpKind::Ddp => "ddp",
            UlpKind::Rdmap => "rdmap",
        }
    }
}

/// Parameters of an active open.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// Protection domain of the stream.
    pub pd: PdId,
    /// Protocol above the LLP. Its DDP version is ignored if the LLP's start-up determines it.
    pub ulp: UlpConfig,
    /// Private data of the request, at most 512 bytes. The LLP may carry less.
    pub private_data: Vec<u8>,
}

/// The party that ended a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// This end.
    Local,
    /// The peer.
    Peer,
    /// The network, or the peer's host.
    Network,
}
