//! Bench jobs between two appliances. Messages and bytes must match the peer's counters; rates are not compared.

use api::{ClientError, EventKind, JobInfo, JobState};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::common::{Ddpd, Setup, wait_for, wait_for_nth};

/// Returns the configuration of the peer's services: ports 75xx over TCP, 76xx over SCTP.
fn services() -> String {
    let mut text = r#"
[[region]]
name = "box"
size = "1 MiB"
access = "rw"
shared = true
base_to = 4096
[[region]]
name = "own"
size = "64 KiB"
access = "rw"
"#
    .to_owned();
    for (transport, port) in [("tcp", 7500), ("sctp", 7600)] {
        for (at, service) in ["region", "sink", "echo"].into_iter().enumerate() {
            let region = if service == "region" { "own" } else { "box" };
            text += &format!(
                "[[listener]]\nname = \"{service}-{transport}\"\ninterface = \"i\"\nport = {}\n\
                 transport = \"{transport}\"\nulp = \"rdmap\"\nservice = \"{service}\"\n\
                 regions = [\"{region}\"]\n",
                port + at
            );
        }
    }
    text + r#"
[[region]]
name = "scratch"
size = "1 MiB"
access = "rw"
shared = true
[[listener]]
name = "perftest"
interface = "i"
port = 7503
ulp = "rdmap"
service = "perftest"
regions = ["scratch"]
"#
}

const REGION: u16 = 0;
const SINK: u16 = 1;
const ECHO: u16 = 2;

/// Port of the perftest listener, relative to 7500; over TCP only.
const PERFTEST: u16 = 3;

fn start() -> Ddpd {
    let sink = services();
    Ddpd::start(&Setup { sink: &sink, source: "bench = true", workers: 2, ..Setup::default() })
}

fn spec(load: &str, transport: &str, service: u16) -> Value {
    let port = service + if transport == "tcp" { 7500 } else { 7600 };
    json!({
        "load": load, "streams": 3, "size": 1000, "depth": 4, "time_us": 100_000,
        "connect": { "remote": format!("10.9.0.1:{port}"), "transport": transport, "ulp": "rdmap" },
    })
}

fn get_job(ddpd: &Ddpd, job: &JobInfo) -> JobInfo {
    ddpd.source.get(&format!("/v1/jobs/{}", job.id)).unwrap()
}

/// Polls the job until `wanted` is true. Panics if the job ends before.
fn wait_until(ddpd: &Ddpd, job: &JobInfo, wanted: impl Fn(&JobInfo) -> bool) -> JobInfo {
    loop {
        let job = get_job(ddpd, job);
        if wanted(&job) {
            return job;
        }
        assert!(!job.state.is_finished(), "{job:?}");
        std::thread::yield_now();
    }
}

fn begin(ddpd: &Ddpd, spec: &Value) -> JobInfo {
    ddpd.source.post("/v1/bench", spec).unwrap()
}

/// Runs a bench to its end. Returns its job.
fn run(ddpd: &Ddpd, spec: &Value) -> JobInfo {
    wait_until(ddpd, &begin(ddpd, spec), |job| job.state.is_finished())
}

fn refusal(ddpd: &Ddpd, spec: &Value) -> String {
    let answer: Result<JobInfo, ClientError> = ddpd.source.post("/v1/bench", spec);
    answer.unwrap_err().to_string()
}

/// Returns a counter of the peer, summed over its workers.
fn sink_count(ddpd: &Ddpd, name: &str) -> u64 {
    let workers = ddpd.stats(&ddpd.sink).workers;
    workers.iter().filter_map(|worker| worker.counters.get(name)).sum()
}

fn run_every_load(transport: &str) {
    let ddpd = start();
    let loads = [("write", SINK, "writes_in"), ("read", SINK, "reads_in")];
    let sends = [("send", SINK, "sends_in"), ("echo", ECHO, "sends_in")];
    for (load, service, counter) in loads.into_iter().chain(sends) {
        let counter = format!("rdmap_{counter}");
        let before = sink_count(&ddpd, &counter);
        let job = run(&ddpd, &spec(load, transport, service));
        assert_eq!((job.state, &job.error), (JobState::Done, &None), "{load}");
        let bench = job.bench.unwrap();
        assert!(bench.messages > 0, "{load}: {bench:?}");
        assert_eq!((bench.unfinished, bench.open, bench.load.as_str()), (0, 0, load));
        assert_eq!(job.acknowledged, bench.messages * 1000, "{load}");
        // Every message has a latency sample.
        assert_eq!(bench.latency.unwrap().count, bench.messages, "{load}");
        // The streams have ended at the peer too, so its counters are final.
        assert_eq!(sink_count(&ddpd, &counter) - before, bench.messages, "{load}");
        if load == "write" {
            let bytes = ddpd.sink.bytes("/v1/regions/box/data?offset=0&length=3000").unwrap();
            assert!(
                bytes.iter().all(|&byte| byte == 0x5a),
                "the Writes start at the region's first byte"
            );
        }
    }
    let begun =
        wait_for_nth(&ddpd.source, 4, |kind| matches!(kind, EventKind::BenchStarted { .. }));
    assert!(matches!(&begun, EventKind::BenchStarted { streams: 3, load, .. } if load == "echo"));
    assert_eq!(ddpd.stats(&ddpd.source).control["unexpected_events"], 0);
    assert_eq!(ddpd.stats(&ddpd.sink).control["unexpected_events"], 0);
}

