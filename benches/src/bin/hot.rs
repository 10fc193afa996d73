//! The hot paths of single layers, each with a fixed amount of work, whose instructions are counted
//! ([`benches::hot_path`]). `hot NAME` runs a path, `hot --list` lists the paths with their units of work. No path
//! depends on time, randomness or addresses.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use benches::endpoint_pair::EndpointPair;
use benches::hot_path::{self, measure};
use benches::sctp_pair::SctpPair;
use dataplane::flow::{FlowKey, FlowTable};
use dataplane::port::large_packet::plan_large_packet;
use dataplane::timer::TimerWheel;
use dpdk::Segmentation;

/// All paths: name, number of units of work, description of a unit.
const PATHS: &[(&str, u32, &str)] = &[
    ("tx-1448", 20, "segment"),
    ("tx-1448-markers", 20, "segment"),
    ("tx-8948", 8, "segment"),
    ("rx-1448", 20, "segment"),
    ("rx-1448-markers", 20, "segment"),
    ("rx-8948", 8, "segment"),
    ("rx-reordered-markers", 20, "segment"),
    ("acks", 10, "burst of four segments"),
    ("sctp-tx-1480", 20, "packet"),
    ("sctp-rx-1480", 20, "packet"),
    ("sctp-rx-reordered", 20, "packet"),
    ("sctp-sacks", 10, "burst of four packets"),
    ("sctp-tx-64", 60, "write of 64 bytes"),
    ("sctp-rx-64", 60, "write of 64 bytes"),
    ("tx-64", 136, "message, 17 in a segment"),
    ("rx-64", 136, "message, 17 in a segment"),
    ("acks-64", 136, "message acknowledged and completed"),
    ("echo", 20, "round trip of 64 bytes"),
    ("large-1448", 40, "segment that becomes part of a large packet"),
    ("timer", 200, "timer set and fired"),
    ("flow", 200, "look-up among 10 000"),
];

fn main() -> anyhow::Result<()> {
    let name = hot_path::arguments()?.into_iter().next().unwrap_or_default();
    if name == "--list" {
        let target = crc_fast::get_calculator_target(crc_fast::CrcAlgorithm::Crc32Iscsi);
        println!("crc {target}");
        PATHS.iter().for_each(|(name, units, unit)| println!("{name} {units} {unit}"));
        return Ok(());
    }
    let Some(&(_, units, _)) = PATHS.iter().find(|(known, ..)| *known == name) else {
        println!("usage: hot --list | hot NAME");
        std::process::exit(2);
    };
    match name.as_str() {
        "tx-1448" => tx(1448, false, units),
        "tx-1448-markers" => tx(1448, true, units),
        "tx-8948" => tx(8948, false, units),
        "rx-1448" => rx(1448, false, units, Order::Sent),
        "rx-1448-markers" => rx(1448, true, units, Order::Sent),
        "rx-8948" => rx(8948, false, units, Order::Sent),
        "rx-reordered-markers" => rx(1448, true, units, Order::PairsSwapped),
        "acks" => acks(units),
        "sctp-tx-1480" => sctp_tx(units * SCTP_PAYLOAD, 1),
        "sctp-rx-1480" => sctp_rx(units * SCTP_PAYLOAD, 1, Order::Sent),
        "sctp-rx-reordered" => sctp_rx(units * SCTP_PAYLOAD, 1, Order::PairsSwapped),
        "sctp-sacks" => sacks(units),
        "sctp-tx-64" => sctp_tx(64, units),
        "sctp-rx-64" => sctp_rx(64, units, Order::Sent),
        "tx-64" | "rx-64" | "acks-64" => messages(&name, units),
        "echo" => echo(units),
        "large-1448" => large(units),
        "timer" => timer(units),
        _ => flow(units),
    }
    Ok(())
}

/// Posts one write of `segments` full segments.
fn run_burst(pairing: &mut EndpointPair, mss: u16, segments: u32) {
    pairing.write(u32::from(mss) * segments);
}

/// Order in which a burst arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Sent,
    /// Each pair of segments arrives in reverse order.
    PairsSwapped,
}

fn tx(mss: u16, markers: bool, units: u32) {
    let mut pairing = EndpointPair::new(mss, markers);
    run_burst(&mut pairing, mss, units);
    measure(&mut || pairing.send_burst());
    assert!(pairing.last_burst().len() as u32 >= units, "{} segments", pairing.last_burst().len());
}

fn rx(mss: u16, markers: bool, units: u32, order: Order) {
    let mut pairing = EndpointPair::new(mss, markers);
    run_burst(&mut pairing, mss, units);
    pairing.send_burst();
    assert!(pairing.last_burst().len() as u32 >= units, "{} segments", pairing.last_burst().len());
    if order == Order::PairsSwapped {
        pairing.last_burst().chunks_exact_mut(2).for_each(|two| two.swap(0, 1));
    }
    measure(&mut || {
        black_box(pairing.deliver_burst());
    });
}

