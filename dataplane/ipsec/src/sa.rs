//! Security associations: what both ends agreed on, what has been used of it, and when it is used up.

use std::net::IpAddr;
use std::num::NonZeroU16;

use base::Instant;

use crate::crypto::{Algorithm, ESP_HEADER, KeyError, Keys, Transform};
use crate::ip::{IPV4_HEADER, IPV6_HEADER};
use crate::replay::Window;

/// Bytes of a UDP header (RFC 3948 §2.1).
pub const UDP_HEADER: usize = 8;
/// Bytes of ESP's trailer without padding: pad length and next header.
pub const TRAILER: usize = 2;

/// What of an inner packet appears in the outer header of a tunnel (RFC 4301 §5.1.2, RFC 6040).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Our end.
    pub source: IpAddr,
    /// The peer's.
    pub destination: IpAddr,
    /// Time to live, or hop limit, of outer packets.
    pub ttl: u8,
    /// DSCP of outer packets; `None` copies the inner one's.
    pub dscp: Option<u8>,
    /// RFC 6040 §4.1: true copies ECN outwards (normal mode), false sends Not-ECT (compatibility mode).
    pub ecn: bool,
    /// Whether outer IPv4 packets may be cut on the way.
    pub fragments: Fragments,
}

/// The DF bit of outer IPv4 packets (RFC 4301 §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// As of the inner packet; of IPv6, not.
    Copy,
    /// Not: DF is set.
    Never,
    /// Yes.
    Allowed,
}

/// What is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What is behind the IP header.
    Transport,
    /// A whole packet, behind an outer header.
    Tunnel(Tunnel),
}

/// UDP around ESP (RFC 3948): our port and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// How much, or how long, an SA may be used. `None`: without a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes of packets before encryption.
    pub bytes: Option<u64>,
    /// Packets.
    pub packets: Option<u64>,
    /// Until then.
    pub until: Option<Instant>,
}

impl Lifetime {
    fn is_over(&self, used: &Use, now: Instant) -> bool {
        self.bytes.is_some_and(|most| used.bytes >= most)
            || self.packets.is_some_and(|most| used.packets >= most)
            || self.until.is_some_and(|until| now >= until)
    }
}

/// What both ends agreed on.
#[derive(Debug)]
pub struct Parameters {
    /// Names the SA at its receiver; above 255 (RFC 4303 §2.1).
    pub spi: u32,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its keys.
    pub keys: Keys,
    /// What is protected.
    pub mode: Mode,
    /// Sequence numbers have 64 bits (RFC 4303 §2.2.1).
    pub esn: bool,
    /// UDP around it.
    pub encapsulation: Option<Encapsulation>,
    /// When its use is to end soon.
    pub soft: Lifetime,
    /// When its use ends.
    pub hard: Lifetime,
}

/// Why there can be no such SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// 0 to 255 are reserved (RFC 4303 §2.1).
    #[error("SPI {0} is reserved: it must be above 255")]
    Spi(u32),
    /// A key does not fit the algorithm.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The ends of a tunnel are of two families.
    #[error("the tunnel's ends are of two address families")]
    Families,
    /// There is no such protection.
    #[error("there is no protection {0}")]
    Protection(u16),
    /// The anti-replay window has a size that is not supported.
    #[error("the anti-replay window has {0} packets: 64 to 4096 are supported")]
    Window(u16),
}

/// What decides how long a packet becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What is protected.
    pub mode: Mode,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// There is UDP around it.
    pub udp: bool,
}

impl Shape {
    /// Bytes between what ESP protects and the IP header before it.
    pub(crate) fn front(&self) -> usize {
        let udp = if self.udp { UDP_HEADER } else { 0 };
        udp + ESP_HEADER + self.algorithm.iv_len()
    }

    /// Bytes of the outer header.
    pub(crate) fn outer(&self) -> usize {
        match self.mode {
            Mode::Transport => 0,
            Mode::Tunnel(tunnel) if tunnel.source.is_ipv4() => IPV4_HEADER,
            Mode::Tunnel(_) => IPV6_HEADER,
        }
    }

