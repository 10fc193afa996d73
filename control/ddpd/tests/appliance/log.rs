//! Test of the log of a running process: format, filter, and lines about API requests.

use api::{ConfigInfo, LogInfo, ReloadReport, ValueOrigin};
use serde_json::{Value, json};

use crate::REGION;
use crate::common::{Ddpd, LOG, Setup};

/// Returns all complete lines of the log so far.
fn lines(ddpd: &Ddpd) -> Vec<Value> {
    let text = std::fs::read_to_string(ddpd.path(LOG)).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn has_line(ddpd: &Ddpd, level: &str, words: &str) -> bool {
    lines(ddpd)
        .iter()
        .any(|line| line["level"] == level && line["message"].as_str().unwrap().contains(words))
}

fn origin(ddpd: &Ddpd) -> (Value, ValueOrigin) {
    let info: ConfigInfo = ddpd.sink.get("/v1/config").unwrap();
    let management = info.sections.into_iter().find(|s| s.section == "management").unwrap();
    let key = management.keys.into_iter().find(|key| key.key == "log").unwrap();
    (key.value, key.origin)
}

#[test]
fn json_log_follows_run_time_filter_and_records_requests() {
    let sink = format!("log_format = \"json\"\n{REGION}");
    let ddpd = Ddpd::start(&Setup { sink: &sink, ..Setup::default() });
    let log: LogInfo = ddpd.sink.get("/v1/log").unwrap();
    assert_eq!((log.filter.as_str(), log.format.as_str()), ("info", "json"));
    // A refused request is logged with its reason at `info`; a successful GET is not.
    assert!(ddpd.sink.delete::<Value>("/v1/regions/absent").is_err());
    assert!(has_line(
        &ddpd,
        "INFO",
        "API: DELETE /v1/regions/absent refused: there is no region `absent`"
    ));
    assert!(!has_line(&ddpd, "DEBUG", "API: GET /v1/log"));
    let log: LogInfo = ddpd.sink.post("/v1/log", &json!({"filter": "debug"})).unwrap();
    assert_eq!(log.filter, "debug");
    let call = || "POST /v1/log".to_owned();
    assert_eq!(origin(&ddpd), (json!("debug"), ValueOrigin::Api { call: call() }));
    assert!(has_line(&ddpd, "DEBUG", "API: GET /v1/config"));
    let refused = ddpd.sink.post::<LogInfo>("/v1/log", &json!({"filter": "a=b=c"})).unwrap_err();
    assert!(refused.to_string().contains("is no log filter"), "{refused}");
    // A reload replaces the filter set by the API with the file's, here the default. A filter that was changed in the
    // file takes effect at the next reload.
    let report: ReloadReport = ddpd.sink.post("/v1/reload", &json!({})).unwrap();
    assert_eq!(report.applied, ["management.log changed"]);
    assert_eq!(origin(&ddpd), (json!("info"), ValueOrigin::Default));
    let file = ddpd.path("sink.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("[management]", "[management]\nlog = \"warn\"")).unwrap();
    let _: ReloadReport = ddpd.sink.post("/v1/reload", &json!({})).unwrap();
    let before = lines(&ddpd).len();
    assert!(ddpd.sink.delete::<Value>("/v1/regions/absent").is_err());
    assert_eq!(lines(&ddpd).len(), before);
}
