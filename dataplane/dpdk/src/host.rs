//! What the host has, as far as ports must know before they ask a driver: interfaces, privileges, and the
//! file descriptors that drivers open without reporting them.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

use dpdk_sys as sys;

/// Number of CAP_NET_ADMIN in capabilities(7).
pub const CAP_NET_ADMIN: u32 = 12;
/// Number of CAP_NET_RAW.
pub const CAP_NET_RAW: u32 = 13;
/// Number of CAP_SYS_ADMIN.
pub const CAP_SYS_ADMIN: u32 = 21;
/// Number of CAP_BPF.
pub const CAP_BPF: u32 = 39;

/// A network interface of Linux in this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its MTU in bytes.
    pub mtu: u32,
    /// It is administratively up.
    pub up: bool,
    /// It is up and has a carrier.
    pub running: bool,
    /// Its hardware address.
    pub mac: [u8; 6],
}

/// Looks an interface up by name; `None` if there is none.
pub fn interface(name: &str) -> Option<Interface> {
    let name = CString::new(name).ok()?;
    let mut raw = sys::ddpd_interface::default();
    // SAFETY: a NUL-terminated string; the structure is filled.
    let code = unsafe { sys::ddpd_interface_get(name.as_ptr(), &mut raw) };
    (code == 0).then_some(Interface {
        mtu: raw.mtu,
        up: raw.up != 0,
        running: raw.running != 0,
        mac: raw.mac,
    })
}

/// Opens a packet socket (packet(7)) that is bound to an interface and receives frames of one protocol number only.
///
/// # Errors
/// There is no such interface in this network namespace, or the process lacks CAP_NET_RAW.
pub fn packet_socket(interface: &str, protocol: u16) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: a NUL-terminated string, which the call only reads.
    let fd = unsafe { sys::ddpd_packet_socket(name.as_ptr(), protocol) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a descriptor that the call has just opened and that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// True when the process has the capability in effect.
pub fn has_capability(number: u32) -> bool {
    let effective = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    // Unknown: let the kernel decide later.
    effective.is_none_or(|bits| bits >> number & 1 == 1)
}

/// Open sockets of an address family in this process: inode by descriptor.
pub(crate) fn sockets(family: c_int) -> BTreeMap<RawFd, u64> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let fd: RawFd = entry.file_name().to_str()?.parse().ok()?;
            let link = std::fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            // SAFETY: only asks the kernel about a number; any number is allowed.
            let same = unsafe { sys::ddpd_socket_family(fd) } == family;
            same.then_some((fd, inode))
        })
        .collect()
}
