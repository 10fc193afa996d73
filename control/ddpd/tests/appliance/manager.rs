//! Tests of the notifications to the service manager, and of the operator's drain, with real workers.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use api::{Client, EventKind, Status, StreamInfo};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::common::{Ddpd, Running, SINK, Setup, config_text, ddpd, wait_for};
use super::{REGION, sctp};

/// Returns ddpd's next message that contains `wanted`. Earlier messages are skipped; none of them may contain `never`.
fn message(manager: &UnixDatagram, wanted: &str, never: &str) -> String {
    loop {
        let mut buffer = [0; 4096];
        let len = manager.recv(&mut buffer).expect("a message in time");
        let message = String::from_utf8(buffer[..len].to_vec()).unwrap();
        if message.contains(wanted) {
            return message;
        }
        assert!(never.is_empty() || !message.contains(never), "{message} before {wanted}");
    }
}

#[test]
fn service_manager_receives_status_and_watchdog_feeds() {
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let peer = config_text(dir.path(), "source", 2, "", "");
    let sink =
        config_text(dir.path(), "sink", 1, "", &REGION.replace("DIR", &path_text(dir.path())));
    let files = [("sink", sink), ("source", peer)].map(|(name, text)| {
        let file = dir.path().join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        file
    });
    let mut command = ddpd(&files);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "4000000");
    let mut running = Running::start(command, &dir.path().join("log"));
    assert_eq!(message(&manager, "STATUS=", "READY"), "STATUS=starting");
    assert!(message(&manager, "READY=1", "").contains("STATUS=serving 1 listener, 0 streams"));
    let client = |name: &str| Client::new(&dir.path().join(format!("{name}.sock"))).unwrap();
    // The API serves requests from `READY=1` on.
    let (source, sink) = (client("source"), client("sink"));
    let _: StreamInfo = source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    message(&manager, "2 streams", "");
    message(&manager, "WATCHDOG=1", "");
    let _: Value = sink.post("/v1/reload", &json!({})).unwrap();
    assert!(message(&manager, "RELOADING=1", "").contains("\nMONOTONIC_USEC="));
    message(&manager, "READY=1", "");
    running.signal(Signal::TERM);
    message(&manager, "STOPPING=1", "");
    message(&manager, "STATUS=stopping", "");
    assert!(running.wait().success());
}

fn path_text(dir: &Path) -> String {
    dir.display().to_string()
}

#[test]
fn drain_refuses_tcp_and_sctp_streams_until_undone() {
    let services = format!("{REGION}{}", sctp::SERVICES);
    let ddpd = Ddpd::start(&Setup { sink: &services, ..Setup::default() });
    let sctp = json!({ "remote": "10.9.0.1:7500", "transport": "sctp", "ulp": "ddp" });
    let first: StreamInfo = ddpd.source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    let status: Status = ddpd.sink.post("/v1/drain", &json!({})).unwrap();
    assert_eq!((status.state.as_str(), status.streams_left), ("draining", Some(1)));
    for to in [&json!({ "remote": SINK }), &sctp] {
        let error = ddpd.source.post::<StreamInfo>("/v1/connect", to).unwrap_err().to_string();
        assert!(error.contains("draining: the appliance is draining"), "{error}");
    }
    assert_eq!(ddpd.stats(&ddpd.sink).gauges["draining"], 1);
    let path = format!("/v1/streams/{}", first.id);
    assert_eq!(ddpd.source.get::<StreamInfo>(&path).unwrap().state, "established");
    let _: Status = ddpd.sink.post("/v1/undrain", &json!({})).unwrap();
    let _: StreamInfo = ddpd.source.post("/v1/connect", &sctp).unwrap();
    assert_eq!(ddpd.stats(&ddpd.sink).gauges["draining"], 0);
    wait_for(&ddpd.sink, |kind| *kind == EventKind::Undrained);
}
