//! Tests of the `ddpd` program: two appliances in one process, connected by a link. Needs neither root nor hugepages.

#[path = "appliance/addresses.rs"]
mod addresses;
#[path = "appliance/bench.rs"]
mod bench;
#[path = "appliance/busy.rs"]
mod busy;
#[path = "appliance/capture.rs"]
mod capture;
mod common;
#[path = "appliance/config.rs"]
mod config;
#[path = "appliance/log.rs"]
mod log;
#[path = "appliance/manager.rs"]
mod manager;
#[path = "appliance/memory.rs"]
mod memory;
#[path = "appliance/pipes.rs"]
mod pipes;
#[path = "appliance/rdmap.rs"]
mod rdmap;
#[path = "appliance/sandbox.rs"]
mod sandbox;
#[path = "appliance/sctp.rs"]
mod sctp;
#[path = "appliance/standard.rs"]
mod standard;
#[path = "appliance/why.rs"]
mod why;

use std::process::{Command, Stdio};

use api::{EventKind, JobState, ListenerInfo, ReloadReport, Sent, StreamInfo};
use common::{Ddpd, SINK, Setup, config_text, ddpd, wait_for, wait_for_nth};
use rustix::process::Signal;
use serde_json::json;

const REGION: &str = r#"
[[region]]
name = "inbox"
path = "DIR/inbox.bin"
size = "8 MiB"
access = "w"
fsync = "close"
[[listener]]
name = "in"
interface = "i"
port = 7471
regions = ["inbox"]
"#;

const LOSSY: &str = r#"
[port.impair]
loss = 0.01
reorder = 0.02
reorder_delay = "200 us"
seed = 11
"#;

fn region_target(file: &std::path::Path, name: &str) -> serde_json::Value {
    json!({
        "file": file,
        "via": { "connect": { "remote": SINK } },
        "target": { "region": { "name": name } },
    })
}

#[test]
fn put_over_lossy_reordering_link_delivers_whole_file() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, impair: LOSSY, ..Setup::default() });
    let (file, bytes) = ddpd.file("file", 6 << 20);
    let job = ddpd.put(region_target(&file, "inbox"));
    assert_eq!((job.state, &job.error), (JobState::Done, &None));
    assert_eq!((job.acknowledged, job.total), (6 << 20, 6 << 20));
    assert!(job.counters["retransmitted_bytes"] > 0, "the link lost no packet");
    wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    let stats = ddpd.stats(&ddpd.sink);
    assert!(stats.control["frames_lost"] > 0);
    assert!(stats.control["placed_out_of_order_bytes"] > 0);
    // With markers and whole FPDUs in each segment, FPDUs after a gap are placed at once. Only bytes whose FPDU cannot
    // be located are held.
    assert_eq!(stats.control["held_bytes_max"], stats.control["unlocatable_bytes_max"]);
    assert!(stats.control["unlocatable_bytes_max"] < 64 << 10);
    let region = ddpd.region("inbox");
    assert_eq!((region.placed, region.messages, region.bound_to), (6 << 20, 6, None));
    let (status, dir) = ddpd.end();
    assert!(status.success(), "{status}");
    assert!(std::fs::read(dir.path().join("inbox.bin")).unwrap() == bytes, "the bytes differ");
    for socket in ["sink.sock", "sink.sock.attach", "source.sock"] {
        assert!(!dir.path().join(socket).exists(), "{socket} is left behind");
    }
}

