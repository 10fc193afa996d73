//! Tests of `ddpctl` with a fake control thread behind the API's real socket.

mod bench;
mod config;
mod timeouts;
mod verbs;

use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc;

use api::fake::{self, Fake, only_viewers};
use api::{EventKind, StreamId};
use serde_json::{Value, json};

use super::*;

pub(super) struct RunResult {
    pub(super) exit: Exit,
    pub(super) out: String,
    pub(super) err: String,
}

pub(super) fn ddpctl(arguments: &[&str]) -> RunResult {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = std::iter::once("ddpctl").chain(arguments.iter().copied());
    let exit = run(arguments.map(OsString::from), &mut out, &mut err, false);
    RunResult { exit, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// Runs `ddpctl` command lines against the fake appliance.
pub(super) trait Commands {
    fn run_ctl(&self, arguments: &[&str]) -> RunResult;
    fn run_ok(&self, arguments: &[&str]) -> String;
    fn run_json(&self, arguments: &[&str]) -> Value;
}

impl Commands for Fake {
    fn run_ctl(&self, arguments: &[&str]) -> RunResult {
        let socket = self.socket().to_str().unwrap();
        ddpctl(&[&["--socket", socket], arguments].concat())
    }

    fn run_ok(&self, arguments: &[&str]) -> String {
        let ran = self.run_ctl(arguments);
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Success, ""), "{arguments:?}");
        ran.out
    }

    fn run_json(&self, arguments: &[&str]) -> Value {
        let text = self.run_ok(&[&["--json"], arguments].concat());
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn forbidden_error_hints_access_key() {
    let fake = Fake::start_for(only_viewers());
    assert!(fake.run_ok(&["status"]).contains("uptime"));
    let ran = fake.run_ctl(&["reload"]);
    assert_eq!(ran.exit, Exit::Failed);
    let sentence = "POST /v1/reload takes the role admin; uid 1 has view\n";
    let hint = "hint: management.access.admin = [\"user:1\"], or one of its groups, gives it, after a restart of ddpd\n";
    assert!(ran.err.contains(sentence) && ran.err.ends_with(hint), "{}", ran.err);
    let json = fake.run_ctl(&["--json", "reload"]).err;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["error"], "forbidden");
}

#[test]
fn text_output_prints_tables() {
    let fake = Fake::start();
    let status = fake.run_ok(&["status"]);
    assert!(status.contains("uptime         1h 2m 3s\n"), "{status}");
    assert!(status.contains("note           no hugepages: ordinary pages are used\n"), "{status}");
    assert_eq!(
        fake.run_ok(&["regions", "list"]),
        "REGION  SIZE    ACCESS  SHARED  STAG        BASE TO  BACKING    BOUND TO  HELD  IDLE  LOCKED  PLACED  \
         MESSAGES\n\
         inbox   64 MiB  rw      no      0x0badcafe  4096     anonymous  -         -     -     no      0       0\n"
    );
    let listeners = fake.run_ok(&["listeners"]);
    assert!(listeners.contains("10.0.0.1:7471 [fd00::1]:7471"), "{listeners}");
    let streams = fake.run_ok(&["streams", "list"]);
    assert!(streams.contains("0001000000000007  ingest"), "{streams}");
    let stream = fake.run_ok(&["streams", "show", "1000000000007"]);
    for line in [
        "rtt            420 us +- 31 us\n",
        "cwnd           140.0 KiB\n",
        "delivery_rate  1.00 Gbit/s\n",
        "pacing_rate    -\n",
        "limited_by     congestion_window (75.0 % of its time)\n",
        "limited        congestion_window 75.0 %, application 25.0 %\n",
    ] {
        assert!(stream.contains(line), "{line:?} in {stream}");
    }
    let columns = fake.run_ok(&["streams", "list", "--columns", "stream,rtt,limited-by"]);
    assert_eq!(
        columns,
        "STREAM            RTT     LIMITED BY\n0001000000000007  420 us  congestion_window\n"
    );
    assert_eq!(fake.run_ok(&["streams", "list", "--listener", "other"]), "none\n");
    for lists in ["regions", "listeners", "streams", "associations", "jobs", "programs"] {
        assert_eq!(fake.run_ok(&[lists]), fake.run_ok(&[lists, "list"]), "{lists}");
    }
    assert!(stream.contains("placed_in_order_bytes      1048576"), "{stream}");
    let placed = fake.run_ok(&["streams", "list", "--columns", "placed,sent", "--sort", "placed"]);
    assert_eq!(placed, "PLACED   SENT\n1.5 MiB  4.0 KiB\n");
    assert_eq!(
        fake.run_ok(&["associations", "list"]),
        "ASSOCIATION       LOCAL          REMOTE          UDP        STATE        SESSIONS  PATH MTU  \
         RTT     CWND   IN FLIGHT  RETRANSMITTED\n\
         0001000000000009  10.0.0.1:7471  10.0.0.2:40000  9899>4000  established  3/256     1400      \
         210 us  65536  2800       5\n"
    );
    let association = fake.run_ok(&["associations", "show", "0001000000000009"]);
    assert!(association.contains("\nrto            50.4 ms\n"), "{association}");
    assert!(association.ends_with("\nsctp_packets_in         77\n"), "{association}");
    let stats = fake.run_ok(&["stats"]);
    assert!(stats.contains("worker 0: dropped\n  bad_checksum  2\n"), "{stats}");
    assert!(!stats.contains("no_listener"), "{stats}");
    assert!(fake.run_ok(&["stats", "--all"]).contains("no_listener"));
    assert!(fake.run_ok(&["ports"]).contains("\nlan        p0    -     0    10.0.0.1/24\n"));
    assert!(fake.run_ok(&["workers"]).contains("25 %"));
    let programs = fake.run_ok(&["programs"]);
    assert!(programs.contains("\n3        ping_pong  1000  4321  attached  2 "), "{programs}");
    for command in ["show", "kill"] {
        let shown = fake.run_ok(&["programs", command, "3"]);
        assert!(shown.ends_with("listeners: tcp 0.0.0.0:7471\n"), "{shown}");
    }
    assert!(fake.run_ok(&["jobs"]).contains("running"));
    assert_eq!(fake.run_ok(&["log"]), "filter info, written as text, 3 lines suppressed\n");
    assert!(fake.run_ok(&["log", "info,control=debug"]).starts_with("filter info,control=debug,"));
    assert!(fake.run_ok(&["metrics"]).contains("\nddpd_streams 1\n"));
    assert_eq!(
        fake.run_ok(&["reload"]),
        "applied: region \"new\" added\nneeds a restart: [workers] changed\n"
    );
    assert_eq!(fake.run_ok(&["drain"]), "new streams and jobs are refused; 1 stream is left\n");
    assert_eq!(fake.run_ok(&["undrain"]), "new streams and jobs are taken again\n");
    let ran = fake.run_ctl(&["drain", "--wait", "0"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("1 stream is left after 0 s"), "{}", ran.err);
}

#[test]
fn json_output_prints_api_objects() {
    let fake = Fake::start();
    assert_eq!(fake.run_json(&["status"])["name"], "fake");
    assert_eq!(fake.run_json(&["regions", "list"])[0]["stag"], "0x0badcafe");
    assert_eq!(fake.run_json(&["streams", "show", "0001000000000007"])["mpa"]["mulpdu"], 1428);
    assert_eq!(fake.run_json(&["associations", "list"])[0]["udp"], json!([9899, 4000]));
    let association = fake.run_json(&["associations", "show", "0001000000000009"]);
    assert_eq!((&association["path_mtu"], &association["sessions"]), (&json!(1400), &json!(3)));
    assert_eq!(fake.run_json(&["stats"])["workers"][0]["drops"]["bad_checksum"], 2);
    assert_eq!(fake.run_json(&["streams", "close", "0001000000000007"]), json!({}));
    assert_eq!(fake.run_json(&["listeners", "remove", "ingest"]), json!({}));
    assert_eq!(fake.run_json(&["connect", "[fd00::2]:7471"])["state"], "established");
}

#[test]
fn region_is_added_and_removed_by_ddpctl() {
    let fake = Fake::start();
    let args = ["regions", "add", "x", "--size", "1MiB", "--access", "r", "--shared"];
    let region = fake.run_json(&args);
    assert_eq!((&region["size"], &region["access"]), (&json!(1 << 20), &json!("r")));
    let again = fake.run_ctl(&args);
    assert_eq!(again.exit, Exit::Failed);
    assert_eq!(again.err, "ddpctl: there is a region \"x\" already\n");
    assert!(fake.run_ok(&["regions", "set-access", "x", "r"]).contains(" r "));
    let wrong = fake.run_ctl(&["regions", "set-access", "x", "all"]);
    assert_eq!(wrong.exit, Exit::Usage);
    assert!(wrong.err.contains("access: is not \"r\""), "{}", wrong.err);
    fake.run_ok(&["regions", "add", "xyz", "--size", "1MiB"]);
    for command in ["set-access yzx r", "read yzx", "remove yzx"] {
        let words: Vec<&str> = ["regions"].into_iter().chain(command.split(' ')).collect();
        let unknown = fake.run_ctl(&words);
        assert_eq!(unknown.exit, Exit::Failed, "{command}");
        assert!(unknown.err.contains("there is no region `yzx`"), "{}", unknown.err);
        assert!(unknown.err.contains("hint: the regions are "), "{}", unknown.err);
    }
    fake.run_ok(&["regions", "remove", "xyz"]);
    assert_eq!(
        fake.run_ok(&["regions", "remove", "x", "--force"]),
        "region \"x\" is removed: no byte can be placed in it\n"
    );
    let bad = fake.run_ctl(&["regions", "add", "y", "--size", "huge"]);
    assert_eq!(bad.exit, Exit::Usage);
    assert!(bad.err.contains("region.size: is \"huge\""), "{}", bad.err);
}

#[test]
fn region_bytes_are_read_by_ddpctl() {
    let fake = Fake::start();
    let file = fake.dir().join("copy");
    let path = file.to_str().unwrap();
    let answer = fake.run_json(&["regions", "read", "inbox", "--output", path]);
    assert_eq!(answer["bytes"], 64 << 20);
    let copy = std::fs::read(&file).unwrap();
    assert_eq!(copy.len(), 64 << 20);
    assert!(copy.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    assert_eq!(
        fake.run_ok(&["regions", "read", "inbox", "--offset", "65", "--length", "3"]),
        "ABC"
    );
    let wrong = fake.run_ctl(&["regions", "read", "inbox", "--offset", "0x4000001"]);
    assert_eq!(wrong.exit, Exit::Usage);
    assert!(wrong.err.contains("region \"inbox\" has 67108864 bytes"), "{}", wrong.err);
    assert_eq!(fake.run_ctl(&["regions", "read", "none"]).exit, Exit::Failed);
}

#[test]
fn listeners_are_added_from_json() {
    let fake = Fake::start();
    let file = fake.dir().join("listener.json");
    let body = json!({ "name": "late", "interface": "lan", "port": 7472 });
    std::fs::write(&file, body.to_string()).unwrap();
    let path = file.to_str().unwrap();
    assert_eq!(fake.run_json(&["listeners", "add", path])["name"], "late");
    assert_eq!(fake.run_json(&["listeners", "add", "--file", path])["name"], "late");
    assert_eq!(fake.run_ctl(&["listeners", "add"]).exit, Exit::Usage);
    std::fs::write(&file, "{").unwrap();
    let bad = fake.run_ctl(&["listeners", "add", path]);
    assert_eq!(bad.exit, Exit::Usage);
    assert!(bad.err.contains("listener.json is not JSON"), "{}", bad.err);
}

#[test]
fn put_through_appliance_waits_for_completion() {
    let fake = Fake::start();
    let file = fake.dir().join("file");
    std::fs::write(&file, "content").unwrap();
    let file = file.to_str().unwrap();
    let summary = fake.run_json(&["put", file, "tcp://10.0.0.2:7471/inbox@4096"]);
    assert_eq!(
        (&summary["bytes"], &summary["via"], &summary["job"]),
        (&json!(4000), &json!("appliance"), &json!(1))
    );
    assert_eq!(
        fake.run_ok(&["put", file, "tcp://10.0.0.2:7471/inbox"]),
        "/tmp/file to 10.0.0.2:7471: 3.9 KiB in 0.500 s, 0.000 Gbit/s\n"
    );
}

#[test]
fn detached_put_returns_at_once() {
    let fake = Fake::start();
    let file = fake.dir().join("file");
    std::fs::write(&file, "content").unwrap();
    let args = ["put", "--detach", file.to_str().unwrap(), "tcp://10.0.0.2:7471/inbox"];
    assert_eq!(fake.run_ok(&args), "job 1 runs: ddpctl jobs show 1\n");
}

#[test]
fn put_refuses_bad_arguments_before_any_request() {
    let fake = Fake::start();
    let file = fake.dir().join("file");
    std::fs::write(&file, "content").unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[&str], &str); 11] = [
        (&["--kernel", file, "rdmap://10.0.0.2:1/r"], "leave out --kernel for rdmap://"),
        (&["--kernel", file, "sctp://10.0.0.2:1/r"], "leave out --kernel for sctp://"),
        (&["--kernel", file, "tcp://10.0.0.2:1/r", "--mpa-rev", "2"], "leave out --mpa-rev"),
        (&["/none", "tcp://10.0.0.2:1/r"], "/none: No such file or directory"),
        (&["--kernel", "/none", "tcp://10.0.0.2:1/r"], "/none: No such file or directory"),
        (&[file, "tcp://10.0.0.2:1"], "no region is named: write tcp://"),
        (&[file, "rdmap://10.0.0.2:1"], "no region is named: write rdmap://"),
        (&[file, "tcp://10.0.0.2:1/r", "--stag", "1", "--to", "0"], "both name the place"),
        (&[file, "tcp://10.0.0.2:1/r", "--mpa-rev", "start-key"], "a Start Key carries no region"),
        (&[file, "tcp://10.0.0.2:1", "--stag", "1"], "--to"),
        (&[file, "10.0.0.2:1/r"], "does not begin with tcp://"),
    ];
    for (arguments, sentence) in cases {
        let ran = fake.run_ctl(&[&["put"], arguments].concat());
        assert_eq!(ran.exit, Exit::Usage, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(sentence), "{arguments:?}: {}", ran.err);
    }
    assert_eq!(fake.request_count(), 0);
}

#[test]
fn put_and_serve_kernel_transfer_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (source, sink) = (dir.path().join("source"), dir.path().join("sink"));
    let content: Vec<u8> =
        (0..300_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&source, &content).unwrap();
    let (sender, lines) = mpsc::channel();
    let sink_path = sink.clone();
    let server = std::thread::spawn(move || {
        let mut out = Lines(sender, Vec::new());
        let arguments = [
            "ddpctl",
            "--json",
            "serve-kernel",
            "127.0.0.1:0",
            "--region",
            "in",
            "--size",
            "1MiB",
            "--file",
            sink_path.to_str().unwrap(),
            "--connections",
            "3",
            "--base-to",
            "0x1000",
        ];
        run(arguments.map(OsString::from), &mut out, &mut std::io::sink(), false)
    });
    let listening = lines.recv().unwrap();
    let address = listening["address"].as_str().unwrap();
    let stag = listening["stag"].as_str().unwrap();
    let source = source.to_str().unwrap();
    let ran = ddpctl(&["--json", "put", "--kernel", source, &format!("tcp://{address}/in@4096")]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Success, ""));
    let summary: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&summary["bytes"], &summary["via"]), (&json!(300_000), &json!("kernel")));
    assert_eq!(summary["mpa"]["markers_tx"], true);
    assert_eq!(std::fs::read(&sink).unwrap()[4096..304_096], content);

    // The exit code is the same as for a transfer through an appliance.
    let ran = ddpctl(&["put", "--kernel", source, &format!("tcp://{address}/out")]);
    assert_eq!(ran.exit, Exit::Refused, "{}", ran.err);
    assert!(ran.err.contains("the peer has no region `out`; it advertises: in"), "{}", ran.err);

    let place = ["--stag", stag, "--to", "0x1000", "--mpa-rev", "start-key", "--markers", "off"];
    let url = format!("tcp://{address}");
    let ran = ddpctl(&[&["put", "--kernel", source, &url], &place[..]].concat());
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Success, ""));
    assert!(ran.out.contains("293.0 KiB in "), "{}", ran.out);
    assert_eq!(std::fs::read(&sink).unwrap()[..300_000], content);
    assert_eq!(server.join().unwrap(), Exit::Success);
    let events: Vec<Value> = lines.iter().collect();
    assert_eq!(events.last().unwrap()["complete"], 3, "{events:?}");
}

