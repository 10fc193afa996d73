//! What a bench may be.

use std::time::Duration;

use api::{BenchLoad, BenchPeer, BenchSpec, UlpChoice};

/// Most streams of a run.
const MAX_STREAMS: u32 = 256;
/// Most messages of a stream that are posted and not complete, as many as DDP and RDMAP keep.
const MAX_DEPTH: u32 = 1024;
/// The same of echoes: the buffers of a stream that is opened from here.
const MAX_ECHO_DEPTH: u32 = 32;
/// Longest write or read, bytes.
const MAX_TAGGED: u32 = 16 << 20;
/// Longest send.
const MAX_SEND: u32 = 1 << 20;
/// Longest echo: a buffer of a stream that is opened from here.
const MAX_ECHO: u32 = 64 << 10;
/// Bytes of the peer's region that are used, and of our memory, unless a message is longer.
pub(super) const MAX_WINDOW: u64 = 16 << 20;
/// Longest time.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// Most messages a second.
const MAX_RATE: u64 = 1_000_000_000;
/// How long the end waits for messages that are posted while nothing moves.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How long it waits while bytes move: on a slow path as much as 1 GiB may be under way.
pub(super) const LONGEST_END: Duration = Duration::from_secs(60);
/// A run is cancelled when nobody has asked for its job for so long: its client is gone.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// How long a server of perftest may take for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// How long streams to it stand after its last answer, unless it closes them: it fails when it has not seen by then that
/// the answer is sent.
pub(super) const LINGER: Duration = Duration::from_millis(500);
/// From one attempt to the next to open a stream to it.
pub(super) const AGAIN: Duration = Duration::from_millis(200);
/// Runs that are remembered, going on or not.
pub(super) const KEPT: usize = 16;

/// What a bench may be, one sentence if it may not.
pub(super) fn check(spec: &BenchSpec) -> Result<(), String> {
    let (most, depth) = match spec.load {
        BenchLoad::Write | BenchLoad::Read => (MAX_TAGGED, MAX_DEPTH),
        BenchLoad::Send => (MAX_SEND, MAX_DEPTH),
        BenchLoad::Echo => (MAX_ECHO, MAX_ECHO_DEPTH),
        // It sends nothing.
        BenchLoad::Connect => (u32::MAX, u32::MAX),
    };
    let load = spec.load.word();
    let time = Duration::from_micros(spec.time_us);
    if spec.load == BenchLoad::Read && spec.connect.ulp != UlpChoice::Rdmap {
        return Err("bare DDP has no Reads: ulp must be rdmap".into());
    }
    if spec.peer == BenchPeer::Perftest {
        check_perftest(spec)?;
    }
    if spec.target.is_some() && !spec.load.is_tagged() {
        return Err(format!("a bench of `{load}` uses no region: name none"));
    }
    if !spec.connect.regions.is_empty() {
        return Err("a bench offers no regions to its peer: connect.regions must be empty".into());
    }
    if !(1..=MAX_STREAMS).contains(&spec.streams) {
        return Err(format!("streams must be from 1 to {MAX_STREAMS}"));
    }
    if !(1..=most).contains(&spec.size) {
        return Err(format!("size of `{load}` must be from 1 to {most}"));
    }
    if !(1..=depth).contains(&spec.depth) {
        return Err(format!("depth of `{load}` must be from 1 to {depth}"));
    }
    if time.is_zero() || time > MAX_TIME {
        return Err(format!("time_us must be from 1 to {}", MAX_TIME.as_micros()));
    }
    match spec.rate {
        Some(rate) if !(1..=MAX_RATE).contains(&rate) => {
            Err(format!("rate must be from 1 to {MAX_RATE} messages a second"))
        }
        _ => Ok(()),
    }
}

/// What a server of perftest can be used for.
fn check_perftest(spec: &BenchSpec) -> Result<(), String> {
    if !spec.load.is_tagged() {
        let load = spec.load.word();
        return Err(format!(
            "a perftest server takes `write` (ib_write_bw) or `read` (ib_read_bw), not `{load}`"
        ));
    }
    if spec.connect.ulp != UlpChoice::Rdmap {
        return Err("a perftest server speaks RDMAP: ulp must be rdmap".into());
    }
    if spec.streams != 1 {
        return Err("a perftest server serves one stream: streams must be 1".into());
    }
    if spec.target.is_some() {
        return Err("a perftest server names its memory itself: name no region".into());
    }
    Ok(())
}
