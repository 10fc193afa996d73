//! Capture filters: expressions in a subset of the language of `tcpdump`.
//!
//! ```text
//!  expression := part { "and" part } | part { "or" part }
//!  part       := "not" part | "(" expression ")" | test
//!  test       := ["src" | "dst"] ("host" ADDRESS | "net" NETWORK | "port" NUMBER)
//!              | ["proto"] ("tcp" | "udp" | "sctp" | "icmp" | "icmp6" | "arp" | "ip" | "ip6") | "proto" NUMBER
//!              | "vlan" NUMBER | "in" | "out" | "dropped"
//! ```
//!
//! An expression that mixes `and` and `or` needs parentheses, because `tcpdump` gives both the same precedence and
//! other languages do not. `&&`, `||`, `!`, `inbound` and `outbound` are also accepted. An expression has at most 1024
//! bytes and 16 levels of nesting.

use std::net::SocketAddr;

use base::address;
use ipnet::IpNet;

use super::Direction;
use super::headers::{ARP, Headers, IPV4, IPV6, SCTP, TCP, UDP};
use crate::ids::Transport;

/// Maximum length of an expression in bytes.
const MAX_EXPRESSION_LEN: usize = 1024;
/// Maximum nesting depth of parentheses and negations.
const MAX_DEPTH: usize = 16;

/// A parsed filter expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Node);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Host(Endpoint, IpNet),
    Port(Endpoint, u16),
    Protocol(u8),
    Ethertype(u16),
    Vlan(u16),
    Direction(Direction),
    Dropped,
    Flow(StreamFilter),
}

/// Selects the address or port of a packet that a test examines: source, destination or either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Source,
    Destination,
    Either,
}

impl Endpoint {
    fn matches<T: Copy>(self, ends: (T, T), test: impl Fn(T) -> bool) -> bool {
        match self {
            Endpoint::Source => test(ends.0),
            Endpoint::Destination => test(ends.1),
            Endpoint::Either => test(ends.0) || test(ends.1),
        }
    }
}

/// Filter for the frames of one stream in both directions. For a stream over SCTP, the filter matches all frames of the
/// association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFilter {
    /// Transport of the stream. `Sctp` also matches SCTP in UDP (RFC 6951).
    pub transport: Transport,
    /// Local address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

/// A syntax error in a filter expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter: {what}{}", near(at))]
pub struct FilterError {
    what: String,
    /// Word at which the error was found; `None` at the end of the expression.
    at: Option<String>,
}

fn near(at: &Option<String>) -> String {
    at.as_ref().map_or(String::new(), |word| format!(" at `{}`", word.escape_debug()))
}

impl Filter {
    /// Returns a filter that matches all frames.
    pub fn all() -> Filter {
        Filter(Node::And(Vec::new()))
    }

    /// Parses an expression. An empty expression matches all frames.
    ///
    /// # Errors
    /// The problem, and the word at which it was found.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        if text.len() > MAX_EXPRESSION_LEN {
            let problem =
                format!("has {} bytes; at most {MAX_EXPRESSION_LEN} are allowed", text.len());
            return Err(FilterError { what: problem, at: None });
        }
        let text = text.replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.is_empty() {
            return Ok(Filter::all());
        }
        let mut parser = Parser { words, at: 0 };
        let node = parser.expression(0)?;
        match parser.next() {
            None => Ok(Filter(node)),
            Some(")") => Err(parser.error("a parenthesis is closed that was not opened")),
            Some(_) => Err(parser.error("tests are joined by `and` or `or`")),
        }
    }

    /// Restricts the filter to the frames of `stream`.
    pub fn and_stream(self, stream: StreamFilter) -> Filter {
        Filter(Node::And(vec![Node::Flow(stream), self.0]))
    }

    /// Returns true if the filter matches a frame with these headers and this direction. `dropped` is true if the frame
    /// was dropped.
    pub(super) fn matches(&self, headers: &Headers, direction: Direction, dropped: bool) -> bool {
        self.0.matches(headers, direction, dropped)
    }
}

impl Node {
    fn matches(&self, headers: &Headers, direction: Direction, dropped: bool) -> bool {
        let takes = |node: &Node| node.matches(headers, direction, dropped);
        match self {
            Node::And(nodes) => nodes.iter().all(takes),
            Node::Or(nodes) => nodes.iter().any(takes),
            Node::Not(node) => !takes(node),
            Node::Host(end, net) => end.matches((headers.source, headers.destination), |address| {
                address.is_some_and(|address| net.contains(&address))
            }),
            Node::Port(end, port) => {
                headers.ports.is_some_and(|ports| end.matches(ports, |one| one == *port))
            }
            Node::Protocol(protocol) => headers.protocol == Some(*protocol),
            Node::Ethertype(ethertype) => headers.ethertype == *ethertype,
            Node::Vlan(vlan) => headers.vlan == Some(*vlan),
            Node::Direction(went) => *went == direction,
            Node::Dropped => dropped,
            Node::Flow(stream) => stream.matches(headers),
        }
    }
}

