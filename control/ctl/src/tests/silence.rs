//! A stopped appliance, and errors for programs.

use std::os::unix::net::UnixListener;

use super::*;

/// The kernel takes connections for a process that is stopped; nothing reads them.
#[test]
fn a_stopped_appliance_is_not_waited_for_for_ever() {
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

/// An operation may take longer than the appliance may be silent.
#[test]
fn a_slow_operation_is_waited_for_while_the_appliance_lives() {
    let fake = Fake::start();
    fake.answer_reloads_after(1);
    let ran = fake.ctl(&["--timeout", "1s", "reload"]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Success, ""));
    assert_eq!(fake.asked(), 2, "a reload, and whether the appliance lives");
}

#[test]
fn every_error_of_json_is_json() {
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
        let ran = fake.ctl(words);
        let error: Value = serde_json::from_str(&ran.err)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", ran.err));
        assert_eq!((ran.exit, ran.out.as_str()), (exit, ""), "{words:?}");
        assert!(error["error"].is_string(), "{words:?}");
        assert!(error["message"].as_str().unwrap().contains(part), "{words:?}: {error}");
    }
    // What is asked for is no error.
    assert!(fake.ctl(&["--json", "--help"]).out.contains("Usage: "));
}
