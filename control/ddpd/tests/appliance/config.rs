//! Tests of the running configuration over the API's socket: show, diff, reload, save, and restart from the saved file.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use api::ConfigInfo;
use ctl::{self, Exit};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::REGION;
use crate::common::{Ddpd, Setup, config_text};

/// Runs `ddpctl` on the sink's socket. Returns exit code, standard output and standard error.
fn ddpctl(ddpd: &Ddpd, words: &[&str]) -> (Exit, String, String) {
    let socket = ddpd.path("sink.sock");
    let all = [&["ddpctl", "--socket", socket.to_str().unwrap()], words].concat();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = ctl::run(all.iter().map(OsString::from), &mut out, &mut err, false);
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn ddpctl_ok(ddpd: &Ddpd, words: &[&str]) -> String {
    let (exit, out, err) = ddpctl(ddpd, words);
    assert_eq!((exit, err.as_str()), (Exit::Success, ""), "{words:?}");
    out
}

fn values(ddpd: &Ddpd) -> Vec<(String, Vec<String>, Value)> {
    let info: ConfigInfo = ddpd.sink.get("/v1/config").unwrap();
    let keys = info.sections.into_iter().map(|section| {
        let keys = section.keys.into_iter().map(|key| (key.key, key.value));
        (section.section, section.identity, Value::Object(keys.collect()))
    });
    keys.collect()
}

/// Fails if the running configuration of the sink differs from its file.
fn assert_no_difference(ddpd: &Ddpd) {
    let diff = ddpctl_ok(ddpd, &["config", "diff"]);
    assert!(diff.starts_with("the running configuration is the one in "), "{diff}");
}

/// Adds region `api` and listener `late` to the running configuration, from TOML files.
fn add_sections(ddpd: &Ddpd) {
    let section = ddpd.path("section.toml");
    let name = section.to_str().unwrap();
    let region = "[[region]]\nname = \"api\"\nsize = \"64 KiB\"\naccess = \"r\"\n";
    std::fs::write(&section, region).unwrap();
    ddpctl_ok(ddpd, &["regions", "add", "--file", name]);
    let listener =
        "[[listener]]\nname = \"late\"\ninterface = \"i\"\nport = 7480\nregions = [\"api\"]\n";
    std::fs::write(&section, listener).unwrap();
    ddpctl_ok(ddpd, &["listeners", "add", name]);
}

/// Adds region `new` and a `[tcp]` key, which needs a restart, to the sink's file.
fn change_file(ddpd: &Ddpd) {
    let file = ddpd.path("sink.toml");
    let dir = file.parent().unwrap();
    let more = format!(
        "{REGION}\n[[region]]\nname = \"new\"\nsize = 4096\naccess = \"r\"\n[tcp]\nsack = false\n"
    );
    std::fs::write(&file, config_text(dir, "sink", 1, "", &more)).unwrap();
}

#[test]
fn added_sections_are_shown_as_a_difference() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let shown = ddpctl_ok(&ddpd, &["config", "show", "region"]);
    assert!(shown.starts_with("[[region]]\nname = \"inbox\" "), "{shown}");
    assert!(shown.contains("sink.toml:") && shown.contains("# default\n"), "{shown}");
    assert_no_difference(&ddpd);
    add_sections(&ddpd);
    let (exit, out, _) = ddpctl(&ddpd, &["config", "diff"]);
    assert_eq!(exit, Exit::Failed);
    assert!(out.contains("[[region]] api is running and not in "), "{out}");
    assert!(ddpd.end().0.success());
}

/// A reload adds the region of the file and keeps the region that the API added. Each reload reports the key that needs
/// a restart.
#[test]
fn reload_does_what_its_dry_run_reports() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    add_sections(&ddpd);
    change_file(&ddpd);
    let dry = ddpctl_ok(&ddpd, &["reload", "--dry-run"]);
    assert!(
        dry.starts_with("now: region `new` added\nneeds a restart: [tcp] has changed"),
        "{dry}"
    );
    assert!(dry.contains("\nstays: region `api` was added by the API: it stays\n"), "{dry}");
    assert!(!ddpctl_ok(&ddpd, &["regions", "list"]).contains("new"));
    let applied = ddpctl_ok(&ddpd, &["reload"]);
    assert_eq!(applied, dry.replace("now: ", "applied: "));
    assert!(ddpctl_ok(&ddpd, &["reload"]).starts_with("needs a restart: [tcp] has changed"));
    assert!(ddpd.end().0.success());
}

#[test]
fn saved_running_configuration_is_restored_at_start() {
    let mut ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    add_sections(&ddpd);
    change_file(&ddpd);
    ddpctl_ok(&ddpd, &["reload"]);
    let running = values(&ddpd);
    let saved = ddpd.path("saved.toml");
    ddpctl_ok(&ddpd, &["config", "save", saved.to_str().unwrap()]);
    let (exit, _, err) = ddpctl(&ddpd, &["config", "save", saved.to_str().unwrap()]);
    assert!(exit == Exit::Failed && err.contains("is there already"), "{err}");
    let check = Command::new(env!("CARGO_BIN_EXE_ddpd"))
        .args(["check", "--no-machine"])
        .arg(&saved)
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    ddpd.restart("saved.toml");
    assert_eq!(values(&ddpd), running);
    assert_no_difference(&ddpd);
    assert!(ddpd.end().0.success());
}

#[test]
fn ddpctl_times_out_on_a_stopped_daemon() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    ddpd.stop();
    let (exit, _, err) = ddpctl(&ddpd, &["--json", "--timeout", "100ms", "status"]);
    ddpd.signal(Signal::CONT);
    let error: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((exit, &error["error"]), (Exit::Silent, &json!("silent")), "{err}");
    assert!(ddpctl_ok(&ddpd, &["status"]).contains("running"));
    assert!(ddpd.end().0.success());
}
