//! Upper bounds of the memory of an idle stream. This is a separate test program, because its global allocator counts
//! all heap allocations of the process.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::time::Duration;

use benches::endpoint_pair::{EndpointPair, PairOptions};
use ddp::{MESSAGE_QUEUE, QueueConfig, StreamConfig, VecMemory, rdmap};
use tcp_lite::endpoint::{Endpoint, UlpConfig};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const SHORT_IDLE: Duration = Duration::from_secs(3);
/// Idle time after which the flight recorder frees most of its memory.
const LONG_IDLE: Duration = Duration::from_secs(60);
const ENDPOINT: u64 = size_of::<Endpoint<VecMemory>>() as u64;

fn heap_bytes() -> u64 {
    dhat::HeapStats::get().curr_bytes as u64
}

/// Idles the pair for `idle`. Returns the bytes of each endpoint with all heap memory that the endpoint owns.
fn bytes_per_endpoint(mut pairing: EndpointPair, idle: Duration) -> [u64; 2] {
    pairing.shrink(idle);
    pairing.drop_endpoints(heap_bytes).map(|beside| ENDPOINT + beside)
}

/// Returns a configuration with the untagged queues of a listener: the error queue and a message queue.
fn ulp_with_queues() -> UlpConfig {
    let messages = QueueConfig { qn: MESSAGE_QUEUE, buffers: 64, buffer_size: 4096 };
    let queues = vec![QueueConfig::error_queue(), messages];
    StreamConfig { queues, ..StreamConfig::default() }.into()
}

/// Runs a stream with repeated losses, then idles. Returns the bytes of each endpoint, and the numbers of events that
/// the sender's flight recorder kept and omitted.
fn after_losses(ulp: UlpConfig, recorder: bool) -> ([u64; 2], (usize, u64)) {
    let mut pairing =
        EndpointPair::established_with(1448, PairOptions { markers: true, recorder }, ulp);
    for _ in 0..40 {
        pairing.write(64 << 10);
        pairing.send_burst();
        pairing.last_burst().remove(3);
        pairing.deliver_burst();
        pairing.exchange_reply();
        while pairing.exchange_bursts() {}
    }
    let [sender, _] = pairing.recorder_counts();
    (bytes_per_endpoint(pairing, LONG_IDLE), sender)
}

/// Asserts that each endpoint takes at most `bound` bytes. A change that raises a bound needs a justification.
#[track_caller]
fn assert_within(what: &str, bytes: [u64; 2], bound: u64) {
    println!("{what}: {bytes:?}, at most {bound}");
    assert!(bytes.into_iter().all(|n| n <= bound), "{what}: {bytes:?}, more than {bound}");
}

#[test]
fn idle_stream_stays_within_memory_bound() {
    let counting = dhat::Profiler::builder().testing().build();
    let fresh =
        bytes_per_endpoint(EndpointPair::established(1448, true, ulp_with_queues()), SHORT_IDLE);
    let rdmap = bytes_per_endpoint(
        EndpointPair::established(1448, true, rdmap::Config::default().into()),
        SHORT_IDLE,
    );
    let used = bytes_per_endpoint(EndpointPair::new(1448, true), SHORT_IDLE);
    println!("an endpoint itself: {ENDPOINT}");
    assert_within("bare DDP, set up", fresh, 832);
    assert_within("RDMAP, set up", rdmap, 1040);
    assert_within("bare DDP, after writes", used, 1020);
    let (without, nothing) = after_losses(ulp_with_queues(), false);
    let (with, events) = after_losses(ulp_with_queues(), true);
    assert_eq!(nothing, (0, 0));
    assert!(events.1 > 0, "{events:?}: the recorder has not been full");
    assert_within("bare DDP, after losses, without the recorder", without, 1444);
    assert_within("bare DDP, after losses, with the recorder", with, 1524);
    let options = PairOptions { markers: true, recorder: false };
    let plain = EndpointPair::established_with(1448, options, rdmap::Config::default().into());
    assert_eq!(bytes_per_endpoint(plain, SHORT_IDLE), rdmap, "an idle stream has no recorder");
    drop(counting);
}
