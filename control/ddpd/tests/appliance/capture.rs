//! Captures of a running appliance: tshark reads the files; a capture ends at its limit, on request or with its client,
//! and blocks neither the API nor the workers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use api::{Client, ClientError, Done, EventKind, JobState, StreamInfo};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::common::{Ddpd, SINK, Setup, wait_for_nth};
use super::{REGION, region_target};

const PORT: &str = "/v1/ports/p/capture";
const TIMEOUT: Duration = Duration::from_secs(20);

fn ddpctl(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::common::ddpctl();
    command.arg("--socket").arg(socket).args(arguments);
    command
}

/// A running capture: its client, and the part of the file read so far.
struct Capture {
    child: Child,
    bytes: Vec<u8>,
}

impl Capture {
    fn begin(ddpd: &Ddpd, more: &[&str]) -> Capture {
        Capture::try_begin(ddpd, more).unwrap_or_else(|stderr| panic!("{stderr}"))
    }

    /// Starts a capture as soon as the thread of the previous capture has ended.
    fn begin_when_free(ddpd: &Ddpd) -> Capture {
        let began = Instant::now();
        loop {
            match Capture::try_begin(ddpd, &[]) {
                Ok(capture) => return capture,
                Err(stderr) if began.elapsed() > TIMEOUT => panic!("still captured: {stderr}"),
                Err(stderr) => assert!(stderr.contains("is being captured already"), "{stderr}"),
            }
        }
    }

    fn try_begin(ddpd: &Ddpd, more: &[&str]) -> Result<Capture, String> {
        let arguments = [&["capture", "p", "--write", "-"], more].concat();
        let mut command = ddpctl(&ddpd.path("sink.sock"), &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The appliance sends the first bytes of the file once every worker captures.
        let mut bytes = vec![0; 64];
        let out = child.stdout.as_mut().unwrap();
        if out.read_exact(&mut bytes).is_err() {
            let result = child.wait_with_output().unwrap();
            return Err(String::from_utf8(result.stderr).unwrap());
        }
        Ok(Capture { child, bytes })
    }

    /// Ends the capture like Ctrl-C. Returns the file and the client's standard error.
    fn end(self) -> (Vec<u8>, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.wait()
    }

    /// Waits for the end of the capture. Returns the file and the client's standard error.
    fn wait(mut self) -> (Vec<u8>, String) {
        let Output { status, stdout, stderr } = self.child.wait_with_output().unwrap();
        let stderr_text = String::from_utf8(stderr).unwrap();
        assert!(status.success(), "{stderr_text}");
        self.bytes.extend(stdout);
        (self.bytes, stderr_text)
    }
}

/// Returns the lines that tshark prints for a file.
fn tshark(file: &[u8], arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", "-"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("tshark, which scripts/setup installs");
    let mut input = child.stdin.take().unwrap();
    let file = file.to_owned();
    let writer = std::thread::spawn(move || input.write_all(&file));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn fields(file: &[u8], filter: &str, names: &[&str]) -> Vec<String> {
    let names = names.iter().flat_map(|name| ["-e", name]);
    let arguments: Vec<&str> = ["-Y", filter, "-T", "fields"].into_iter().chain(names).collect();
    tshark(file, &arguments)
}

#[test]
fn tshark_reads_directions_interface_and_drop_reasons() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, workers: 2, ..Setup::default() });
    let capture = Capture::begin(&ddpd, &["--filter", "tcp or arp"]);
    let (file, bytes) = ddpd.file("file", 300_000);
    let job = ddpd.put(region_target(&file, "inbox"));
    assert_eq!((job.state, &job.error), (JobState::Done, &None));
    // No listener has this port.
    let closed_port = SINK.replace(":7471", ":7");
    let refused = ddpd.source.post::<StreamInfo>("/v1/connect", &json!({ "remote": closed_port }));
    assert!(matches!(refused, Err(ClientError::Refused(_))), "{refused:?}");
    let (file, stderr) = capture.end();

    let directions = |direction| {
        let filter = format!("frame.packet_flags_direction == {direction}");
        fields(&file, &filter, &["frame.interface_name", "ip.src"])
    };
    let (inbound, outbound) = (directions(1), directions(2));
    assert!(inbound.contains(&"p\t10.9.0.2".to_owned()), "{inbound:?}");
    assert!(outbound.contains(&"p\t10.9.0.1".to_owned()), "{outbound:?}");
    assert!(!inbound.contains(&"p\t10.9.0.1".to_owned()), "{inbound:?}");
    // The capture contains all payload bytes, and tshark recognizes the frames as iWARP.
    let sent = fields(&file, "ip.src == 10.9.0.2 && tcp", &["tcp.len"]);
    let carried: usize = sent.iter().map(|len| len.parse::<usize>().unwrap()).sum();
    assert!(carried >= bytes.len(), "{carried} bytes in {} frames", sent.len());
    assert!(!fields(&file, "iwarp_ddp", &["frame.number"]).is_empty());
    assert!(fields(&file, "_ws.malformed", &["frame.number"]).is_empty());
    // All SYNs to port 7, with and without ECN, are dropped. Port 7471 is excluded, because duplicate segments of the
    // file may be dropped there for other reasons.
    let dropped = fields(&file, "tcp.dstport == 7", &["frame.comment"]);
    assert!(!dropped.is_empty());
    assert!(dropped.iter().all(|why| why == "dropped: net_no_listener"), "{dropped:?}");
    let frames = inbound.len() + outbound.len();
    assert!(
        stderr.contains(&format!("ddpctl: {frames} of "))
            && stderr.ends_with("frames captured, 0 lost\n"),
        "{stderr}"
    );
}