/// A writer that parses each complete line as JSON and sends it to a channel.
struct Lines(mpsc::Sender<Value>, Vec<u8>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(bytes);
        while let Some(end) = self.1.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.1.drain(..=end).collect();
            self.0.send(serde_json::from_slice(&line).unwrap()).map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn messages_are_sent_and_echoed() {
    let fake = Fake::start();
    assert_eq!(
        fake.run_ok(&["send", "1000000000007", "hello"]),
        "5 bytes sent, confirmed, acknowledged in 150 us\n"
    );
    assert_eq!(fake.run_ok(&["send", "10.0.0.2:7471", "hello", "--wait-reply", "1s"]), "hello\n");
    let file = fake.dir().join("m");
    std::fs::write(&file, [1, 2, 255]).unwrap();
    let path = file.to_str().unwrap();
    let args = ["send", "10.0.0.2:7471", "--file", path, "--queue", "3", "--wait-reply", "1ms"];
    assert_eq!(fake.run_ok(&args), "0x0102ff\n");
    assert_eq!(fake.run_json(&args)["reply"], "AQL/");
}

#[test]
fn events_are_listed_and_followed() {
    let fake = Fake::start();
    for _ in 0..1500 {
        fake.events.push(EventKind::Draining);
    }
    fake.events.push(fake::message("in", 2, b"hi \"you\""));
    let text = fake.run_ok(&["events"]);
    assert!(text.starts_with("(500 earlier events were overwritten)\n"), "{text:.80}");
    let last = text.lines().last().unwrap();
    assert!(
        last.contains(" 1501 message data=\"hi \\\"you\\\"\" listener=in msn=1 queue=2"),
        "{last}"
    );
    assert_eq!(text.lines().count(), 1002);
    assert_eq!(fake.run_ok(&["events", "--count", "3", "--after", "600"]).lines().count(), 3);
    let messages = fake.run_json(&["events", "--messages", "--queue", "2", "--listener", "in"]);
    assert_eq!(messages["seq"], 1501);
    let followed =
        fake.run_ok(&["--json", "events", "--follow", "--after", "1499", "--count", "2"]);
    let seqs: Vec<Value> = followed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].clone())
        .collect();
    assert_eq!(seqs, [json!(1500), json!(1501)]);
}

