//! A hostile device neither crashes the tester nor delays a case beyond its limit.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use iwspec::catalogue::Catalogue;
use iwspec::device::{Permits, Service, Setup, Timing};
use iwspec::link::Target;
use iwspec::run::execute;
use oracle::{Flaw, StartFrame, Stream};

/// Limit of a case in these tests.
const LIMIT: Duration = Duration::from_secs(2);
/// Tolerated time beyond the limit on a busy host.
const GRACE: Duration = Duration::from_secs(20);

fn reply() -> Vec<u8> {
    StartFrame {
        key: StartFrame::REPLY,
        markers: true,
        crc: true,
        reject: false,
        reserved: 0,
        revision: 1,
        claimed_length: None,
        private_data: vec![0x44; 300],
    }
    .bytes()
}

/// Returns 20,000 bytes of a xorshift generator, determined by `seed`.
fn noise(seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..20_000)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

/// Returns first segments of 100 messages that never end.
fn endless() -> Vec<u8> {
    let mut s = Stream::new(false, true);
    for msn in 0..100 {
        s.fpdu(&oracle::untagged(1, false, [0x43, 0, 0, 0, 0], 0, msn, 0, &[1; 100]), Flaw::None);
    }
    s.bytes().to_vec()
}

/// Misbehaves on a connection as the device. Errors are ignored: the tester may have closed.
fn misbehave(kind: usize, mut stream: TcpStream, seed: u64) {
    let send = |stream: &mut TcpStream, bytes: &[u8]| stream.write_all(bytes).is_ok();
    let _ = stream.set_read_timeout(Some(LIMIT));
    match kind {
        // Sends nothing.
        0 => {
            let _ = stream.read_to_end(&mut vec![]);
        }
        // Closes immediately.
        1 => {}
        // Noise instead of a Reply.
        2 => {
            send(&mut stream, &noise(seed));
        }
        // Noise after a correct Reply.
        3 => {
            send(&mut stream, &[reply(), noise(seed)].concat());
        }
        // A flood of messages that never end.
        4 => {
            send(&mut stream, &reply());
            while send(&mut stream, &endless()) {}
        }
        // A Reply in pieces of three bytes.
        _ => {
            for piece in reply().chunks(3) {
                std::thread::sleep(Duration::from_millis(20));
                if !send(&mut stream, piece) {
                    break;
                }
            }
        }
    }
}

#[test]
fn hostile_devices_are_survived_in_time() {
    let cases = Catalogue::built_in().expect("good files").cases;
    for kind in 0..6 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for (seed, stream) in (0..).zip(listener.incoming().flatten()) {
                std::thread::spawn(move || misbehave(kind, stream, seed));
            }
        });
        let timing = Timing {
            connect: LIMIT,
            restart: Duration::from_millis(300),
            step: Duration::from_millis(100),
            scale: 1,
            case: LIMIT,
            settle: Duration::ZERO,
        };
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for service in [Service::Region, Service::Rping, Service::Perftest, Service::Echo] {
                let target = Arc::new(Target::Connect(address));
                let setup = Setup {
                    target,
                    service,
                    timing,
                    lane: (0, 1),
                    revision: 1,
                    permits: Permits::default(),
                };
                let (cases, next) = (&cases, &next);
                for _ in 0..8 {
                    let setup = setup.clone();
                    scope.spawn(move || {
                        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                            let begin = Instant::now();
                            let outcome = execute(case, &setup);
                            assert!(
                                begin.elapsed() < LIMIT + GRACE,
                                "{} takes {:?} with device {kind}: {:?}",
                                case.id,
                                begin.elapsed(),
                                outcome.verdict
                            );
                        }
                    });
                }
            }
        });
    }
}
