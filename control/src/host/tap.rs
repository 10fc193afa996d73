//! The TAP device of a shared interface, with the interface's addresses.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use config::InterfaceSection;
use rustix::net::{AddressFamily, SocketType, netdevice};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::netlink::{Message, Protocol, Socket};
use super::pump::Device;

/// A TAP device. Dropping it deletes the device.
pub(super) struct Tap(SyncDevice);

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

impl Tap {
    /// Creates the device, sets its link-layer address and MTU, brings it up, and adds the interface's addresses.
    pub(super) fn create(
        name: &str,
        mac: [u8; 6],
        section: &InterfaceSection,
    ) -> Result<Tap, String> {
        let failed = |what: &str, error: io::Error| format!("{what} {name}: {error}");
        let exists = index_of(name).is_some();
        if exists {
            return Err(format!("there is a device {name} already: name another with host_name"));
        }
        // The device is down until its link-layer address is set, because the kernel derives an IPv6
        // address from this address when the device comes up.
        let device = DeviceBuilder::new().name(name).layer(Layer::L2).enable(false).build_sync();
        let device = device.map_err(|error| {
            let what = "cannot make the TAP (it takes CAP_NET_ADMIN and /dev/net/tun)";
            failed(what, error)
        })?;
        device.set_nonblocking(true).map_err(|error| failed("cannot set up", error))?;
        let index = index_of(name).ok_or_else(|| format!("{name} has vanished"))?;
        let mut socket = Socket::open(Protocol::Route).map_err(|e| failed("cannot set up", e))?;
        let link = |flags: u32, change: u32| Message::link(index, flags, change);
        socket
            .request(&[link(0, 0)
                .attribute(IFLA_ADDRESS, &mac)
                .attribute(IFLA_MTU, &u32::from(section.mtu).to_ne_bytes())])
            .and_then(|()| socket.request(&[link(IFF_UP, IFF_UP)]))
            .map_err(|error| failed("cannot set address and MTU of", error))?;
        for net in &section.addresses {
            let message = Message::address(index, net.addr(), net.prefix_len());
            socket
                .request(&[message])
                .map_err(|error| failed(&format!("cannot set {net} on"), error))?;
        }
        Ok(Tap(device))
    }
}

/// Exempts the TAP from the kernel's IPsec in both directions, because the data plane protects its packets. Applies
/// to IPv4 only: for IPv6 the kernel has no `disable_xfrm`, and netlink cannot set `disable_policy`.
///
/// # Errors
/// The device does not exist, or the kernel refuses the change. The error is one sentence.
pub(super) fn exempt_from_ipsec(name: &str) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!("the kernel cannot be kept from doing IPsec on {name} besides: {error}")
    };
    let index = index_of(name).ok_or_else(|| format!("{name} has vanished"))?;
    let on = 1u32.to_ne_bytes();
    let conf = Message::default().attribute(DEVCONF_NOXFRM, &on).attribute(DEVCONF_NOPOLICY, &on);
    let inet = Message::default().nested(IFLA_INET_CONF, &conf);
    let families = Message::default().nested(libc::AF_INET as u16, &inet);
    let message = Message::link(index, 0, 0).nested(libc::IFLA_AF_SPEC, &families);
    let mut socket = Socket::open(Protocol::Route).map_err(failed)?;
    socket.request(&[message]).map_err(failed)
}

/// The attribute with a device's IPv4 settings, and two of these settings (`linux/ip.h`): `disable_xfrm` and
/// `disable_policy`.
const IFLA_INET_CONF: u16 = 1;
const DEVCONF_NOXFRM: u16 = 15;
const DEVCONF_NOPOLICY: u16 = 16;

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Device for Tap {
    fn send(&self, frame: &[u8]) -> io::Result<usize> {
        self.0.send(frame)
    }

    fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        self.0.recv(frame)
    }
}

const IFLA_ADDRESS: u16 = libc::IFLA_ADDRESS;
const IFLA_MTU: u16 = libc::IFLA_MTU;
const IFF_UP: u32 = libc::IFF_UP as u32;

/// Opens a socket for ioctl(2) on devices, for which any socket is suitable. It is a stream socket, because the sandbox
/// allows no Unix datagram socket.
fn any_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)
}

fn index_of(name: &str) -> Option<u32> {
    netdevice::name_to_index(any_socket().ok()?, name).ok()
}

/// Finds an address of the interface that the host has on a device other than the TAP `name`. The kernel would answer
/// for this address on that device. Returns a sentence about the first such address. `None` if there is none.
///
/// # Errors
/// The kernel's addresses cannot be read. The error is one sentence.
pub fn find_misplaced_address(
    section: &InterfaceSection,
    name: &str,
) -> Result<Option<String>, String> {
    let failed = |error: io::Error| format!("cannot read the host's addresses: {error}");
    let own = index_of(name);
    let all = Socket::open(Protocol::Route).and_then(|mut socket| socket.addresses());
    let found = all.map_err(failed)?.into_iter().find(|(index, address)| {
        Some(*index) != own && section.addresses.iter().any(|net| net.addr() == *address)
    });
    Ok(found.map(|(index, address)| {
        format!(
            "{address} stands on {}, where the kernel would answer for it: remove it there, it belongs on {name}, \
             which ddpd makes",
            device_name(index)
        )
    }))
}

fn device_name(index: u32) -> String {
    let name = any_socket().and_then(|socket| netdevice::index_to_name(socket, index));
    name.unwrap_or_else(|_| format!("device {index}"))
}
