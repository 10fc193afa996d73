//! Frames of a given size to ports without a listener.

use anyhow::Result;
use etherparse::{Ipv4Header, TcpHeader, UdpHeader};
use fastrand::Rng;

use super::Plan;
use super::build::{
    ETHERNET_LEN, client_port, frame_addresses, ip_header_len, random_bytes, tcp_frame, udp_frame,
};

const _: () = assert!(ETHERNET_LEN + Ipv4Header::MIN_LEN + TcpHeader::MIN_LEN <= super::MIN_FRAME);

/// Returns a frame of `size` bytes without FCS, or longer if its headers require it: UDP, or for odd `index` a TCP ACK
/// with data.
pub(super) fn frame(plan: &Plan, index: usize, size: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let ends = frame_addresses(plan, plan.random_source(rng), plan.destination);
    let source_port = client_port(rng);
    let destination_port = loop {
        let port = client_port(rng);
        if port != plan.destination.port() {
            break port;
        }
    };
    let room = size.saturating_sub(ETHERNET_LEN + ip_header_len(plan.is_v6()));
    if index.is_multiple_of(2) {
        let payload = random_bytes(room.saturating_sub(UdpHeader::LEN), rng);
        return udp_frame(&ends, source_port, destination_port, &payload);
    }
    let mut header = TcpHeader::new(source_port, destination_port, rng.u32(..), 64240);
    header.ack = true;
    header.acknowledgment_number = rng.u32(..);
    tcp_frame(&ends, header, &random_bytes(room.saturating_sub(TcpHeader::MIN_LEN), rng))
}
