//! What an idle stream takes of memory, to the byte: a test of its own, because its allocator counts.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::time::Duration;

use benches::pairing::Pairing;
use ddp::{MESSAGE_QUEUE, QueueConfig, StreamConfig, VecMemory, rdmap};
use tcp_lite::endpoint::{Endpoint, UlpConfig};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const ENDPOINT: u64 = size_of::<Endpoint<VecMemory>>() as u64;

fn heap() -> u64 {
    dhat::HeapStats::get().curr_bytes as u64
}

/// Bytes of the endpoint and all that it owns, of either end.
fn bytes(mut pairing: Pairing) -> [u64; 2] {
    pairing.shrink(Duration::from_secs(3));
    pairing.take_apart(heap).map(|beside| ENDPOINT + beside)
}

/// An error queue, and one for messages, as a listener has them.
fn queues() -> UlpConfig {
    let messages = QueueConfig { qn: MESSAGE_QUEUE, buffers: 64, buffer_size: 4096 };
    let queues = vec![QueueConfig::error_queue(), messages];
    StreamConfig { queues, ..StreamConfig::default() }.into()
}

/// What a stream takes now: growth shows, and is to be worth it.
#[track_caller]
fn holds(what: &str, bytes: [u64; 2], bound: u64) {
    println!("{what}: {bytes:?}, at most {bound}");
    assert!(bytes.into_iter().all(|n| n <= bound), "{what}: {bytes:?}, more than {bound}");
}

#[test]
fn an_idle_stream_keeps_to_its_size() {
    let counting = dhat::Profiler::builder().testing().build();
    let fresh = bytes(Pairing::established(1448, true, queues()));
    let rdmap = bytes(Pairing::established(1448, true, rdmap::Config::default().into()));
    let used = bytes(Pairing::new(1448, true));
    println!("an endpoint itself: {ENDPOINT}");
    holds("bare DDP, set up", fresh, 840);
    holds("RDMAP, set up", rdmap, 1048);
    holds("bare DDP, after writes", used, 1024);
    drop(counting);
}
