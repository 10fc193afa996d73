//! IP addresses in text, for the command line, the API, the configuration and filters.
//!
//! Accepts the IPv6 forms of RFC 4291 §2.2 and IPv4 in four decimal numbers. Refuses IPv4 forms that programs interpret
//! differently, and IPv4-mapped addresses, which packets do not carry. The error names the refused form. Only
//! [`parse_socket`] accepts a zone (RFC 4007 §11), as a number. Callers of the other functions must remove the zone
//! first.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Reason for refusing a text that is not an IP address, or an address that cannot belong to another host. `Display`
/// prints a noun phrase, in some cases with the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressError {
    /// Neither IPv4 nor IPv6.
    Syntax,
    /// An IPv4 address with fewer than four numbers, with hexadecimal numbers or with leading zeros. `inet_aton`
    /// accepts these; other programs refuse them, or read another address. Also any other invalid address whose last
    /// label is a number, such as `10.0.0.256`.
    OldForm,
    /// A `%` and a zone.
    Zone,
    /// IPv4-mapped (RFC 4291 §2.5.5.2).
    Mapped(Ipv4Addr),
    /// An IPv4-mapped prefix, as the IPv4 prefix and its length.
    MappedPrefix(Ipv4Addr, u8),
    /// IPv4-compatible (RFC 4291 §2.5.5.1), deprecated.
    Compatible,
    /// `0.0.0.0` or `::`.
    Unspecified,
    /// An address of `0.0.0.0/8` (RFC 1122 §3.2.1.3 (a)).
    ThisNetwork,
    /// `127.0.0.0/8` or `::1`.
    Loopback,
    /// `224.0.0.0/4` or `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressError::Syntax => {
                "not an address: write one such as 192.0.2.1 or 2001:db8::1"
            }
            AddressError::OldForm => {
                "an old form of an IPv4 address, which programs read differently: write four decimal numbers without \
                 leading zeros, such as 192.0.2.1"
            }
            AddressError::Zone => {
                "an address with a zone, which is the name of an interface: leave out `%` and what follows it"
            }
            AddressError::Mapped(v4) => {
                return write!(f, "an IPv4 address in the form of IPv6: write {v4}");
            }
            AddressError::MappedPrefix(v4, len) => {
                return write!(f, "an IPv4-mapped prefix: write {v4}/{len}");
            }
            AddressError::Compatible => {
                "an IPv4-compatible address (::/96), of which none is in use: write the IPv4 address"
            }
            AddressError::Unspecified => "the unspecified address, which no host has",
            AddressError::ThisNetwork => "an address of 0.0.0.0/8, which no host has",
            AddressError::Loopback => "a loopback address, which no other host has",
            AddressError::Multicast => "a multicast address, not that of one host",
            AddressError::Broadcast => "the broadcast address, not that of one host",
        })
    }
}

impl core::error::Error for AddressError {}

/// Parses an address without a zone.
///
/// # Errors
/// `Syntax`, `OldForm`, `Zone` and `Mapped`.
pub fn parse(text: &str) -> Result<IpAddr, AddressError> {
    let address: IpAddr = text.parse().map_err(|_| {
        if text.contains('%') {
            AddressError::Zone
        } else if is_number(text) {
            AddressError::OldForm
        } else {
            AddressError::Syntax
        }
    })?;
    check_form(address)?;
    Ok(address)
}

/// Parses an address and the length of its prefix, such as `192.0.2.1/24`.
///
/// # Errors
/// The errors of [`parse`]. `Syntax` also for a missing or invalid length. `MappedPrefix` for an IPv4-mapped address.
pub fn parse_prefix(text: &str) -> Result<(IpAddr, u8), AddressError> {
    let (address, len) = text.split_once('/').ok_or(AddressError::Syntax)?;
    let digits = len.bytes().all(|b| b.is_ascii_digit()) && (len == "0" || !len.starts_with('0'));
    let len: Option<u8> = len.parse().ok().filter(|_| digits);
    let address = parse(address).map_err(|error| match (error, len) {
        (AddressError::Mapped(v4), Some(len @ 96..=128)) => {
            AddressError::MappedPrefix(v4, len - 96)
        }
        (error, _) => error,
    })?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let len = len.filter(|&len| len <= most);
    len.map(|len| (address, len)).ok_or(AddressError::Syntax)
}

/// Parses the address and port of a socket of this host's kernel, such as `127.0.0.1:9471` or `[::1]:9471`. A zone must
/// be a number.
///
/// # Errors
/// The errors of [`parse`]; `Syntax` also for a missing or invalid port.
pub fn parse_socket(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        check_form(socket.ip())?;
        return Ok(socket);
    }
    let (host, _) = text.rsplit_once(':').ok_or(AddressError::Syntax)?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // If the address is valid, the error is in the port or the brackets.
    match parse(inner.unwrap_or(host)) {
        Ok(_) => Err(AddressError::Syntax),
        Err(error) => Err(error),
    }
}

