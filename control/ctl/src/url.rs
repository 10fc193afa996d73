//! Addresses of peers and their regions: `HOST:PORT` and `tcp://HOST:PORT/REGION[@OFFSET]`; `rdmap://` for RDMAP,
//! `sctp://` and `rdmap+sctp://` for the same over SCTP.
//!
//! HOST is a name, an IPv4 address, or an IPv6 address in brackets.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use api::UlpChoice;
use config::Transport;
use config::parse_u64;
use ddp::advert::is_name;

/// Schemes, each with its ULP and its transport.
const SCHEMES: [(&str, UlpChoice, Transport); 4] = [
    ("tcp://", UlpChoice::Ddp, Transport::Tcp),
    ("rdmap://", UlpChoice::Rdmap, Transport::Tcp),
    ("sctp://", UlpChoice::Ddp, Transport::Sctp),
    ("rdmap+sctp://", UlpChoice::Rdmap, Transport::Sctp),
];

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP or SCTP port, not 0.
    pub port: u16,
    /// What carries DDP.
    pub transport: Transport,
    /// Its protocol above DDP.
    pub ulp: UlpChoice,
}

/// A place in a peer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The peer.
    pub peer: Peer,
    /// The region; none where STag and TO name the place.
    pub region: Option<RegionAt>,
}

/// A region and an offset in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionAt {
    /// The region's name.
    pub name: String,
    /// Bytes from its first one.
    pub offset: u64,
}

/// Why a text is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme than those of [`SCHEMES`].
    #[error(
        "`{0}` does not begin with tcp://, sctp://, rdmap:// or rdmap+sctp://: write \
         tcp://HOST:PORT/REGION, for RDMAP rdmap://HOST:PORT/REGION"
    )]
    Scheme(String),
    /// No port.
    #[error(
        "`{0}` has no port: write HOST:PORT, an IPv6 address in brackets such as [fd00::1]:7471"
    )]
    Port(String),
    /// No host, or one with impossible characters.
    #[error("`{0}` is no host: write a name, an IPv4 address, or an IPv6 address in brackets")]
    Host(String),
    /// An impossible region name.
    #[error("`{0}` is no region's name: 1 to 64 of A-Z a-z 0-9 . _ -")]
    Region(String),
    /// An impossible offset.
    #[error("`{0}` is no offset: write bytes, decimal or 0x")]
    Offset(String),
}

impl Peer {
    /// The same peer, with RDMAP.
    pub fn rdmap(&self) -> Peer {
        Peer { ulp: UlpChoice::Rdmap, ..self.clone() }
    }

    /// What a URL of the peer begins with.
    pub fn scheme(&self) -> &'static str {
        let what = (self.ulp, self.transport);
        let scheme = SCHEMES.iter().find(|scheme| (scheme.1, scheme.2) == what);
        scheme.map_or(SCHEMES[0].0, |scheme| scheme.0)
    }

    /// The peer's address; a name is looked up on this host.
    pub fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        addresses.next().ok_or_else(|| std::io::Error::other("the name has no address"))
    }
}

impl FromStr for Peer {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (ulp, transport, text) = scheme(text).unwrap_or((UlpChoice::Ddp, Transport::Tcp, text));
        let no_port = || UrlError::Port(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(no_port)?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port: u16 = port.parse().ok().filter(|&port| digits && port > 0).ok_or_else(no_port)?;
        Ok(Self { host: parse_host(host)?, port, transport, ulp })
    }
}

/// What a text's scheme says, and the rest.
fn scheme(text: &str) -> Option<(UlpChoice, Transport, &str)> {
    SCHEMES
        .iter()
        .find_map(|&(prefix, ulp, transport)| Some((ulp, transport, text.strip_prefix(prefix)?)))
}

fn parse_host(text: &str) -> Result<String, UrlError> {
    let wrong = || UrlError::Host(text.to_owned());
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or_else(wrong)?;
        inner.parse::<Ipv6Addr>().map_err(|_| wrong())?;
        return Ok(inner.to_owned());
    }
    let possible = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let shape = (1..=253).contains(&text.len()) && !text.starts_with(['.', '-']);
    if shape && text.bytes().all(possible) { Ok(text.to_owned()) } else { Err(wrong()) }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (ulp, transport, rest) =
            scheme(text).ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let (peer, path) = match rest.split_once('/') {
            None | Some((_, "")) => (rest.trim_end_matches('/'), None),
            Some((peer, path)) => (peer, Some(path)),
        };
        let region = path.map(parse_region).transpose()?;
        // One scheme is enough.
        if scheme(peer).is_some() {
            return Err(UrlError::Host(peer.to_owned()));
        }
        let peer: Peer = peer.parse()?;
        Ok(Self { peer: Peer { ulp, transport, ..peer }, region })
    }
}