#[test]
fn two_workers_share_streams_and_forced_removal_ends_all() {
    let shared = REGION.replace("access = \"w\"", "access = \"w\"\nshared = true");
    let ddpd = Ddpd::start(&Setup { sink: &shared, workers: 2, ..Setup::default() });
    let (file, bytes) = ddpd.file("file", 1 << 20);
    let streams: Vec<StreamInfo> = (0..4)
        .map(|_| ddpd.source.post("/v1/connect", &json!({ "remote": SINK })).unwrap())
        .collect();
    let workers = |streams: &[StreamInfo]| {
        let mut workers: Vec<u32> = streams.iter().map(|stream| stream.worker).collect();
        workers.sort_unstable();
        workers
    };
    assert_eq!(workers(&streams), [0, 0, 1, 1], "two streams per worker");
    for (at, stream) in streams.iter().enumerate() {
        let job = ddpd.put(json!({
            "file": file,
            "via": { "stream": stream.id },
            "target": { "region": { "name": "inbox", "offset": at << 20 } },
        }));
        assert_eq!((job.state, job.error), (JobState::Done, None));
    }
    let region = ddpd.region("inbox");
    assert_eq!((region.placed, region.bound_to), (4 << 20, None));
    assert!(ddpd.sink.delete::<serde_json::Value>("/v1/regions/inbox").is_err(), "it is in use");
    let removed = ddpd.sink.delete::<serde_json::Value>("/v1/regions/inbox?force=true");
    assert!(removed.is_ok(), "{removed:?}");
    wait_for_nth(&ddpd.source, 4, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    let (status, dir) = ddpd.end();
    assert!(status.success());
    let arrived = std::fs::read(dir.path().join("inbox.bin")).unwrap();
    assert!(arrived.chunks(1 << 20).all(|part| part == bytes), "the bytes differ");
}

// RFC 5041 §8.2, §7.2: using an STag of another stream is error 1/02 and ends only the stream that uses it.
#[test]
fn stream_using_unadvertised_region_ends_alone() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let (file, bytes) = ddpd.file("file", 2 << 20);
    let owner: StreamInfo = ddpd.source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    assert_eq!(owner.peer_regions.len(), 1);
    let stag = u32::from_str_radix(&ddpd.region("inbox").stag[2..], 16).unwrap();
    let job = ddpd.put(json!({
        "file": file,
        "via": { "connect": { "remote": SINK } },
        "target": { "tagged": { "stag": stag, "to": 0 } },
    }));
    assert_eq!((job.state, job.refused), (JobState::Failed, true), "{:?}", job.error);
    for appliance in [&ddpd.sink, &ddpd.source] {
        let error = wait_for(appliance, |kind| matches!(kind, EventKind::StreamError { .. }));
        assert!(
            matches!(&error, EventKind::StreamError { code, .. } if code == "1/02"),
            "{error:?}"
        );
    }
    let job = ddpd.put(json!({
        "file": file,
        "via": { "stream": owner.id },
        "target": { "region": { "name": "inbox" } },
    }));
    assert_eq!((job.state, job.error), (JobState::Done, None));
    let region = ddpd.region("inbox");
    assert_eq!((region.placed, region.messages), (2 << 20, 2), "no bytes of the other stream");
    let (status, dir) = ddpd.end();
    assert!(status.success());
    assert!(std::fs::read(dir.path().join("inbox.bin")).unwrap() == bytes, "the bytes differ");
}

