//! Tests of puts from the standard input, and of a sparse file that exceeds the memory ceiling.

use std::io::Write as _;
use std::process::{Output, Stdio};

use api::{EventKind, JobState};

use super::common::{Ddpd, Setup, wait_for};
use super::{REGION, region_target};

/// Runs `ddpctl put -` with these bytes as input.
fn put(ddpd: &Ddpd, bytes: &[u8]) -> Output {
    let mut command = crate::common::ddpctl();
    command.arg("--socket").arg(ddpd.path("source.sock"));
    command.args(["put", "-", "tcp://10.9.0.1:7471/inbox"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A failed write is ignored: the put may fail before ddpctl has read all bytes.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    child.wait_with_output().unwrap()
}

#[test]
fn stdin_is_put_to_eof_and_fails_if_region_is_full() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let (_, bytes) = ddpd.file("file", 9 << 20);
    let output = put(&ddpd, &bytes[..5_000_001]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_for(&ddpd.sink, |kind| matches!(kind, EventKind::StreamClosed { .. }));
    assert_eq!(ddpd.region("inbox").placed, 5_000_001);
    // The region has 8 MiB.
    let output = put(&ddpd, &bytes);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        stderr.contains("region `inbox` has 8388608 bytes from offset 0 on, and the pipe has more"),
        "{stderr}"
    );
    let left = std::fs::read_dir(ddpd.path("")).unwrap();
    let fifos = left
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "fifo"));
    assert_eq!(fifos.count(), 0, "no FIFO is left");
    let (status, dir) = ddpd.end();
    assert!(status.success(), "{status}");
    // The second put filled the region with the bytes that fit.
    assert!(std::fs::read(dir.path().join("inbox.bin")).unwrap() == bytes[..8 << 20]);
}

#[test]
fn sparse_file_is_put_in_bounded_memory() {
    let limit = "[limits]\nmemory = \"96 MiB\"\nbuffers_per_worker = \"8 MiB\"\nheld_per_worker = \"8 MiB\"\n\
                 kept_per_worker = \"8 MiB\"\n";
    let sink = REGION.replace("8 MiB", "128 MiB");
    let ddpd = Ddpd::start(&Setup { sink: &sink, source: limit, ..Setup::default() });
    let path = ddpd.path("sparse");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(128 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 100 << 20).unwrap();
    let job = ddpd.put(region_target(&path, "inbox"));
    assert_eq!((job.state, &job.error), (JobState::Done, &None));
    assert_eq!(ddpd.status(&ddpd.source).memory.jobs, 0, "free again");
    file.set_len(1 << 40).unwrap();
    let job = ddpd.put(region_target(&path, "inbox"));
    assert!(job.error.unwrap().contains("1099511627776 bytes at offset 0 do not fit into"));
    let (status, dir) = ddpd.end();
    assert!(status.success(), "{status}");
    let got = std::fs::read(dir.path().join("inbox.bin")).unwrap();
    assert_eq!((got.len(), &got[100 << 20..][..6]), (128 << 20, &b"middle"[..]));
}
