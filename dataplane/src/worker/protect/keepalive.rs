//! NAT keepalives of ESP in UDP (RFC 3948 §2.3, §4). If an SA has sent nothing for its interval, a datagram with one
//! byte of payload is sent. The datagram preserves the port mapping of a NAT on the path.

use std::collections::HashMap;
use std::time::Duration;

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::guard::{Guard, Protection, SaId};
use ipsec::ip;
use ipsec::sa::UDP_HEADER;

use crate::net::link::find_ip;

/// Maximum bytes of headers before the UDP payload: Ethernet with a VLAN tag, IPv6 and UDP.
const MAX_HEADERS_LEN: usize = 18 + ip::IPV6_HEADER + UDP_HEADER;
/// Payload byte of a NAT keepalive (RFC 3948 §2.3).
const KEEPALIVE_PAYLOAD: u8 = 0xff;

/// SAs for which the worker sends keepalives. For other SAs the IKE daemon sends them.
#[derive(Default)]
pub(super) struct Keepalives(HashMap<SaId, KeepaliveState>);

struct KeepaliveState {
    interval: Duration,
    /// Time of the last sealed frame or keepalive; initially the time at which the SA was added.
    last_sent: Instant,
    /// Port and headers of the last sealed frame; `None` until the first frame. Without them, no keepalives are sent.
    headers: Option<(usize, ArrayVec<u8, MAX_HEADERS_LEN>)>,
}

impl Keepalives {
    pub(super) fn add(&mut self, id: SaId, interval: Duration, now: Instant) {
        self.0.insert(id, KeepaliveState { interval, last_sent: now, headers: None });
    }

    pub(super) fn remove(&mut self, id: SaId) {
        self.0.remove(&id);
    }

    /// Records a sealed frame, if the current SA of its protection needs keepalives.
    #[inline]
    pub(super) fn record_sent(
        &mut self,
        guard: &Guard,
        protection: Protection,
        port: usize,
        frame: &[u8],
        now: Instant,
    ) {
        if self.0.is_empty() {
            return;
        }
        let Some(kept) = guard.nat_keepalive_sa(protection).and_then(|id| self.0.get_mut(&id))
        else {
            return;
        };
        kept.last_sent = now;
        // The headers are stored anew for each frame, because link-layer addresses change with the port's device or the
        // next hop.
        if let Some(headers) = copy_headers(frame) {
            kept.headers = Some((port, headers));
        }
    }

    /// Returns the next keepalive frame that is due, and the port from which to send it.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        let is_due = |kept: &&mut KeepaliveState| {
            kept.headers.is_some() && now >= kept.last_sent + kept.interval
        };
        let kept = self.0.values_mut().find(is_due)?;
        kept.last_sent = now;
        let (port, headers) = kept.headers.as_ref()?;
        Some((*port, datagram(headers)))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due =
            |kept: &KeepaliveState| kept.headers.as_ref().map(|_| kept.last_sent + kept.interval);
        self.0.values().filter_map(due).min()
    }
}

/// Returns the headers of a frame with ESP in UDP; `None` if the packet is not UDP.
fn copy_headers(frame: &[u8]) -> Option<ArrayVec<u8, MAX_HEADERS_LEN>> {
    let at = find_ip(frame)?;
    let header = ip::Header::read(&frame[at..]).ok().filter(|ip| ip.protocol == ip::UDP)?;
    ArrayVec::try_from(frame.get(..at + header.len + UDP_HEADER)?).ok()
}

fn datagram(headers: &[u8]) -> Vec<u8> {
    let mut frame = [headers, &[KEEPALIVE_PAYLOAD]].concat();
    let Some(at) = find_ip(&frame) else { return frame };
    let packet = &mut frame[at..];
    let (len, v6) = (packet.len(), packet[0] >> 4 == 6);
    let udp = len - 1 - UDP_HEADER;
    packet[udp + 4..udp + 6].copy_from_slice(&(UDP_HEADER as u16 + 1).to_be_bytes());
    packet[udp + 6..udp + 8].fill(0);
    if v6 {
        packet[4..6].copy_from_slice(&((len - ip::IPV6_HEADER) as u16).to_be_bytes());
        ip::write_udp_checksum(packet, udp);
    } else {
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        ip::write_checksum(&mut packet[..udp]);
    }
    frame
}
