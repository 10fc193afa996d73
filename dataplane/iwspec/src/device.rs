//! The device under test: its address, its service, and the times of the test.

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
    /// `ulp = "ddp"` of ddpd with an echo queue 0: DDP without RDMAP, each message is answered
    Ddp,
}

impl Service {
    /// Returns the read depth (IRD and ORD) to negotiate with MPA revision 2.
    pub fn read_depth(self) -> u64 {
        match self {
            Service::Rping => 1,
            // Bare DDP has no Reads.
            Service::Ddp => 0,
            Service::Region | Service::Echo | Service::Sink | Service::Perftest | Service::Peer => {
                16
            }
        }
    }

    /// Returns the maximum number of concurrent connections.
    pub fn parallel(self, role: Role) -> usize {
        match (self, role) {
            // A perftest server serves one client, with a pair of connections. An rping server on siw stops accepting
            // after simultaneous connections. An initiator opens one connection at a time.
            (Service::Perftest | Service::Rping, _) | (_, Role::Initiator) => 1,
            (_, Role::Responder) => 8,
        }
    }
}

/// The device and the parameters of the test.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Address of the device, or of the listener to which the device connects.
    pub target: Arc<Target>,
    /// Program that runs on the device.
    pub service: Service,
    /// Time limits and pauses.
    pub timing: Timing,
    /// Lane of this case among the concurrent cases: index, and number of lanes. Each lane uses its own part of the
    /// device's memory.
    pub lane: (u64, u64),
    /// MPA revision, 1 or 2, of start-ups for which the case sets no revision; 0 if the device accepts only the Start
    /// Key of the first draft. Cases of later specifications then do not apply.
    pub revision: u64,
    /// Operations that the device permits; [`crate::startup::probe`] determines them.
    pub permits: Permits,
}

/// Operations that a device permits to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permits {
    /// RDMA Reads of no bytes: the negotiated read depth is not 0.
    pub empty_reads: bool,
    /// RDMA Reads of the device's buffer.
    pub reads: bool,
    /// RDMA Writes to the device's buffer.
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

    /// Returns the role of the device.
    pub fn role(&self) -> Role {
        self.target.role()
    }

    /// Returns true if the device opens connections and its program sends the first message.
    pub fn sends_first(&self) -> bool {
        let program = matches!(self.service, Service::Rping | Service::Perftest | Service::Peer);
        program && self.role() == Role::Initiator
    }
}

/// Time limits and pauses of the test.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Limit for opening or accepting a connection.
    pub connect: Duration,
    /// Limit for a reaction of the device if the case sets none.
    pub step: Duration,
    /// Factor on all times; greater than 1 when a case is repeated.
    pub scale: u32,
    /// Maximum time until a program that serves only one client has been started again on the device.
    pub restart: Duration,
    /// Limit for a whole case.
    pub case: Duration,
    /// Pause after the TCP handshake, and between the device's Reply and the tester's first FPDU.
    pub settle: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(5),
            step: Duration::from_secs(2),
            restart: Duration::from_secs(15),
            scale: 1,
            case: Duration::from_secs(30),
            settle: Duration::ZERO,
        }
    }
}
