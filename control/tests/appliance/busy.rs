//! A region that one stream has for itself, seen by the next peer.

use std::process::Command;

use control::api::{EventKind, RegionInfo, StreamInfo};
use serde_json::json;

use super::common::{Ddpd, SINK, Setup, wait_for};
use super::{REGION, to_region};

#[test]
fn who_wants_a_taken_region_is_told_and_has_it_when_the_holder_is_closed() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let holder: StreamInfo = ddpd.source.post("/v1/connect", &json!({ "remote": SINK })).unwrap();
    assert!(!holder.peer_regions[0].busy);
    let (file, _) = ddpd.file("file", 1000);
    let job = ddpd.put(to_region(&file, "inbox"));
    assert!(job.refused);
    assert!(job.error.unwrap().contains("region_busy: the peer's region `inbox` is taken"));
    let busy = wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::RegionBusy { .. }));
    let EventKind::RegionBusy { region, holder: named, .. } = busy else { unreachable!() };
    let RegionInfo { bound_to, held_for, idle_for, .. } = ddpd.region("inbox");
    assert_eq!((region.as_str(), named), ("inbox", bound_to));
    assert!(held_for.unwrap() >= idle_for.unwrap());
    let id = bound_to.expect("a holder").to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddpctl"));
    command.arg("--socket").arg(ddpd.path("sink.sock")).args(["streams", "close", &id]);
    assert!(command.status().unwrap().success());
    let job = ddpd.put(to_region(&file, "inbox"));
    assert_eq!(job.error, None);
}
