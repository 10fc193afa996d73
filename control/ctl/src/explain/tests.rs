//! `ddpctl explain`, with and without an appliance.

use api::fake::Fake;
use serde_json::Value;

use crate::Exit;
use crate::tests::{Commands, ddpctl};

/// Path of a socket that no appliance serves.
const NONE: &str = "/nonexistent/ddpd.sock";

fn explain(arguments: &[&str]) -> crate::tests::RunResult {
    ddpctl(&[&["--socket", NONE, "explain"], arguments].concat())
}

#[test]
fn a_name_is_explained_without_an_appliance() {
    let ran = explain(&["ip_checksum"]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Success, ""));
    assert_eq!(
        ran.out,
        "net_ip_checksum (drop reason)\n  meaning: The IPv4 header checksum is wrong.\n  usual cause: A link or a device \
         that corrupts frames. `corrupt` in `[port.impair]` does so on purpose.\n  remedy: Check the error counters of the \
         device and the switch; replace the cable or the transceiver.\n  counted in: \
         ddpd_drops_total{reason=\"net_ip_checksum\"}\n"
    );
    let both = explain(&["dropped: net_vlan", "reason=\"tcp_bad_ack\""]).out;
    assert!(both.starts_with("net_vlan (drop reason)\n"), "{both}");
    assert!(both.contains("\n\ntcp_bad_ack (drop reason)\n"), "{both}");
    let json = explain(&["--json", "draining"]).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    let groups: Vec<&Value> = json.as_array().unwrap().iter().map(|one| &one["group"]).collect();
    assert_eq!(groups, ["refusal", "note", "event"]);
    assert!(json[0]["remedy"].as_str().unwrap().contains("ddpctl undrain"));
}

#[test]
fn all_names_are_listed_by_group() {
    let list = explain(&[]).out;
    assert!(
        list.starts_with("Drops by the network stack and the worker\n  net_truncated "),
        "{list}"
    );
    for name in ["tcp_bad_header", "sctp_bad_tag", "wrong_ulp", "link_down", "stream_stalled"] {
        assert!(list.contains(&format!("\n  {name} ")), "{name}");
    }
    let json: Value = serde_json::from_str(&explain(&["--json"]).out).unwrap();
    assert_eq!(json.as_array().unwrap().len(), list.matches("\n  ").count());
}

#[test]
fn an_unknown_name_is_an_error_with_similar_ones() {
    let ran = explain(&["ip_cheksum"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, ""));
    assert!(ran.err.starts_with(
        "ddpctl: there is no drop reason, refusal, note or event \"ip_cheksum\"\nhint: similar names: net_ip_checksum"
    ));
    let json: Value = serde_json::from_str(&explain(&["--json", "quux"]).err).unwrap();
    assert_eq!(json["error"], "not_found");
    assert!(json["hint"].as_str().unwrap().contains("need a running appliance"));
}

#[test]
fn a_counter_is_explained_by_an_appliance() {
    let fake = Fake::start();
    for name in ["drops", "ddpd_drops_total"] {
        let text = fake.run_ok(&["explain", name]);
        assert!(
            text.starts_with("ddpd_drops_total (counter)\nFrames and segments dropped"),
            "{text}"
        );
    }
    let json = fake.run_json(&["explain", "drops", "vlan"]);
    assert_eq!((&json[0]["name"], &json[1]["group"]), (&"net_vlan".into(), &"counter".into()));
    assert_eq!(fake.run_ctl(&["explain", "quux"]).exit, Exit::Failed);
}

#[test]
fn output_with_reasons_or_notes_names_the_command() {
    let fake = Fake::start();
    let hint = "\n`ddpctl explain NAME` says what a reason means, its usual cause and what to do\n";
    assert!(fake.run_ok(&["stats"]).ends_with(hint));
    let on_notes = "`ddpctl explain at_start` says more on the notes\n";
    assert!(fake.run_ok(&["status"]).ends_with(on_notes));
    assert!(fake.run_ok(&["top", "--once", "--interval", "200ms"]).contains(on_notes));
    assert!(!fake.run_ok(&["--json", "stats"]).contains("explain"));
}