    /// Bytes of `len` that are protected with their padding and trailer.
    fn padded(&self, len: usize) -> usize {
        (len + TRAILER).next_multiple_of(self.algorithm.block())
    }

    /// Bytes that a packet grows by at its front.
    pub fn ahead(&self) -> usize {
        self.front() + self.outer()
    }

    /// Bytes of the packet that a packet of `total` bytes becomes; `header` of them are before what transport mode
    /// protects.
    pub fn sealed_len(&self, total: usize, header: usize) -> usize {
        let icv = self.algorithm.icv_len();
        match self.mode {
            Mode::Transport => header + self.front() + self.padded(total - header) + icv,
            Mode::Tunnel(_) => self.outer() + self.front() + self.padded(total) + icv,
        }
    }

    /// The longest packet, bytes, that fits `mtu` once it is sealed: what MSS and path MTU of the flow are made of.
    /// `None` where not even its header does.
    pub fn largest(&self, mtu: usize, header: usize) -> Option<usize> {
        let before = match self.mode {
            Mode::Transport => header,
            Mode::Tunnel(_) => self.outer(),
        };
        let room = mtu.checked_sub(before + self.front() + self.algorithm.icv_len())?;
        let protected = (room - room % self.algorithm.block()).checked_sub(TRAILER)?;
        let total = match self.mode {
            Mode::Transport => header + protected,
            Mode::Tunnel(_) => protected,
        };
        (total >= header).then_some(total)
    }
}

impl From<&Parameters> for Shape {
    fn from(parameters: &Parameters) -> Shape {
        let &Parameters { mode, algorithm, encapsulation, .. } = parameters;
        Shape { mode, algorithm, udp: encapsulation.is_some() }
    }
}

/// What has been used of an SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes of packets before encryption.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// What both directions have.
#[derive(Debug)]
pub(crate) struct Sa {
    pub(crate) spi: u32,
    pub(crate) transform: Transform,
    pub(crate) shape: Shape,
    pub(crate) esn: bool,
    pub(crate) encapsulation: Option<Encapsulation>,
    soft: Lifetime,
    hard: Lifetime,
    used: Use,
    /// The soft lifetime was told.
    told: bool,
    /// Its end was told.
    over_told: bool,
}

/// How much an SA has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Enough.
    Enough,
    /// The soft lifetime has just ended: told once, so that another SA is made.
    Soft,
}

impl Sa {
    fn new(parameters: &Parameters) -> Result<Sa, SaError> {
        let Parameters { spi, algorithm, keys, mode, esn, encapsulation, soft, hard } = parameters;
        if *spi <= 255 {
            return Err(SaError::Spi(*spi));
        }
        if let Mode::Tunnel(tunnel) = mode
            && tunnel.source.is_ipv4() != tunnel.destination.is_ipv4()
        {
            return Err(SaError::Families);
        }
        Ok(Sa {
            spi: *spi,
            transform: Transform::new(*algorithm, keys)?,
            shape: Shape::from(parameters),
            esn: *esn,
            encapsulation: *encapsulation,
            soft: *soft,
            hard: *hard,
            used: Use::default(),
            told: false,
            over_told: false,
        })
    }

    /// The hard lifetime has ended.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.hard.is_over(&self.used, now)
    }

    /// Counts a packet; the SA `ends` soon, whatever its lifetime says.
    pub(crate) fn count(&mut self, bytes: usize, now: Instant, ends: bool) -> Left {
        self.used.bytes += bytes as u64;
        self.used.packets += 1;
        if self.told || !(ends || self.soft.is_over(&self.used, now)) {
            return Left::Enough;
        }
        self.told = true;
        Left::Soft
    }
}