#[test]
fn events_are_selected() {
    let fake = Fake::start();
    let (stream, listener) = (StreamId(9), Some("in".to_owned()));
    let (layer, code, reason) = ("ddp".into(), "1/02".into(), "why".into());
    fake.events.push(EventKind::Draining);
    fake.events.push(EventKind::StreamEstablished { stream, listener, remote: "r".into() });
    fake.events.push(EventKind::StreamError { stream, layer, code, reason });
    fake.events.push(EventKind::Warning { message: "w".into() });
    let seqs = |args: &[&str]| -> Vec<Value> {
        let all = [&["--json", "events"], args].concat();
        let lines = fake.run_ok(&all);
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|event| event["seq"].clone()).collect()
    };
    assert_eq!(seqs(&["--severity", "error"]), [3]);
    assert_eq!(seqs(&["--severity", "warning"]), [3, 4]);
    assert_eq!(seqs(&["--stream", "9"]), [2, 3]);
    assert_eq!(seqs(&["--listener", "in", "--severity", "warning"]), [3]);
    assert_eq!(seqs(&["--since", "1h"]), [1, 2, 3, 4]);
    assert_eq!(seqs(&["--since", "2026-01-31 12:00:00"]), [1, 2, 3, 4]);
    assert_eq!(seqs(&["--since", "2999-01-31T12:00:00Z"]), [0; 0]);
    for bad in [["--severity", "bad"], ["--since", "then"]] {
        let run = fake.run_ctl(&["events", bad[0], bad[1]]);
        assert_eq!(run.exit, Exit::Usage, "{bad:?}: {}", run.err);
        assert!(run.err.contains("write "), "{bad:?}: {}", run.err);
    }
}

