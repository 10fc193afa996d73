//! Fuzz targets for the receive path of a port below TCP: frames, control messages, and reassembly of fragments. The
//! neighbour table, the answers and the memory for fragments must stay within their limits.

use std::net::Ipv6Addr;

use base::Instant;
use dataplane::net::demux::{Kind, L4Check, demux};
use dataplane::net::icmp::ReceivedIcmpv6;
use dataplane::net::interface::Interface;
use dataplane::net::neighbour::{Claim, ClaimKind};
use dataplane::net::reassembly::{Outcome, Reassembly};
use dataplane::net::{Notice, Outbox, Stack, arp, icmp, nd};
use dataplane::{InterfaceConfig, InterfaceId, PortId};

const NEIGHBOURS: usize = 8;

/// Returns a stack with the addresses 10.0.0.2 and 2001:db8::2, on an untagged interface and in VLAN 7.
fn build_stack() -> Stack {
    let interface = |id: u16, vlan| {
        let config = InterfaceConfig {
            ip: Default::default(),
            local_ports: Default::default(),
            host: false,
            name: String::new(),
            port: PortId(0),
            vlan,
            addresses: ["10.0.0.2/24", "2001:db8::2/64"].map(|net| net.parse().unwrap()).into(),
            routes: Vec::new(),
            mtu: 1500,
        };
        Interface::new(InterfaceId(id), &config, [2, 0, 0, 0, 0, 2], NEIGHBOURS, [0; 16])
    };
    Stack::new(vec![interface(0, None), interface(1, Some(7))], 1_000_000, Instant::ZERO)
}

/// Passes an Ethernet frame through all layers below TCP.
pub(crate) fn frame(data: &[u8]) {
    let (mut stack, mut out) = (build_stack(), Outbox::default());
    let Ok(packet) = demux(data, 0, L4Check::Good, &stack.interfaces) else { return };
    let notice = stack.handle_control(&packet, data, Instant::ZERO, &mut out);
    if let Ok(Notice::Neighbour(interface, claim)) = notice {
        // The claim may be accepted or refused; the neighbour table must not exceed its limit.
        let _ = stack.handle_claim(interface, &claim, Instant::ZERO);
    }
    // Makes the stack send the resulting multicast group reports and neighbour probes.
    stack.poll(Instant::from_millis(60_000), &mut out, |_, _| {});
    assert!(stack.interfaces.iter().all(|i| i.neighbours.len() <= NEIGHBOURS));
    for (port, answer) in out.iter() {
        assert_eq!(port, 0);
        assert!(answer.len() <= data.len().max(128), "an answer of {} bytes", answer.len());
    }
}

/// Reassembles fragments. The input is a series of frames, each preceded by its length (two bytes, big-endian).
pub(crate) fn reassembly(data: &[u8]) {
    const PACKETS: usize = 8;
    const BYTES: usize = 16 * 1024;
    let (stack, mut reassembly) = (build_stack(), Reassembly::new(PACKETS, BYTES, [0; 16]));
    let mut rest = data;
    let mut payload_len = 0;
    while let Some(([hi, lo], behind)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(behind.len());
        let (bytes, behind) = behind.split_at(len);
        rest = behind;
        let Ok(packet) = demux(bytes, 0, L4Check::Good, &stack.interfaces) else { continue };
        let Kind::Fragment(fragment) = &packet.kind else { continue };
        payload_len += fragment.payload.len();
        let outcome = reassembly.input(packet.interface, fragment, bytes, Instant::ZERO);
        assert!(reassembly.len() <= PACKETS && reassembly.bytes() <= BYTES);
        if let Ok((Outcome::Complete(frame), _)) = outcome {
            let reassembled = demux(&frame, 0, L4Check::Good, &stack.interfaces);
            let Ok(Kind::Tcp { segment, .. }) = reassembled.map(|packet| packet.kind) else {
                panic!("the reassembled frame is not a TCP segment");
            };
            assert!(segment.len() <= payload_len && segment.end == frame.len());
        }
    }
    reassembly.expire(Instant::from_nanos(u64::MAX));
    assert_eq!((reassembly.len(), reassembly.bytes()), (0, 0));
}

/// Parses control messages directly, because mutated frames rarely have a valid checksum. The first byte selects the
/// protocol.
pub(crate) fn control_message(data: &[u8]) {
    let Some((&kind, message)) = data.split_first() else { return };
    let (stack, mut out) = (build_stack(), Outbox::default());
    let interface = &stack.interfaces[0];
    let peer = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let us = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
    match kind % 4 {
        0 => {
            if let Ok(claim) = arp::input(interface, message, || true, &mut out) {
                check_claim(interface, &claim);
            }
        }
        1 => {
            let received =
                ReceivedIcmpv6 { source: peer, destination: us, hop_limit: 255, message };
            let sender = [2, 0, 0, 0, 0, 9];
            if let Ok(claim) = nd::input(interface, sender, &received, || true, &mut out) {
                check_claim(interface, &claim);
            }
        }
        2 => check_icmp(interface, icmp::parse_v4(0, interface, message)),
        _ => check_icmp(interface, icmp::parse_v6(0, interface, message)),
    }
}

/// Checks that a claim is for an address of a neighbour, or is an address conflict: another host uses a local address.
fn check_claim(interface: &Interface, claim: &Claim) {
    assert_eq!(claim.mac[0] & 1, 0);
    match claim.kind {
        ClaimKind::Conflict => assert!(interface.has_address(claim.address)),
        _ => assert!(interface.is_on_link(claim.address) && !interface.has_address(claim.address)),
    }
}

fn check_icmp(interface: &Interface, parsed: Result<icmp::Icmp, dataplane::DropReason>) {
    if let Ok(icmp::Icmp::Error(report)) = parsed {
        assert!(interface.has_address(report.local.ip()));
        if let icmp::IcmpErrorKind::TooBig(mtu) = report.kind {
            assert!((68..1500).contains(&mtu));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_corpus_parses() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/frame");
        for entry in std::fs::read_dir(folder).expect("a corpus") {
            let path = entry.expect("an entry").path();
            let data = std::fs::read(&path).expect("a readable file");
            let understood = demux(&data, 0, L4Check::Good, &build_stack().interfaces).is_ok();
            assert!(understood, "{}", path.display());
        }
    }
}
