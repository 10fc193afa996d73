//! Exclusive use of a Linux interface by an `af_packet` port. Each packet socket receives all frames, so two ports on
//! one interface would both answer. AF_XDP needs no claim: the kernel refuses a second socket on a queue of the
//! interface.
//!
//! A claim is a packet socket (packet(7)) with a private protocol number, bound to the interface. The kernel lists
//! the claim in `/proc/net/packet` for all processes of the network namespace, including processes of other users and
//! containers. A claim ends with its process. Opening a claim requires `CAP_NET_RAW`, as the port does. Abstract
//! socket names and lock files that several users can open are unsuitable, because an unprivileged user could hold
//! them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use super::{PortConfig, PortError, PortKind};

/// Protocol number of claims. Of the numbers below 0x0600, only the numbers in `linux/if_ether.h` match frames. 0x00dd
/// is not among them, so the socket receives no frames.
const PROTOCOL: u16 = 0x00dd;

/// The kernel's list of packet sockets in the calling thread's network namespace.
const SOCKETS: &str = "/proc/thread-self/net/packet";

/// A claim on an interface, released on drop.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "held, not read")] OwnedFd);

/// Claims the interface of a port. Returns `None` unless the port is an `af_packet` port that does not share its
/// interface.
///
/// # Errors
/// Another process, or another port of this process, holds the claim; or packet sockets cannot be opened or listed.
pub(super) fn claim(config: &PortConfig) -> Result<Option<Claim>, PortError> {
    let PortKind::AfPacket { device } = &config.kind else { return Ok(None) };
    if config.shares_interface {
        return Ok(None);
    }
    claim_interface(&config.name, device).map(Some)
}

/// Claims the interface of this name for a port.
///
/// # Errors
/// The errors of [`claim`].
pub(super) fn claim_interface(port: &str, device: &str) -> Result<Claim, PortError> {
    let (port, interface) = (port.to_owned(), device.to_owned());
    match open(device) {
        Ok((claim, None)) => Ok(claim),
        Ok((_, Some(other))) => {
            Err(PortError::InterfaceTaken { port, interface, holder: describe_holder(&other) })
        }
        Err(error) => {
            let why = format!("it cannot be claimed: {error}");
            Err(PortError::Value { port, key: "device", value: interface, why })
        }
    }
}

/// Opens a claim, then searches the kernel's list for another claim on the interface. The claim is opened first, so of
/// two concurrent processes at least one finds the other's claim.
fn open(device: &str) -> io::Result<(Claim, Option<SocketEntry>)> {
    let socket = dpdk::packet_socket(device, PROTOCOL)?;
    let own_inode = rustix::fs::fstat(&socket)?.st_ino;
    let listed = fs::read_to_string(SOCKETS)
        .map_err(|error| io::Error::new(error.kind(), format!("{SOCKETS}: {error}")))?;
    Ok((Claim(socket), other_claim(&listed, own_inode)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketEntry {
    protocol: u16,
    /// Linux's index of the interface that the socket is bound to.
    interface: i32,
    user: u32,
    inode: u64,
}

impl SocketEntry {
    /// Parses a line of the list. Its columns are sk, RefCnt, Type, Proto (hexadecimal), Iface, R, Rmem, User, Inode.
    fn parse(line: &str) -> Option<SocketEntry> {
        let mut columns = line.split_ascii_whitespace().skip(3);
        let protocol = u16::from_str_radix(columns.next()?, 16).ok()?;
        let interface = columns.next()?.parse().ok()?;
        let mut columns = columns.skip(2);
        let user = columns.next()?.parse().ok()?;
        let inode = columns.next()?.parse().ok()?;
        Some(SocketEntry { protocol, interface, user, inode })
    }
}

/// Returns another socket's claim on the interface of the socket with inode `own`.
fn other_claim(listed: &str, own: u64) -> Option<SocketEntry> {
    let claims =
        || listed.lines().filter_map(SocketEntry::parse).filter(|at| at.protocol == PROTOCOL);
    let interface = claims().find(|claim| claim.inode == own)?.interface;
    claims().find(|claim| claim.interface == interface && claim.inode != own)
}

/// Describes the process that holds a claim, or only its user if `/proc` does not show the process's descriptors.
/// Descriptors are hidden if another user runs the process, or if the service's sandbox hides `/proc`.
fn describe_holder(claim: &SocketEntry) -> String {
    match process_by_inode(claim.inode) {
        Some(pid) if pid == std::process::id() => "another port of this process".into(),
        Some(pid) => format!("process {pid}"),
        None => format!("a process of user {}", claim.user),
    }
}

fn process_by_inode(inode: u64) -> Option<u32> {
    let link = format!("socket:[{inode}]");
    let has_socket = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|found| found.as_os_str() == link.as_str())
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has_socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET_LIST: &str = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
000000005add34a4 3      3    0003   7     1 0      0      100
000000005add34a5 3      2    00dd   7     1 0      998    101
000000005add34a6 3      2    00dd   8     1 0      0      102
000000005add34a7 3      2    00dd   7     1 0      0      103
000000005add34a8 3      2    00dd   -1    1 0      0      104
";

    #[test]
    fn only_claim_on_same_interface_is_found() {
        let taken = |own| other_claim(SOCKET_LIST, own).map(|claim| (claim.inode, claim.user));
        assert_eq!(taken(101), Some((103, 0)));
        assert_eq!(taken(103), Some((101, 998)));
        assert_eq!(taken(102), None);
        assert_eq!(taken(104), None);
        // The list does not contain socket 105 itself.
        assert_eq!(taken(105), None);
        assert_eq!(other_claim("sk RefCnt\n1 2 3 zz 5\n", 1), None);
    }

    #[test]
    fn hidden_claim_holder_is_named_by_user() {
        let unknown = SocketEntry { protocol: PROTOCOL, interface: 1, user: 998, inode: u64::MAX };
        assert_eq!(describe_holder(&unknown), "a process of user 998");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        assert_eq!(
            describe_holder(&SocketEntry { inode, ..unknown }),
            "another port of this process"
        );
    }

    #[test]
    fn ports_without_interface_claim_no_interface() {
        let config = PortConfig::new("r", PortKind::Ring { link: "l".into() });
        assert!(claim(&config).unwrap().is_none());
        let shared = PortConfig {
            shares_interface: true,
            ..PortConfig::new("p", PortKind::AfPacket { device: "none".into() })
        };
        assert!(claim(&shared).unwrap().is_none());
    }
}
