//! Properties of the host that are checked before a driver is called: interfaces, privileges, and sockets that drivers
//! open without reporting them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use dpdk_sys as sys;

/// Number of CAP_NET_ADMIN (capabilities(7)).
pub const CAP_NET_ADMIN: u32 = 12;
/// Number of CAP_NET_RAW (capabilities(7)).
pub const CAP_NET_RAW: u32 = 13;
/// Number of CAP_SYS_ADMIN (capabilities(7)).
pub const CAP_SYS_ADMIN: u32 = 21;
/// Number of CAP_BPF (capabilities(7)).
pub const CAP_BPF: u32 = 39;

/// A Linux network interface in the network namespace of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// MTU in bytes: largest IP packet.
    pub mtu: u32,
    /// Interface index, which changes if the interface is recreated.
    pub index: u32,
    /// True if the interface is administratively up.
    pub up: bool,
    /// True if the interface is up and has a carrier.
    pub running: bool,
    /// Hardware address.
    pub mac: [u8; 6],
}

/// Looks up an interface by name. Returns `None` if it does not exist.
pub fn interface(name: &str) -> Option<Interface> {
    let name = CString::new(name).ok()?;
    let mut raw = sys::ddpd_interface::default();
    // SAFETY: a NUL-terminated string; the function writes only the structure.
    let code = unsafe { sys::ddpd_interface_get(name.as_ptr(), &mut raw) };
    (code == 0).then_some(Interface {
        mtu: raw.mtu,
        index: raw.index,
        up: raw.up != 0,
        running: raw.running != 0,
        mac: raw.mac,
    })
}

/// Opens a packet socket (packet(7)) that is bound to an interface and receives only frames with one protocol number.
///
/// # Errors
/// The interface does not exist in this network namespace, or the process lacks CAP_NET_RAW.
pub fn packet_socket(interface: &str, protocol: u16) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: a NUL-terminated string that the function only reads.
    let fd = unsafe { sys::ddpd_packet_socket(name.as_ptr(), protocol) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the function has just opened the descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the name of the interface with this index, or `None` if this network namespace has no such interface.
pub fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; 16];
    // SAFETY: the function writes at most the 16 bytes of the array, a terminating zero included.
    let code = unsafe { sys::ddpd_interface_name(index, name.as_mut_ptr().cast()) };
    let name = CStr::from_bytes_until_nul(&name).ok().filter(|_| code == 0)?;
    Some(name.to_string_lossy().into_owned())
}

/// Returns true if a packet socket is bound to the interface with this index. The kernel unbinds the sockets of an
/// interface that is deleted or moved to another network namespace.
pub(crate) fn is_bound_to(fd: BorrowedFd<'_>, index: u32) -> bool {
    // SAFETY: an open descriptor; the function only queries the kernel.
    let bound = unsafe { sys::ddpd_packet_socket_index(fd.as_raw_fd()) };
    u32::try_from(bound) == Ok(index)
}

/// Returns true if the process has the capability in its effective set, or if the set cannot be read.
pub fn has_capability(number: u32) -> bool {
    let effective = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    // If the set cannot be read, the check is left to the kernel.
    effective.is_none_or(|bits| bits >> number & 1 == 1)
}

/// Returns the open sockets of an address family in this process: inode by descriptor.
pub(crate) fn sockets(family: c_int) -> BTreeMap<RawFd, u64> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let fd: RawFd = entry.file_name().to_str()?.parse().ok()?;
            let link = std::fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            // SAFETY: the function only queries the kernel about a descriptor number; any number is allowed.
            let same = unsafe { sys::ddpd_socket_family(fd) } == family;
            same.then_some((fd, inode))
        })
        .collect()
}
