//! Addresses of peers and their regions: `HOST:PORT` and `tcp://HOST:PORT/REGION[@OFFSET]`. Over TCP, the scheme is
//! `tcp://` for bare DDP and `rdmap://` for RDMAP; over SCTP, `sctp://` and `rdmap+sctp://`.
//!
//! Schemes are case-insensitive (RFC 3986 §3.1). Other parts of a URL (user information, query, fragment,
//! percent-encoding) are not supported; each has its own error.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use api::UlpChoice;
use config::{Transport, parse_u64};
use ddp::advert::is_name;

use super::host::{Host, HostError};

struct Scheme {
    /// The scheme with `://`.
    prefix: &'static str,
    ulp: UlpChoice,
    transport: Transport,
}

impl Scheme {
    const fn new(prefix: &'static str, ulp: UlpChoice, transport: Transport) -> Self {
        Scheme { prefix, ulp, transport }
    }
}

/// All schemes. The first scheme applies to an address without a scheme.
static SCHEMES: [Scheme; 4] = [
    Scheme::new("tcp://", UlpChoice::Ddp, Transport::Tcp),
    Scheme::new("rdmap://", UlpChoice::Rdmap, Transport::Tcp),
    Scheme::new("sctp://", UlpChoice::Ddp, Transport::Sctp),
    Scheme::new("rdmap+sctp://", UlpChoice::Rdmap, Transport::Sctp),
];

/// The address of a peer, and its protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name or address of the peer.
    pub host: Host,
    /// TCP or SCTP port, not 0.
    pub port: u16,
    /// Transport below DDP.
    pub transport: Transport,
    /// Protocol above DDP.
    pub ulp: UlpChoice,
}

/// The URL of a peer, with or without a location in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Address and protocols of the peer.
    pub peer: Peer,
    /// Region and offset; `None` if the URL names only a peer.
    pub region: Option<RegionOffset>,
}

/// A region of a peer, and an offset in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionOffset {
    /// The region's name.
    pub name: String,
    /// Offset from the region's first byte, bytes.
    pub offset: u64,
}

/// Error of a text that is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is not one of [`SCHEMES`].
    #[error(
        "`{0}` does not begin with tcp://, sctp://, rdmap:// or rdmap+sctp://: write \
         tcp://HOST:PORT/REGION, for RDMAP rdmap://HOST:PORT/REGION"
    )]
    Scheme(String),
    /// The text has two schemes.
    #[error("`{0}` has two schemes: write one, such as rdmap://HOST:PORT/REGION")]
    TwoSchemes(String),
    /// The port is missing.
    #[error(
        "`{0}` has no port, and none is the default: write HOST:PORT, an IPv6 address in brackets such as [fd00::1]:7471"
    )]
    NoPort(String),
    /// The port is not a decimal number from 1 to 65535.
    #[error("`{0}` is no port: write a decimal number from 1 to 65535")]
    Port(String),
    /// The text names a user (RFC 3986 §3.2.1).
    #[error("`{0}` names a user, which peers do not have: write HOST:PORT without `@`")]
    User(String),
    /// The text has a query (RFC 3986 §3.4).
    #[error("`{0}` has a query, which means nothing here: leave out `?` and what follows it")]
    Query(String),
    /// The text has a fragment (RFC 3986 §3.5).
    #[error("`{0}` has a fragment, which means nothing here: leave out `#` and what follows it")]
    Fragment(String),
    /// The text names a region where only a peer is allowed.
    #[error("`{0}` names a region, and a peer alone is meant: write HOST:PORT")]
    Path(String),
    /// The host is missing or invalid.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The region's name is invalid.
    #[error("`{0}` is no region's name: 1 to 64 of A-Z a-z 0-9 . _ -")]
    Region(String),
    /// The offset is not a number.
    #[error("`{0}` is no offset: write bytes, decimal or 0x")]
    Offset(String),
}

impl Peer {
    /// Returns the same peer with RDMAP.
    pub fn to_rdmap(&self) -> Peer {
        Peer { ulp: UlpChoice::Rdmap, ..self.clone() }
    }

