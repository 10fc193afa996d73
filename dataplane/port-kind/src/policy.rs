//! What the configuration chooses besides ports, and the data plane does: where memory is, what a worker without
//! work does, when a SYN is answered with a cookie, and routes.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

/// Whether DPDK's memory is in hugepages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hugepages {
    /// If enough are free, else ordinary memory; said at start-up.
    #[default]
    Auto,
    /// Or do not start.
    Require,
    /// Never (`--no-huge`).
    Never,
}

impl Hugepages {
    /// All of them with their words.
    pub const WORDS: [(&'static str, Hugepages); 3] =
        [("auto", Hugepages::Auto), ("require", Hugepages::Require), ("never", Hugepages::Never)];
}

/// What a worker does when a turn of its loop found no work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Polls on: lowest latency, one whole core.
    Poll,
    /// Polls on for a while, then sleeps until a port or a command wakes it or the next timer is due, at
    /// most 1 ms (50 µs if one of its ports cannot wake it).
    Adaptive {
        /// How long to poll before sleeping, at least; a few tens of microseconds. It is one and a half round trips of
        /// the stream that was served last, where that is short, and 1 ms if one of the ports cannot wake the worker.
        spin: Duration,
    },
}

impl Idle {
    /// With the time to poll that the word stands for.
    pub const ADAPTIVE: Idle = Idle::Adaptive { spin: Duration::from_micros(50) };

    /// All of them with their words.
    pub const WORDS: [(&'static str, Idle); 2] =
        [("poll", Idle::Poll), ("adaptive", Idle::ADAPTIVE)];

    /// The word that stands for it in the file and in the API.
    pub fn word(self) -> &'static str {
        match self {
            Idle::Poll => "poll",
            Idle::Adaptive { .. } => "adaptive",
        }
    }
}

/// When a SYN is answered with a cookie, which keeps nothing (RFC 4987 §3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SynCookieMode {
    /// When there is no room to remember the SYN.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: what finds no room is dropped.
    Never,
}

impl SynCookieMode {
    /// All of them with their words.
    pub const WORDS: [(&'static str, SynCookieMode); 3] = [
        ("auto", SynCookieMode::Auto),
        ("always", SynCookieMode::Always),
        ("never", SynCookieMode::Never),
    ];
}

/// A route of one interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destinations; a prefix of length 0 for the default route.
    pub to: IpNet,
    /// The router: in a connected prefix of the interface and of the destination's family.
    pub via: IpAddr,
}

/// Whether the host's kernel has a part in the port of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Host {
    /// No: the port is ours alone.
    #[default]
    Off,
    /// By a TAP, which gets what is not ours.
    Tap,
}

impl Host {
    /// All of them with their words.
    pub const WORDS: [(&'static str, Host); 2] = [("off", Host::Off), ("tap", Host::Tap)];
}

/// The ports from which streams and associations are opened: `first` to `last`, both included (RFC 6056 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalPorts {
    first: u16,
    last: u16,
}

impl LocalPorts {
    /// Fewer ports cannot be chosen: with n workers, one in n of them leads answers to the right one.
    pub const FEWEST: u32 = 64;

    /// At least [`LocalPorts::FEWEST`] ports, none of them 0.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        let ports = LocalPorts { first, last };
        (first > 0 && first <= last && ports.count() >= LocalPorts::FEWEST).then_some(ports)
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        u32::from(self.last - self.first) + 1
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }

    /// Whether this is one of them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The port at a place; after the last comes the first again.
    pub fn at(self, place: u32) -> u16 {
        self.first + (place % self.count()) as u16
    }
}

impl Default for LocalPorts {
    /// 32768 to 60999, as most hosts have it.
    fn default() -> Self {
        LocalPorts { first: 32_768, last: 60_999 }
    }
}

impl fmt::Display for LocalPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// What the IP headers of TCP and SCTP packets carry besides addresses and ECN, which is the transport's (RFC 9293
/// §3.9.2 MUST-48, MUST-49).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpFields {
    /// Differentiated services codepoint, 0 to 63 (RFC 2474 §3); `None` for the interface's, or 0.
    pub dscp: Option<u8>,
    /// Time to live, hop limit, 1 to 255; `None` for the interface's, or 64.
    pub ttl: Option<u8>,
}
