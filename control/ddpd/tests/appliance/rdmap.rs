//! RDMAP between two appliances: put, get, send, ping and atomics through the API of the source, against listeners of
//! the sink with the services `region`, `echo`, `sink` and `rping`.

use api::{
    AtomicDone, Client, ClientError, EventKind, JobState, PingReport, RegionInfo, Sent, StreamInfo,
};
use serde_json::{Value, json};

use super::LOSSY;
use super::common::{Ddpd, Setup, wait_for, wait_for_nth};

const SERVICES: &str = r#"
[[region]]
name = "box"
size = "4 MiB"
access = "rw"
shared = true
[[region]]
name = "counter"
size = "4 KiB"
access = ["remote-read", "remote-write", "atomic"]
shared = true
[[region]]
name = "scratch"
size = "1 MiB"
access = "rw"
shared = true
[[listener]]
name = "boxes"
interface = "i"
port = 7471
ulp = "rdmap"
service = "region"
regions = ["box", "counter"]
[[listener]]
name = "pings"
interface = "i"
port = 7174
ulp = "rdmap"
service = "rping"
regions = ["scratch"]
limits = { streams = 4 }
[[listener]]
name = "back"
interface = "i"
port = 7475
ulp = "rdmap"
service = "echo"
[[listener]]
name = "away"
interface = "i"
port = 7476
ulp = "rdmap"
service = "sink"
"#;

fn connect_spec(port: u16) -> Value {
    json!({ "remote": format!("10.9.0.1:{port}"), "ulp": "rdmap" })
}

fn region(name: &str, offset: u64) -> Value {
    json!({ "region": { "name": name, "offset": offset } })
}

/// Opens a stream from the source to this port of the sink.
fn open(ddpd: &Ddpd, port: u16) -> StreamInfo {
    ddpd.source.post("/v1/connect", &connect_spec(port)).unwrap()
}

fn wait_for_ends(ddpd: &Ddpd, n: usize) {
    wait_for_nth(&ddpd.sink, n, |kind| matches!(kind, EventKind::StreamClosed { .. }));
}

/// Returns the worker counters, summed over all workers.
fn totals(ddpd: &Ddpd, client: &Client) -> api::Counters {
    let mut sums = api::Counters::new();
    for worker in ddpd.stats(client).workers {
        for (name, value) in worker.counters {
            *sums.entry(name).or_default() += value;
        }
    }
    sums
}

// RFC 5040 §5.1 to §5.3: written data can be read back over a link that loses and reorders.
#[test]
fn put_data_is_read_back_by_get_into_file_and_region() {
    let ddpd = Ddpd::start(&Setup { sink: SERVICES, impair: LOSSY, ..Setup::default() });
    let len = (2 << 20) + 5;
    let (file, bytes) = ddpd.file("file", len);
    let via = json!({ "connect": connect_spec(7471) });
    let put = ddpd.put(json!({ "file": file, "via": via, "target": region("box", 3) }));
    assert_eq!((put.state, put.error, put.confirmed), (JobState::Done, None, Some(true)));
    assert!(put.counters["retransmitted_bytes"] > 0, "the link lost no packet");
    let held = ddpd.sink.bytes(&format!("/v1/regions/box/data?offset=3&length={len}")).unwrap();
    assert!(held == bytes, "the region differs");

    let got = ddpd.path("got");
    let sink = json!({ "file": got });
    let source = region("box", 3);
    let get = json!({ "via": via, "source": source, "length": len, "sink": sink });
    let job = ddpd.job("get", get);
    assert_eq!((job.state, job.error, job.acknowledged), (JobState::Done, None, len as u64));
    assert!(std::fs::read(&got).unwrap() == bytes, "the file differs");

    let own = json!({ "name": "own", "size": 4 << 20, "access": "none" });
    let _: RegionInfo = ddpd.source.post("/v1/regions", &own).unwrap();
    let sink = region("own", 100);
    let get = json!({ "via": via, "source": source, "length": len, "sink": sink });
    let job = ddpd.job("get", get);
    assert_eq!((job.state, job.error), (JobState::Done, None));
    let path = format!("/v1/regions/own/data?offset=100&length={len}");
    assert!(ddpd.source.bytes(&path).unwrap() == bytes, "the region differs");

    wait_for_ends(&ddpd, 3);
    let served = totals(&ddpd, &ddpd.sink);
    let len = len as u64;
    assert_eq!((served["rdmap_writes_in"], served["rdmap_written_bytes"]), (3, len));
    // The two gets issue six Reads; one more Read, of 0 bytes, confirms the put.
    assert_eq!((served["rdmap_reads_in"], served["rdmap_reads_served"]), (7, 7));
    assert_eq!(served["rdmap_read_bytes_served"], 2 * len);
    assert_eq!(served["rdmap_terminates_out"], 0);
    let metrics = ddpd.sink.text("/v1/metrics").unwrap();
    assert!(
        metrics.contains("\nddpd_worker_rdmap_reads_served_total{worker=\"0\"} 7\n"),
        "{metrics}"
    );
    assert!(ddpd.end().0.success());
}