    /// Returns the scheme of the peer's URL, such as `rdmap://`.
    pub fn scheme(&self) -> &'static str {
        let what = (self.ulp, self.transport);
        let scheme = SCHEMES.iter().find(|scheme| (scheme.ulp, scheme.transport) == what);
        scheme.unwrap_or(&SCHEMES[0]).prefix
    }

    /// Returns the peer's addresses. A name is resolved by this host, not by the appliance.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.host.lookup(self.port)
    }
}

impl FromStr for Peer {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = match split_scheme(text)? {
            Some(found) => found,
            None if text.contains("://") => return Err(UrlError::Scheme(text.to_owned())),
            None => (&SCHEMES[0], text),
        };
        match split_region(rest)? {
            (authority, None) => parse_peer(authority, scheme),
            (_, Some(_)) => Err(UrlError::Path(text.to_owned())),
        }
    }
}

/// Splits a text into its scheme and the rest. `None` if the text begins with none of [`SCHEMES`]. Refuses a text with
/// two schemes.
fn split_scheme(text: &str) -> Result<Option<(&'static Scheme, &str)>, UrlError> {
    let split = |text| {
        SCHEMES.iter().find_map(|scheme| {
            let (begin, rest) = str::split_at_checked(text, scheme.prefix.len())?;
            begin.eq_ignore_ascii_case(scheme.prefix).then_some((scheme, rest))
        })
    };
    match split(text) {
        Some((_, rest)) if split(rest).is_some() => Err(UrlError::TwoSchemes(text.to_owned())),
        found => Ok(found),
    }
}

/// Splits a text at the first `/` into `HOST:PORT` and the path after the slash. An empty path is `None`.
fn split_region(text: &str) -> Result<(&str, Option<&str>), UrlError> {
    match text.find(['?', '#']) {
        Some(at) if text[at..].starts_with('?') => return Err(UrlError::Query(text.to_owned())),
        Some(_) => return Err(UrlError::Fragment(text.to_owned())),
        None => {}
    }
    let (authority, path) = match text.split_once('/') {
        Some((authority, path)) => (authority, Some(path).filter(|path| !path.is_empty())),
        None => (text, None),
    };
    match authority.contains('@') {
        true => Err(UrlError::User(authority.to_owned())),
        false => Ok((authority, path)),
    }
}

fn parse_peer(authority: &str, scheme: &Scheme) -> Result<Peer, UrlError> {
    let no_port = || UrlError::NoPort(authority.to_owned());
    let (host, port) = match authority.rfind(']') {
        Some(at) => match authority[at + 1..].strip_prefix(':') {
            Some(port) => (&authority[..=at], port),
            None => return Err(no_port()),
        },
        None => authority.rsplit_once(':').ok_or_else(no_port)?,
    };
    let host = host.parse()?;
    if port.is_empty() {
        return Err(no_port());
    }
    // RFC 3986 §3.2.3: decimal digits; leading zeros are permitted.
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    let number = port.parse().ok().filter(|&port| digits && port > 0);
    let port = number.ok_or_else(|| UrlError::Port(port.to_owned()))?;
    Ok(Peer { host, port, transport: scheme.transport, ulp: scheme.ulp })
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) =
            split_scheme(text)?.ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let (authority, path) = split_region(rest)?;
        let region = path.map(parse_region).transpose()?;
        Ok(Self { peer: parse_peer(authority, scheme)?, region })
    }
}

fn parse_region(text: &str) -> Result<RegionOffset, UrlError> {
    let (name, offset) = match text.split_once('@') {
        None => (text, 0),
        Some((name, offset)) => {
            (name, parse_u64(offset).ok_or_else(|| UrlError::Offset(offset.to_owned()))?)
        }
    };
    if !is_name(name) {
        return Err(UrlError::Region(name.to_owned()));
    }
    Ok(RegionOffset { name: name.to_owned(), offset })
}

impl FromStr for RegionOffset {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse_region(text)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.peer.scheme(), self.peer)?;
        match &self.region {
            None => Ok(()),
            Some(region) if region.offset == 0 => write!(f, "/{}", region.name),
            Some(region) => write!(f, "/{}@{}", region.name, region.offset),
        }
    }
}

#[cfg(test)]
mod tests;
