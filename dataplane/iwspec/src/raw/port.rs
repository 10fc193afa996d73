//! Ethernet frames on a link: an AF_PACKET socket of an interface, or a link in memory for tests.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, bind, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::wire::EthernetAddress;

/// Maximum length of a received frame, bytes: the Ethernet header and the longest IP packet.
const MAX_FRAME: usize = 65_535 + 14;
/// Maximum number of frames that wait at a port of a link in memory. Further frames are lost, as on a real link.
const MEMORY_QUEUE: usize = 1024;

/// Link of the raw port.
#[derive(Clone, Debug)]
pub enum Medium {
    /// An interface of this host, by name.
    Interface(String),
    /// A link in memory.
    Memory(Hub),
}

/// An open port.
#[derive(Debug)]
pub enum Port {
    /// AF_PACKET socket of an interface.
    Interface(PacketSocket),
    /// Port of a link in memory.
    Memory(MemoryPort),
}

impl Medium {
    /// Opens a port.
    ///
    /// # Errors
    /// The interface does not exist or is not an Ethernet interface, CAP_NET_RAW is missing, or the socket cannot be
    /// created.
    pub fn open(&self) -> Result<Port, String> {
        match self {
            Medium::Interface(name) => PacketSocket::open(name).map(Port::Interface),
            Medium::Memory(hub) => Ok(Port::Memory(hub.attach())),
        }
    }
}

impl Port {
    /// Returns the port's hardware address.
    pub fn mac(&self) -> EthernetAddress {
        match self {
            Port::Interface(socket) => socket.mac,
            Port::Memory(port) => port.mac,
        }
    }

    /// Sends a frame. The frame is lost if the queue of the interface or of a receiving port is full.
    ///
    /// # Errors
    /// The interface fails.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), String> {
        match self {
            Port::Interface(socket) => socket.send(frame),
            Port::Memory(port) => {
                port.send(frame);
                Ok(())
            }
        }
    }

    /// Returns the next frame; `None` if none arrives before `until`.
    ///
    /// # Errors
    /// The interface fails.
    pub fn receive(&mut self, until: Instant) -> Result<Option<Vec<u8>>, String> {
        match self {
            Port::Interface(socket) => socket.receive(until),
            Port::Memory(port) => Ok(port.receive(until)),
        }
    }
}

/// An AF_PACKET socket, bound to an interface.
#[derive(Debug)]
pub struct PacketSocket {
    name: String,
    socket: File,
    mac: EthernetAddress,
    buffer: Vec<u8>,
}

impl PacketSocket {
    fn open(name: &str) -> Result<PacketSocket, String> {
        let interfaces = nix::ifaddrs::getifaddrs()
            .map_err(|e| format!("the interfaces of this host cannot be listed: {e}"))?;
        let link = interfaces
            .filter(|interface| interface.interface_name == name)
            .find_map(|interface| interface.address?.as_link_addr().copied())
            .ok_or(format!("this host has no interface `{name}`"))?;
        let mac = link
            .addr()
            .filter(|mac| *mac != [0; 6])
            .ok_or(format!("{name} is not an Ethernet interface"))?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
            .map_err(|e| match e {
                Errno::EPERM | Errno::EACCES => {
                    "the raw port needs CAP_NET_RAW: run as root, or setcap cap_net_raw+ep iwspec"
                        .into()
                }
                e => format!("no AF_PACKET socket: {e}"),
            })?;
        bind(socket.as_raw_fd(), &link).map_err(|e| format!("{name}: {e}"))?;
        Ok(PacketSocket {
            name: name.into(),
            socket: File::from(socket),
            mac: EthernetAddress(mac),
            buffer: vec![0; MAX_FRAME],
        })
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), String> {
        match self.socket.write(frame) {
            Ok(_) => Ok(()),
            Err(e) if is_loss(&e) => Ok(()),
            Err(e) => Err(format!("{}: {e}", self.name)),
        }
    }

    fn receive(&mut self, until: Instant) -> Result<Option<Vec<u8>>, String> {
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(length) => return Ok(Some(self.buffer[..length].to_vec())),
                Err(e) if is_loss(&e) => {}
                Err(e) => return Err(format!("{}: {e}", self.name)),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let time = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            // A signal only shortens the wait.
            let _ = poll(&mut fds, Some(&time));
        }
    }
}

/// Returns true for errors after which the socket can still be used: its queue is full or empty, or a signal
/// interrupted the call.
fn is_loss(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// A link in memory: each frame is delivered to all other ports.
#[derive(Clone, Debug, Default)]
pub struct Hub(Arc<Mutex<Ports>>);

#[derive(Debug, Default)]
struct Ports {
    senders: Vec<(EthernetAddress, SyncSender<Vec<u8>>)>,
    /// Number of ports that were attached so far.
    attached: u32,
}

/// Port of a link in memory.
#[derive(Debug)]
pub struct MemoryPort {
    hub: Hub,
    mac: EthernetAddress,
    frames: Receiver<Vec<u8>>,
}

impl Hub {
    /// Attaches a port with a hardware address that no other port of the link has.
    pub fn attach(&self) -> MemoryPort {
        let (sender, frames) = sync_channel(MEMORY_QUEUE);
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ports.attached += 1;
        let [a, b, c, d] = ports.attached.to_be_bytes();
        let mac = EthernetAddress([2, 0, a, b, c, d]);
        ports.senders.push((mac, sender));
        MemoryPort { hub: self.clone(), mac, frames }
    }
}

impl MemoryPort {
    fn send(&self, frame: &[u8]) {
        let mut ports = self.hub.0.lock().unwrap_or_else(PoisonError::into_inner);
        ports.senders.retain(|(mac, sender)| {
            let gone = *mac != self.mac
                && matches!(sender.try_send(frame.to_vec()), Err(TrySendError::Disconnected(_)));
            !gone
        });
    }

    fn receive(&self, until: Instant) -> Option<Vec<u8>> {
        self.frames.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn frame_reaches_all_other_ports_of_a_hub() {
        let hub = Hub::default();
        let (a, b, c) = (hub.attach(), hub.attach(), hub.attach());
        drop(c);
        a.send(b"frame");
        let now = Instant::now();
        assert_eq!(b.receive(now + Duration::from_secs(5)), Some(b"frame".to_vec()));
        assert_eq!(a.receive(now), None);
        assert_ne!(a.mac, b.mac);
    }

    #[test]
    fn unknown_interface_is_an_error() {
        let error = Medium::Interface("no-such-interface".into()).open().expect_err("no");
        assert!(error.contains("no-such-interface"), "{error}");
    }
}