#[test]
fn stream_filter_and_snap_length_limit_a_capture() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let open =
        || ddpd.source.post::<StreamInfo>("/v1/connect", &json!({ "remote": SINK })).unwrap();
    let first = open();
    wait_for_nth(&ddpd.sink, 1, |kind| matches!(kind, EventKind::StreamEstablished { .. }));
    let streams: Vec<StreamInfo> = ddpd.sink.get("/v1/streams").unwrap();
    let capture = Capture::begin(&ddpd, &["--stream", &streams[0].id.to_string(), "--snap", "60"]);
    let second = open();
    for stream in [first, second.clone()] {
        ddpd.source.delete::<Done>(&format!("/v1/streams/{}", stream.id)).unwrap();
    }
    wait_for_nth(&ddpd.sink, 2, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    let (file, _) = capture.end();
    let ports: std::collections::BTreeSet<String> = fields(&file, "tcp", &["tcp.port"])
        .into_iter()
        .flat_map(|ports| ports.split(',').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert!(ports.contains("7471") && ports.len() == 2, "{ports:?}");
    assert!(!ports.contains(second.local.rsplit(':').next().unwrap()), "{ports:?}");
    let lengths = fields(&file, "frame", &["frame.cap_len"]);
    assert!(
        !lengths.is_empty() && lengths.iter().all(|len| len.parse::<u32>().unwrap() <= 60),
        "{lengths:?}"
    );
}

#[test]
fn a_capture_ends_at_its_limit() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let capture = Capture::begin(&ddpd, &["--limit", "64KiB"]);
    let (file, _) = ddpd.file("file", 1 << 20);
    assert_eq!(ddpd.put(region_target(&file, "inbox")).state, JobState::Done);
    let (file, stderr) = capture.wait();
    assert!((32_768..=65_536).contains(&file.len()), "{}", file.len());
    assert_eq!(
        format!("{} of", tshark(&file, &[]).len()),
        stderr[8..stderr.find(" of").unwrap() + 3]
    );
}

