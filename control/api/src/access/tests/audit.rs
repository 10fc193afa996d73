//! Tests of the audit's files: contents, lost and omitted lines, rotation.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};

use super::super::audit::{PendingCall, refused_path};
use super::super::audit_file::AuditFile;
use super::*;
use crate::{EventLog, Server, channel};

/// Starts a server with an audit file and without a control thread. Requests remain in the returned inbox.
fn server_without_control(dir: &Path) -> (Server, crate::Inbox, Arc<AccessTally>) {
    let section = AuditSection { file: Some(dir.join("audit.jsonl")), ..no_audit() };
    let access = Access::open(&AccessSection::default(), &section).unwrap();
    let tally = access.tally();
    let (requester, inbox) = channel().unwrap();
    let server = Server::start(&dir.join("s"), requester, EventLog::new(1, 1), 1024, access);
    (server.unwrap(), inbox, tally)
}

fn post(socket: &Path, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Polls `value` until it returns `Some`, for at most 20 s.
fn poll_until<T>(mut value: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = value() {
            return found;
        }
        assert!(Instant::now() < end, "no value within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn audit_line_has_caller_call_outcome_and_no_secret() {
    let appliance = Appliance::start();
    let body = r#"{"name": "x", "secret": "sesame"}"#;
    assert_eq!(appliance.request(&user(2), "POST", "/v1/regions?key=sesame", body).0, 400);
    let long = format!("/v1/regions/{}", "x".repeat(300));
    assert_eq!(appliance.request(&user(2), "DELETE", &long, "").0, 404);
    for name in ["audit.jsonl", "audit.jsonl.refused"] {
        let file = appliance.dir.path().join(name);
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o137, 0);
    }
    let lines = appliance.audit_lines();
    let mut first = lines[0].clone();
    let time = first.as_object_mut().unwrap().remove("time").unwrap();
    assert!(humantime::parse_rfc3339(time.as_str().unwrap()).is_ok(), "{time}");
    let expected = serde_json::json!({
        "uid": 2, "gid": 100, "pid": 4321, "role": "operate", "method": "POST", "path": "/v1/regions",
        "status": 400, "error": "bad_request",
    });
    assert_eq!(first, expected);
    let path = lines[1]["path"].as_str().unwrap();
    assert!(path.len() < 270 && path.ends_with('…'), "{path}");
    assert_eq!(lines[1]["error"], "not_found");
}

/// Records a call directly, without a connection.
fn record_call(access: &Arc<Access>, (uid, role): (u32, Role), path: &str, status: u16) {
    let caller = Caller { uid, gid: 100, pid: 1, role: Some(role) };
    let mut entry = PendingCall::new(access, caller, &Method::POST, path);
    entry.set_recorded(true);
    entry.finish(StatusCode::from_u16(status).unwrap(), None);
}

/// Returns the total length of a file and its rotated files, bytes.
fn bytes(path: &Path) -> u64 {
    let numbered = (0..9).map(|n| match n {
        0 => path.to_owned(),
        n => path.with_file_name(format!("{}.{n}", path.file_name().unwrap().to_str().unwrap())),
    });
    numbered.filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum()
}

#[test]
fn refused_calls_do_not_displace_audit_lines_of_changes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    let section = AuditSection { file: Some(file.clone()), max_size: 64 << 10, keep: 1 };
    let access = Arc::new(Access::open(&AccessSection::default(), &section).unwrap());
    let long = format!("/v1/regions/{}", "x".repeat(240));
    let (changes, refusals) = (200, 500);
    for n in 0..changes {
        for _ in 0..refusals {
            record_call(&access, (1, Role::View), &long, 403);
            record_call(&access, (2, Role::Operate), &long, 404);
        }
        record_call(&access, (3, Role::Admin), &format!("/v1/change/{n}"), 200);
    }
    let tally = access.tally();
    drop(access);
    let recorded: Vec<_> = lines(&file).iter().map(|line| line["path"].clone()).collect();
    let expected: Vec<Value> = (0..changes).map(|n| format!("/v1/change/{n}").into()).collect();
    assert_eq!(recorded, expected);
    let refused = refused_path(&file);
    assert!(bytes(&refused) <= 2 * section.max_size, "{} bytes", bytes(&refused));
    // Each call has a line or is included in the number of omitted calls.
    let mut calls = std::collections::BTreeMap::<u64, u64>::new();
    for line in lines(&refused) {
        *calls.entry(line["uid"].as_u64().unwrap()).or_default() +=
            line["left_out"].as_u64().unwrap_or(1);
    }
    let each = changes * refusals;
    assert_eq!(calls, [(1, each), (2, each)].into());
    assert_eq!((tally.lines_lost(), tally.lines_omitted() > 2 * each - 1000), (0, true));
}

