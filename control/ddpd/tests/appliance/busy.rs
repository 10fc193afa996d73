//! Tests of an exclusive region that another stream uses: the next peer is refused until that stream ends.

use std::path::Path;

use api::{Client, EventKind, JobInfo, RegionInfo, StreamInfo};
use serde_json::json;

use super::common::{Ddpd, Running, SINK, Setup, config_text, ddpd, wait_for, wait_for_nth};
use super::{REGION, region_target};

#[test]
fn busy_region_is_reported_and_freed_by_closing_its_holder() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let holder: StreamInfo = ddpd.source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    assert!(!holder.peer_regions[0].busy);
    let (file, _) = ddpd.file("file", 1000);
    let job = ddpd.put(region_target(&file, "inbox"));
    assert!(job.refused);
    assert!(job.error.unwrap().contains("region_busy: the peer's region `inbox` is in use"));
    let busy = wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::RegionBusy { .. }));
    let EventKind::RegionBusy { region, holder: named, .. } = busy else { unreachable!() };
    let RegionInfo { bound_to, held_for, idle_for, .. } = ddpd.region("inbox");
    assert_eq!((region.as_str(), named), ("inbox", bound_to));
    assert!(held_for.unwrap() >= idle_for.unwrap());
    let id = bound_to.expect("a holder").to_string();
    let mut command = crate::common::ddpctl();
    command.arg("--socket").arg(ddpd.path("sink.sock")).args(["streams", "close", &id]);
    assert!(command.status().unwrap().success());
    let job = ddpd.put(region_target(&file, "inbox"));
    assert_eq!(job.error, None);
}

/// Starts one of two processes connected by a memif. `link_down_timeout` is off, so that loss of the link does not end
/// streams.
fn process(dir: &Path, name: &str, host: u8, role: &str, more: &str) -> (Running, Client) {
    let port = format!(
        "kind = \"memif\"\nsocket = \"{}/memif.sock\"\nrole = \"{role}\"\nlink_down_timeout = \"off\"",
        dir.display()
    );
    let file = dir.join(format!("{name}.toml"));
    let ring = "kind = \"ring\"\nlink = \"wire\"";
    std::fs::write(&file, config_text(dir, name, host, "", more).replace(ring, &port)).unwrap();
    let running = Running::start(ddpd(&[file]), &dir.join(format!("{name}.log")));
    (running, Client::new(&dir.join(format!("{name}.sock"))).unwrap())
}

// A killed peer sends neither FIN nor RST, so only keepalive probes detect it.
#[test]
fn killed_peer_frees_its_region_after_keepalive() {
    let dir = tempfile::tempdir().unwrap();
    let more = format!("[limits]\nexclusive_keepalive = \"1 s\"\n{REGION}")
        .replace("DIR", dir.path().to_str().unwrap());
    let (mut holder, sink) = process(dir.path(), "sink", 1, "server", &more);
    let (mut peer, source) = process(dir.path(), "source", 2, "client", "");
    let _: StreamInfo = source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    let region = || sink.get::<Vec<RegionInfo>>("/v1/regions").unwrap().remove(0);
    assert!(region().bound_to.is_some());
    peer.kill();
    let closed = wait_for(&sink, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    let EventKind::StreamClosed { reason, .. } = closed else { unreachable!() };
    assert_eq!(reason, "TCP connection lost: no answer (MPA error 1)");
    assert_eq!((region().bound_to, region().idle_for), (None, None));
    let (_peer, source) = process(dir.path(), "source", 2, "client", "");
    let file = dir.path().join("file");
    std::fs::write(&file, [7; 1000]).unwrap();
    let job: JobInfo = source.post("/v1/put", &region_target(&file, "inbox")).unwrap();
    let done = wait_for(&source, |kind| matches!(kind, EventKind::JobFinished { .. }));
    assert_eq!(done, EventKind::JobFinished { job: job.id, error: None });
    wait_for_nth(&sink, 2, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    assert_eq!(region().placed, 1000);
    assert!(holder.is_running());
}