#[test]
fn sends_are_echoed_or_discarded_by_service() {
    use base64::Engine as _;
    let ddpd = Ddpd::start(&Setup { sink: SERVICES, ..Setup::default() });
    let send = |via: &Value, data: &[u8], wait_reply_us: u64| -> Sent {
        let data = base64::engine::general_purpose::STANDARD.encode(data);
        let body = json!({ "via": via, "queue": 0, "data": data, "wait_reply_us": wait_reply_us });
        ddpd.source.post("/v1/send", &body).unwrap()
    };
    let echo = json!({ "stream": open(&ddpd, 7475).id });
    // More messages than receive buffers, so buffers must be reposted.
    for round in 0..70u8 {
        let data = vec![round; 1 + 300 * usize::from(round)];
        let sent = send(&echo, &data, 5_000_000);
        assert!(sent.reply.as_deref() == Some(&data[..]), "round {round}: not echoed");
    }
    let away = open(&ddpd, 7476);
    let sink = json!({ "stream": away.id });
    for round in 0..70u8 {
        let sent = send(&sink, &[round; 1000], 0);
        assert_eq!((sent.bytes, sent.confirmed), (1000, true));
    }
    let streams: Vec<StreamInfo> = ddpd.sink.get("/v1/streams").unwrap();
    let taken = streams.iter().find(|stream| stream.listener.as_deref() == Some("away"));
    assert_eq!(taken.unwrap().counters["rdmap_sends_in"], 70);
    let shown: StreamInfo = ddpd.source.get(&format!("/v1/streams/{}", away.id)).unwrap();
    // 70 Sends, each followed by a Read that confirms the Send.
    assert_eq!(shown.counters["rdmap_completed"], 140);
    assert!(ddpd.end().0.success());
}

#[test]
fn ping_completes_against_rping_server() {
    let ddpd = Ddpd::start(&Setup { sink: SERVICES, workers: 2, ..Setup::default() });
    for (run, size) in [1, 64, 65_536].into_iter().enumerate() {
        let spec = json!({ "connect": connect_spec(7174), "count": 20, "size": size, "timeout_us": 5_000_000 });
        let report: PingReport = ddpd.source.post("/v1/ping", &spec).unwrap();
        assert_eq!((report.rounds, report.size), (20, size));
        assert!(report.min_ns > 0 && report.min_ns <= report.median_ns);
        assert!(report.median_ns <= report.p99_ns && report.p99_ns <= report.max_ns);
        wait_for_ends(&ddpd, run + 1);
    }
    let (server, client) = (totals(&ddpd, &ddpd.sink), totals(&ddpd, &ddpd.source));
    assert_eq!((server["rdmap_sends_in"], client["rdmap_sends_in"]), (120, 120));
    assert_eq!((client["rdmap_reads_served"], client["rdmap_writes_in"]), (60, 60));
    assert_eq!(client["rdmap_read_bytes_served"], 20 * (1 + 64 + 65_536));
    assert_eq!(server["rdmap_read_bytes"], client["rdmap_written_bytes"]);
    // The listener on port 7475 is not an rping server: its echoes have the right length, but other contents.
    let spec =
        json!({ "connect": connect_spec(7475), "count": 1, "size": 8, "timeout_us": 5_000_000 });
    let error = ddpd.source.post::<PingReport>("/v1/ping", &spec).unwrap_err().to_string();
    assert!(error.contains("round 1: byte 0 came back changed"), "{error}");
    assert!(ddpd.end().0.success());
}

fn atomic(ddpd: &Ddpd, via: &Value, target: Value, operation: Value) -> Result<u64, ClientError> {
    let body = json!({ "via": via, "target": target, "operation": operation });
    let done: AtomicDone = ddpd.source.post("/v1/atomic", &body)?;
    Ok(done.original.parse().unwrap())
}

fn read_word(ddpd: &Ddpd, offset: u64) -> u64 {
    let path = format!("/v1/regions/counter/data?offset={offset}&length=8");
    u64::from_ne_bytes(ddpd.sink.bytes(&path).unwrap().try_into().unwrap())
}

