//! ESP encapsulation (RFC 4303). Packets are sealed and opened in place, in a buffer with free space before and after
//! them. No memory is allocated. Not included: the choice of the SA, and the check of an opened packet against the
//! policies ([`guard`](crate::guard)).

use std::net::IpAddr;
use std::ops::Range;

use base::Instant;

use crate::crypto::ESP_HEADER;
use crate::ip::{self, Header, IPV4_HEADER, IpError};
use crate::policy::{Flow, KEEPALIVE};
use crate::replay::ReplayError;
use crate::sa::{Fragments, Inbound, Mode, Outbound, Remaining, TRAILER, Tunnel, UDP_HEADER};

pub use crate::policy::NAT_PORT;

/// Reasons not to seal or open a packet; sections refer to RFC 4303. Each reason has a counter. Reasons that RFC 4303
/// calls auditable ([`Refusal::is_auditable`]) are also reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Shorter than its headers require, of an unknown IP version, or not a whole number of the cipher's blocks.
    Malformed,
    /// An IP fragment (§3.3.4, §3.4.1).
    Fragment,
    /// The buffer has too little free space before or after the packet.
    NoRoom,
    /// Longer than the largest IP packet.
    TooLong,
    /// The SA's hard lifetime has expired (RFC 4301 §4.4.2.1).
    Expired,
    /// The SA's sequence numbers are used up (§3.3.3).
    SequenceExhausted,
    /// The sequence numbers reserved so far are used up. More are requested from the control thread.
    Unreserved,
    /// Not an ESP packet of this SA: the protocol (ESP, or UDP if the SA is encapsulated) or the SPI differs.
    NotOfSa,
    /// Below the anti-replay window.
    TooOld,
    /// Received before, according to the anti-replay window.
    Duplicate,
    /// A sequence number that no sender uses: zero, or outside the 64-bit space.
    ImpossibleSequence,
    /// The ICV is wrong, or the cryptographic library refused.
    Integrity,
    /// Padding or its length is wrong (§2.4).
    Padding,
    /// A dummy packet, which is dropped (§2.6).
    Dummy,
    /// In tunnel mode, the next header contradicts the inner packet's version. In transport mode, the next header is
    /// IPv4 or IPv6, which only tunnels use.
    NextHeader,
    /// Marked CE on the path, but the inner packet is Not-ECT (RFC 6040 §4.2).
    NotEct,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 16] = [
        Refusal::Malformed,
        Refusal::Fragment,
        Refusal::NoRoom,
        Refusal::TooLong,
        Refusal::Expired,
        Refusal::SequenceExhausted,
        Refusal::Unreserved,
        Refusal::NotOfSa,
        Refusal::TooOld,
        Refusal::Duplicate,
        Refusal::ImpossibleSequence,
        Refusal::Integrity,
        Refusal::Padding,
        Refusal::Dummy,
        Refusal::NextHeader,
        Refusal::NotEct,
    ];

    /// Returns a stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::Fragment => "fragment",
            Refusal::NoRoom => "no_room",
            Refusal::TooLong => "too_long",
            Refusal::Expired => "expired",
            Refusal::SequenceExhausted => "sequence_exhausted",
            Refusal::Unreserved => "unreserved",
            Refusal::NotOfSa => "not_of_sa",
            Refusal::TooOld => "too_old",
            Refusal::Duplicate => "duplicate",
            Refusal::ImpossibleSequence => "impossible_sequence",
            Refusal::Integrity => "integrity",
            Refusal::Padding => "padding",
            Refusal::Dummy => "dummy",
            Refusal::NextHeader => "next_header",
            Refusal::NotEct => "not_ect",
        }
    }

    /// Returns true for an auditable event of RFC 4303 §3.3.3, §3.4.1 to §3.4.4.
    pub const fn is_auditable(self) -> bool {
        matches!(
            self,
            Refusal::SequenceExhausted
                | Refusal::Fragment
                | Refusal::TooOld
                | Refusal::Duplicate
                | Refusal::Integrity
        )
    }
}

impl From<IpError> for Refusal {
    fn from(error: IpError) -> Refusal {
        match error {
            IpError::Malformed => Refusal::Malformed,
            IpError::Fragment => Refusal::Fragment,
        }
    }
}

