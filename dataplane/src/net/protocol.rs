//! IP protocol numbers (IANA), and the length of a UDP header.

use smoltcp::wire::IpProtocol;

/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// ICMPv6 (RFC 4443 §2.1).
pub const ICMPV6: u8 = 58;
/// ESP (RFC 4303 §2).
pub const ESP: IpProtocol = IpProtocol::IpSecEsp;
/// SCTP (RFC 9260 §3).
pub const SCTP: IpProtocol = IpProtocol::Unknown(132);

/// Bytes of a UDP header (RFC 768).
pub const UDP_HEADER: usize = 8;