#[test]
fn bench_load_over_tcp_matches_peer_counters() {
    run_every_load("tcp");
}

#[test]
fn bench_load_over_sctp_matches_peer_counters() {
    run_every_load("sctp");
}

#[test]
fn bench_loads_perftest_server_with_writes_and_reads() {
    let ddpd = start();
    for load in ["write", "read"] {
        let counter = format!("rdmap_{load}s_in");
        let before = sink_count(&ddpd, &counter);
        let mut tested = spec(load, "tcp", PERFTEST);
        tested["peer"] = json!("perftest");
        tested["streams"] = json!(1);
        let job = run(&ddpd, &tested);
        assert_eq!((job.state, &job.error), (JobState::Done, &None), "{load}");
        let bench = job.bench.unwrap();
        assert!(bench.messages > 0 && bench.unfinished == 0, "{load}: {bench:?}");
        assert_eq!(sink_count(&ddpd, &counter) - before, bench.messages, "{load}");
    }
    // A peer with another service fails the job within the time-out.
    let mut wrong = spec("write", "tcp", REGION);
    wrong["peer"] = json!("perftest");
    wrong["streams"] = json!(1);
    let job = run(&ddpd, &wrong);
    assert_eq!(job.state, JobState::Failed);
    assert!(job.error.unwrap().ends_with("is it `ib_write_bw -R -s 1000`?"));
    assert_eq!(ddpd.stats(&ddpd.source).control["unexpected_events"], 0);
}

#[test]
fn repeated_connects_match_peers_accepted_streams() {
    let ddpd = start();
    let mut before = 0;
    for transport in ["tcp", "sctp"] {
        let job = run(&ddpd, &spec("connect", transport, SINK));
        assert_eq!((job.state, &job.error), (JobState::Done, &None), "{transport}");
        let bench = job.bench.unwrap();
        assert!(bench.messages > 0);
        assert_eq!((bench.latency.unwrap().count, bench.unfinished), (bench.messages, 0));
        let opened = ddpd.stats(&ddpd.source).control["streams_opened"];
        assert_eq!(opened - before, bench.messages, "{transport}");
        before = opened;
    }
    let stats = ddpd.stats(&ddpd.source);
    assert_eq!((stats.gauges["streams"], stats.control["streams_not_opened"]), (0, 0));
    assert_eq!(stats.control["unexpected_events"], 0);
}

#[test]
fn bench_is_refused_unless_configured() {
    let sink = services();
    let ddpd = Ddpd::start(&Setup { sink: &sink, ..Setup::default() });
    let sentence = refusal(&ddpd, &spec("write", "tcp", SINK));
    assert_eq!(sentence, "bench is off here: set `bench = true` in [management], and restart");
    let jobs: Vec<JobInfo> = ddpd.source.get("/v1/jobs").unwrap();
    assert!(jobs.is_empty());
}

#[test]
fn cancelled_bench_allows_the_next_bench() {
    let ddpd = start();
    let mut long = spec("write", "tcp", SINK);
    long["time_us"] = json!(600_000_000);
    let job = begin(&ddpd, &long);
    let seen = wait_until(&ddpd, &job, |job| job.bench.as_ref().unwrap().messages > 1000);
    assert_eq!((seen.state, seen.bench.unwrap().open), (JobState::Running, 3));
    assert!(seen.acknowledged > 1_000_000 && seen.seconds > 0.0);
    let jobs: Vec<JobInfo> = ddpd.source.get("/v1/jobs").unwrap();
    assert_eq!((jobs.len(), jobs[0].kind.as_str()), (1, "bench"));
    let sentence = refusal(&ddpd, &spec("echo", "tcp", ECHO));
    assert_eq!(sentence, format!("job {} is a bench that goes on: one runs at a time", job.id));
    let cancelled: JobInfo = ddpd.source.delete(&format!("/v1/jobs/{}", job.id)).unwrap();
    assert!(matches!(cancelled.state, JobState::Stopping | JobState::Cancelled));
    let job = wait_until(&ddpd, &job, |job| job.state.is_finished());
    let bench = job.bench.unwrap();
    assert_eq!((job.state, job.error, bench.open), (JobState::Cancelled, None, 0));
    assert!(bench.messages > 1000 && bench.latency.unwrap().count == bench.messages);
    let job = run(&ddpd, &spec("echo", "tcp", ECHO));
    assert_eq!((job.state, job.error), (JobState::Done, None));
}

