//! Security associations: their negotiated parameters, their use, and their lifetimes. An SA has one direction and one
//! owner. The key exchange that negotiates the parameters is not part of this crate.

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

/// Outer header of a tunnel, and the fields copied between outer and inner header (RFC 4301 §5.1.2, RFC 6040).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Our end of the tunnel.
    pub source: IpAddr,
    /// The peer's end of the tunnel.
    pub destination: IpAddr,
    /// Time to live, or hop limit, of outer packets.
    pub ttl: u8,
    /// DSCP of outer packets; `None` copies the inner packet's.
    pub dscp: Option<u8>,
    /// True to copy ECN to the outer header (normal mode, RFC 6040 §4.1) and to apply the outer mark to the inner
    /// packet on exit (§4.2). False to send Not-ECT (compatibility mode) and to ignore the outer mark.
    pub ecn: bool,
    /// DF bit of outer IPv4 packets.
    pub fragments: Fragments,
}

/// The DF bit of outer IPv4 packets (RFC 4301 §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// DF copied from the inner IPv4 packet; clear for an inner IPv6 packet.
    Copy,
    /// DF set.
    Never,
    /// DF clear.
    Allowed,
}

/// Part of a packet that ESP protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The part after the IP header.
    Transport,
    /// A whole packet, after an outer header.
    Tunnel(Tunnel),
}

/// UDP encapsulation of ESP (RFC 3948): ports of sent packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// Limits of an SA's use. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes of packets before encryption, or after decryption.
    pub bytes: Option<u64>,
    /// Number of packets.
    pub packets: Option<u64>,
    /// Time of expiry.
    pub until: Option<Instant>,
}

impl Lifetime {
    fn is_expired(&self, used: &Use, now: Instant) -> bool {
        self.bytes.is_some_and(|most| used.bytes >= most)
            || self.packets.is_some_and(|most| used.packets >= most)
            || self.until.is_some_and(|until| now >= until)
    }
}

/// Negotiated parameters of an SA.
#[derive(Debug)]
pub struct Parameters {
    /// Identifies the SA at its receiver; above 255 (RFC 4303 §2.1).
    pub spi: u32,
    /// Cipher and integrity algorithm.
    pub algorithm: Algorithm,
    /// Keys of the algorithm.
    pub keys: Keys,
    /// Transport or tunnel mode.
    pub mode: Mode,
    /// True for sequence numbers of 64 bits (RFC 4303 §2.2.1).
    pub esn: bool,
    /// UDP encapsulation, if any.
    pub encapsulation: Option<Encapsulation>,
    /// Limits after which a successor is requested.
    pub soft: Lifetime,
    /// Limits after which the SA is unusable.
    pub hard: Lifetime,
}

/// Errors in the parameters of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// The SPI is reserved: 0 to 255 (RFC 4303 §2.1).
    #[error("SPI {0} is reserved: it must be above 255")]
    Spi(u32),
    /// A key does not have the algorithm's length, or the cryptographic library refused it.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The tunnel's ends are of different address families.
    #[error("the tunnel's ends are of two address families")]
    Families,
    /// No policy that requires IPsec has this number.
    #[error("there is no protection {0}")]
    Protection(u16),
    /// The size of the anti-replay window is not supported.
    #[error("the anti-replay window has {0} packets: 64 to 4096 are supported")]
    Window(u16),
}

/// Parameters that determine the length of a sealed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Transport or tunnel mode.
    pub mode: Mode,
    /// Cipher and integrity algorithm.
    pub algorithm: Algorithm,
    /// True with UDP encapsulation.
    pub udp: bool,
}

impl Shape {
    /// Returns the number of bytes between the IP header and the protected part: UDP, ESP header and IV.
    pub(crate) fn overhead_before(&self) -> usize {
        let udp = if self.udp { UDP_HEADER } else { 0 };
        udp + ESP_HEADER + self.algorithm.iv_len()
    }

    /// Returns the length of the outer header, bytes.
    pub(crate) fn outer_len(&self) -> usize {
        match self.mode {
            Mode::Transport => 0,
            Mode::Tunnel(tunnel) if tunnel.source.is_ipv4() => IPV4_HEADER,
            Mode::Tunnel(_) => IPV6_HEADER,
        }
    }

    /// Returns the length of `len` protected bytes with padding and trailer.
    fn padded(&self, len: usize) -> usize {
        (len + TRAILER).next_multiple_of(self.algorithm.block())
    }

    /// Returns the number of bytes that sealing adds at the front of a packet.
    pub fn headroom(&self) -> usize {
        self.overhead_before() + self.outer_len()
    }

    /// Returns the length that a packet of `total` bytes has after sealing. The packet's first `header` bytes precede
    /// the part that transport mode protects.
    pub fn sealed_len(&self, total: usize, header: usize) -> usize {
        let icv = self.algorithm.icv_len();
        match self.mode {
            Mode::Transport => header + self.overhead_before() + self.padded(total - header) + icv,
            Mode::Tunnel(_) => self.outer_len() + self.overhead_before() + self.padded(total) + icv,
        }
    }

    /// Returns the length of the longest packet that fits `mtu` after sealing. The flow's MSS and path MTU are
    /// derived from this length. The packet's first `header` bytes precede the part that transport mode protects.
    /// `None` if not even these `header` bytes fit.
    pub fn max_packet_len(&self, mtu: usize, header: usize) -> Option<usize> {
        let before = match self.mode {
            Mode::Transport => header,
            Mode::Tunnel(_) => self.outer_len(),
        };
        let room = mtu.checked_sub(before + self.overhead_before() + self.algorithm.icv_len())?;
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

/// Bytes and packets counted for an SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes of packets before encryption, or after decryption.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u64,
}

/// Common state of SAs of both directions.
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
    /// True if the end of the soft lifetime has been reported.
    soft_expiry_reported: bool,
    /// True if the end of the SA has been reported.
    expiry_reported: bool,
}