#[test]
fn call_refused_by_overload_is_audited() {
    let dir = tempfile::tempdir().unwrap();
    let (server, inbox, _) = server_without_control(dir.path());
    drop(inbox);
    let mut answer = String::new();
    let mut stream = post(server.path(), "/v1/reload");
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    drop(server);
    let line = lines(&dir.path().join("audit.jsonl")).remove(0);
    let fields = ["role", "path", "status", "error"].map(|key| line[key].clone());
    let expected: [Value; 4] =
        ["admin".into(), "/v1/reload".into(), 503.into(), "unavailable".into()];
    assert_eq!(fields, expected, "{answer}");
}

#[test]
fn change_is_audited_if_client_hangs_up() {
    let dir = tempfile::tempdir().unwrap();
    let (server, inbox, _) = server_without_control(dir.path());
    let stream = post(server.path(), "/v1/reload");
    let _call = poll_until(|| inbox.try_recv());
    drop(stream);
    let file = dir.path().join("audit.jsonl");
    let line = poll_until(|| lines(&file).into_iter().next());
    assert_eq!((&line["path"], &line["status"]), (&"/v1/reload".into(), &Value::Null));
}

#[test]
fn unwritable_audit_lines_are_counted_and_calls_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let (server, inbox, tally) = server_without_control(dir.path());
    drop(inbox);
    // A directory replaces the file, so that the file cannot be opened for writing.
    let file = dir.path().join("audit.jsonl");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    // The client must stay connected until the server has read its request. An earlier disconnect would cancel the
    // request.
    let first = post(server.path(), "/v1/reload");
    poll_until(|| (tally.lines_lost() == 1).then_some(()));
    drop(first);
    std::fs::remove_dir(&file).unwrap();
    let _second = post(server.path(), "/v1/reload");
    assert_eq!(
        poll_until(|| file.exists().then(|| lines(&file)).filter(|l| !l.is_empty())).len(),
        1
    );
    assert_eq!(tally.lines_lost(), 1);
}

#[test]
fn full_audit_file_is_rotated_and_count_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut file = AuditFile::open(&path, 20, 2).unwrap();
    for at in 0..8 {
        file.write(format!("line {at:3}\n").as_bytes()).unwrap();
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(read("a"), "line   6\nline   7\n");
    assert_eq!(read("a.1"), "line   4\nline   5\n");
    assert_eq!(read("a.2"), "line   2\nline   3\n");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    // A second writer, as in another process, appends to the same file.
    let mut file = AuditFile::open(&path, 20, 2).unwrap();
    file.write(b"x\n").unwrap();
    file.write(b"longer than twenty bytes is a line\n").unwrap();
    assert_eq!(read("a.1"), "line   6\nline   7\nx\n");
}

#[test]
fn moved_audit_file_is_recreated_and_torn_line_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::write(&path, "torn").unwrap();
    let mut file = AuditFile::open(&path, 1000, 2).unwrap();
    file.write(b"one\n").unwrap();
    std::fs::rename(&path, &moved).unwrap();
    file.write(b"two\n").unwrap();
    assert_eq!(std::fs::read_to_string(moved).unwrap(), "torn\none\n");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "two\n");
}

#[test]
fn audit_refuses_symlinks_and_special_files() {
    let dir = tempfile::tempdir().unwrap();
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(AuditFile::open(&link, 1000, 1).is_err());
    assert!(AuditFile::open(Path::new("/dev/null"), 1000, 1).is_err());
    assert!(AuditFile::open(dir.path(), 1000, 1).is_err());
    // A symbolic link that replaces the open file is not followed either.
    let path = dir.path().join("a");
    let mut file = AuditFile::open(&path, 1000, 1).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert!(file.write(b"line\n").is_err());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn programs_that_attach_end_or_are_refused_have_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let section = AuditSection { file: Some(file.clone()), ..no_audit() };
    let access = Access::open(&AccessSection::default(), &section).unwrap();
    let audit = access.audit_log();
    let program = AuditedProgram { uid: 1000, pid: 7, program: Some(3), name: "x" };
    audit.program_attached(program);
    audit.program_ended(program);
    audit.program_refused(AuditedProgram { program: None, ..program }, "no right");
    AuditLog::default().program_attached(program);
    // Dropping the last handle writes all lines.
    drop((access, audit));
    let lines = |path: &Path| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        let line = |line: &str| {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line.as_object_mut().unwrap().remove("time").is_some());
            line
        };
        text.lines().map(line).collect()
    };
    let line = |action| serde_json::json!({"uid": 1000, "pid": 7, "action": action, "program": 3, "name": "x"});
    assert_eq!(lines(&file), [line("attach"), line("end")]);
    let refused = serde_json::json!({
        "uid": 1000, "pid": 7, "action": "refuse", "program": null, "name": "x", "reason": "no right",
    });
    assert_eq!(lines(&refused_path(&file)), [refused]);
}