#[test]
fn killed_peer_ends_bench_with_its_cause() {
    let ddpd = start();
    for load in ["write", "echo"] {
        let service = if load == "echo" { ECHO } else { SINK };
        let mut long = spec(load, "tcp", service);
        long["time_us"] = json!(600_000_000);
        let job = begin(&ddpd, &long);
        wait_until(&ddpd, &job, |job| job.bench.as_ref().unwrap().messages > 100);
        let streams: Vec<api::StreamInfo> = ddpd.sink.get("/v1/streams").unwrap();
        assert_eq!(streams.len(), 3);
        let path = format!("/v1/streams/{}?abort=true", streams[0].id);
        ddpd.sink.delete::<Value>(&path).unwrap();
        let job = wait_until(&ddpd, &job, |job| job.state.is_finished());
        assert_eq!((job.state, job.refused), (JobState::Failed, true), "{:?}", job.error);
        assert!(job.error.unwrap().starts_with("the stream has ended: "));
        let bench = job.bench.unwrap();
        assert!(bench.messages > 100 && bench.open == 0, "{bench:?}");
        assert!(bench.latency.unwrap().count == bench.messages);
        wait_for(&ddpd.source, |kind| {
            matches!(kind, EventKind::JobFinished { error: Some(_), .. })
        });
    }
}

#[test]
fn appliance_shutdown_ends_bench() {
    let ddpd = start();
    let mut long = spec("send", "tcp", SINK);
    long["time_us"] = json!(600_000_000);
    let job = begin(&ddpd, &long);
    wait_until(&ddpd, &job, |job| job.state == JobState::Running);
    ddpd.signal(Signal::TERM);
    let finished = wait_for(&ddpd.source, |kind| matches!(kind, EventKind::JobFinished { .. }));
    let EventKind::JobFinished { job: ended, error } = finished else { panic!("{finished:?}") };
    assert_eq!(ended, job.id);
    // Both appliances end. If the sink ends first, the job reports that its peer has closed the streams.
    let by_sink = "the stream has ended: closed by the peer before the time was over";
    assert!(error.as_ref().is_none_or(|error| error.starts_with(by_sink)), "{error:?}");
    assert!(ddpd.end().0.success());
}

#[test]
fn bench_of_absent_or_busy_region_or_service_fails_with_hint() {
    let ddpd = start();
    let error = |spec: &Value| {
        let job = run(&ddpd, spec);
        assert_eq!(job.state, JobState::Failed, "{job:?}");
        job.error.unwrap()
    };
    let mut named = spec("write", "tcp", SINK);
    named["target"] = json!({ "region": { "name": "other" } });
    assert_eq!(error(&named), "the peer offers no region `other` (it offers: box)");
    named["target"] = json!({ "region": { "name": "box", "offset": (1 << 20) - 999 } });
    let sentence = error(&named);
    assert!(sentence.contains("1000 bytes at offset 1047577 do not fit"), "{sentence}");
    // The region is exclusive to one stream.
    let sentence = error(&spec("write", "tcp", REGION));
    assert!(sentence.starts_with("stream 2 of 3: region_busy: the peer's region "), "{sentence}");
    assert!(sentence.ends_with("needs `shared = true`)"), "{sentence}");
    // The listener has no service for Sends.
    let sentence = error(&spec("send", "tcp", REGION));
    assert!(sentence.contains("(service = \"sink\")"), "{sentence}");
    assert_eq!(ddpd.stats(&ddpd.source).control["unexpected_events"], 0);
}

fn paced_spec(service: u16) -> Value {
    let mut paced = spec("echo", "tcp", service);
    paced["rate"] = json!(3000);
    paced["time_us"] = json!(200_000);
    paced
}

#[test]
fn open_loop_counts_every_due_message() {
    let ddpd = start();
    let job = run(&ddpd, &paced_spec(ECHO));
    assert_eq!((job.state, &job.error), (JobState::Done, &None));
    let bench = job.bench.unwrap();
    assert!(bench.messages > 0, "{bench:?}");
    assert_eq!(bench.latency.unwrap().count, bench.messages + bench.unfinished);
}

#[test]
fn open_loop_latency_includes_stall_of_peer() {
    let ddpd = start();
    // A sink does not echo, so each of the three streams posts only its first four messages (the depth).
    let job = run(&ddpd, &paced_spec(SINK));
    assert_eq!(job.state, JobState::Failed);
    let sentence = job.error.unwrap();
    assert!(sentence.ends_with("does the peer send them back (service = \"echo\")?"), "{sentence}");
    let bench = job.bench.unwrap();
    assert_eq!(bench.messages, 0);
    assert!(bench.unfinished > 12, "due every millisecond on each: {bench:?}");
    let latency = bench.latency.unwrap();
    assert_eq!(latency.count, bench.unfinished);
    // Posted messages wait until the streams are reset, 5 s after the end of the run.
    assert!(latency.max_ns >= 5_000_000_000, "{latency:?}");
}
