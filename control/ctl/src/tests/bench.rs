//! Tests of `ddpctl bench`.

use super::*;

#[test]
fn bench_prints_rates_and_times() {
    let fake = Fake::start();
    let to = ["--to", "rdmap://10.0.0.2:7471/box@8"];
    let text = fake.run_ok(&[&["bench", "write"], &to[..]].concat());
    assert_eq!(
        text,
        "write to 10.0.0.2:7471: streams 1, size 65536, depth 8, closed loop\n  \
         4000 messages, 3.8 MiB in 0.500 s: 8000 messages/s, 0.064 Gbit/s\n  \
         3 were due or in flight at the end, and not complete\n  \
         us: min 1.5, mean 2.5, 50 % 2.0, 90 % 3.0, 99 % 9.0, 99.9 % 10.0, 99.99 % 11.0, max 11.5\n"
    );
    let request = fake.last_request();
    assert_eq!(request["target"], json!({ "region": { "name": "box", "offset": 8 } }));
    assert_eq!((&request["load"], &request["rate"]), (&json!("write"), &Value::Null));
    assert_eq!(request["connect"]["ulp"], "rdmap");

    let more =
        ["--streams", "4", "--size", "1KiB", "--depth", "2", "--time", "3s", "--rate", "500"];
    let to = ["--to", "rdmap+sctp://10.0.0.2:7471", "--udp-port", "9899"];
    let job = fake.run_json(&[&["bench", "echo"], &to[..], &more].concat());
    assert_eq!((&job["kind"], &job["bench"]["messages"]), (&json!("bench"), &json!(4000)));
    assert_eq!(job["bench"]["latency"]["p999_ns"], 10_000);
    let request = fake.last_request();
    let wanted = json!({
        "streams": 4, "size": 1024, "depth": 2, "time_us": 3_000_000, "rate": 500, "queue": 0
    });
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(request[key], *value, "{key}");
    }
    let connect = &request["connect"];
    assert_eq!((&connect["transport"], &connect["udp_port"]), (&json!("sctp"), &json!(9899)));
    assert!(
        fake.run_ok(&[&["bench", "send"], &to[..], &more].concat()).contains("open loop of 500/s")
    );
    let text = fake.run_ok(&[&["bench", "connect"], &to[..]].concat());
    let begin = "connect to 10.0.0.2:7471: streams 1, closed loop\n  4000 streams in 0.500 s: 8000 streams/s\n";
    assert!(text.starts_with(begin), "{text}");
}

#[test]
fn bench_failure_sets_exit_code_and_message() {
    let fake = Fake::start();
    let to = "rdmap://10.0.0.2:7471";
    let cases: [(&[&str], &str); 7] = [
        (&["bench", "write"], "--to"),
        (&["bench", "--to", to], "required"),
        (&["bench", "fly", "--to", to], "fly"),
        (&["bench", "write", "--to", "10.0.0.2:7471"], "does not begin with"),
        (&["bench", "write", "--to", to, "--size", "0"], "1 byte or more"),
        (&["bench", "write", "--to", to, "--size", "5GiB"], "less than 4GiB"),
        (&["bench", "write", "--to", to, "--time", "soon"], "soon"),
    ];
    for (arguments, sentence) in cases {
        let ran = fake.run_ctl(arguments);
        assert_eq!(ran.exit, Exit::Usage, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(sentence), "{arguments:?}: {}", ran.err);
    }
    assert_eq!(fake.request_count(), 0);
    // Partial results are printed in addition to the reason of the failure.
    let ran = fake.run_ctl(&["bench", "write", "--to", "rdmap://10.0.0.2:1"]);
    assert_eq!(ran.exit, Exit::Refused);
    assert_eq!(ran.err, "ddpctl: after 4000 messages: it offers: none\n");
    assert!(ran.out.contains("8000 messages/s"), "{}", ran.out);
}