/// Result of counting a packet: whether the SA needs a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// No successor is needed, or the need was reported before.
    Sufficient,
    /// The soft lifetime has just expired, or the sequence numbers are nearly exhausted. Reported once, to request a
    /// successor.
    SoftExpired,
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
            soft_expiry_reported: false,
            expiry_reported: false,
        })
    }

    /// Returns true if the hard lifetime has expired.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.hard.is_expired(&self.used, now)
    }

    /// Counts a packet of `bytes` bytes. If `needs_successor` is true, a successor is requested even before the soft
    /// lifetime expires.
    pub(crate) fn count(&mut self, bytes: usize, now: Instant, needs_successor: bool) -> Remaining {
        self.used.bytes += bytes as u64;
        self.used.packets += 1;
        if self.soft_expiry_reported || !(needs_successor || self.soft.is_expired(&self.used, now))
        {
            return Remaining::Sufficient;
        }
        self.soft_expiry_reported = true;
        Remaining::SoftExpired
    }
}

macro_rules! both_directions {
    ($of:ty) => {
        impl $of {
            /// Returns the SPI.
            pub fn spi(&self) -> u32 {
                self.sa.spi
            }

            /// Returns the algorithm.
            pub fn algorithm(&self) -> Algorithm {
                self.sa.transform.algorithm()
            }

            /// Returns the mode.
            pub fn mode(&self) -> &Mode {
                &self.sa.shape.mode
            }

            /// Returns the parameters that determine the length of sealed packets.
            pub fn shape(&self) -> Shape {
                self.sa.shape
            }

            /// Returns the bytes and packets counted so far.
            pub fn used(&self) -> Use {
                self.sa.used
            }

            /// Returns true at the first call only, to report the SA's end once.
            pub(crate) fn take_expiry_report(&mut self) -> bool {
                !std::mem::replace(&mut self.sa.expiry_reported, true)
            }

            /// Returns true if the hard lifetime has expired: the SA seals and opens no more packets.
            pub fn is_expired(&self, now: Instant) -> bool {
                self.sa.is_expired(now)
            }
        }
    };
}

/// An outbound SA, with one owner: two senders with one SA would repeat sequence numbers.
#[derive(Debug)]
pub struct Outbound {
    pub(crate) sa: Sa,
    /// The last used sequence number.
    pub(crate) sequence: u64,
    /// The last sequence number that may be used.
    pub(crate) reserved: u64,
    /// Identification of the last outer header. Only IPv4 packets that may be fragmented carry an identification.
    pub(crate) identification: u16,
}

both_directions!(Outbound);

impl Outbound {
    /// Returns an SA that has sent no packet.
    ///
    /// # Errors
    /// The parameters are invalid.
    pub fn new(parameters: &Parameters) -> Result<Outbound, SaError> {
        let sa = Sa::new(parameters)?;
        Ok(Outbound { sa, sequence: 0, reserved: u64::MAX, identification: 0 })
    }

    /// Continues after `sequence`, the last number that another sender has used.
    pub fn resume(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// Returns the sequence number of the last packet.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Permits sequence numbers up to `last`, until the next call. Higher numbers remain unused, so that a later owner
    /// of the SA can continue after `last`.
    pub fn reserve(&mut self, last: u64) {
        self.reserved = last;
    }

    /// Returns the number of permitted sequence numbers that are left.
    pub fn remaining_sequences(&self) -> u64 {
        self.max_sequence().min(self.reserved).saturating_sub(self.sequence)
    }

    /// Returns the highest sequence number, with or without ESN (RFC 4303 §2.2, §2.2.1).
    fn max_sequence(&self) -> u64 {
        if self.sa.esn { u64::MAX } else { u64::from(u32::MAX) }
    }

    /// Returns true if all sequence numbers are used, regardless of reservations.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.sequence == self.max_sequence()
    }

    /// Returns true if less than a sixteenth of the sequence numbers is left: a successor is needed (RFC 4303 §3.3.3).
    pub(crate) fn is_nearly_exhausted(&self) -> bool {
        self.sequence > self.max_sequence() / 16 * 15
    }
}

/// An inbound SA.
#[derive(Debug)]
pub struct Inbound {
    pub(crate) sa: Sa,
    pub(crate) window: Window,
}

both_directions!(Inbound);

impl Inbound {
    /// Returns an SA that has received no packet, with an anti-replay window of `window` packets, 64 to 4096.
    ///
    /// # Errors
    /// The parameters are invalid, or the window's size is not supported.
    pub fn new(parameters: &Parameters, window: u16) -> Result<Inbound, SaError> {
        let made = NonZeroU16::new(window).and_then(Window::new);
        let window = made.ok_or(SaError::Window(window))?;
        Ok(Inbound { sa: Sa::new(parameters)?, window })
    }

    /// Continues after another receiver: all sequence numbers up to `top` count as received.
    pub fn resume(&mut self, top: u64) {
        self.window.resume(top);
    }

    /// Continues with the window of an ended SA with the same SPI and keys. All sequence numbers up to `top`
    /// count as received.
    pub(crate) fn inherit(&mut self, window: &Window, top: u64) {
        let size = NonZeroU16::new(self.window.size());
        if let Some(window) = size.and_then(|size| window.resized(size)) {
            self.window = window;
        }
        if top > self.window.top() {
            self.window.resume(top);
        }
    }

    /// Returns the window of an ended SA.
    pub(crate) fn into_window(self) -> Window {
        self.window
    }

    /// Returns the highest authenticated sequence number.
    pub fn top(&self) -> u64 {
        self.window.top()
    }
}
