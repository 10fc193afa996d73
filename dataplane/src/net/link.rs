//! The link-layer header of a frame: addresses, at most one 802.1Q tag, EtherType.
//!
//! ```text
//!  | destination 6 | source 6 | EtherType 2 | payload ...
//!  | destination 6 | source 6 | 0x8100 | priority 3, DEI 1, identifier 12 | EtherType 2 | payload ...
//! ```
//!
//! Demultiplexing, IPsec and the sharing of an interface with the host's kernel all use this parser, so their
//! interpretations of a frame agree. A second 802.1Q tag is an error. 802.1ad and other outer tags are unknown
//! EtherTypes. So are IEEE 802.3 lengths, which precede LLC or SNAP headers.

use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use super::interface::Interface;
use super::neighbour::Mac;
use crate::drops::DropReason;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const VLAN: u16 = 0x8100;
/// Bits of the VLAN identifier in a tag (IEEE 802.1Q §9.6).
const VID_MASK: u16 = 0x0fff;

/// EtherType of LLDP (IEEE 802.1AB §8.3).
const LLDP: u16 = 0x88cc;
/// EtherType of EAP over LAN (IEEE 802.1X §11.1.4).
const EAPOL: u16 = 0x888e;

/// The link-layer header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Destination address.
    pub destination: Mac,
    /// Source address, never a group address.
    pub source: Mac,
    /// VLAN identifier, 1 to 4095; `None` for an untagged or a priority-tagged frame.
    pub vlan: Option<u16>,
    /// EtherType of the payload, after the tag if the frame has one.
    pub protocol: EthernetProtocol,
    /// Offset of the payload in the frame: 14 or 18, at most the frame's length.
    pub payload: usize,
}

impl Link {
    /// Parses the header of `frame`.
    ///
    /// # Errors
    /// [`DropReason::Truncated`] for a short frame, [`DropReason::BadSourceMac`] for a group address as source,
    /// [`DropReason::Vlan`] for two tags.
    #[inline(always)]
    pub fn read(frame: &[u8]) -> Result<Link, DropReason> {
        let ethernet = EthernetFrame::new_checked(frame).map_err(|_| DropReason::Truncated)?;
        let (destination, source) = (ethernet.dst_addr().0, ethernet.src_addr().0);
        if source[0] & 1 != 0 {
            return Err(DropReason::BadSourceMac);
        }
        let Payload { vlan, protocol, offset } = parse_tag(frame, ethernet.ethertype())?;
        Ok(Link { destination, source, vlan, protocol, payload: offset })
    }

    /// Returns the index of the interface that receives frames with this VLAN on `port`; `None` if there is none.
    #[inline(always)]
    pub fn find_interface(&self, port: usize, interfaces: &[Interface]) -> Option<usize> {
        interfaces.iter().position(|i| i.port == port && i.vlan == self.vlan)
    }

    /// Returns the offset of the IP packet in the frame; `None` if the EtherType is neither IPv4's nor IPv6's.
    #[inline]
    pub fn ip_offset(&self) -> Option<usize> {
        matches!(self.protocol, EthernetProtocol::Ipv4 | EthernetProtocol::Ipv6)
            .then_some(self.payload)
    }

    /// Returns true for the EtherTypes to which IPsec policies do not apply: ARP, LLDP and EAPOL. Linux does not
    /// decapsulate an IP packet from frames of these types. Frames of any other type may contain an IP packet: stacked
    /// tags, PPPoE, MPLS, MACsec, batman-adv, HSR.
    pub fn passes_policies(&self) -> bool {
        matches!(self.protocol, EthernetProtocol::Arp | EthernetProtocol::Unknown(LLDP | EAPOL))
    }
}

/// Returns the offset of the IP packet in `frame`; `None` if the link-layer header is invalid or its EtherType is
/// neither IPv4's nor IPv6's.
pub fn find_ip(frame: &[u8]) -> Option<usize> {
    Link::read(frame).ok()?.ip_offset()
}

/// The part of a frame after the addresses and the tag, if any.
struct Payload {
    vlan: Option<u16>,
    protocol: EthernetProtocol,
    offset: usize,
}

/// Parses the VLAN tag of a frame, if its first EtherType `outer` announces one.
#[inline(always)]
fn parse_tag(frame: &[u8], outer: EthernetProtocol) -> Result<Payload, DropReason> {
    if u16::from(outer) != VLAN {
        return Ok(Payload { vlan: None, protocol: outer, offset: ETHERNET });
    }
    let tag = frame.get(ETHERNET..ETHERNET + TAG).ok_or(DropReason::Truncated)?;
    // IEEE 802.1Q §9.6: identifier 0 means a priority tag without a VLAN.
    let identifier = u16::from_be_bytes([tag[0], tag[1]]) & VID_MASK;
    let inner = u16::from_be_bytes([tag[2], tag[3]]);
    if inner == VLAN {
        return Err(DropReason::Vlan);
    }
    let vlan = (identifier != 0).then_some(identifier);
    Ok(Payload { vlan, protocol: inner.into(), offset: ETHERNET + TAG })
}