// RFC 7306 §5.1: the previous value is returned.
#[test]
fn atomics_return_old_value_and_update_one_word() {
    let ddpd = Ddpd::start(&Setup { sink: SERVICES, workers: 2, ..Setup::default() });
    // Two streams on different workers access the same word.
    let streams = [open(&ddpd, 7471), open(&ddpd, 7471)];
    assert_ne!(streams[0].worker, streams[1].worker);
    let vias = streams.map(|stream| json!({ "stream": stream.id }));
    let place = || region("counter", 8);
    let add = |n: u64| json!({ "fetch_add": { "add": n } });
    let swap =
        |compare: u64, swap: u64| json!({ "compare_swap": { "compare": compare, "swap": swap } });
    assert_eq!(atomic(&ddpd, &vias[0], place(), add(5)).unwrap(), 0);
    assert_eq!(atomic(&ddpd, &vias[1], place(), add(u64::MAX)).unwrap(), 5);
    assert_eq!(read_word(&ddpd, 8), 4, "modulo 2^64");
    assert_eq!(atomic(&ddpd, &vias[0], place(), swap(5, 99)).unwrap(), 4);
    assert_eq!(read_word(&ddpd, 8), 4, "expected value differs: unchanged");
    assert_eq!(atomic(&ddpd, &vias[1], place(), swap(4, 1 << 63)).unwrap(), 4);
    let exchange = json!({ "swap": { "swap": 7 } });
    assert_eq!(atomic(&ddpd, &vias[0], place(), exchange).unwrap(), 1 << 63);
    assert_eq!((read_word(&ddpd, 0), read_word(&ddpd, 8), read_word(&ddpd, 16)), (0, 7, 0));
    assert_eq!(totals(&ddpd, &ddpd.sink)["rdmap_atomics_served"], 5);
    assert!(ddpd.end().0.success());
}

/// Checks that the sink has sent and the source has received the same `n`th Terminate. Returns its code.
fn terminates(ddpd: &Ddpd, n: usize) -> String {
    let codes = [(&ddpd.sink, false), (&ddpd.source, true)].map(|(client, of_peer)| {
        let found = wait_for_nth(
            client,
            n,
            |kind| matches!(kind, EventKind::Terminated { by_peer, .. } if *by_peer == of_peer),
        );
        match found {
            EventKind::Terminated { code, .. } => code,
            _ => String::new(),
        }
    });
    assert_eq!(codes[0], codes[1], "sent and received");
    codes[0].clone()
}

// RFC 7306 §8.2, RFC 5040 §4.8: an invalid operation leaves memory unchanged, and other streams continue.
#[test]
fn invalid_operations_end_in_terminate_without_effect() {
    let ddpd = Ddpd::start(&Setup { sink: SERVICES, ..Setup::default() });
    let other = json!({ "stream": open(&ddpd, 7471).id });
    let add = || json!({ "fetch_add": { "add": 1 } });
    assert_eq!(atomic(&ddpd, &other, region("counter", 0), add()).unwrap(), 0);
    let stag = |name: &str| {
        let text = ddpd.region(name).stag;
        u32::from_str_radix(&text[2..], 16).unwrap()
    };
    let tagged = |name: &str, to: u64| json!({ "tagged": { "stag": stag(name), "to": to } });
    let base = |name: &str| ddpd.region(name).base_to.parse::<u64>().unwrap();
    let via = json!({ "connect": connect_spec(7471) });
    for (n, (target, code)) in [
        (tagged("counter", base("counter") + 4), "0/2/07"),
        (tagged("box", base("box")), "0/1/02"),
        (tagged("counter", base("counter") + 4096), "0/1/01"),
        (json!({ "tagged": { "stag": stag("box") ^ 1, "to": 0 } }), "0/1/00"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = atomic(&ddpd, &via, target, add()).unwrap_err();
        let refused =
            matches!(&error, ClientError::Refused(e) if e.error == api::ErrorKind::PeerRefused);
        assert!(refused, "{code}: {error}");
        assert!(error.to_string().contains("terminated by the peer"), "{code}: {error}");
        assert_eq!(terminates(&ddpd, n + 1), code);
        wait_for_nth(&ddpd.sink, n + 1, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    }
    // For a named region, missing access or alignment is detected before a request is sent.
    let error = atomic(&ddpd, &other, region("box", 0), add()).unwrap_err().to_string();
    assert!(error.contains("is not open to atomics"), "{error}");
    let error = atomic(&ddpd, &other, region("counter", 4), add()).unwrap_err().to_string();
    assert!(error.contains("is not 64-bit aligned"), "{error}");
    let boxed = ddpd.sink.bytes("/v1/regions/box/data?offset=0&length=64").unwrap();
    assert_eq!(boxed, [0; 64]);
    assert_eq!((read_word(&ddpd, 0), read_word(&ddpd, 8)), (1, 0), "only the first operation");
    assert_eq!(
        atomic(&ddpd, &other, region("counter", 0), add()).unwrap(),
        1,
        "the other stream continues"
    );
    assert_eq!(totals(&ddpd, &ddpd.sink)["rdmap_terminates_out"], 4);
    assert_eq!(ddpd.stats(&ddpd.sink).workers[0].errors["rdmap_2_07"], 1);
    wait_for(
        &ddpd.sink,
        |kind| matches!(kind, EventKind::StreamError { code, .. } if code == "2/07"),
    );
    assert!(ddpd.end().0.success());
}