fn parse_region(text: &str) -> Result<RegionAt, UrlError> {
    let (name, offset) = match text.split_once('@') {
        None => (text, 0),
        Some((name, offset)) => {
            (name, parse_u64(offset).ok_or_else(|| UrlError::Offset(offset.to_owned()))?)
        }
    };
    if !is_name(name) {
        return Err(UrlError::Region(name.to_owned()));
    }
    Ok(RegionAt { name: name.to_owned(), offset })
}

impl FromStr for RegionAt {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse_region(text)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(host: &str, port: u16, region: Option<(&str, u64)>) -> Url {
        let region = region.map(|(name, offset)| RegionAt { name: name.into(), offset });
        let (transport, ulp) = (Transport::Tcp, UlpChoice::Ddp);
        Url { peer: Peer { host: host.into(), port, transport, ulp }, region }
    }

    #[test]
    fn places() {
        let cases = [
            ("tcp://10.0.0.1:7471/in", place("10.0.0.1", 7471, Some(("in", 0)))),
            ("tcp://[fd00::1]:1/in@4096", place("fd00::1", 1, Some(("in", 4096)))),
            ("tcp://host.example:9/a@0x10", place("host.example", 9, Some(("a", 16)))),
            ("tcp://host:9", place("host", 9, None)),
            ("tcp://host:9/", place("host", 9, None)),
        ];
        for (text, url) in cases {
            assert_eq!(text.parse(), Ok(url), "{text}");
        }
        let over =
            |transport| move |host: &str, ulp| Peer { host: host.into(), port: 5, transport, ulp };
        let peer = over(Transport::Tcp);
        assert_eq!("[::1]:5".parse(), Ok(peer("::1", UlpChoice::Ddp)));
        assert_eq!("tcp://a:5".parse(), Ok(peer("a", UlpChoice::Ddp)));
        assert_eq!("rdmap://a:5".parse(), Ok(peer("a", UlpChoice::Rdmap)));
        let url: Url = "rdmap://a:5/in@7".parse().unwrap();
        assert_eq!(url.peer, peer("a", UlpChoice::Rdmap));
        assert_eq!(url.to_string(), "rdmap://a:5/in@7");
        assert!("tcp://rdmap://a:5/in".parse::<Url>().is_err());
        let peer = over(Transport::Sctp);
        assert_eq!("sctp://a:5".parse(), Ok(peer("a", UlpChoice::Ddp)));
        let url: Url = "rdmap+sctp://a:5/in@7".parse().unwrap();
        assert_eq!(url.peer, peer("a", UlpChoice::Rdmap));
        assert_eq!(url.to_string(), "rdmap+sctp://a:5/in@7");
        assert!("sctp://tcp://a:5/in".parse::<Url>().is_err());
    }

    #[test]
    fn what_is_no_place() {
        let cases = [
            ("10.0.0.1:7471/in", UrlError::Scheme("10.0.0.1:7471/in".into())),
            ("tcp://10.0.0.1/in", UrlError::Port("10.0.0.1".into())),
            ("tcp://h:0/in", UrlError::Port("h:0".into())),
            ("tcp://h:+1/in", UrlError::Port("h:+1".into())),
            ("tcp://h:65536/in", UrlError::Port("h:65536".into())),
            ("tcp://fd00::1:7471/in", UrlError::Host("fd00::1".into())),
            ("tcp://[fd00::1:7471/in", UrlError::Host("[fd00::1".into())),
            ("tcp://[10.0.0.1]:7/in", UrlError::Host("[10.0.0.1]".into())),
            ("tcp://:7/in", UrlError::Host(String::new())),
            ("tcp://h:7/a/b", UrlError::Region("a/b".into())),
            ("tcp://h:7/@5", UrlError::Region(String::new())),
            ("tcp://h:7/a@", UrlError::Offset(String::new())),
            ("tcp://h:7/a@-1", UrlError::Offset("-1".into())),
            ("tcp://h:7/a@0x", UrlError::Offset("0x".into())),
            ("tcp://h:7/a@1@2", UrlError::Offset("1@2".into())),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Url>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(
            host in prop_oneof![
                "[a-z0-9][a-z0-9.-]{0,30}",
                any::<[u8; 4]>().prop_map(|a| std::net::Ipv4Addr::from(a).to_string()),
                any::<[u16; 8]>().prop_map(|a| Ipv6Addr::from(a).to_string()),
            ],
            port in 1u16..,
            region in prop::option::of(("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", any::<u64>())),
        ) {
            let region = region.map(|(name, offset)| RegionAt { name, offset });
            let ulp = if port % 2 == 0 { UlpChoice::Ddp } else { UlpChoice::Rdmap };
            let transport = if port % 3 == 0 { Transport::Sctp } else { Transport::Tcp };
            let url = Url { peer: Peer { host, port, transport, ulp }, region };
            prop_assert_eq!(url.to_string().parse(), Ok(url));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,80}") {
            // What is accepted is also what is shown, or at least reads as the same place.
            if let Ok(url) = format!("tcp://{text}").parse::<Url>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