#[test]
fn start_keys_and_mpa_without_markers_or_crc_carry_a_put() {
    let sink = REGION.replace("[\"inbox\"]", "[\"inbox\"]\nmarkers = false\ncrc = false");
    let ddpd = Ddpd::start(&Setup { sink: &sink, ..Setup::default() });
    let stag = u32::from_str_radix(&ddpd.region("inbox").stag[2..], 16).unwrap();
    let (file, bytes) = ddpd.file("file", 1 << 20);
    for (round, mpa) in [
        json!({ "revision": 0, "markers": true, "crc": true }),
        json!({ "revision": 0, "markers": false, "crc": false }),
        json!({ "revision": 1, "markers": false, "crc": false }),
    ]
    .into_iter()
    .enumerate()
    {
        let job = ddpd.put(json!({
            "file": file,
            "via": { "connect": { "remote": SINK, "mpa": mpa } },
            "target": { "tagged": { "stag": stag, "to": round << 20 } },
        }));
        assert_eq!((job.state, job.error), (JobState::Done, None), "round {round}");
        // The region is exclusive: the next round waits until this stream has ended.
        wait_for_nth(&ddpd.sink, round + 1, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    }
    let (status, dir) = ddpd.end();
    assert!(status.success());
    let arrived = std::fs::read(dir.path().join("inbox.bin")).unwrap();
    assert_eq!(arrived.len(), 3 << 20);
    assert!(arrived.chunks(1 << 20).all(|part| part == bytes), "the bytes differ");
}

#[test]
fn messages_are_echoed_appended_and_logged() {
    let queues = r#"
[[listener]]
name = "in"
interface = "i"
port = 7471
[[listener.queue]]
qn = 0
buffers = 4
buffer_size = "64 KiB"
deliver_to = "echo"
[[listener.queue]]
qn = 5
# As many as messages: the test does not wait until they are written.
buffers = 10
buffer_size = "64 KiB"
deliver_to = "file"
path = "DIR/messages"
[[listener.queue]]
qn = 6
buffers = 4
buffer_size = "64 KiB"
deliver_to = "events"
"#;
    let ddpd = Ddpd::start(&Setup { sink: queues, ..Setup::default() });
    let stream: StreamInfo = ddpd.source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    assert_eq!(stream.state, "established");
    // More messages than buffers, so buffers must be reposted.
    for round in 0..10u8 {
        let data = vec![round; 10_000];
        let sent = send(&ddpd, &stream, 0, &data, 5_000_000);
        assert!(sent.reply.as_deref() == Some(&data[..]), "round {round}: not echoed");
        send(&ddpd, &stream, 5, &[round; 3], 0);
    }
    send(&ddpd, &stream, 6, b"for the log", 0);
    let logged = wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::Message { .. }));
    assert!(
        matches!(logged, EventKind::Message { queue: 6, msn: 1, data, .. } if data == b"for the log")
    );
    let path = format!("/v1/streams/{}", stream.id);
    let flow =
        ddpd.source.get::<StreamInfo>(&path).unwrap().flow.expect("the worker reports the stream");
    assert!(flow.rtt_us > Some(0) && flow.min_rtt_us <= flow.rtt_us, "{flow:?}");
    assert!(flow.cwnd > 0 && flow.path_mtu > 0 && flow.own_window > 0, "{flow:?}");
    let whole: f64 = flow.limited.values().sum();
    assert!((whole - 1.0).abs() < 1e-6 && flow.limited.contains_key(&flow.limited_by), "{flow:?}");
    let workers: Vec<api::WorkerInfo> = ddpd.source.get("/v1/workers").unwrap();
    assert!(workers[0].busy.is_none_or(|share| (0.0..=1.0).contains(&share)), "{workers:?}");
    let closed = ddpd.source.delete::<serde_json::Value>(&path);
    assert!(closed.is_ok(), "{closed:?}");
    wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    let (status, dir) = ddpd.end();
    assert!(status.success());
    let expected: Vec<u8> = (0..10).flat_map(|round| [0, 0, 0, 3, round, round, round]).collect();
    assert_eq!(std::fs::read(dir.path().join("messages")).unwrap(), expected);
}

fn send(ddpd: &Ddpd, stream: &StreamInfo, queue: u32, data: &[u8], wait_us: u64) -> Sent {
    use base64::Engine as _;
    let data = base64::engine::general_purpose::STANDARD.encode(data);
    let via = json!({ "stream": stream.id });
    let body = json!({ "via": via, "queue": queue, "data": data, "wait_reply_us": wait_us });
    ddpd.source.post("/v1/send", &body).unwrap()
}

#[test]
fn local_programs_see_delivered_data() {
    let region = r#"
[[region]]
name = "inbox"
backing = "shared-memory"
object = "box"
size = "1 MiB"
access = "w"
[[listener]]
name = "in"
interface = "i"
port = 7471
regions = ["inbox"]
"#;
    let ddpd = Ddpd::start(&Setup { sink: region, ..Setup::default() });
    let programs: Vec<_> = [rust_example(), c_example(&ddpd)]
        .into_iter()
        .map(|program| attach(&ddpd, program))
        .collect();
    let (file, _) = ddpd.file("file", 1000);
    let job = ddpd.put(region_target(&file, "inbox"));
    assert_eq!((job.state, job.error), (JobState::Done, None));
    wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    let removed = ddpd.sink.delete::<serde_json::Value>("/v1/regions/inbox");
    assert!(removed.is_ok(), "{removed:?}");
    let first = std::fs::read(&file).unwrap()[..16].to_vec();
    for program in programs {
        let output = program.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        assert!(lines.contains("may write\n"), "{lines}");
        assert!(lines.contains("1000 bytes at 0:"), "{lines}");
        for byte in &first {
            assert!(lines.contains(&format!("{byte:02x}")), "{lines}");
        }
        assert!(lines.contains("has ended\n"), "{lines}");
        assert!(lines.ends_with("the region was removed from the network\n"), "{lines}");
    }
    assert!(ddpd.end().0.success());
}