macro_rules! both_directions {
    ($of:ty) => {
        impl $of {
            /// The SPI.
            pub fn spi(&self) -> u32 {
                self.sa.spi
            }

            /// The algorithm.
            pub fn algorithm(&self) -> Algorithm {
                self.sa.transform.algorithm()
            }

            /// The mode.
            pub fn mode(&self) -> &Mode {
                &self.sa.shape.mode
            }

            /// What decides how long its packets become.
            pub fn shape(&self) -> Shape {
                self.sa.shape
            }

            /// What has been used of it.
            pub fn used(&self) -> Use {
                self.sa.used
            }

            /// True once: its end is told then.
            pub(crate) fn is_first_time(&mut self) -> bool {
                !std::mem::replace(&mut self.sa.over_told, true)
            }

            /// True once its hard lifetime has ended: it takes nothing more.
            pub fn is_over(&self, now: Instant) -> bool {
                self.sa.is_over(now)
            }
        }
    };
}

/// An SA of packets to the peer. It has one owner: two that send by it would repeat sequence numbers.
#[derive(Debug)]
pub struct Outbound {
    pub(crate) sa: Sa,
    /// The last sequence number.
    pub(crate) sequence: u64,
    /// The last that may be used.
    pub(crate) reserved: u64,
    /// Identification of outer IPv4 packets that may be cut.
    pub(crate) identification: u16,
}

both_directions!(Outbound);

impl Outbound {
    /// One that has sent nothing.
    ///
    /// # Errors
    /// What is wrong with the parameters.
    pub fn new(parameters: &Parameters) -> Result<Outbound, SaError> {
        let sa = Sa::new(parameters)?;
        Ok(Outbound { sa, sequence: 0, reserved: u64::MAX, identification: 0 })
    }

    /// Continues behind this sequence number, which others have used.
    pub fn resume(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// The sequence number of the last packet.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The sequence numbers up to `last` may be used, and no more until this is called again: others are reserved
    /// for those who use the keys after us.
    pub fn reserve(&mut self, last: u64) {
        self.reserved = last;
    }

    /// Sequence numbers that are left of those that may be used.
    pub fn left(&self) -> u64 {
        self.last().min(self.reserved).saturating_sub(self.sequence)
    }

    /// The last sequence number that there is (RFC 4303 §2.2, §2.2.1).
    fn last(&self) -> u64 {
        if self.sa.esn { u64::MAX } else { u64::from(u32::MAX) }
    }

    /// All sequence numbers are used up, reserved or not.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.sequence == self.last()
    }

    /// A sixteenth of the sequence numbers is left: time for another SA (RFC 4303 §3.3.3).
    pub(crate) fn is_near_its_end(&self) -> bool {
        self.sequence > self.last() / 16 * 15
    }
}

/// An SA of packets from the peer.
#[derive(Debug)]
pub struct Inbound {
    pub(crate) sa: Sa,
    pub(crate) window: Window,
}

both_directions!(Inbound);

impl Inbound {
    /// One that has received nothing, with an anti-replay window of so many packets.
    ///
    /// # Errors
    /// What is wrong with the parameters.
    pub fn new(parameters: &Parameters, window: u16) -> Result<Inbound, SaError> {
        let made = NonZeroU16::new(window).and_then(Window::new);
        let window = made.ok_or(SaError::Window(window))?;
        Ok(Inbound { sa: Sa::new(parameters)?, window })
    }

    /// Continues where another receiver was: all sequence numbers up to `top` count as received.
    pub fn resume(&mut self, top: u64) {
        self.window.resume(top);
    }

    /// Continues with the window that another SA with the same SPI and keys had, in which all up to `top` count as received.
    pub(crate) fn inherit(&mut self, window: &Window, top: u64) {
        let size = NonZeroU16::new(self.window.size());
        if let Some(window) = size.and_then(|size| window.resized(size)) {
            self.window = window;
        }
        if top > self.window.top() {
            self.window.resume(top);
        }
    }

    /// Its window, when it ends.
    pub(crate) fn into_window(self) -> Window {
        self.window
    }

    /// The highest sequence number that was authenticated.
    pub fn top(&self) -> u64 {
        self.window.top()
    }
}
