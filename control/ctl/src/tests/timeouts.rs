//! Tests of time-outs with a stopped or slow appliance, and of errors with `--json`.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use super::*;

/// The kernel accepts connections for a stopped process, but the process never reads the requests.
#[test]
fn stopped_appliance_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("stopped.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let name = socket.to_str().unwrap();
    for command in [&["status"][..], &["events", "--follow"], &["reload"]] {
        let words = [&["--json", "--timeout", "30ms", "--socket", name], command].concat();
        let ran = ddpctl(&words);
        let error: Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!((ran.exit, &error["error"]), (Exit::Silent, &json!("silent")), "{command:?}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("does not answer: nothing came for 30ms"), "{message}");
    }
    drop(listener);
    assert_eq!(ddpctl(&["--socket", name, "status"]).exit, Exit::Unreachable);
}

/// An operation may take longer than the maximum silence, as long as the appliance answers probes.
#[test]
fn slow_operation_is_awaited_while_appliance_responds() {
    let fake = Fake::start();
    fake.delay_reloads(1);
    let client = api::Client::new(fake.socket()).unwrap().with_timeout(Duration::from_millis(300));
    client.post::<Value>("/v1/reload", &json!({})).unwrap();
    assert_eq!(fake.request_count(), 2, "a reload, and whether the appliance lives");
}

/// The time of --timeout limits the whole command, even if the appliance answers other requests.
#[test]
fn slow_operation_ends_at_timeout() {
    let fake = Fake::start();
    fake.delay_reloads(1000);
    let ran = fake.run_ctl(&["--timeout", "50ms", "reload"]);
    assert_eq!(ran.exit, Exit::TimedOut, "{}", ran.err);
    let sentence = "not done within 0.05 s: the appliance answers, and may go on with it";
    assert!(ran.err.contains(sentence), "{}", ran.err);
}

/// Every command that opens a stream passes its remaining time to the appliance.
#[test]
fn requests_share_one_deadline() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let file = file.to_str().unwrap();
    for words in [
        &["connect", "10.0.0.2:7471"][..],
        &["put", file, "tcp://10.0.0.2:7471/inbox"],
        &["get", "rdmap://10.0.0.2:7471/box", file],
        &["send", "10.0.0.2:7471", "text"],
        &["ping", "10.0.0.2:7174"],
        &["bench", "send", "--to", "tcp://10.0.0.2:7471"],
        &["fetch-add", "rdmap://10.0.0.2:7471/box", "1"],
        &["compare-swap", "rdmap://10.0.0.2:7471/box", "1", "2"],
    ] {
        for (timeout, wants) in [(&["--timeout", "30s"][..], true), (&[], false)] {
            fake.run_ctl(&[words, timeout].concat());
            let seen = fake.last_request();
            let spec = [&seen, &seen["via"]["connect"], &seen["connect"]];
            let within = spec.iter().find_map(|spec| spec["within_us"].as_u64());
            let wanted = if wants { 29_000_000..=30_000_000 } else { 0..=0 };
            assert!(wanted.contains(&within.unwrap_or(0)), "{words:?}: {seen}");
        }
    }
}

#[test]
fn every_error_with_json_option_is_json() {
    let fake = Fake::start();
    let cases: [(&[&str], Exit, &str); 6] = [
        (&["--json", "no-such-command"], Exit::Usage, "unrecognized subcommand"),
        (&["--json"], Exit::Usage, "Usage: "),
        (&["jobs", "show", "x", "--json"], Exit::Usage, "invalid value"),
        (&["--json", "regions", "add"], Exit::Usage, "required arguments were not provided"),
        (&["--json", "streams", "show", "1"], Exit::Failed, "there is no stream"),
        (&["--json", "listeners", "add", "/nonexistent"], Exit::Usage, "/nonexistent: "),
    ];
    for (words, exit, part) in cases {
        let ran = fake.run_ctl(words);
        let error: Value = serde_json::from_str(&ran.err)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", ran.err));
        assert_eq!((ran.exit, ran.out.as_str()), (exit, ""), "{words:?}");
        assert!(error["error"].is_string(), "{words:?}");
        assert!(error["message"].as_str().unwrap().contains(part), "{words:?}: {error}");
    }
    // Requested help is not an error.
    assert!(fake.run_ctl(&["--json", "--help"]).out.contains("Usage: "));
}
