//! Netlink requests to the kernel (RFC 3549): changes of links, addresses and nftables, and a list of all addresses.
//! The kernel acknowledges a request or refuses it with an error.
//!
//! Each call blocks until the kernel has answered, at most 5 s per message.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

/// Time-out of an answer. The kernel answers at once; the bound keeps a bug from blocking the start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of one answer, bytes.
const MAX_ANSWER: usize = 64 << 10;
/// Length of a message header, bytes.
const HEADER_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;
const ALIGNMENT: usize = 4;

/// Netlink protocol of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    /// Links and addresses.
    Route,
    /// nftables.
    Netfilter,
}

/// A request, or a set of nested attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    /// Netlink message type.
    kind: u16,
    /// Flags of the netlink header (`NLM_F_…`).
    flags: u16,
    /// The message without its header: the fixed part, then the attributes.
    body: Vec<u8>,
}

impl Message {
    /// Creates a request of type `kind`. `fixed` is the part of its body before the attributes.
    pub(super) fn new(kind: u16, flags: i32, fixed: &[u8]) -> Message {
        Message { kind, flags: (flags | libc::NLM_F_REQUEST) as u16, body: fixed.to_vec() }
    }

    /// Creates a request to change a link. `change` selects the flags that are set to their values in `flags`.
    pub(super) fn link(index: u32, flags: u32, change: u32) -> Message {
        let words = [0, index, flags, change];
        let fixed: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        Message::new(libc::RTM_NEWLINK, libc::NLM_F_ACK, &fixed)
    }