fn acks(units: u32) {
    let mut pairing = EndpointPair::new(1448, false);
    let mut bursts = 0;
    while bursts < units {
        run_burst(&mut pairing, 1448, 4);
        pairing.send_burst();
        pairing.deliver_burst();
        measure(&mut || pairing.exchange_reply());
        pairing.now += Duration::from_micros(100);
        bursts += 1;
    }
}

/// Payload bytes of a write that fills an SCTP packet of 1480 bytes.
const SCTP_PAYLOAD: u32 = 1418;

/// Returns a pair of SCTP endpoints with `messages` posted writes of `len` bytes each.
fn sctp_burst(len: u32, messages: u32) -> SctpPair {
    let mut pairing = SctpPair::new(1480);
    (0..messages).for_each(|_| pairing.write(len));
    pairing
}

fn sctp_tx(len: u32, messages: u32) {
    let mut pairing = sctp_burst(len, messages);
    measure(&mut || pairing.send_burst());
    assert_eq!(pairing.deliver_burst(), messages);
}

fn sctp_rx(len: u32, messages: u32, order: Order) {
    let mut pairing = sctp_burst(len, messages);
    pairing.send_burst();
    if order == Order::PairsSwapped {
        pairing.last_burst().chunks_exact_mut(2).for_each(|two| two.swap(0, 1));
    }
    measure(&mut || {
        black_box(pairing.deliver_burst());
    });
}

fn sacks(units: u32) {
    let mut pairing = SctpPair::new(1480);
    for _ in 0..units {
        pairing.write(4 * SCTP_PAYLOAD);
        pairing.send_burst();
        pairing.deliver_burst();
        measure(&mut || pairing.exchange_reply());
        pairing.now += Duration::from_micros(100);
    }
}

/// Measures one step of writes of 64 bytes: post and send, receive, or process the acknowledgement.
fn messages(name: &str, units: u32) {
    let mut pairing = EndpointPair::for_messages(1448);
    let measured = |step: &str, work: &mut dyn FnMut()| {
        if step == name { measure(work) } else { work() }
    };
    measured("tx-64", &mut || {
        pairing.write_consecutive(units, 64);
        pairing.send_burst();
    });
    assert_eq!(pairing.last_burst().len() as u32, units / 17);
    measured("rx-64", &mut || {
        black_box(pairing.deliver_burst());
    });
    pairing.transmit_reply();
    measured("acks-64", &mut || {
        black_box(pairing.deliver_reply());
    });
}

fn echo(units: u32) {
    let mut pairing = EndpointPair::for_messages(1448);
    let bytes: Arc<[u8]> = vec![7; 64].into();
    let mut delivered = 0;
    measure(&mut || {
        for _ in 0..units {
            delivered += pairing.exchange_echo(&bytes);
            pairing.now += Duration::from_micros(2);
        }
    });
    assert_eq!(delivered, units);
}

/// Measures a port's processing of large packets that its device or a virtual machine segments.
fn large(units: u32) {
    let mut pairing = EndpointPair::new(1448, false);
    run_burst(&mut pairing, 1448, units);
    pairing.send_burst();
    let frames: Vec<Vec<u8>> =
        pairing.last_burst().drain(..).take(units as usize).map(in_ethernet).collect();
    let cuts = Segmentation { ipv4: true, ipv6: true, segments: units as u16, virtio: true };
    measure(&mut || {
        let packet = plan_large_packet(black_box(&frames), |frame| Some(frame), cuts);
        assert_eq!(packet.map(|packet| u32::from(packet.frames)), Some(units));
    });
}

/// Returns a frame with this segment in an IPv4 packet.
fn in_ethernet(segment: Vec<u8>) -> Vec<u8> {
    let mut frame = vec![0; 34];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(20 + segment.len() as u16).to_be_bytes());
    // Don't Fragment; TTL 64; TCP.
    (frame[20], frame[22], frame[23]) = (0x40, 64, 6);
    frame.extend(segment);
    frame
}

fn timer(units: u32) {
    let mut now = Instant::from_millis(1000);
    let mut wheel = TimerWheel::new(now);
    // Allocates room for all tokens before the measurement.
    wheel.set(units, now + Duration::from_secs(3600));
    measure(&mut || {
        for token in 0..units {
            wheel.set(token, now + Duration::from_micros(200 * u64::from(token % 64)));
        }
        for _ in 0..200 {
            now += Duration::from_micros(100);
            while let Some(token) = wheel.pop(now) {
                black_box(token);
            }
        }
    });
}

fn flow(units: u32) {
    let mut table = FlowTable::new([7; 16]);
    let key = |n: u32| FlowKey {
        interface: 0,
        local: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 4791),
        remote: SocketAddr::new(Ipv4Addr::from(0x0a01_0000 + n / 100).into(), (n % 100) as u16 + 1),
    };
    for n in 0..10_000 {
        table.insert(&key(n), n);
    }
    measure(&mut || {
        for n in 0..units {
            black_box(table.candidate(table.hash(&key(n * 7))));
        }
    });
}
