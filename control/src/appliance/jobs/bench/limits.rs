//! Limits of a bench: streams, depth, lengths, duration and rate.

use std::time::Duration;

use api::{BenchLoad, BenchPeer, BenchSpec, UlpChoice};

/// Maximum number of streams of a run.
const MAX_STREAMS: u32 = 256;
/// Maximum number of outstanding messages per stream: the depth of DDP's and RDMAP's queues.
const MAX_DEPTH: u32 = 1024;
/// Maximum number of outstanding echoes: the receive buffers of an actively opened stream.
const MAX_ECHO_DEPTH: u32 = 32;
/// Maximum length of a write or read, bytes.
const MAX_TAGGED: u32 = 16 << 20;
/// Maximum length of a send, bytes.
const MAX_SEND: u32 = 1 << 20;
/// Maximum length of an echo, bytes: a receive buffer of an actively opened stream.
const MAX_ECHO: u32 = 64 << 10;
/// Maximum number of bytes used of the peer's region and of local memory, unless a message is longer.
pub(super) const MAX_WINDOW: u64 = 16 << 20;
/// Maximum duration of a run.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// Maximum rate, messages per second.
const MAX_RATE: u64 = 1_000_000_000;
/// Time-out at the end of a run for outstanding messages, while no bytes are transferred.
pub(super) const GRACE_TIME: Duration = Duration::from_secs(5);
/// Maximum wait at the end of a run while bytes are transferred: a slow path may have up to 1 GiB in flight.
pub(super) const MAX_END_TIME: Duration = Duration::from_secs(60);
/// Lease of a run. If its job is not requested for this long, the client is considered disconnected, and the run is
/// cancelled.
pub(super) const LEASE_TIME: Duration = Duration::from_secs(10);
/// Time-out of an answer of a perftest server.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which streams to a perftest server stay open after its last answer, unless it closes them. The server fails
/// if the stream closes before its last Send has completed.
pub(super) const LINGER_TIME: Duration = Duration::from_millis(500);
/// Interval of attempts to open a stream to a perftest server.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of stored runs, in progress or ended.
pub(super) const MAX_RUNS: usize = 16;

/// Checks a request against the limits. The error is one sentence.
pub(super) fn check(spec: &BenchSpec) -> Result<(), String> {
    let (most, depth) = match spec.load {
        // `connect` sends no message; the schema's ranges apply.
        BenchLoad::Write | BenchLoad::Read | BenchLoad::Connect => (MAX_TAGGED, MAX_DEPTH),
        BenchLoad::Send => (MAX_SEND, MAX_DEPTH),
        BenchLoad::Echo => (MAX_ECHO, MAX_ECHO_DEPTH),
    };
    let load = spec.load.as_str();
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

/// Checks that a perftest server can serve the load.
fn check_perftest(spec: &BenchSpec) -> Result<(), String> {
    if !spec.load.is_tagged() {
        let load = spec.load.as_str();
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
