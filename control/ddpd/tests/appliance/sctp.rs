//! Transfers over SCTP (RFC 5043): files in both directions over a link that loses and reorders, rping, and UDP
//! encapsulation.

use api::{AssociationInfo, JobState, PingReport, StreamInfo};
use serde_json::json;

use super::LOSSY;
use super::common::{Ddpd, Setup};

/// Configuration of the sink: a shared region, and SCTP listeners for both ULPs.
pub(super) const SERVICES: &str = r#"
[[region]]
name = "box"
size = "4 MiB"
access = "rw"
shared = true
[[region]]
name = "scratch"
size = "1 MiB"
access = "rw"
shared = true
[[listener]]
name = "plain"
interface = "i"
port = 7500
transport = "sctp"
regions = ["box"]
[[listener]]
name = "boxes"
interface = "i"
port = 7501
transport = "sctp"
ulp = "rdmap"
regions = ["box"]
[[listener]]
name = "pings"
interface = "i"
port = 7174
transport = "sctp"
ulp = "rdmap"
service = "rping"
regions = ["scratch"]
limits = { streams = 4 }
"#;

fn connect_spec(port: u16, ulp: &str) -> serde_json::Value {
    json!({ "remote": format!("10.9.0.1:{port}"), "transport": "sctp", "ulp": ulp })
}

// RFC 5043 §4: regions, ULPs and jobs are the same as over TCP.
#[test]
fn sctp_put_data_is_read_back_over_both_ulps() {
    let ddpd =
        Ddpd::start(&Setup { sink: SERVICES, impair: LOSSY, workers: 2, ..Setup::default() });
    let len = (2 << 20) + 5;
    let (file, bytes) = ddpd.file("file", len);
    let target = json!({ "region": { "name": "box", "offset": 3 } });
    for (port, ulp) in [(7500, "ddp"), (7501, "rdmap")] {
        let via = json!({ "connect": connect_spec(port, ulp) });
        let put = ddpd.put(json!({ "file": file, "via": via, "target": target }));
        assert_eq!((put.state, put.error), (JobState::Done, None), "{ulp}");
        assert!(put.counters["retransmitted_bytes"] > 0, "the link lost no packet");
        let path = format!("/v1/regions/box/data?offset=3&length={len}");
        assert!(ddpd.sink.bytes(&path).unwrap() == bytes, "the region differs");
    }
    let via = json!({ "connect": connect_spec(7501, "rdmap") });
    let got = ddpd.path("got");
    let get = json!({ "via": via, "source": target, "length": len, "sink": { "file": got } });
    let job = ddpd.job("get", get);
    assert_eq!((job.state, job.error, job.acknowledged), (JobState::Done, None, len as u64));
    assert!(std::fs::read(&got).unwrap() == bytes, "the file differs");
    assert_eq!(ddpd.stats(&ddpd.source).control["unexpected_events"], 0);
}

#[test]
fn rping_completes_over_sctp_and_streams_share_association() {
    let ddpd = Ddpd::start(&Setup { sink: SERVICES, ..Setup::default() });
    let ping = json!({
        "connect": connect_spec(7174, "rdmap"), "count": 20, "size": 1000, "timeout_us": 5_000_000
    });
    let report: PingReport = ddpd.source.post("/v1/ping", &ping).unwrap();
    assert_eq!(report.rounds, 20);
    let streams: Vec<StreamInfo> = (0..3)
        .map(|_| ddpd.source.post("/v1/connect", &connect_spec(7500, "ddp")).unwrap())
        .collect();
    assert!(streams[0].association.is_some() && streams[0].mpa.is_none());
    assert!(streams.iter().all(|stream| stream.association == streams[0].association));
    assert_eq!(ddpd.stats(&ddpd.source).gauges["associations"], 1);
    let list: Vec<AssociationInfo> = ddpd.source.get("/v1/associations").unwrap();
    assert_eq!((list.len(), list[0].sessions, list[0].udp), (1, 3, None));
    assert_eq!(Some(list[0].id), streams[0].association);
    assert_eq!((list[0].state.as_str(), list[0].path_mtu), ("established", 1500));
    let one: AssociationInfo =
        ddpd.source.get(&format!("/v1/associations/{}", list[0].id)).unwrap();
    assert!(one.round_trip_us.is_some() && one.counters["sctp_packets_out"] > 0);
    assert!(one.rto_us > 0 && one.cwnd >= 1500 && one.peer_window > 0, "{one:?}");
    assert_eq!((one.in_flight, one.unanswered), (0, 0));
    let missing = ddpd.source.get::<AssociationInfo>("/v1/associations/5").unwrap_err();
    assert!(missing.to_string().contains("there is no association 0000000000000005"), "{missing}");
}

/// Configuration of a lossy, reordering port, with UDP encapsulation of SCTP.
const LOSSY_UDP: &str = r#"
[port.impair]
loss = 0.01
reorder = 0.02
reorder_delay = "200 us"
seed = 12
[sctp]
udp_encapsulation = 9899
"#;

// RFC 6951: files in both directions, with all packets in UDP.
#[test]
fn udp_encapsulated_put_data_is_read_back() {
    let ddpd =
        Ddpd::start(&Setup { sink: SERVICES, impair: LOSSY_UDP, workers: 2, ..Setup::default() });
    let len = (1 << 20) + 7;
    let (file, bytes) = ddpd.file("file", len);
    let target = json!({ "region": { "name": "box", "offset": 5 } });
    let mut connect = connect_spec(7501, "rdmap");
    connect["udp_port"] = json!(9899);
    // This stream stays open so that its association can be inspected.
    let stream: StreamInfo = ddpd.source.post("/v1/connect", &connect).unwrap();
    let via = json!({ "connect": connect });
    let put = ddpd.put(json!({ "file": file, "via": via, "target": target }));
    assert_eq!((put.state, put.error), (JobState::Done, None));
    let path = format!("/v1/regions/box/data?offset=5&length={len}");
    assert!(ddpd.sink.bytes(&path).unwrap() == bytes, "the region differs");
    let got = ddpd.path("got");
    let get = json!({ "via": via, "source": target, "length": len, "sink": { "file": got } });
    let job = ddpd.job("get", get);
    assert_eq!((job.state, job.error, job.acknowledged), (JobState::Done, None, len as u64));
    assert!(std::fs::read(&got).unwrap() == bytes, "the file differs");
    for client in [&ddpd.source, &ddpd.sink] {
        let list: Vec<AssociationInfo> = client.get("/v1/associations").unwrap();
        assert!(!list.is_empty());
        assert!(list.iter().all(|association| association.udp == Some([9899, 9899])), "{list:?}");
        assert!(list.iter().all(|association| association.flow.cwnd > 0), "{list:?}");
    }
    let list: Vec<AssociationInfo> = ddpd.source.get("/v1/associations").unwrap();
    assert!(list.iter().any(|association| Some(association.id) == stream.association));
}