impl From<ReplayError> for Refusal {
    fn from(replayed: ReplayError) -> Refusal {
        match replayed {
            ReplayError::TooOld => Refusal::TooOld,
            ReplayError::Duplicate => Refusal::Duplicate,
            ReplayError::Impossible => Refusal::ImpossibleSequence,
        }
    }
}

/// A packet that was sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspOutput {
    /// Range of the packet in the buffer.
    pub packet: Range<usize>,
    /// Sequence number of the packet.
    pub sequence: u64,
    /// [`Remaining::SoftExpired`] if the SA needs a successor from this packet on. Reported once.
    pub remaining: Remaining,
}

/// Identification of an ESP packet from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspPacket {
    /// SPI of the packet's SA.
    pub spi: u32,
    /// Source and destination ports of the UDP encapsulation, if any.
    pub ports: Option<(u16, u16)>,
}

/// Returns SPI and UDP ports of an ESP packet: plain, or in UDP to the local `port`. `None` for other packets. In UDP,
/// a payload that begins with four zero bytes is IKE (RFC 3948 §2.2), and a single byte 0xff is a keepalive (§2.3).
pub fn find_esp(packet: &[u8], port: Option<u16>) -> Option<EspPacket> {
    let header = Header::read(packet).ok()?;
    let body = packet.get(header.len..header.total)?;
    let spi = |at: usize| {
        let bytes = body.get(at..at + 4)?;
        Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    match header.protocol {
        ip::ESP => Some(EspPacket { spi: spi(0)?, ports: None }),
        ip::UDP => {
            let ports = body.first_chunk::<4>()?;
            let source = u16::from_be_bytes([ports[0], ports[1]]);
            let destination = u16::from_be_bytes([ports[2], ports[3]]);
            let spi = spi(UDP_HEADER).filter(|&spi| spi != 0)?;
            (port == Some(destination))
                .then_some(EspPacket { spi, ports: Some((source, destination)) })
        }
        _ => None,
    }
}

/// Returns the SPI if a packet of this flow is ESP already, plain or in UDP with port 4500 at either end.
#[inline]
pub fn esp_spi(packet: &[u8], flow: &Flow) -> Option<u32> {
    let at = match (flow.protocol, flow.ports) {
        (ip::ESP, _) => 0,
        (ip::UDP, Some((NAT_PORT, _) | (_, NAT_PORT))) => UDP_HEADER,
        _ => return None,
    };
    let header = Header::read(packet).ok()?;
    let bytes = packet.get(header.len + at..header.total)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes)).filter(|&spi| spi != 0)
}

/// Returns true for a NAT keepalive: a single byte 0xff in UDP to the local `port`. Keepalives preserve the port
/// mappings of NATs, and are dropped (RFC 3948 §2.3).
pub fn is_keepalive(packet: &[u8], port: u16) -> bool {
    // Fast path: longer packets are not keepalives.
    if packet.len() > ip::IPV6_HEADER + 64 {
        return false;
    }
    let Ok(header) = Header::read(packet) else { return false };
    let body = packet.get(header.len..header.total).unwrap_or_default();
    let to = body.get(2..4) == Some(&port.to_be_bytes());
    header.protocol == ip::UDP && to && body.get(UDP_HEADER..) == Some(&KEEPALIVE)
}