    /// Creates a request to add an address to a link. The kernel performs no duplicate address detection: the data
    /// plane does.
    pub(super) fn address(index: u32, address: IpAddr, prefix: u8) -> Message {
        let (family, bytes) = match address {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let mut fixed = vec![family as u8, prefix, libc::IFA_F_NODAD as u8, 0];
        fixed.extend(index.to_ne_bytes());
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        Message::new(libc::RTM_NEWADDR, flags, &fixed)
            .attribute(libc::IFA_LOCAL, &bytes)
            .attribute(libc::IFA_ADDRESS, &bytes)
    }

    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Message {
        self.body.extend(((ATTRIBUTE_HEADER_LEN + value.len()) as u16).to_ne_bytes());
        self.body.extend(kind.to_ne_bytes());
        self.body.extend(value);
        self.body.resize(self.body.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    /// Adds a zero-terminated string attribute.
    pub(super) fn text(self, kind: u16, value: &str) -> Message {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that contains the attributes of `inner`.
    pub(super) fn nested(self, kind: u16, inner: &Message) -> Message {
        self.attribute(kind | libc::NLA_F_NESTED as u16, &inner.body)
    }

    fn write(&self, sequence: u32, out: &mut Vec<u8>) {
        out.extend(((HEADER_LEN + self.body.len()) as u32).to_ne_bytes());
        out.extend(self.kind.to_ne_bytes());
        out.extend(self.flags.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend(0u32.to_ne_bytes());
        out.extend(&self.body);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// A socket with one request in progress at a time.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    pub(super) fn open(protocol: Protocol) -> io::Result<Socket> {
        let protocol = match protocol {
            // `NETLINK_ROUTE` is 0, the default.
            Protocol::Route => None,
            Protocol::Netfilter => Some(NETFILTER),
        };
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let fd = socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Socket { fd, sequence: 0 })
    }

    /// Sends these messages together and waits for each requested acknowledgement.
    ///
    /// # Errors
    /// The kernel's first refusal, or an error of the socket.
    pub(super) fn request(&mut self, messages: &[Message]) -> io::Result<()> {
        let mut open = self.send(messages)?;
        let mut refused = None;
        while open > 0 {
            let answer = self.receive()?;
            for Answer { kind, body, .. } in answers(&answer) {
                if kind != libc::NLMSG_ERROR as u16 {
                    continue;
                }
                open -= 1;
                match parse_error(body)? {
                    0 => {}
                    code => {
                        // The kernel applies no part of a refused batch, so the remaining answers do not matter.
                        refused.get_or_insert(io::Error::from_raw_os_error(-code));
                        open = 0;
                    }
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Returns all addresses of all links, each with its link's index.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr)>> {
        let mut all = Vec::new();
        let fixed = [0; 8];
        self.send(&[Message::new(libc::RTM_GETADDR, libc::NLM_F_DUMP, &fixed)])?;
        loop {
            let answer = self.receive()?;
            for Answer { kind, body } in answers(&answer) {
                if kind == libc::NLMSG_DONE as u16 {
                    return Ok(all);
                }
                if kind == libc::NLMSG_ERROR as u16 {
                    return Err(io::Error::from_raw_os_error(-parse_error(body)?));
                }
                let Some((fixed, rest)) = body.split_first_chunk::<8>() else { continue };
                let index = u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
                // On a point-to-point link, `IFA_LOCAL` is our address and `IFA_ADDRESS` the peer's.
                let find = |wanted| attributes(rest).find(|(kind, _)| *kind == wanted);
                let found = find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS));
                all.extend(found.and_then(|(_, bytes)| parse_address(bytes)).map(|ip| (index, ip)));
            }
        }
    }

    /// Returns true if the peer of a link, such as a veth, is in another network namespace.
    pub(super) fn has_peer_in_other_netns(&mut self, name: &str) -> io::Result<bool> {
        self.send(&[Message::new(libc::RTM_GETLINK, 0, &[0; 16]).text(libc::IFLA_IFNAME, name)])?;
        let answer = self.receive()?;
        for Answer { kind, body } in answers(&answer) {
            if kind == libc::NLMSG_ERROR as u16 {
                return Err(io::Error::from_raw_os_error(-parse_error(body)?));
            }
            if let Some(attributes_of) = body.get(16..).filter(|_| kind == libc::RTM_NEWLINK) {
                return Ok(
                    attributes(attributes_of).any(|(kind, _)| kind == libc::IFLA_LINK_NETNSID)
                );
            }
        }
        Err(io::Error::other("the kernel does not answer"))
    }

    /// Sends the messages. Returns the number of requested acknowledgements.
    fn send(&mut self, messages: &[Message]) -> io::Result<usize> {
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence += 1;
            message.write(self.sequence, &mut bytes);
        }
        sendto(&self.fd, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let requests_ack = |message: &&Message| i32::from(message.flags) & libc::NLM_F_ACK != 0;
        Ok(messages.iter().filter(requests_ack).count())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MAX_ANSWER];
        let (taken, whole) = recv(&self.fd, &mut bytes[..], RecvFlags::TRUNC)?;
        if whole > taken {
            return Err(io::Error::other("an answer of the kernel is too long"));
        }
        bytes.truncate(taken);
        Ok(bytes)
    }
}

struct Answer<'a> {
    kind: u16,
    body: &'a [u8],
}

/// Returns the messages of an answer, up to the first truncated message.
fn answers(bytes: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<HEADER_LEN>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = rest.get(HEADER_LEN..len)?;
        rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(Answer { kind, body })
    })
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<ATTRIBUTE_HEADER_LEN>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(ATTRIBUTE_HEADER_LEN..len)?;
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn parse_error(body: &[u8]) -> io::Result<i32> {
    let code = body.first_chunk::<4>().map(|code| i32::from_ne_bytes(*code));
    code.ok_or_else(|| io::Error::other("an answer of the kernel is too short"))
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_messages_are_aligned_with_correct_length() {
        let inner = Message::default().text(3, "eth0");
        let message = Message::new(7, libc::NLM_F_ACK, &[1, 2, 3, 4]).nested(4, &inner);
        let mut bytes = Vec::new();
        message.write(9, &mut bytes);
        assert_eq!(bytes.len(), 16 + 4 + 4 + 12);
        let [answer] = &answers(&bytes).collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!((answer.kind, &answer.body[..4]), (7, &[1, 2, 3, 4][..]));
        let [(kind, value)] = attributes(&answer.body[4..]).collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!(kind, 4 | libc::NLA_F_NESTED as u16);
        assert_eq!(attributes(value).collect::<Vec<_>>(), [(3, &b"eth0\0"[..])]);
    }

    #[test]
    fn truncated_message_ends_the_answer() {
        let mut bytes = Vec::new();
        (0..2).for_each(|n| Message::new(n, 0, &[0; 8]).write(1, &mut bytes));
        for len in 0..bytes.len() {
            assert_eq!(answers(&bytes[..len]).count(), len / 24);
        }
        let mut endless = bytes.clone();
        endless[..4].fill(0);
        assert_eq!(answers(&endless).count(), 0);
        assert_eq!(attributes(&[0, 0, 1, 0, 9, 9, 9, 9]).count(), 0);
    }

    #[test]
    fn kernel_lists_addresses_and_rejects_invalid_request() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let addresses = socket.addresses().unwrap();
        assert!(addresses.iter().all(|(index, _)| *index > 0), "{addresses:?}");
        let error = socket.request(&[Message::link(u32::MAX >> 1, 0, 0)]).unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error}");
    }
}
