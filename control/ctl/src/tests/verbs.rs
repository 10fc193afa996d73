//! Tests of `ddpctl get`, `ping`, `fetch-add` and `compare-swap`.

use super::*;

const REMOTE_URL: &str = "rdmap://10.0.0.2:7471/box@8";

#[test]
fn get_fetches_into_a_file_or_a_region() {
    let fake = Fake::start();
    let summary = fake.run_json(&["get", REMOTE_URL, "/tmp/got", "--length", "0x20"]);
    assert_eq!(
        (&summary["bytes"], &summary["via"], &summary["job"], &summary["file"]),
        (&json!(4000), &json!("appliance"), &json!(1), &json!("/tmp/file"))
    );
    let request = fake.last_request();
    assert_eq!(request["source"], json!({ "region": { "name": "box", "offset": 8 } }));
    assert_eq!(
        (&request["length"], &request["sink"]),
        (&json!(32), &json!({ "file": "/tmp/got" }))
    );
    let connect = &request["via"]["connect"];
    assert_eq!((&connect["remote"], &connect["ulp"]), (&json!("10.0.0.2:7471"), &json!("rdmap")));

    let sentence = "region own from 10.0.0.2:7471: 3.9 KiB in 0.500 s, 0.000 Gbit/s\n";
    assert_eq!(fake.run_ok(&["get", REMOTE_URL, "--into", "own@64"]), sentence);
    let request = fake.last_request();
    assert_eq!(request["sink"], json!({ "region": { "name": "own", "offset": 64 } }));
    assert_eq!(request["length"], Value::Null, "all that follow");

    let detached = ["get", "tcp://10.0.0.2:7471", "f", "--stag", "0x4d", "--to", "4096"];
    let text = fake.run_ok(&[&detached[..], &["--length", "8", "--detach"]].concat());
    assert_eq!(text, "job 1 runs: ddpctl jobs show 1\n");
    let request = fake.last_request();
    assert_eq!(request["source"], json!({ "tagged": { "stag": 77, "to": 4096 } }));
    let here = std::env::current_dir().unwrap().join("f");
    assert_eq!(request["sink"], json!({ "file": here }), "the appliance runs elsewhere");
    assert_eq!(request["via"]["connect"]["ulp"], "rdmap", "bare DDP has no Reads");
}

#[test]
fn verbs_accept_connection_options() {
    let fake = Fake::start();
    let opening = ["--peer-kind", "siw", "--ird", "3", "--ord", "4", "--mpa-rev", "1"];
    fake.run_ok(
        &[&["get", REMOTE_URL, "/tmp/got", "--retry-rev1", "--peer-to-peer"], &opening[..]]
            .concat(),
    );
    let connect = &fake.last_request()["via"]["connect"];
    let expected = json!({
        "ird": 3, "ord": 4, "peer": "siw", "peer_to_peer": true, "retry_revision_1": true
    });
    assert_eq!((&connect["rdmap"], &connect["mpa"]["revision"]), (&expected, &json!(1)));
    fake.run_ok(&["fetch-add", REMOTE_URL, "1", "--stream", "1000000000007"]);
    assert_eq!(fake.last_request()["via"], json!({ "stream": "0001000000000007" }));
}

#[test]
fn ping_prints_round_trip_times() {
    let fake = Fake::start();
    assert_eq!(
        fake.run_ok(&["ping", "10.0.0.2:7174"]),
        "10 rounds of 64 bytes with 10.0.0.2:7174, each byte compared: min 1.5, mean 2.5, median 2.0, \
         99 % 9.0, max 9.5 us\n"
    );
    let ran = fake.run_json(&[
        "ping",
        "rdmap://10.0.0.2:7174",
        "-c",
        "3",
        "-s",
        "100",
        "--timeout",
        "2s",
    ]);
    assert_eq!((&ran["rounds"], &ran["size"]), (&json!(3), &json!(100)));
    assert_eq!((&ran["remote"], &ran["p99_ns"]), (&json!("10.0.0.2:7174"), &json!(9000)));
    let request = fake.last_request();
    assert_eq!(request["connect"]["ulp"], json!("rdmap"));
    let round = request["timeout_us"].as_u64().unwrap();
    assert!((1_000_000..=2_000_000).contains(&round), "what is left of two seconds: {round}");
}

#[test]
fn atomics_print_original_value() {
    let fake = Fake::start();
    assert_eq!(
        fake.run_ok(&["fetch-add", REMOTE_URL, "0xffffffffffffffff"]),
        "the memory held 18446744073709551615; 12 us\n"
    );
    let request = fake.last_request();
    assert_eq!(request["target"], json!({ "region": { "name": "box", "offset": 8 } }));
    assert_eq!(request["operation"], json!({ "fetch_add": { "add": u64::MAX } }));
    // In JSON, a value that a double cannot represent exactly is a string of digits.
    let held = json!({ "original": "18446744073709551615", "time_us": 12 });
    let place = ["rdmap://10.0.0.2:7471", "1", "2", "--stag", "77", "--to", "16"];
    assert_eq!(fake.run_json(&[&["compare-swap"], &place[..]].concat()), held);
    let request = fake.last_request();
    assert_eq!(request["target"], json!({ "tagged": { "stag": 77, "to": 16 } }));
    assert_eq!(request["operation"], json!({ "compare_swap": { "compare": 1, "swap": 2 } }));
}

