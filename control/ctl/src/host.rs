//! HOST of `HOST:PORT`: a name, an IPv4 address, or an IPv6 address in brackets, with an optional
//! zone (RFC 3986 §3.2.2, RFC 6874).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use base::address::{self, AddressError};

use api::ConnectSpec;

/// The host of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name, resolved by this host.
    Name(String),
    /// A unicast address.
    Address(IpAddr),
    /// A link-local address and its zone. The zone is an interface of the appliance, or with `--kernel` of this host.
    Zoned(Ipv6Addr, String),
}

/// Error of a text that is not a valid host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The text is empty or has invalid characters.
    #[error("`{0}` is no host: write a name, an IPv4 address, or an IPv6 address in brackets")]
    Syntax(String),
    /// The text has colons but no brackets.
    #[error("`{0}` is no host: write an IPv6 address in brackets, such as [fd00::1]")]
    Brackets(String),
    /// The text is an `IPvFuture` literal (RFC 3986 §3.2.2).
    #[error("`[{0}]` is an address of a later version of IP: write an IPv4 or IPv6 address")]
    Future(String),
    /// The text has a `%` outside of brackets: percent-encoding (RFC 3986 §2.1) is not supported.
    #[error(
        "`{0}` has a `%`: percent-encoding is not decoded here, write the characters themselves"
    )]
    Percent(String),
    /// The text has bytes beyond ASCII.
    #[error(
        "`{0}` is no host: write an internationalized name in its ASCII form, which begins with xn--"
    )]
    Ascii(String),
    /// The zone is empty or has invalid characters.
    #[error(
        "`[{0}]` has no zone behind its `%`: write the name of an interface, such as [fe80::1%25lan]"
    )]
    Zone(String),
    /// The address has a zone but is not link-local (RFC 4007 §11).
    #[error("`[{0}]` has a zone, and is not a link-local address (fe80::/10): leave the zone out")]
    Global(String),
    /// The address is not a unicast address, or has a refused form, such as `10.1` or IPv4-mapped.
    #[error("`{0}` is {1}")]
    Address(String, AddressError),
}

impl Host {
    /// Returns the host's distinct addresses in the order of `getaddrinfo`, at most [`ConnectSpec::MAX_ADDRESSES`]. The
    /// addresses have no zone, even if the name resolves to an address with a zone: this host's zones differ from the
    /// appliance's (RFC 4007 §6).
    pub fn lookup(&self, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let name = match self {
            Host::Name(name) => name,
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, port)]),
            Host::Zoned(address, _) => return Ok(vec![SocketAddr::new((*address).into(), port)]),
        };
        let mut addresses = Vec::new();
        for found in (name.as_str(), port).to_socket_addrs()? {
            let found = SocketAddr::new(found.ip(), port);
            if !addresses.contains(&found) && addresses.len() < ConnectSpec::MAX_ADDRESSES {
                addresses.push(found);
            }
        }
        match addresses.is_empty() {
            true => Err(std::io::Error::other("the name has no address")),
            false => Ok(addresses),
        }
    }

    /// Returns the zone of a link-local address; `None` without zone.
    pub fn zone(&self) -> Option<&str> {
        match self {
            Host::Zoned(_, zone) => Some(zone),
            Host::Name(_) | Host::Address(_) => None,
        }
    }

    /// Returns the host as the node argument of `getaddrinfo`: without brackets, with the zone after `%`.
    pub fn node(&self) -> String {
        match self {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
            Host::Zoned(address, zone) => format!("{address}%{zone}"),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return parse_bracketed(inner);
        }
        let named = || text.to_owned();
        if text.contains(':') {
            return Err(HostError::Brackets(named()));
        }
        if text.contains('%') {
            return Err(HostError::Percent(named()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return checked_address(text, address.into());
        }
        // RFC 3986 §7.4: `getaddrinfo` would parse the text as an address, possibly not the intended address.
        if address::is_number(text) {
            return Err(HostError::Address(named(), AddressError::OldForm));
        }
        if !text.is_ascii() {
            return Err(HostError::Ascii(named()));
        }
        if is_name(text) { Ok(Host::Name(named())) } else { Err(HostError::Syntax(named())) }
    }
}

/// Returns true if the text is a host name: labels of 1 to 63 characters, at most 253 in total, optionally a dot at the
/// end.
fn is_name(text: &str) -> bool {
    let possible = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && !label.starts_with('-') && label.bytes().all(possible)
    };
    text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}

fn parse_bracketed(text: &str) -> Result<Host, HostError> {
    let named = || text.to_owned();
    if text.starts_with(['v', 'V']) {
        return Err(HostError::Future(named()));
    }
    let (address, zone) = match text.split_once('%') {
        // RFC 6874: `%25` in a URL. The bare `%` of RFC 4007 is also accepted.
        Some((address, zone)) => (address, Some(zone.strip_prefix("25").unwrap_or(zone))),
        None => (text, None),
    };
    let v6: Ipv6Addr = address.parse().map_err(|_| HostError::Syntax(format!("[{text}]")))?;
    let Some(zone) = zone else { return checked_address(text, v6.into()) };
    let possible = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'~');
    if zone.is_empty() || !zone.bytes().all(possible) {
        return Err(HostError::Zone(named()));
    }
    match v6.is_unicast_link_local() {
        true => Ok(Host::Zoned(v6, zone.to_owned())),
        false => Err(HostError::Global(named())),
    }
}

fn checked_address(text: &str, address: IpAddr) -> Result<Host, HostError> {
    match address::check_host(address) {
        // With `--kernel`, a loopback address reaches programs of this host. An appliance refuses loopback addresses.
        Ok(()) | Err(AddressError::Loopback) => Ok(Host::Address(address)),
        Err(error) => Err(HostError::Address(text.to_owned(), error)),
    }
}

/// Formats the host as in a URL.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Host::Zoned(address, zone) => write!(f, "[{address}%25{zone}]"),
        }
    }
}
