//! A hostile device over SCTP neither crashes nor delays the tester: every case ends with a verdict.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iwspec::case::{Case, parse};
use iwspec::device::{Permits, Service, Setup, Timing};
use iwspec::link::Target;
use iwspec::run::{Verdict, execute};

const CASE: &str = "case sctp/0-1 MUST\nsection none\ntext A session is accepted.\nopen\nsend initiate\nexpect accept\n";

fn case() -> Case {
    parse("sctp/x", CASE).expect("a case").cases.remove(0)
}

/// Executes the case against a device that answers each datagram with the datagrams from `answer`.
fn outcome(answer: impl Fn(u8, &[u8]) -> Vec<Vec<u8>> + Sync) -> Verdict {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(Duration::from_millis(10))).expect("a socket");
    let device = socket.local_addr().expect("bound");
    let stopped = AtomicBool::new(false);
    let timing = Timing {
        connect: Duration::from_millis(200),
        step: Duration::from_millis(100),
        ..Timing::default()
    };
    let setup = Setup {
        target: Arc::new(Target::Sctp {
            address: SocketAddr::new(device.ip(), 7471),
            udp_port: device.port(),
        }),
        service: Service::Region,
        timing,
        lane: (0, 1),
        revision: 1,
        permits: Permits::default(),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            let mut count = 0u8;
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                count = count.wrapping_add(1);
                for bytes in answer(count, &buffer[..length]) {
                    // The tester may have closed its socket.
                    let _ = socket.send_to(&bytes, from);
                }
            }
        });
        let outcome = execute(&case(), &setup);
        stopped.store(true, Ordering::Relaxed);
        outcome.verdict
    })
}

fn is_without_session(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Inconclusive(_) | Verdict::Fail(_))
}

#[test]
fn silent_device_is_inconclusive() {
    assert!(matches!(outcome(|_, _| vec![]), Verdict::Inconclusive(_)));
}

#[test]
fn noise_ends_with_a_verdict() {
    let noise = |count: u8, _: &[u8]| {
        (0..64usize).map(|n| (0..n * 20).map(|i| (i * n) as u8 ^ count).collect()).collect()
    };
    assert!(is_without_session(&outcome(noise)));
}

#[test]
fn reflected_packets_end_with_a_verdict() {
    assert!(is_without_session(&outcome(|_, packet| vec![packet.to_vec(); 3])));
}

#[test]
fn damaged_answers_end_with_a_verdict() {
    // An INIT ACK with the tester's tag and a correct checksum. The adaptation parameter claims a length of `count`
    // bytes.
    let damaged = |count: u8, packet: &[u8]| {
        let Some(tag) = packet.get(16..20) else { return vec![] };
        let mut answer = vec![packet[2], packet[3], packet[0], packet[1]];
        answer.extend(tag);
        answer.extend([0; 4]);
        answer.extend([2, 0, 0, 40, 0, 0, 0, 1, 0, 0, 16, 0, 0, 5, 0, 5, 0, 0, 0, 1]);
        answer.extend([0xc0, 0x06, 0, count, 0, 0, 0, 1, 0, 7, 0xff, 0xff, 1, 2, 3, 4, 0, 0, 0, 0]);
        let crc = oracle::crc32c(&answer).to_le_bytes();
        answer[8..12].copy_from_slice(&crc);
        vec![answer]
    };
    assert!(is_without_session(&outcome(damaged)));
}

/// Executes a case that accepts an association, while a device sends the datagrams from `send` again and again.
fn outcome_of_listener(send: impl Fn(u8) -> Vec<u8> + Sync) -> Verdict {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let tester = socket.local_addr().expect("bound");
    let device = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let stopped = AtomicBool::new(false);
    let timing = Timing { connect: Duration::from_millis(300), ..Timing::default() };
    let setup = Setup {
        target: Arc::new(Target::SctpListen { socket, port: 7471 }),
        service: Service::Peer,
        timing,
        lane: (0, 1),
        revision: 1,
        permits: Permits::default(),
    };
    let text = "case sctp/0-2 MUST\nsection none\ntext A session.\nopen\nexpect initiate\n";
    let case = parse("sctp/x", text).expect("a case").cases.remove(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0u8;
            while !stopped.load(Ordering::Relaxed) {
                count = count.wrapping_add(1);
                // The tester may have closed its socket.
                let _ = device.send_to(&send(count), tester);
            }
        });
        let outcome = execute(&case, &setup);
        stopped.store(true, Ordering::Relaxed);
        outcome.verdict
    })
}

/// Returns an INIT to the tester's port with a correct checksum, and parameters of any length.
fn init(count: u8) -> Vec<u8> {
    let mut packet = vec![0x80, count, 0x1d, 0x2f, 0, 0, 0, 0, 0, 0, 0, 0];
    packet.extend([1, 0, 0, 28, 0, 0, 0, 1, 0, 0, 16, 0, 0, 5, 0, 5, 0, 0, 0, 1]);
    packet.extend([0xc0, 0x06, 0, count | 8, 0, 0, 0, 1]);
    let crc = oracle::crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&crc);
    packet
}

#[test]
fn flood_at_the_listener_ends_with_a_verdict() {
    let noise = |count: u8| (0..200).map(|i: u8| i.wrapping_mul(count)).collect();
    assert!(matches!(outcome_of_listener(noise), Verdict::Inconclusive(_)));
    // A handshake that the device never completes.
    assert!(matches!(outcome_of_listener(init), Verdict::Inconclusive(_)));
}
