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
    /// `service = "sink"` of ddpd: each Send is received and discarded
    Sink,
    /// `ib_write_bw -R`, `ib_read_bw -R` or `ib_send_bw -R`, as server or client
    Perftest,
    /// `iwspec-peer`, as server or client: memory advertised in the private data, each Send is answered
    Peer,
}

impl Service {
    /// Read depth (IRD and ORD) to negotiate with revision 2.
    pub fn read_depth(self) -> u64 {
        match self {
            Service::Rping => 1,
            Service::Region | Service::Echo | Service::Sink | Service::Perftest | Service::Peer => {
                16
            }
        }
    }

    /// Connections that may be open at a time.
    pub fn parallel(self, role: Role) -> usize {
        match (self, role) {
            // The two connections of perftest belong together. Servers
            // of rping under siw stop accepting after connections that arrive together.
            (Service::Perftest | Service::Rping, _) | (_, Role::Initiator) => 1,
            (_, Role::Responder) => 8,
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
    /// MPA revision of a start-up whose case names none, 1 or 2.
    pub revision: u64,
    /// Operations that the device permits, as [`crate::startup::probe`] finds out.
    pub permits: Permits,
}

/// Operations that a device permits to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permits {
    /// RDMA Reads of no bytes: the negotiated read depth is not 0.
    pub empty_reads: bool,
    /// RDMA Reads of its buffer.
    pub reads: bool,
    /// RDMA Writes to its buffer.
    pub writes: bool,
}

impl Default for Permits {
    fn default() -> Permits {
        Permits { empty_reads: true, reads: true, writes: true }
    }
}

impl Setup {
    /// Calls `f` with a setup whose times are `scale` times longer.
    pub fn with_scale<T>(&self, scale: u32, f: impl FnOnce(&Setup) -> T) -> T {
        f(&Setup { timing: Timing { scale, ..self.timing }, ..self.clone() })
    }

    /// Role of the device.
    pub fn role(&self) -> Role {
        match *self.target {
            Target::Connect(_) | Target::Sctp { .. } => Role::Responder,
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
    /// Pause between the device's Reply and our first FPDU.
    pub settle: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(5),
            step: Duration::from_secs(2),
            scale: 1,
            case: Duration::from_secs(30),
            settle: Duration::ZERO,
        }
    }
}
