//! The raw port: an IP address of the tester on a link of this host. Its TCP runs in this process, not in the kernel.
//!
//! Cases on the raw port determine which bytes of the stream each TCP segment contains, and see the boundaries of the
//! device's segments.
//!
//! | part | module |
//! |---|---|
//! | frames on the link: an AF_PACKET socket; a link in memory for tests | [`port`] |
//! | Ethernet, ARP, ND and IP for one address | [`station`] |
//! | TCP, sans-IO | [`tcp`] |
//! | a connection on a port | [`stream`] |
//!
//! The address must not be assigned to this host: its kernel would reset the tester's connections.

pub mod port;
pub mod station;
pub mod stream;
pub mod tcp;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use port::{Medium, Port};
use station::{ReceivedFrame, Station, TransportPacket};

/// Time between two requests for the next hop's hardware address.
const ADDRESS_WAIT: Duration = Duration::from_millis(500);

/// Settings of the raw port.
#[derive(Clone, Debug)]
pub struct Raw {
    /// Link of the port.
    pub medium: Medium,
    /// The tester's IP address. No host on the link may use it.
    pub address: IpAddr,
    /// Router to the device; `None` if the device is on the link.
    pub via: Option<IpAddr>,
    /// Maximum length of an IP packet, bytes.
    pub mtu: u16,
}

impl std::str::FromStr for Raw {
    type Err = String;

    /// Parses `INTERFACE,ADDRESS`.
    fn from_str(text: &str) -> Result<Raw, String> {
        let (interface, address) =
            text.split_once(',').ok_or("write INTERFACE,ADDRESS, such as eth1,192.0.2.9")?;
        let address = address.parse().map_err(|_| format!("`{address}` is not an IP address"))?;
        Ok(Raw { medium: Medium::Interface(interface.into()), address, via: None, mtu: 1500 })
    }
}

/// A received frame: its classification, and its bytes from the Ethernet header on.
pub type Packet = (ReceivedFrame, Vec<u8>);

/// Reason why a packet is not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The IP packet is longer than the port's MTU; contains its length, bytes.
    #[error("an IP packet of {0} bytes is longer than the MTU")]
    TooLong(usize),
    /// The next hop is not resolved, or the port has failed; contains the reason.
    #[error("{0}")]
    Failed(String),
}

/// Clock of a port for the sans-IO code: 0 when the timeline is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline(Instant);

impl Timeline {
    pub(crate) fn new() -> Timeline {
        Timeline(Instant::now())
    }

    pub(crate) fn now(self) -> base::Instant {
        base::Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }

    /// Converts a time of the sans-IO code to system time.
    pub(crate) fn at(self, time: base::Instant) -> Instant {
        self.0 + time.saturating_since(base::Instant::ZERO)
    }
}

/// Returns a random number, for ports and initial sequence numbers.
pub(crate) fn random() -> Result<u32, String> {
    getrandom::u32().map_err(|e| format!("no random numbers: {e}"))
}

/// The tester on an open port.
#[derive(Debug)]
pub struct Host {
    /// Addresses of the tester, the device and the next hop.
    pub station: Station,
    port: Port,
    mtu: usize,
}

impl Host {
    /// Opens the port towards `device`, and resolves the hardware address of the next hop.
    ///
    /// # Errors
    /// The address families differ, the port does not open or fails, or the next hop does not answer before `deadline`.
    pub fn open(raw: &Raw, device: IpAddr, deadline: Instant) -> Result<Host, String> {
        if raw.address.is_ipv4() != device.is_ipv4()
            || raw.via.is_some_and(|via| via.is_ipv4() != device.is_ipv4())
        {
            return Err(
                "the addresses of the raw port and the device are of different families".into()
            );
        }
        let mut host = Host::unresolved(raw, device)?;
        while Instant::now() < deadline {
            let request = host.station.next_hop_request();
            host.port.send(&request)?;
            let until = (Instant::now() + ADDRESS_WAIT).min(deadline);
            while Instant::now() < until {
                host.receive(until)?;
                if host.station.next_mac.is_some() {
                    return Ok(host);
                }
            }
        }
        let protocol = if device.is_ipv4() { "ARP" } else { "neighbour solicitations" };
        Err(format!(
            "{} does not answer {protocol}: is it on this link, and {} in its network?",
            host.station.next_hop, raw.address
        ))
    }