#[test]
fn errors_map_to_exit_codes() {
    let fake = Fake::start();
    assert_eq!(fake.run_ctl(&["connect", "10.0.0.2:1"]).exit, Exit::Refused);
    assert_eq!(fake.run_ctl(&["streams", "show", "5"]).exit, Exit::Failed);
    assert_eq!(fake.run_ctl(&["associations", "show", "5"]).exit, Exit::Failed);
    assert_eq!(fake.run_ctl(&["streams", "show", "x"]).exit, Exit::Usage);
    assert_eq!(fake.run_ctl(&["no-such-command"]).exit, Exit::Usage);
    assert_eq!(ddpctl(&["--version"]).exit, Exit::Success);
    let help = ddpctl(&["--help"]);
    assert_eq!((help.exit, help.err.as_str()), (Exit::Success, ""));
    assert!(help.out.contains("Exit codes: 0 done"), "{}", help.out);
    let unreachable = ddpctl(&["--socket", "/nonexistent/s", "status"]);
    assert_eq!(unreachable.exit, Exit::Unreachable);
    assert!(
        unreachable.err.contains("cannot reach the appliance at /nonexistent/s"),
        "{}",
        unreachable.err
    );
    assert!(unreachable.err.contains("is ddpd running?"), "{}", unreachable.err);
}