#[test]
fn slow_capture_client_blocks_no_one_and_hang_up_ends_capture() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let mut slow_client = UnixStream::connect(ddpd.path("sink.sock")).unwrap();
    write!(slow_client, "GET {PORT} HTTP/1.1\r\nHost: ddpd\r\nConnection: close\r\n\r\n").unwrap();
    let mut head = [0; 15];
    slow_client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    // More data than ring, channel and socket can buffer.
    for round in 0..4 {
        let (file, _) = ddpd.file(&format!("file{round}"), 8 << 20);
        assert_eq!(ddpd.put(region_target(&file, "inbox")).state, JobState::Done);
    }
    let taken = ddpd.sink.post::<Done>(PORT, &json!({}));
    assert!(matches!(taken, Err(ClientError::Refused(_))), "{taken:?}");
    ddpd.sink.delete::<Done>(PORT).unwrap();
    let mut body = Vec::new();
    slow_client.read_to_end(&mut body).unwrap();
    // Option `isb_osdrop` (7) of the statistics block: frames dropped because the rings were full.
    let at = body.windows(4).rposition(|bytes| bytes == [0, 7, 0, 8]).expect("statistics");
    let lost = u64::from_be_bytes(body[at + 4..at + 12].try_into().unwrap());
    assert!(lost > 0);
    assert!(body.len() < 8 << 20, "{} bytes were buffered for the client", body.len());

    drop(slow_client);
    let mut killed = Capture::begin_when_free(&ddpd);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    // The number of frames varies: the capture may contain the last segments of streams that are ending.
    let (file, stderr) = Capture::begin_when_free(&ddpd).end();
    let frames = tshark(&file, &[]).len();
    assert!(stderr.starts_with(&format!("ddpctl: {frames} of ")), "{frames}: {stderr}");
}

#[test]
fn invalid_capture_request_is_refused_with_reason() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let socket = ddpd.path("sink.sock");
    let refusal = |arguments: &[&str]| {
        let output = ddpctl(&socket, arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), stderr.trim().to_owned())
    };
    let write = ["--write", "-"];
    let capture = |more: &[&str]| refusal(&[&["capture"], more, &write].concat());
    for (arguments, code, sentence) in [
        (&["q"][..], 1, "ddpctl: there is no port `q`: there are p"),
        (
            &["p", "--filter", "port 70000"],
            2,
            "ddpctl: filter: `port` wants a number from 0 to 65535 at `70000`",
        ),
        (&["p", "--stream", "7"], 1, "ddpctl: there is no stream 0000000000000007"),
        (
            &["p", "--limit", "1"],
            2,
            "ddpctl: --limit is 1, and must be 4096 to 1099511627776 bytes",
        ),
    ] {
        assert_eq!(capture(arguments), (code, sentence.to_owned()));
    }
    assert_eq!(capture(&["p", "--snap", "0"]).0, 2);
    assert_eq!(
        refusal(&["capture", "p", "--stop"]),
        (1, "ddpctl: no capture of port `p` runs".to_owned())
    );
    let raw = |query: &str| match ddpd.sink.get::<Done>(&format!("{PORT}?{query}")) {
        Err(ClientError::Refused(error)) => error.message,
        other => panic!("{other:?}"),
    };
    assert_eq!(raw("snap=0"), "snap: is 0, and must be 1 to 65535 bytes");
    assert_eq!(raw("limit=5"), "limit: is 5, and must be 4096 to 1099511627776 bytes");
    assert!(raw("what=5").contains("unknown field `what`"));

    let running = Capture::begin(&ddpd, &[]);
    let (code, sentence) = capture(&["p"]);
    assert_eq!(code, 1);
    assert!(
        sentence.contains("port p is being captured already") && sentence.contains("--stop"),
        "{sentence}"
    );
    let old = ddpd.path("old.pcapng");
    std::fs::write(&old, "kept").unwrap();
    assert_eq!(refusal(&["capture", "p", "--write", old.to_str().unwrap()]).0, 1);
    assert_eq!(std::fs::read(&old).unwrap(), b"kept");
    assert_eq!(refusal(&["capture", "p", "--stop"]).0, 0);
    running.wait();
    let client: &Client = &ddpd.sink;
    assert_eq!(client.get::<serde_json::Value>("/v1/status").unwrap()["state"], "running");
}
