//! The layer below an association: UDP (RFC 6951), or IP on the raw port.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::raw::station::{ETHERNET, ReceivedFrame, TransportPacket};
use crate::raw::{Host, Raw};

/// Maximum length of a UDP datagram, bytes.
const DATAGRAM: usize = 65536;
/// Pause after an error of the UDP socket, such as ICMP port unreachable: the device may not have opened its port yet.
const PAUSE: Duration = Duration::from_millis(20);

/// Carries SCTP packets between tester and device.
#[derive(Debug)]
pub struct Carrier {
    below: Below,
    /// True until [`Self::fix_device`]: packets of any host are accepted, and the sender of the last one is the device.
    open: bool,
}

#[derive(Debug)]
enum Below {
    Udp { socket: UdpSocket, device: SocketAddr },
    Raw(Box<Host>),
}

/// A packet, and its form in the transcript.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// SCTP packet, from the common header on.
    pub sctp: Vec<u8>,
    /// SCTP packet in UDP, or IP packet of the raw port.
    pub logged: Vec<u8>,
}

impl Carrier {
    /// Opens a UDP socket to `device`, the IP address and UDP port of the device.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn udp(device: SocketAddr) -> Result<Carrier, String> {
        let any: SocketAddr =
            if device.is_ipv6() { ([0; 16], 0).into() } else { ([0; 4], 0).into() };
        let socket = UdpSocket::bind(any)
            .and_then(|s| s.connect(device).map(|()| s))
            .map_err(|e| format!("no UDP socket to {device}: {e}"))?;
        Ok(Carrier { below: Below::Udp { socket, device }, open: false })
    }

    /// Waits for packets of any device at `socket`.
    ///
    /// # Errors
    /// The socket cannot be shared.
    pub fn listen_udp(socket: &UdpSocket) -> Result<Carrier, String> {
        let device = socket.local_addr();
        let socket = socket.try_clone().map_err(|e| format!("the UDP socket is lost: {e}"))?;
        let device = device.map_err(|e| format!("the UDP socket has no address: {e}"))?;
        Ok(Carrier { below: Below::Udp { socket, device }, open: true })
    }

    /// Opens the raw port to the device.
    ///
    /// # Errors
    /// Those of [`Host::open`].
    pub fn raw(raw: &Raw, device: IpAddr, deadline: Instant) -> Result<Carrier, String> {
        let host = Host::open(raw, device, deadline)?;
        Ok(Carrier { below: Below::Raw(Box::new(host)), open: false })
    }

    /// Waits for packets of any device at the raw port.
    ///
    /// # Errors
    /// The port does not open.
    pub fn listen_raw(raw: &Raw) -> Result<Carrier, String> {
        let host = Host::unresolved(raw, raw.address)?;
        Ok(Carrier { below: Below::Raw(Box::new(host)), open: true })
    }

    /// Fixes the sender of the last packet as the device. Later packets of other hosts are ignored.
    pub fn fix_device(&mut self) {
        self.open = false;
    }

    /// Returns the addresses of the tester's and of the device's UDP socket; `None` on the raw port.
    pub fn udp_addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match &self.below {
            Below::Udp { socket, device } => Some((socket.local_addr().ok()?, *device)),
            Below::Raw(_) => None,
        }
    }

    /// Returns the IP addresses of the tester and of the device.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn addresses(&self) -> Result<(IpAddr, IpAddr), String> {
        match &self.below {
            Below::Udp { socket, device } => match socket.local_addr() {
                Ok(local) => Ok((local.ip(), device.ip())),
                Err(e) => Err(format!("the socket has no address: {e}")),
            },
            Below::Raw(host) => Ok((host.station.address, host.station.host)),
        }
    }

    /// Sends a packet to the device. Returns its form in the transcript. A failed send in UDP counts as a lost packet,
    /// which SCTP retransmits.
    ///
    /// # Errors
    /// The raw port has failed, or the packet is longer than its MTU.
    pub fn send(&mut self, sctp: Vec<u8>) -> Result<Vec<u8>, String> {
        match &mut self.below {
            Below::Udp { socket, device } => {
                // An error counts as a lost packet. If the socket is connected, its peer has the same address.
                let _ = socket.send_to(&sctp, *device);
                Ok(sctp)
            }
            Below::Raw(host) => match host.send(&TransportPacket::Sctp(sctp)) {
                Ok(frame) => Ok(frame.get(ETHERNET..).unwrap_or_default().to_vec()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// Returns the next packet of the device. Returns `None` at `until`, and earlier after an error of the UDP socket
    /// or a packet that is ignored.
    ///
    /// # Errors
    /// The raw port has failed.
    pub fn receive(&mut self, until: Instant) -> Result<Option<Packet>, String> {
        match &mut self.below {
            Below::Udp { socket, device } => {
                let left = until.saturating_duration_since(Instant::now());
                let wait = left.max(Duration::from_millis(1));
                socket
                    .set_read_timeout(Some(wait))
                    .map_err(|e| format!("the UDP socket has failed: {e}"))?;
                let mut buffer = vec![0; DATAGRAM];
                match socket.recv_from(&mut buffer) {
                    Ok((length, from)) if self.open || from == *device => {
                        *device = from;
                        buffer.truncate(length);
                        Ok(Some(Packet { sctp: buffer.clone(), logged: buffer }))
                    }
                    Ok(_) => Ok(None),
                    Err(e)
                        if matches!(
                            e.kind(),
                            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                        ) =>
                    {
                        Ok(None)
                    }
                    Err(_) => {
                        std::thread::sleep(wait.min(PAUSE));
                        Ok(None)
                    }
                }
            }
            Below::Raw(host) => {
                let received = match self.open {
                    true => host.receive_from_any(until)?,
                    false => host.receive(until)?,
                };
                match received {
                    Some((ReceivedFrame::Transport(TransportPacket::Sctp(sctp)), frame)) => {
                        let logged = frame.get(ETHERNET..).unwrap_or_default().to_vec();
                        Ok(Some(Packet { sctp, logged }))
                    }
                    Some((ReceivedFrame::Damaged(what), _)) => {
                        Err(format!("a packet of the device is damaged: {what}"))
                    }
                    _ => Ok(None),
                }
            }
        }
    }
}