/// Returns true if the last label of `text` is a decimal or hexadecimal number. Host names never end in such a label,
/// so the text is an IPv4 address, perhaps in an old form (RFC 1123 §2.1, RFC 3986 §7.4).
pub fn is_number(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or(text);
    match last.strip_prefix("0x").or_else(|| last.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// Refuses an IPv4-mapped address: packets carry the IPv4 form, so the mapped form would match no packet.
fn check_form(address: IpAddr) -> Result<(), AddressError> {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(Ok(()), |v4| Err(AddressError::Mapped(v4))),
        IpAddr::V4(_) => Ok(()),
    }
}

/// Refuses an address that cannot belong to a single other host.
///
/// # Errors
/// `Mapped`, `Unspecified`, `Loopback`, `Multicast`, `Broadcast`, `ThisNetwork` and `Compatible`.
pub fn check_host(address: IpAddr) -> Result<(), AddressError> {
    check_form(address)?;
    let refused = match address {
        _ if address.is_unspecified() => AddressError::Unspecified,
        _ if address.is_loopback() => AddressError::Loopback,
        _ if address.is_multicast() => AddressError::Multicast,
        IpAddr::V4(v4) if v4.is_broadcast() => AddressError::Broadcast,
        IpAddr::V4(v4) if v4.octets()[0] == 0 => AddressError::ThisNetwork,
        IpAddr::V6(v6) if v6.to_bits() >> 32 == 0 => AddressError::Compatible,
        _ => return Ok(()),
    };
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_text_parses_one_way_or_names_error() {
        use AddressError::*;
        let v4 = Ipv4Addr::new(10, 0, 0, 1);
        for (text, read) in [
            ("10.0.0.1", Ok("10.0.0.1")),
            ("2001:DB8::1", Ok("2001:db8::1")),
            ("2001:db8:0:0:0:0:0:1", Ok("2001:db8::1")),
            ("64:ff9b::10.0.0.1", Ok("64:ff9b::a00:1")),
            ("::", Ok("::")),
            ("::ffff:10.0.0.1", Err(Mapped(v4))),
            ("::ffff:a00:1", Err(Mapped(v4))),
            ("10.1", Err(OldForm)),
            ("167772161", Err(OldForm)),
            ("0x0a000001", Err(OldForm)),
            ("0XA.0.0.0x1", Err(OldForm)),
            ("010.0.0.1", Err(OldForm)),
            ("10.0.0.01", Err(OldForm)),
            ("10.0.0.1.", Err(OldForm)),
            ("10.0.0.256", Err(OldForm)),
            ("fe80::1%front", Err(Zone)),
            ("[::1]", Err(Syntax)),
            ("fe80:::1", Err(Syntax)),
            ("1:2:3:4:5:6:7:8:9", Err(Syntax)),
            ("12345::", Err(Syntax)),
            ("::10.0.1", Err(OldForm)),
            (" 10.0.0.1", Err(OldForm)),
            ("10.0.0.1 ", Err(Syntax)),
            ("host", Err(Syntax)),
            ("", Err(Syntax)),
        ] {
            assert_eq!(parse(text), read.map(|text| text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn prefixes_have_a_decimal_length() {
        use AddressError::*;
        let address = |text: &str| text.parse().unwrap();
        for (text, read) in [
            ("10.0.0.1/24", Ok((address("10.0.0.1"), 24))),
            ("::/0", Ok((address("::"), 0))),
            ("2001:db8::1/128", Ok((address("2001:db8::1"), 128))),
            ("010.0.0.1/24", Err(OldForm)),
            ("10/8", Err(OldForm)),
            ("::ffff:10.0.0.0/104", Err(MappedPrefix(Ipv4Addr::new(10, 0, 0, 0), 8))),
            ("::ffff:10.0.0.1/64", Err(Mapped(Ipv4Addr::new(10, 0, 0, 1)))),
            ("fe80::1%front/64", Err(Zone)),
            ("10.0.0.1/024", Err(Syntax)),
            ("10.0.0.1/+4", Err(Syntax)),
            ("10.0.0.1/33", Err(Syntax)),
            ("10.0.0.1/", Err(Syntax)),
            ("10.0.0.1/255.255.255.0", Err(Syntax)),
            ("10.0.0.1", Err(Syntax)),
            ("10.0.0.0/8/8", Err(Syntax)),
        ] {
            assert_eq!(parse_prefix(text), read, "{text}");
        }
    }

    #[test]
    fn kernel_socket_addresses_parse() {
        use AddressError::*;
        for text in ["127.0.0.1:9471", "[::]:0", "[fe80::1%2]:9"] {
            assert_eq!(parse_socket(text), Ok(text.parse().unwrap()), "{text}");
        }
        for (text, error) in [
            ("127.1:9471", OldForm),
            ("127.0.0.01:9471", OldForm),
            ("[::ffff:127.0.0.1]:9", Mapped(Ipv4Addr::LOCALHOST)),
            ("[fe80::1%front]:9", Zone),
            ("127.0.0.1:65536", Syntax),
            ("127.0.0.1", Syntax),
            ("::1:9", Syntax),
            ("localhost:9", Syntax),
        ] {
            assert_eq!(parse_socket(text), Err(error), "{text}");
        }
    }

    #[test]
    fn non_unicast_addresses_are_refused_by_name() {
        use AddressError::*;
        for (text, error) in [
            ("0.0.0.0", Unspecified),
            ("::", Unspecified),
            ("0.1.2.3", ThisNetwork),
            ("127.0.0.53", Loopback),
            ("::1", Loopback),
            ("224.0.0.1", Multicast),
            ("ff02::1", Multicast),
            ("255.255.255.255", Broadcast),
            ("::10.0.0.1", Compatible),
            ("::ffff:10.0.0.1", Mapped(Ipv4Addr::new(10, 0, 0, 1))),
        ] {
            assert_eq!(check_host(text.parse().unwrap()), Err(error), "{text}");
        }
        for text in ["10.0.0.1", "2001:db8::", "fe80::1", "fec0::1", "240.0.0.1"] {
            assert_eq!(check_host(text.parse().unwrap()), Ok(()), "{text}");
        }
    }
}
