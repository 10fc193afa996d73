//! Configuration choices of the data plane other than ports: hugepages, behaviour of idle workers, SYN cookies, routes,
//! the host's share of a port, local ports, IP header fields.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

/// Use of hugepages for DPDK's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hugepages {
    /// Hugepages if enough are free, else ordinary memory; the choice is reported at start-up.
    #[default]
    Auto,
    /// Hugepages. The start fails if none is free; opening a port fails if too few are free.
    Require,
    /// Ordinary memory (`--no-huge`).
    Never,
}

impl Hugepages {
    /// All choices with their configuration words.
    pub const NAMES: [(&'static str, Hugepages); 3] =
        [("auto", Hugepages::Auto), ("require", Hugepages::Require), ("never", Hugepages::Never)];
}

/// Behaviour of a worker after an iteration of its loop without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Keep polling: lowest latency, one whole core.
    Poll,
    /// Poll for a while, then sleep until a port or a command wakes the worker or the next timer is due. A sleep lasts
    /// at most 1 ms, or 50 µs if one of the worker's ports cannot wake the worker.
    Adaptive {
        /// Minimum time without work before a sleep, a few tens of microseconds. The worker polls for one and a half
        /// round trips of the stream served last if these are longer than the minimum and at most 250 µs. If a port
        /// cannot wake the worker, the time is at least 1 ms.
        spin: Duration,
    },
}

impl Idle {
    /// `Adaptive` with a spin time of 50 µs: the meaning of the configuration word `adaptive`.
    pub const ADAPTIVE: Idle = Idle::Adaptive { spin: Duration::from_micros(50) };

    /// All behaviours with their configuration words.
    pub const NAMES: [(&'static str, Idle); 2] =
        [("poll", Idle::Poll), ("adaptive", Idle::ADAPTIVE)];

    /// Returns the word in the configuration file and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Idle::Poll => "poll",
            Idle::Adaptive { .. } => "adaptive",
        }
    }
}

/// The condition under which a SYN is answered with a cookie instead of state (RFC 4987 §3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SynCookieMode {
    /// A SYN is answered with a cookie only if there is no room for its half-open stream.
    #[default]
    Auto,
    /// Every SYN is answered with a cookie.
    Always,
    /// No SYN is answered with a cookie. A SYN is dropped if there is no room for its half-open stream.
    Never,
}

impl SynCookieMode {
    /// All modes with their configuration words.
    pub const NAMES: [(&'static str, SynCookieMode); 3] = [
        ("auto", SynCookieMode::Auto),
        ("always", SynCookieMode::Always),
        ("never", SynCookieMode::Never),
    ];
}

/// A route of one interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destination prefix; its length is 0 for the default route.
    pub to: IpNet,
    /// Address of the router: inside a connected prefix of the interface, of the same family as `to`.
    pub via: IpAddr,
}

/// Sharing of an interface's port with the host's kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Host {
    /// Not shared: the appliance alone uses the port.
    #[default]
    Off,
    /// Shared through a TAP, which receives the frames that are not for the appliance.
    Tap,
}

impl Host {
    /// All choices with their configuration words.
    pub const NAMES: [(&'static str, Host); 2] = [("off", Host::Off), ("tap", Host::Tap)];
}

/// The local port range of connects and outgoing associations: `first` to `last`, both included (RFC 6056 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalPorts {
    first: u16,
    last: u16,
}

impl LocalPorts {
    /// Minimum number of ports of a range. With n workers, only about one port in n is usable for a stream: the replies
    /// to the other ports reach other workers.
    pub const MIN_COUNT: u32 = 64;

    /// Returns the range, or `None` if it has fewer than [`LocalPorts::MIN_COUNT`] ports or contains port 0.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        let ports = LocalPorts { first, last };
        (first > 0 && first <= last && ports.count() >= LocalPorts::MIN_COUNT).then_some(ports)
    }

    /// Returns the number of ports in the range, at least [`LocalPorts::MIN_COUNT`].
    pub fn count(self) -> u32 {
        u32::from(self.last - self.first) + 1
    }

    /// Returns all ports in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }

    /// Returns true if the range contains `port`.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Returns the port at position `index` of the range. Positions beyond the last port continue at the first.
    pub fn nth(self, index: u32) -> u16 {
        self.first + (index % self.count()) as u16
    }
}

impl Default for LocalPorts {
    /// Returns 32768 to 60999, the default of Linux.
    fn default() -> Self {
        LocalPorts { first: 32_768, last: 60_999 }
    }
}

impl fmt::Display for LocalPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// IP header fields of TCP and SCTP packets (RFC 9293 §3.9.1.9 MUST-48, §3.9.2 MUST-49). The ECN field is not included:
/// the transport sets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpFields {
    /// Differentiated services codepoint, 0 to 63 (RFC 2474 §3). `None` is the interface's value, 0 if the interface
    /// has none.
    pub dscp: Option<u8>,
    /// Time to live or hop limit, 1 to 255. `None` is the interface's value, 64 if the interface has none.
    pub ttl: Option<u8>,
}