#[test]
fn errors_are_printed_as_json() {
    let fake = Fake::start();
    let ran = fake.run_ctl(&["--json", "streams", "show", "5"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, ""));
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(
        error,
        json!({
            "error": "not_found", "message": "there is no stream 0000000000000005"
        })
    );
}

#[test]
fn completions_and_man_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = ddpctl(&["completions", shell]);
        assert_eq!(ran.exit, Exit::Success);
        assert!(ran.out.contains("serve-kernel"), "{shell}");
        let ran = ddpctl(&["completions", shell, "--program", "ddpd"]);
        assert_eq!(ran.exit, Exit::Success);
        assert!(ran.out.contains("no-machine") && !ran.out.contains("serve-kernel"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    assert_eq!(ddpctl(&["man", man.to_str().unwrap()]).exit, Exit::Success);
    for page in ["ddpctl.1", "ddpctl-put.1", "ddpctl-regions-add.1", "ddpd.8", "ddpd-check.8"] {
        assert!(man.join(page).exists(), "{page}");
    }
    for (page, says) in [
        ("ddpctl-get.1", "Output file; created or truncated"),
        ("ddpctl-ping.1", "rping"),
        ("ddpctl-fetch-add.1", "Value to add"),
        ("ddpctl-compare-swap.1", "Expected value"),
        ("ddpd.8", ".TH ddpd 8"),
        ("ddpd.8", "ddpd\\-check(8)"),
        ("ddpd.8", ".SH SIGNALS\n"),
        ("ddpd.8", ".SH \"SEE ALSO\"\nddpctl(1), ddpd.toml(5)\n"),
        ("ddpctl.1", ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nDone.\n"),
        ("ddpctl.1", ".SH EXAMPLES\n.TP\n\\fBddpctl status\\fR\n"),
        ("ddpctl.1", ".SH FILES\n"),
    ] {
        let text = std::fs::read_to_string(man.join(page)).unwrap();
        assert!(text.contains(says), "{page}: {text}");
    }
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let failed = ddpctl(&["man", Path::new(&file).join("x").to_str().unwrap()]);
    assert_eq!(failed.exit, Exit::Failed);
}

#[test]
fn ddpctl_command_line_is_consistent() {
    use clap::CommandFactory;
    Args::command().debug_assert();
}