/// Returns the low 32 bits of an ESP packet's sequence number; `None` if the packet is too short.
pub fn esp_sequence(packet: &[u8]) -> Option<u32> {
    let header = Header::read(packet).ok()?;
    let esp = header.len + if header.protocol == ip::UDP { UDP_HEADER } else { 0 };
    let bytes = packet.get(esp + 4..esp + 8)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

impl Outbound {
    /// Seals the packet in range `at` of a buffer. On failure the packet is unchanged, except for
    /// [`Refusal::Integrity`].
    ///
    /// # Errors
    /// The reason why the packet is not sealed. The caller must not send the packet.
    pub fn seal(
        &mut self,
        buffer: &mut [u8],
        at: Range<usize>,
        now: Instant,
    ) -> Result<EspOutput, Refusal> {
        let header = Header::read(buffer.get(at.clone()).ok_or(Refusal::NoRoom)?)?;
        if self.sa.is_expired(now) {
            return Err(Refusal::Expired);
        }
        if self.remaining_sequences() == 0 {
            return Err(match self.is_exhausted() {
                true => Refusal::SequenceExhausted,
                false => Refusal::Unreserved,
            });
        }
        // In transport mode the header moves to the front; in tunnel mode an outer header is added.
        let (protected, kept, next) = match self.sa.shape.mode {
            Mode::Transport => (header.len..header.total, header.len, header.protocol),
            Mode::Tunnel(_) if header.v6 => (0..header.total, 0, ip::IPV6),
            Mode::Tunnel(_) => (0..header.total, 0, ip::IPV4),
        };
        let total = self.sa.shape.sealed_len(header.total, header.len);
        let protected = at.start + protected.start..at.start + protected.end;
        let ahead = self.sa.shape.headroom();
        let start = at.start.checked_sub(ahead).ok_or(Refusal::NoRoom)?;
        if start + total > buffer.len() {
            return Err(Refusal::NoRoom);
        }
        if total > max_packet_len(&self.sa.shape.mode, &header) {
            return Err(Refusal::TooLong);
        }
        self.sequence += 1;
        let (class, dont_fragment) =
            (ip::traffic_class(&buffer[at.clone()]), forbids_fragmentation(&buffer[at.clone()]));
        let icv = self.algorithm().icv_len();
        let end = start + total - icv;
        write_trailer(&mut buffer[protected.end..end], next);
        buffer.copy_within(at.start..at.start + kept, start);
        let mut esp = start + self.sa.shape.outer_len() + kept;
        let protocol = match self.sa.encapsulation {
            None => ip::ESP,
            Some(ports) => {
                let len = (start + total - esp) as u16;
                for (word, field) in
                    [ports.source, ports.destination, len, 0].into_iter().enumerate()
                {
                    buffer[esp + 2 * word..esp + 2 * word + 2]
                        .copy_from_slice(&field.to_be_bytes());
                }
                esp += UDP_HEADER;
                ip::UDP
            }
        };
        buffer[esp..esp + 4].copy_from_slice(&self.sa.spi.to_be_bytes());
        buffer[esp + 4..esp + 8].copy_from_slice(&(self.sequence as u32).to_be_bytes());
        match self.sa.shape.mode {
            Mode::Transport => ip::rewrite(&mut buffer[start..], &header, protocol, total),
            Mode::Tunnel(tunnel) => {
                self.identification = self.identification.wrapping_add(1);
                let outer = Outer { tunnel, protocol, total, class, dont_fragment };
                outer.write(&mut buffer[start..], self.identification);
            }
        }
        let done = self.sa.transform.seal(buffer, esp, end, self.sequence, self.sa.esn);
        done.map_err(|_| Refusal::Integrity)?;
        if protocol == ip::UDP && buffer[start] >> 4 == 6 {
            // RFC 3948 §2.1: over IPv4, ESP in UDP has no UDP checksum. IPv6 requires one.
            ip::write_udp_checksum(&mut buffer[start..start + total], esp - UDP_HEADER - start);
        }
        let ends = self.is_nearly_exhausted();
        let left = self.sa.count(header.total, now, ends);
        Ok(EspOutput { packet: start..start + total, sequence: self.sequence, remaining: left })
    }
}

impl Inbound {
    /// Opens the packet in range `at` of a buffer, which [`find_esp`] has assigned to this SA. A refused packet does
    /// not count towards the SA's lifetime. Only a packet with a correct ICV advances the anti-replay window.
    ///
    /// # Errors
    /// The reason why the packet is not opened. The packet's bytes after the headers are undefined.
    pub fn open(
        &mut self,
        buffer: &mut [u8],
        at: Range<usize>,
        now: Instant,
    ) -> Result<EspOutput, Refusal> {
        let header = Header::read(buffer.get(at.clone()).ok_or(Refusal::Malformed)?)?;
        if self.sa.is_expired(now) {
            return Err(Refusal::Expired);
        }
        let mut esp = at.start + header.len;
        match (header.protocol, self.sa.encapsulation) {
            (ip::ESP, None) => {}
            // Addresses and UDP ports are not compared with the SA: a NAT may have changed them (RFC 3948 §3.1).
            (ip::UDP, Some(_)) => esp += UDP_HEADER,
            _ => return Err(Refusal::NotOfSa),
        }
        let (stop, algorithm) = (at.start + header.total, self.algorithm());
        let body = esp + ESP_HEADER + algorithm.iv_len();
        let end = stop.checked_sub(algorithm.icv_len()).ok_or(Refusal::Malformed)?;
        let protected = end.checked_sub(body).ok_or(Refusal::Malformed)?;
        if protected < TRAILER || protected % algorithm.block() != 0 {
            return Err(Refusal::Malformed);
        }
        let word = |at: usize| {
            u32::from_be_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]])
        };
        if word(esp) != self.sa.spi {
            return Err(Refusal::NotOfSa);
        }
        let esp_sequence = self.window.extend(word(esp + 4), self.sa.esn)?;
        self.window.check(esp_sequence)?;
        let opened = self.sa.transform.open(buffer, esp, end, esp_sequence, self.sa.esn);
        opened.map_err(|_| Refusal::Integrity)?;
        self.window.update(esp_sequence);
        let next = buffer[end - 1];
        let inner = body..unpadded_len(&buffer[body..end]).map(|len| body + len)?;
        if next == ip::NO_NEXT_HEADER {
            return Err(Refusal::Dummy);
        }
        let packet = match self.sa.shape.mode {
            Mode::Transport => {
                if next == ip::IPV4 || next == ip::IPV6 {
                    return Err(Refusal::NextHeader);
                }
                let start = inner.start - header.len;
                buffer.copy_within(at.start..at.start + header.len, start);
                let total = inner.end - start;
                ip::rewrite(&mut buffer[start..inner.end], &header, next, total);
                start..inner.end
            }
            Mode::Tunnel(tunnel) => {
                let outer = ip::traffic_class(&buffer[at]);
                decapsulate(buffer, inner, next, outer, tunnel.ecn)?
            }
        };
        let left = self.sa.count(packet.len(), now, false);
        Ok(EspOutput { packet, sequence: esp_sequence, remaining: left })
    }
}