/// Starts a local program and waits until it has attached.
fn attach(ddpd: &Ddpd, program: std::path::PathBuf) -> std::process::Child {
    let before = ddpd.stats(&ddpd.sink).control["programs_attached"];
    let mut command = Command::new(program);
    command.arg(ddpd.path("sink.sock.attach")).arg("box");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while ddpd.stats(&ddpd.sink).control["programs_attached"] == before {
        std::thread::yield_now();
    }
    child
}

/// Returns the program built from `docs/examples/attach.rs`, which cargo builds with the tests.
fn rust_example() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program = target.join("examples/attach");
    assert!(program.exists(), "not built: run `cargo build -p ddpd --example attach`");
    program
}

/// Compiles `docs/examples/attach.c`. Returns the program.
fn c_example(ddpd: &Ddpd) -> std::path::PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/attach.c");
    let program = ddpd.path("attach");
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"];
    let compiled = Command::new("cc").args(flags).arg(&program).arg(source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

#[test]
fn sighup_applies_reloadable_keys_and_refuses_others() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let file = ddpd.path("sink.toml");
    let dir = file.parent().unwrap();
    let more = REGION.replace("\"inbox\"]", "\"inbox\"]\n[[listener]]\nname = \"second\"\n\
         interface = \"i\"\nport = 7472\n[listener.limits]\nstreams = 2\npending = 2\nstreams_per_peer = 2");
    std::fs::write(&file, config_text(dir, "sink", 1, "", &more)).unwrap();
    ddpd.signal(Signal::HUP);
    wait_for(
        &ddpd.sink,
        |kind| matches!(kind, EventKind::ListenerAdded { listener } if listener == "second"),
    );
    let listeners: Vec<ListenerInfo> = ddpd.sink.get("/v1/listeners").unwrap();
    assert_eq!(listeners.len(), 2);
    std::fs::write(&file, config_text(dir, "sink", 3, "", REGION)).unwrap();
    let report: ReloadReport = ddpd.sink.post("/v1/reload", &json!({})).unwrap();
    assert_eq!(report.applied, ["listener `second` removed"]);
    assert!(report.needs_restart[0].contains("[[interface]]"), "{report:?}");
    std::fs::write(&file, "nonsense").unwrap();
    assert!(ddpd.sink.post::<ReloadReport>("/v1/reload", &json!({})).is_err());
    assert_eq!(ddpd.status(&ddpd.sink).state, "running");
    assert!(ddpd.end().0.success());
}

#[test]
fn absent_peer_and_unadvertised_region_are_reported() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let (file, _) = ddpd.file("file", 1000);
    let job = ddpd.put(region_target(&file, "outbox"));
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(job.error.unwrap(), "the peer offers no region `outbox` (it offers: inbox)");
    let refused = ddpd.source.post::<StreamInfo>("/v1/connect", &json!({ "remote": "10.9.0.1:9" }));
    let sentence = refused.unwrap_err().to_string();
    assert!(sentence.contains("refused"), "{sentence}");
    assert!(ddpd.end().0.success());
}

#[test]
fn failed_start_prints_one_sentence_and_exits_2() {
    let dir = tempfile::tempdir().unwrap();
    let half = dir.path().join("half.toml");
    std::fs::write(&half, config_text(dir.path(), "half", 1, "", "")).unwrap();
    let absent = dir.path().join("absent.toml");
    for (file, sentence) in
        [(half, "ring link \"wire\" has one end only"), (absent, "cannot be read")]
    {
        let output = ddpd(&[file]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let last = stderr.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(last.starts_with("ddpd: ") && last.contains(sentence), "{stderr}");
    }
}
