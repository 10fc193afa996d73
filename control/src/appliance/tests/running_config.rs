//! The running configuration: origins of values, differences from the file, and its text.

use api::{ConfigDiff, ConfigInfo, ValueOrigin, When};
use ddp::Access;
use serde_json::{Value, json};

use super::reload::EXTRA_SECTIONS;
use super::*;

impl Bench {
    fn config(&mut self) -> ConfigInfo {
        let mut pending = self.call(Request::Config);
        match answer(&mut pending).unwrap() {
            Reply::Config(info) => info,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the differences: section, name, key, and when they take effect.
    fn diff(&mut self) -> Vec<(String, String, Option<String>, When)> {
        let mut pending = self.call(Request::ConfigDiff);
        let diff: ConfigDiff = match answer(&mut pending).unwrap() {
            Reply::ConfigDiff(diff) => diff,
            other => panic!("{other:?}"),
        };
        let one = |d: api::Difference| (d.section, d.identity.join("/"), d.key, d.when);
        diff.differences.into_iter().map(one).collect()
    }

    fn text(&mut self, file: &str) -> String {
        let file = self.dir.path().join(file);
        let mut pending = self.call(Request::ConfigText(file));
        match answer(&mut pending).unwrap() {
            Reply::Text { text, .. } => text,
            other => panic!("{other:?}"),
        }
    }

    fn call_api_ok(&mut self, request: Request) {
        let mut pending = self.call(request);
        self.load_all();
        self.acknowledge();
        answer(&mut pending).unwrap();
    }
}

fn value(
    info: &ConfigInfo,
    section: &str,
    identity: &[&str],
    key: &str,
) -> Option<(Value, ValueOrigin)> {
    let found = info.sections.iter().find(|s| s.section == section && s.identity == identity)?;
    let key = found.keys.iter().find(|k| k.key == key)?;
    Some((key.value.clone(), key.origin.clone()))
}

/// Returns the origin `File` with the number of the first line that equals `wanted`.
fn line(text: &str, wanted: &str) -> ValueOrigin {
    let at = text.lines().position(|line| line == wanted).unwrap();
    ValueOrigin::File { line: at as u32 + 1 }
}

fn api_region() -> Request {
    let json = json!({"name": "api", "size": "8 KiB", "access": "rw"});
    Request::AddRegion(config::region_from_json(&json).unwrap())
}

fn api_listener() -> Request {
    let json = json!({"name": "more", "interface": "i", "port": 9, "regions": ["api"],
        "queue": [{"qn": 5, "deliver_to": "echo"}]});
    Request::AddListener(config::listener_from_json(&json).unwrap())
}

#[test]
fn every_value_has_its_origin() {
    let mut bench = bench();
    let info = bench.config();
    assert_eq!(info.file, bench.file);
    assert_eq!(
        value(&info, "listener.limits", &["in"], "pending"),
        Some((json!(3), line(BASIC, "pending = 3")))
    );
    assert_eq!(value(&info, "tcp", &[], "sack"), Some((json!(true), ValueOrigin::Default)));
    bench.call_api_ok(api_region());
    bench.call_api_ok(api_listener());
    let access = Access::REMOTE_READ;
    bench.call_api_ok(Request::SetAccess { name: "common".into(), access });
    let info = bench.config();
    let call = |call: &str| ValueOrigin::Api { call: call.into() };
    assert_eq!(
        value(&info, "region", &["api"], "size"),
        Some((json!("8 KiB"), call("POST /v1/regions")))
    );
    assert_eq!(
        value(&info, "listener.queue", &["more", "5"], "qn"),
        Some((json!(5), call("POST /v1/listeners")))
    );
    assert_eq!(
        value(&info, "region", &["common"], "access"),
        Some((json!("r"), call("POST /v1/regions/common/access")))
    );
    assert_eq!(
        value(&info, "region", &["common"], "shared"),
        Some((json!(true), line(BASIC, "shared = true")))
    );
}

#[test]
fn reload_updates_origins_and_keeps_restart_keys_running() {
    let mut bench = bench_with(&format!("{BASIC}\n[tcp]\nsack = false\n"));
    let before = value(&bench.config(), "tcp", &[], "sack").unwrap();
    let text =
        format!("# one line more\n{BASIC}{EXTRA_SECTIONS}\n[tcp]\nsack = true\necn = false\n");
    let text = text.replace("pending = 3", "pending = 2");
    bench.reload(&text).unwrap();
    let info = bench.config();
    assert_eq!(value(&info, "tcp", &[], "sack"), Some(before), "the running value is unchanged");
    assert_eq!(
        value(&info, "listener.limits", &["in"], "pending"),
        Some((json!(2), line(&text, "pending = 2")))
    );
    assert_eq!(
        value(&info, "listener", &["second"], "port"),
        Some((json!(7472), line(&text, "port = 7472")))
    );
    let key = |key: &str| ("tcp".to_owned(), String::new(), Some(key.to_owned()), When::Restart);
    assert_eq!(bench.diff(), [key("sack"), key("ecn")]);
}

#[test]
fn config_diff_lists_drift_from_every_source() {
    let mut bench = bench_with(&format!("{BASIC}{EXTRA_SECTIONS}"));
    assert_eq!(bench.diff(), []);
    bench.call_api_ok(api_region());
    bench.call_api_ok(Request::SetAccess { name: "common".into(), access: Access::NONE });
    bench.call_api_ok(Request::RemoveListener { name: "second".into() });
    let text = format!("{BASIC}{EXTRA_SECTIONS}[limits]\nstreams = 99\nneighbours = 9\n");
    std::fs::write(&bench.file, text.replace("size = \"4 KiB\"", "size = \"5 KiB\"")).unwrap();
    let change = |section: &str, name: &str, key: Option<&str>, when| {
        (section.to_owned(), name.to_owned(), key.map(str::to_owned), when)
    };
    assert_eq!(
        bench.diff(),
        [
            change("region", "common", Some("access"), When::Api),
            change("region", "extra", Some("size"), When::Restart),
            change("region", "api", None, When::Api),
            change("limits", "", Some("streams"), When::Reload),
            change("limits", "", Some("neighbours"), When::Restart),
            change("listener", "second", None, When::Reload),
            change("listener.limits", "second", None, When::Reload),
        ]
    );
    let mut pending = bench.call(Request::TryReload);
    let Reply::Reload(report) = answer(&mut pending).unwrap() else { panic!() };
    assert_eq!(
        report.kept,
        [
            "region `common` has access \"none\" by the API: it stays",
            "region `api` was added by the API: it stays"
        ]
    );
    assert_eq!(report.applied, ["limits.streams changed", "listener `second` added"]);
}

#[test]
fn saved_configuration_reproduces_the_state() {
    let mut bench = bench_with(&format!("# a comment\n{BASIC}{EXTRA_SECTIONS}"));
    bench.call_api_ok(api_region());
    bench.call_api_ok(api_listener());
    bench.call_api_ok(Request::SetAccess { name: "common".into(), access: Access::NONE });
    bench.call_api_ok(Request::RemoveListener { name: "second".into() });
    let text = bench.text("saved.toml");
    assert!(text.contains("# a comment\n") && !text.contains("second"), "{text}");
    let values = |info: ConfigInfo| {
        let keys = info.sections.into_iter().map(|s| {
            let keys = s.keys.into_iter().map(|key| (key.key, key.value)).collect::<Vec<_>>();
            (s.section, s.identity, keys)
        });
        keys.collect::<Vec<_>>()
    };
    let runs = values(bench.config());
    let file = bench.dir.path().join("saved.toml");
    let config = Document::parse(&file, &text).unwrap_or_else(|e| panic!("{e}\n{text}")).config;
    assert_eq!(config.name, "ddpd", "another file's name is not the appliance's");
    let mut restarted = bench_with(&text);
    assert_eq!(values(restarted.config()), runs);
    // If the saved text replaces the file, no differences remain.
    let text = bench.text("ddpd.toml");
    std::fs::write(&bench.file, text).unwrap();
    assert_eq!(bench.diff(), []);
}

#[test]
fn command_line_overrides_are_not_drift() {
    let mut config = Document::parse(std::path::Path::new("t.toml"), BASIC).unwrap().config;
    config.override_log("debug");
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::new(10, 1 << 20);
    config.file = dir.path().join("t.toml");
    config.regions.clear();
    config.listeners.clear();
    std::fs::write(&config.file, format!("{}\n[management]\nlog = \"warn\"\n", host!())).unwrap();
    let file = config.file.clone();
    let core = Core::new(setup(config, &dir, &log), Vec::new(), Instant::now()).unwrap();
    let budget = Budget::unlimited();
    let sessions = None;
    let mut bench = Bench { core, now: Instant::now(), log, dir, file, budget, sessions };
    let info = bench.config();
    let log = value(&info, "management", &[], "log");
    assert_eq!(log, Some((json!("debug"), ValueOrigin::CommandLine)));
    let ours = |d: &(String, String, Option<String>, When)| d.0 == "management";
    assert!(!bench.diff().iter().any(ours));
    let mut pending = bench.call(Request::Reload);
    let Reply::Reload(report) = answer(&mut pending).unwrap() else { panic!() };
    assert_eq!(report.needs_restart, [""; 0]);
    let info = bench.config();
    assert_eq!(value(&info, "management", &[], "log"), log);
}