/// Returns the maximum length of a sealed packet, bytes: the limit of its first IP header's length field (RFC 791 §3.1,
/// RFC 8200 §3). In tunnel mode that is the outer header.
fn max_packet_len(mode: &Mode, header: &Header) -> usize {
    let v6 = match mode {
        Mode::Transport => header.v6,
        Mode::Tunnel(tunnel) => tunnel.source.is_ipv6(),
    };
    usize::from(u16::MAX) + if v6 { ip::IPV6_HEADER } else { 0 }
}

/// Returns true for a packet that must not be fragmented: DF is set, or it is IPv6.
fn forbids_fragmentation(packet: &[u8]) -> bool {
    packet[0] >> 4 == 6 || packet[6] & 0x40 != 0
}

/// Writes the trailer (RFC 4303 §2.4): padding 1, 2, 3, …, its length, then the next header.
fn write_trailer(trailer: &mut [u8], next: u8) {
    let padding = trailer.len() - TRAILER;
    for (value, byte) in (1..).zip(&mut trailer[..padding]) {
        *byte = value;
    }
    trailer[padding..].copy_from_slice(&[padding as u8, next]);
}

/// Returns the length of the payload without padding and trailer. Fails if the padding is not 1, 2, 3, ….
fn unpadded_len(protected: &[u8]) -> Result<usize, Refusal> {
    let (rest, trailer) = protected.split_last_chunk::<TRAILER>().ok_or(Refusal::Malformed)?;
    let len = rest.len().checked_sub(trailer[0].into()).ok_or(Refusal::Padding)?;
    let good = rest[len..].iter().zip(1u8..).all(|(&byte, value)| byte == value);
    if good { Ok(len) } else { Err(Refusal::Padding) }
}

