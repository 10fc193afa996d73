//! The device under test: where it is, what it runs, and the times of the test.

use std::sync::Arc;
use std::time::Duration;

use crate::case::Role;
use crate::link::Target;

/// Program on the device.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// `rping -s -P` (device under test accepts) or `rping -c` (it connects)
    Rping,
    /// `service = "region"` of ddpd: memory advertised in the private data
    Region,
    /// `service = "echo"` of ddpd: each Send is answered
    Echo,
    /// `service = "sink"` of ddpd: each Send is taken
    Sink,
}

impl Service {
    /// Read depth (IRD and ORD) to negotiate with revision 2.
    pub fn read_depth(self) -> u64 {
        match self {
            Service::Rping => 1,
            Service::Region | Service::Echo | Service::Sink => 16,
        }
    }

    /// Connections that may be open at a time.
    pub fn parallel(self, role: Role) -> usize {
        match role {
            Role::Responder => 8,
            Role::Initiator => 1,
        }
    }
}

/// Device, and times of the test.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where the device is.
    pub target: Arc<Target>,
    /// Program that runs on the device.
    pub service: Service,
    /// Times
    pub timing: Timing,
    /// Part of shared memory for the cases that run at the same time: index and number of parts.
    pub lane: (u64, u64),
    /// True if the buffer of an rping server is open to Reads and Writes of its peer, as [`crate::startup::probe`] finds out.
    pub open_buffer: bool,
}

impl Setup {
    /// Calls `f` with a setup whose times are `scale` times longer.
    pub fn with_scale<T>(&self, scale: u32, f: impl FnOnce(&Setup) -> T) -> T {
        f(&Setup { timing: Timing { scale, ..self.timing }, ..self.clone() })
    }

    /// Role of the device.
    pub fn role(&self) -> Role {
        match *self.target {
            Target::Connect(_) => Role::Responder,
            Target::Listen(_) => Role::Initiator,
        }
    }
}

/// Times of the test.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Time in which the device opens or accepts a connection.
    pub connect: Duration,
    /// Time in which the device reacts, without a time in the case.
    pub step: Duration,
    /// Factor on all times, for repetitions.
    pub scale: u32,
    /// Limit of a case.
    pub case: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(5),
            step: Duration::from_secs(2),
            scale: 1,
            case: Duration::from_secs(30),
        }
    }
}
