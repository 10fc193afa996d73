//! Memory of an idle stream, to the byte. It is a separate test program, because its allocator
//! counts.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::time::Duration;

use benches::pairing::Pairing;
use ddp::{MESSAGE_QUEUE, QueueConfig, StreamConfig, VecMemory, rdmap};
use tcp_lite::endpoint::{Endpoint, UlpConfig};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const SOON: Duration = Duration::from_secs(3);
/// Idle time after which the flight recorder frees most of its memory.
const MINUTE: Duration = Duration::from_secs(60);
const ENDPOINT: u64 = size_of::<Endpoint<VecMemory>>() as u64;

fn heap() -> u64 {
    dhat::HeapStats::get().curr_bytes as u64
}

/// Returns the bytes of each endpoint with all that it owns, after `idle`.
fn bytes(mut pairing: Pairing, idle: Duration) -> [u64; 2] {
    pairing.shrink(idle);
    pairing.take_apart(heap).map(|beside| ENDPOINT + beside)
}

/// Returns a listener's queues: the error queue and a message queue.
fn queues() -> UlpConfig {
    let messages = QueueConfig { qn: MESSAGE_QUEUE, buffers: 64, buffer_size: 4096 };
    let queues = vec![QueueConfig::error_queue(), messages];
    StreamConfig { queues, ..StreamConfig::default() }.into()
}

/// Makes a stream write with repeated losses and idle afterwards. Returns its bytes, and the
/// sender's recorded events with those left out for lack of room.
fn after_losses(ulp: UlpConfig, recorder: bool) -> ([u64; 2], (usize, u64)) {
    let mut pairing = Pairing::established_with(1448, true, ulp, recorder);
    for _ in 0..40 {
        pairing.write(64 << 10);
        pairing.send();
        pairing.burst().remove(3);
        pairing.deliver();
        pairing.acknowledge();
        while pairing.exchange() {}
    }
    let [sender, _] = pairing.recorded();
    (bytes(pairing, MINUTE), sender)
}

/// Checks the memory of a stream. Growth fails, and has to be justified.
#[track_caller]
fn holds(what: &str, bytes: [u64; 2], bound: u64) {
    println!("{what}: {bytes:?}, at most {bound}");
    assert!(bytes.into_iter().all(|n| n <= bound), "{what}: {bytes:?}, more than {bound}");
}

#[test]
fn an_idle_stream_keeps_to_its_size() {
    let counting = dhat::Profiler::builder().testing().build();
    let fresh = bytes(Pairing::established(1448, true, queues()), SOON);
    let rdmap = bytes(Pairing::established(1448, true, rdmap::Config::default().into()), SOON);
    let used = bytes(Pairing::new(1448, true), SOON);
    println!("an endpoint itself: {ENDPOINT}");
    holds("bare DDP, set up", fresh, 832);
    holds("RDMAP, set up", rdmap, 1040);
    // 4 of these bytes count consecutive time-outs.
    holds("bare DDP, after writes", used, 1020);
    let (without, nothing) = after_losses(queues(), false);
    let (with, events) = after_losses(queues(), true);
    assert_eq!(nothing, (0, 0));
    assert!(events.1 > 0, "{events:?}: its recorder was full");
    holds("bare DDP, after losses, without the recorder", without, 1444);
    holds("bare DDP, after losses, with the recorder", with, 1524);
    let plain = Pairing::established_with(1448, true, rdmap::Config::default().into(), false);
    assert_eq!(bytes(plain, SOON), rdmap, "what nothing happens to has no recorder");
    drop(counting);
}