/// Returns the range of a tunnel's inner packet, without the TFC padding that may follow it (RFC 4303 §2.7). With
/// `ecn`, updates the inner packet's ECN field from the traffic class `outer` (RFC 6040 §4.2).
fn decapsulate(
    buffer: &mut [u8],
    inner: Range<usize>,
    next: u8,
    outer: u8,
    ecn: bool,
) -> Result<Range<usize>, Refusal> {
    let bytes = &buffer[inner.clone()];
    let version = bytes.first().map(|byte| byte >> 4);
    let total = match (next, version) {
        (ip::IPV4, Some(4)) if bytes.len() >= IPV4_HEADER => {
            usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))
        }
        (ip::IPV6, Some(6)) if bytes.len() >= ip::IPV6_HEADER => {
            ip::IPV6_HEADER + usize::from(u16::from_be_bytes([bytes[4], bytes[5]]))
        }
        (ip::IPV4 | ip::IPV6, Some(_)) => return Err(Refusal::NextHeader),
        (ip::IPV4 | ip::IPV6, None) => return Err(Refusal::Malformed),
        _ => return Err(Refusal::NextHeader),
    };
    let least = if version == Some(4) { usize::from(bytes[0] & 15) * 4 } else { ip::IPV6_HEADER };
    if total > bytes.len() || total < least || least < IPV4_HEADER {
        return Err(Refusal::Malformed);
    }
    let packet = inner.start..inner.start + total;
    let class = ip::traffic_class(&buffer[packet.clone()]);
    if ecn && let Some(class) = decapsulated_class(outer, class)? {
        ip::set_traffic_class(&mut buffer[packet.clone()], class);
    }
    Ok(packet)
}

const ECT_1: u8 = 1;
const CE: u8 = 3;

/// Returns the inner packet's new traffic class (RFC 6040 §4.2); `None` if it does not change.
fn decapsulated_class(outer: u8, inner: u8) -> Result<Option<u8>, Refusal> {
    match (inner & 3, outer & 3) {
        (0, CE) => Err(Refusal::NotEct),
        (0 | CE, _) => Ok(None),
        (_, CE) => Ok(Some(inner | CE)),
        (2, ECT_1) => Ok(Some(inner & !3 | ECT_1)),
        _ => Ok(None),
    }
}

/// The outer header of a tunnel.
struct Outer {
    tunnel: Tunnel,
    protocol: u8,
    total: usize,
    /// Traffic class of the inner packet.
    class: u8,
    dont_fragment: bool,
}

impl Outer {
    fn write(&self, out: &mut [u8], identification: u16) {
        let Tunnel { source, destination, ttl, dscp, ecn, fragments } = self.tunnel;
        let dscp = dscp.map_or(self.class & !3, |dscp| dscp << 2);
        let class = dscp | if ecn { self.class & 3 } else { 0 };
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let whole = match fragments {
                    Fragments::Copy => self.dont_fragment,
                    Fragments::Never => true,
                    Fragments::Allowed => false,
                };
                // RFC 6864 §4.1: a packet that is never fragmented needs no identification.
                let (id, flags) = if whole { (0, 0x40) } else { (identification, 0) };
                let header = &mut out[..IPV4_HEADER];
                header.fill(0);
                (header[0], header[1]) = (0x45, class);
                header[2..4].copy_from_slice(&(self.total as u16).to_be_bytes());
                header[4..6].copy_from_slice(&id.to_be_bytes());
                (header[6], header[8], header[9]) = (flags, ttl, self.protocol);
                header[12..16].copy_from_slice(&source.octets());
                header[16..20].copy_from_slice(&destination.octets());
                ip::write_checksum(header);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = &mut out[..ip::IPV6_HEADER];
                header.fill(0);
                (header[0], header[1]) = (0x60 | class >> 4, class << 4);
                header[4..6]
                    .copy_from_slice(&((self.total - ip::IPV6_HEADER) as u16).to_be_bytes());
                (header[6], header[7]) = (self.protocol, ttl);
                header[8..24].copy_from_slice(&source.octets());
                header[24..40].copy_from_slice(&destination.octets());
            }
            // Not reached: an SA whose tunnel ends differ in family is refused when it is created.
            _ => {}
        }
    }
}