impl StreamFilter {
    fn matches(&self, headers: &Headers) -> bool {
        let ports = match (self.transport, headers.protocol) {
            (Transport::Tcp, Some(TCP)) | (Transport::Sctp, Some(SCTP)) => headers.ports,
            (Transport::Sctp, Some(UDP)) => headers.inner,
            _ => None,
        };
        let (Some(source), Some(destination), Some(ports)) =
            (headers.source, headers.destination, ports)
        else {
            return false;
        };
        let ends = (SocketAddr::new(source, ports.0), SocketAddr::new(destination, ports.1));
        ends == (self.local, self.remote) || ends == (self.remote, self.local)
    }
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    /// Returns an error at the last word read, or at the end of the expression if no word remains.
    fn error(&self, what: impl Into<String>) -> FilterError {
        let at = self.words.get(self.at - 1).map(|&word| word.to_owned());
        let end = if at.is_none() { ", but the expression ends here" } else { "" };
        FilterError { what: what.into() + end, at }
    }

    fn expression(&mut self, depth: usize) -> Result<Node, FilterError> {
        let mut nodes = vec![self.term(depth)?];
        let mut joined = None;
        while let Some(word @ ("and" | "&&" | "or" | "||")) = self.peek() {
            self.at += 1;
            let and = matches!(word, "and" | "&&");
            if joined.is_some_and(|joined| joined != and) {
                return Err(self.error("`and` and `or` side by side need parentheses"));
            }
            joined = Some(and);
            nodes.push(self.term(depth)?);
        }
        Ok(match joined {
            Some(false) => Node::Or(nodes),
            _ => Node::And(nodes),
        })
    }

    fn term(&mut self, depth: usize) -> Result<Node, FilterError> {
        let word = self.next();
        if depth > MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} nested parentheses and `not`")));
        }
        match word {
            Some("not" | "!") => Ok(Node::Not(Box::new(self.term(depth + 1)?))),
            Some("(") => {
                let node = self.expression(depth + 1)?;
                match self.next() {
                    Some(")") => Ok(node),
                    None => Err(self.error("a parenthesis is not closed")),
                    Some(_) => Err(self.error("tests are joined by `and` or `or`")),
                }
            }
            Some("src") => self.endpoint_test(Endpoint::Source),
            Some("dst") => self.endpoint_test(Endpoint::Destination),
            Some("host" | "net" | "port") => {
                self.at -= 1;
                self.endpoint_test(Endpoint::Either)
            }
            Some("proto") => {
                let word = self.next();
                let number = word.and_then(|word| word.parse().ok()).map(Node::Protocol);
                number.or_else(|| protocol(word?)).ok_or_else(|| {
                    self.error("`proto` wants a number from 0 to 255, or one of tcp, udp, sctp, icmp, icmp6, arp")
                })
            }
            Some("vlan") => {
                let vlan = self.next().and_then(|word| word.parse().ok()).filter(|&id| id < 4096);
                vlan.map(Node::Vlan).ok_or_else(|| self.error("`vlan` wants a number from 0 to 4095"))
            }
            Some("in" | "inbound") => Ok(Node::Direction(Direction::In)),
            Some("out" | "outbound") => Ok(Node::Direction(Direction::Out)),
            Some("dropped") => Ok(Node::Dropped),
            other => other.and_then(protocol).ok_or_else(|| {
                self.error(
                    "a test is one of host, net, port (each also after src or dst), tcp, udp, sctp, icmp, icmp6, arp, \
                     ip, ip6, proto, vlan, in, out, dropped",
                )
            }),
        }
    }

    fn endpoint_test(&mut self, end: Endpoint) -> Result<Node, FilterError> {
        match self.next() {
            Some("host") => {
                let address = self.next().and_then(|word| address::parse(word).ok());
                let address = address.map(|address| Node::Host(end, address.into()));
                address.ok_or_else(|| self.error("`host` wants an IP address"))
            }
            Some("net") => {
                let net = self.next().and_then(|word| address::parse_prefix(word).ok());
                let net = net.and_then(|(address, len)| IpNet::new(address, len).ok());
                let net = net.map(|net| Node::Host(end, net));
                net.ok_or_else(|| self.error("`net` wants a network such as 192.0.2.0/24"))
            }
            Some("port") => {
                let port = self.next().and_then(|word| word.parse().ok());
                let port = port.map(|port| Node::Port(end, port));
                port.ok_or_else(|| self.error("`port` wants a number from 0 to 65535"))
            }
            _ => Err(self.error("`src` and `dst` are followed by host, net or port")),
        }
    }
}

fn protocol(word: &str) -> Option<Node> {
    Some(match word {
        "tcp" => Node::Protocol(TCP),
        "udp" => Node::Protocol(UDP),
        "sctp" => Node::Protocol(SCTP),
        "icmp" => Node::Protocol(1),
        "icmp6" => Node::Protocol(58),
        "arp" => Node::Ethertype(ARP),
        "ip" => Node::Ethertype(IPV4),
        "ip6" => Node::Ethertype(IPV6),
        _ => return None,
    })
}
