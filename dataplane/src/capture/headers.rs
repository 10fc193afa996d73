//! Parser for the header fields that capture filters examine. It verifies no lengths or checksums, and reads at most
//! two VLAN tags and [`EXTENSIONS`] IPv6 extension headers. Payloads of ESP are not decrypted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const VLAN: [u16; 2] = [0x8100, 0x88a8];
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;
/// Maximum number of IPv6 extension headers that are skipped.
const EXTENSIONS: usize = 8;

/// Header fields of a frame. Fields beyond the end of a truncated frame have their default value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Headers {
    /// EtherType after at most two VLAN tags.
    pub(super) ethertype: u16,
    /// VLAN identifier of the outer tag; `None` if untagged.
    pub(super) vlan: Option<u16>,
    /// IP addresses, or the protocol addresses of ARP.
    pub(super) source: Option<IpAddr>,
    pub(super) destination: Option<IpAddr>,
    /// Protocol number of the IP payload.
    pub(super) protocol: Option<u8>,
    /// Source and destination port of TCP, UDP or SCTP. `None` for fragments except the first.
    pub(super) ports: Option<(u16, u16)>,
    /// Source and destination port of the SCTP header after a UDP header (RFC 6951). Read from every UDP packet,
    /// because the parser does not know the UDP port that is configured for SCTP.
    pub(super) inner: Option<(u16, u16)>,
}

/// ESP's protocol number (RFC 4303 §2), and the UDP port of ESP in UDP (RFC 3948 §2.1).
const ESP: u8 = 50;
const ESP_PORT: u16 = 4500;

impl Headers {
    /// Returns true for ESP, ESP in UDP, and IKE on the same UDP port.
    pub(super) fn is_ipsec(&self) -> bool {
        let in_udp = self.ports.is_some_and(|(from, to)| from == ESP_PORT || to == ESP_PORT);
        self.protocol == Some(ESP) || self.protocol == Some(UDP) && in_udp
    }

    pub(super) fn parse(frame: &[u8]) -> Headers {
        let mut headers = Headers::default();
        // In a truncated frame, the remaining fields keep their default value.
        let _ = headers.read(frame);
        headers
    }

    fn read(&mut self, frame: &[u8]) -> Option<()> {
        let mut at = 12;
        self.ethertype = u16_at(frame, at)?;
        at += 2;
        for _ in 0..2 {
            if VLAN.contains(&self.ethertype) {
                self.vlan = self.vlan.or(Some(u16_at(frame, at)? & 0x0fff));
                self.ethertype = u16_at(frame, at + 2)?;
                at += 4;
            }
        }
        let packet = frame.get(at..)?;
        match self.ethertype {
            ARP => {
                // These offsets apply to Ethernet and IPv4 only (RFC 826).
                self.source = Some(ipv4_at(packet, 14)?);
                self.destination = Some(ipv4_at(packet, 24)?);
            }
            IPV4 => {
                self.source = Some(ipv4_at(packet, 12)?);
                self.destination = Some(ipv4_at(packet, 16)?);
                self.protocol = packet.get(9).copied();
                if u16_at(packet, 6)? & 0x1fff == 0 {
                    self.read_ports(packet.get(usize::from(packet[0] & 0x0f) * 4..)?)?;
                }
            }
            IPV6 => {
                self.source = Some(ipv6_at(packet, 8)?);
                self.destination = Some(ipv6_at(packet, 24)?);
                self.read_v6(*packet.get(6)?, packet.get(40..)?)?;
            }
            _ => {}
        }
        Some(())
    }

    fn read_v6(&mut self, mut next: u8, mut rest: &[u8]) -> Option<()> {
        for _ in 0..EXTENSIONS {
            let len = match next {
                // RFC 8200 §4.3, §4.4, §4.6: hop-by-hop options, routing, destination options.
                0 | 43 | 60 => (usize::from(*rest.get(1)?) + 1) * 8,
                // RFC 8200 §4.5: fragment header. Only the first fragment has ports.
                44 => {
                    let offset = u16_at(rest, 2)? >> 3;
                    if offset != 0 {
                        self.protocol = Some(rest[0]);
                        return None;
                    }
                    8
                }
                _ => break,
            };
            next = rest[0];
            self.protocol = Some(next);
            rest = rest.get(len..)?;
        }
        self.protocol = Some(next);
        self.read_ports(rest)
    }

    fn read_ports(&mut self, payload: &[u8]) -> Option<()> {
        if matches!(self.protocol, Some(TCP | UDP | SCTP)) {
            self.ports = Some((u16_at(payload, 0)?, u16_at(payload, 2)?));
        }
        if self.protocol == Some(UDP) {
            self.inner = Some((u16_at(payload, 8)?, u16_at(payload, 10)?));
        }
        Some(())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn ipv4_at(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn ipv6_at(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}
