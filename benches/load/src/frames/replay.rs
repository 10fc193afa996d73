//! Segments of recorded clients, with the addresses and ports of the plan.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use etherparse::{SlicedPacket, TcpHeader, TransportSlice};
use fastrand::Rng;

use super::build::{FrameAddresses, client_port, frame_addresses, tcp_frame};
use super::{MAX_FRAME, Plan};

/// Returns `count` frames: the segments of the capture's clients, repeated. A client is an end that sent a SYN. In each
/// repetition every flow has a new source address and port, and the segments keep their order. Segments too long for a
/// frame of the destination's IP version are omitted.
pub(super) fn frames(plan: &Plan, count: usize, rng: &mut Rng) -> Result<Vec<Vec<u8>>> {
    let sent = segments(plan)?;
    ensure!(!sent.is_empty(), "the capture has no TCP stream from its SYN on");
    let mut frames = Vec::with_capacity(count);
    while frames.len() < count {
        let mut flows: HashMap<u16, (FrameAddresses, u16)> = HashMap::new();
        for (header, payload) in sent.iter().take(count - frames.len()) {
            let (ends, port) = *flows.entry(header.source_port).or_insert_with(|| {
                (frame_addresses(plan, plan.random_source(rng), plan.destination), client_port(rng))
            });
            let header = TcpHeader {
                source_port: port,
                destination_port: plan.destination.port(),
                ..header.clone()
            };
            frames.push(tcp_frame(&ends, header, payload)?);
        }
    }
    Ok(frames)
}

/// Returns the clients' segments in the order of the capture.
fn segments(plan: &Plan) -> Result<Vec<(TcpHeader, Vec<u8>)>> {
    let mut clients = Vec::new();
    let mut sent = Vec::new();
    for frame in &plan.capture {
        let Ok(packet) = SlicedPacket::from_ethernet(frame) else { continue };
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { continue };
        let ports = (tcp.source_port(), tcp.destination_port());
        if tcp.syn() && !tcp.ack() {
            clients.push(ports);
        }
        let len = super::build::ETHERNET_LEN
            + super::build::ip_header_len(plan.is_v6())
            + tcp.slice().len();
        if clients.contains(&ports) && len <= MAX_FRAME {
            sent.push((tcp.to_header(), tcp.payload().to_vec()));
        }
    }
    Ok(sent)
}