#[test]
fn verbs_refuse_bad_arguments_before_any_request() {
    let fake = Fake::start();
    let bare = "rdmap://10.0.0.2:7471";
    let cases: [(&[&str], &str); 13] = [
        (&["get", REMOTE_URL], "required"),
        (&["get", REMOTE_URL, "f", "--into", "own"], "cannot be used with"),
        (&["get", bare, "f"], "no region is named: write rdmap://"),
        (&["get", bare, "f", "--stag", "1"], "--to"),
        (&["get", REMOTE_URL, "f", "--stag", "1", "--to", "0"], "both name the place"),
        (&["get", REMOTE_URL, "f", "--length", "some"], "some"),
        (&["get", "10.0.0.2:7471/box", "f"], "does not begin with tcp://, sctp://"),
        (&["ping"], "required"),
        (&["ping", "10.0.0.2"], "has no port"),
        (&["ping", "10.0.0.2:1", "--count", "-1"], "-1"),
        (&["fetch-add", REMOTE_URL], "required"),
        (&["fetch-add", REMOTE_URL, "18446744073709551616"], "18446744073709551616"),
        (&["compare-swap", REMOTE_URL, "1"], "required"),
    ];
    for (arguments, sentence) in cases {
        let ran = fake.run_ctl(arguments);
        assert_eq!(ran.exit, Exit::Usage, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(sentence), "{arguments:?}: {}", ran.err);
    }
    assert_eq!(fake.request_count(), 0);
}

#[test]
fn verb_failures_set_exit_code() {
    let fake = Fake::start();
    let refused = "rdmap://10.0.0.2:1/box";
    for (arguments, exit, sentence) in [
        (&["get", refused, "f"][..], Exit::Refused, "after 1000 of 4000 bytes: not open to reads"),
        (&["ping", "10.0.0.2:1"], Exit::Refused, "byte 5 came back changed"),
        (&["ping", "10.0.0.2:2"], Exit::Failed, "no answer in time"),
        (&["fetch-add", refused, "1"], Exit::Refused, "terminated by the peer"),
        (&["compare-swap", refused, "1", "2"], Exit::Refused, "terminated by the peer"),
    ] {
        let ran = fake.run_ctl(arguments);
        assert_eq!((ran.exit, ran.out.as_str()), (exit, ""), "{arguments:?}");
        assert!(ran.err.contains(sentence), "{arguments:?}: {}", ran.err);
        let ran = fake.run_ctl(&[&["--json"], arguments].concat());
        let error: Value = serde_json::from_str(&ran.err).unwrap();
        let word = if exit == Exit::Refused { "peer_refused" } else { "timeout" };
        assert_eq!(error["error"], word, "{arguments:?}");
    }
    // The hint is printed for a failed job and for a refusal.
    for (arguments, hint) in [
        (&["get", refused, "f"][..], "ask for read access"),
        (&["fetch-add", refused, "1"], "look at the peer"),
    ] {
        let ran = fake.run_ctl(arguments);
        assert!(ran.err.ends_with(&format!("\nhint: {hint}\n")), "{}", ran.err);
        let ran = fake.run_ctl(&[&["--json"], arguments].concat());
        assert_eq!(serde_json::from_str::<Value>(&ran.err).unwrap()["hint"], hint);
    }
    let unreachable = ddpctl(&["--socket", "/nonexistent/s", "ping", "10.0.0.2:7174"]);
    assert_eq!(unreachable.exit, Exit::Unreachable);
}

/// A zone selects the appliance's interface and is not sent as part of the address.
#[test]
fn zone_selects_appliance_interface() {
    let fake = Fake::start();
    let spec = |arguments: &[&str]| {
        let line = [&["x"], arguments].concat();
        let Command::Connect(connect) = Args::try_parse_from(line).unwrap().command else {
            panic!()
        };
        let client = api::Client::new(fake.socket()).unwrap();
        connect_spec(&connect.peer, connect.opening, Vec::new(), &client)
    };
    let zoned = spec(&["connect", "Tcp://[fe80::9%25front]:7"]).unwrap();
    assert_eq!(zoned.interface.as_deref(), Some("front"));
    assert_eq!(json!(zoned)["remote"], "[fe80::9]:7");
    let same = spec(&["connect", "--interface", "front", "[fe80::9%front]:7"]).unwrap();
    assert_eq!(same, zoned);
    let ran = fake.run_ctl(&["connect", "--interface", "back", "[fe80::9%front]:7"]);
    assert_eq!(ran.exit, Exit::Usage);
    assert!(ran.err.contains("--interface back, and the zone of [fe80::9%25front]"), "{}", ran.err);
    let kernel = ddpctl(&["put", "--kernel", "/dev/null", "tcp://[fe80::9]:7/in"]);
    assert_eq!(kernel.exit, Exit::Usage);
    assert!(kernel.err.contains("[fe80::9%25eth0]"), "{}", kernel.err);
}

/// A name resolves to its distinct addresses, a literal address to itself.
#[test]
fn host_name_resolves_to_all_addresses() {
    let addresses = "localhost:7".parse::<Peer>().unwrap().resolve().unwrap();
    let mut once = addresses.clone();
    once.dedup();
    assert_eq!(once, addresses);
    assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
    let literal = "192.0.2.1:7".parse::<Peer>().unwrap().resolve().unwrap();
    assert_eq!(literal, ["192.0.2.1:7".parse().unwrap()]);
}