    /// Opens the port without resolving the next hop.
    ///
    /// # Errors
    /// The port does not open.
    pub fn unresolved(raw: &Raw, device: IpAddr) -> Result<Host, String> {
        let port = raw.medium.open()?;
        let station = Station {
            mac: port.mac(),
            address: raw.address,
            host: device,
            next_hop: raw.via.unwrap_or(device),
            next_mac: None,
        };
        Ok(Host { station, port, mtu: usize::from(raw.mtu) })
    }

    /// Sends a packet to the device. Returns its frame.
    ///
    /// # Errors
    /// The packet was not sent.
    pub fn send(&mut self, packet: &TransportPacket) -> Result<Vec<u8>, SendError> {
        let frame = self.station.wrap(packet)?;
        let length = frame.len() - station::ETHERNET;
        if length > self.mtu {
            return Err(SendError::TooLong(length));
        }
        self.port.send(&frame).map_err(SendError::Failed)?;
        Ok(frame)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The port fails.
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<(), String> {
        self.port.send(frame)
    }

    /// Returns the next packet for the tester; `None` if none arrives before `until`. The sender of a packet to the
    /// tester becomes the device and the next hop. Answers ARP requests and neighbour solicitations.
    ///
    /// # Errors
    /// The port fails.
    pub fn receive_from_any(&mut self, until: Instant) -> Result<Option<Packet>, String> {
        while let Some(frame) = self.port.receive(until)? {
            if let Some((address, mac)) = self.station.sender(&frame) {
                self.station.host = address;
                self.station.next_hop = address;
                self.station.next_mac = Some(mac);
            }
            match self.station.input(&frame) {
                ReceivedFrame::AddressRequest(answer) => self.port.send(&answer)?,
                ReceivedFrame::Other | ReceivedFrame::Resolved => {}
                received => return Ok(Some((received, frame))),
            }
        }
        Ok(None)
    }

    /// Returns the next packet of the device; `None` if a frame resolves the next hop, or if none arrives before
    /// `until`. A packet that is longer than the MTU is [`ReceivedFrame::Damaged`]. Answers ARP requests and neighbour
    /// solicitations.
    ///
    /// # Errors
    /// The port fails.
    pub fn receive(&mut self, until: Instant) -> Result<Option<Packet>, String> {
        while let Some(frame) = self.port.receive(until)? {
            match self.station.input(&frame) {
                ReceivedFrame::Other => {}
                ReceivedFrame::AddressRequest(answer) => self.port.send(&answer)?,
                ReceivedFrame::Resolved => return Ok(None),
                received => {
                    // A frame longer than the MTU was joined from several segments, whose boundaries are lost.
                    let joined = frame.len() > self.mtu + station::ETHERNET;
                    let received = if joined { ReceivedFrame::Damaged(JOINED) } else { received };
                    return Ok(Some((received, frame)));
                }
            }
        }
        Ok(None)
    }
}

const JOINED: &str = "it is longer than the MTU: segments were joined on the way (ethtool -K INTERFACE gro off lro off, \
                      and tso off gso off on a virtual interface's other end)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_port_is_an_interface_and_an_address() {
        let raw: Raw = "eth1,192.0.2.9".parse().expect("good");
        assert!(matches!(raw.medium, Medium::Interface(name) if name == "eth1"));
        assert_eq!(raw.address.to_string(), "192.0.2.9");
        assert!("eth1".parse::<Raw>().is_err() && "eth1,x".parse::<Raw>().is_err());
    }
}
