//! Tests of the server over its real socket, with a fake control thread.

mod observe;
mod serving;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use crate::fake::Fake;
use serde_json::{Value, json};

use super::*;

/// Sends a raw HTTP request. Returns status and body of the response.
pub(super) fn raw_request(fake: &Fake, request: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(fake.socket()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}

pub(super) fn json_request(fake: &Fake, method: &str, path: &str, body: &str) -> (u16, Value) {
    let len = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    let (status, body) = raw_request(fake, &format!("{head}content-length: {len}\r\n\r\n{body}"));
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn message(answer: &(u16, Value)) -> &str {
    answer.1["message"].as_str().unwrap_or_else(|| panic!("no message in {answer:?}"))
}

#[test]
fn get_routes_return_their_objects() {
    let fake = Fake::start();
    let lists = ["ports", "workers", "regions", "listeners", "streams", "associations", "jobs"];
    for path in lists.into_iter().chain(["status", "stats"]) {
        let (status, body) = json_request(&fake, "GET", &format!("/v1/{path}"), "");
        assert_eq!(status, 200, "{path}: {body}");
        assert_eq!(body.is_object(), matches!(path, "status" | "stats"), "{path}: {body}");
    }
    assert_eq!(json_request(&fake, "GET", "/v1/status", "").1["name"], "fake");
    let (status, stream) = json_request(&fake, "GET", "/v1/streams/0001000000000007", "");
    assert_eq!((status, &stream["id"]), (200, &json!("0001000000000007")));
    let some = json_request(&fake, "GET", "/v1/streams?limit=1&counters=sent_bytes,nothing", "");
    assert_eq!((some.0, &some.1[0]["counters"]), (200, &json!({ "sent_bytes": 4096 })));
    assert_eq!(json_request(&fake, "GET", "/v1/streams?limit=0", ""), (200, json!([])));
    assert_eq!(json_request(&fake, "GET", "/v1/streams?limit=few", "").0, 400);
    let (status, metrics) = json_request(&fake, "GET", "/v1/metrics", "");
    assert_eq!(status, 200);
    assert!(metrics.as_str().unwrap().contains("ddpd_worker_rx_frames_total{worker=\"0\"} 7"));
}

#[test]
fn socket_is_owner_only_and_removed_on_stop() {
    let fake = Fake::start();
    let socket = fake.socket().to_owned();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    drop(fake);
    assert!(!socket.exists());
}

// A program with write access to the directory may replace the socket by a link. The mode of the link's target must not
// change.
#[test]
fn symlink_at_socket_path_is_not_followed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("s"), dir.path().join("victim"));
    std::fs::write(&victim, "precious").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o444)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let link = dir.path().join("link");
            while !done.load(Ordering::Relaxed) {
                if std::os::unix::fs::symlink(&victim, &link).is_ok() {
                    // Replaces the socket, if one exists.
                    let _ = std::fs::rename(&link, &path);
                }
                let _ = std::fs::remove_file(&path);
            }
        });
        for _ in 0..2000 {
            // An error is ignored: `bind` fails if the link was created first.
            drop(super::server::bind(&path, super::access::SocketMode::Owner));
        }
        done.store(true, Ordering::Relaxed);
    });
    let mode = std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o444);
}

#[test]
fn live_socket_is_refused_and_stale_socket_is_replaced() {
    let fake = Fake::start();
    let (requester, _inbox) = channel().unwrap();
    let again = Server::start(
        fake.socket(),
        requester.clone(),
        EventLog::new(1, 1),
        1,
        Access::owner_only(),
    );
    let error = again.map(|_| ()).unwrap_err();
    assert!(matches!(error, ServerError::InUse(_)), "{error}");
    assert_eq!(
        json_request(&fake, "GET", "/v1/status", "").0,
        200,
        "the first server still answers"
    );

    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let server =
        Server::start(&stale, requester.clone(), EventLog::new(1, 1), 1, Access::owner_only())
            .unwrap();
    server.stop().unwrap();

    let absent = dir.path().join("none/s");
    let none = dir.path().join("none").display().to_string();
    let error =
        Server::start(&absent, requester.clone(), EventLog::new(1, 1), 1, Access::owner_only())
            .map(|_| ())
            .unwrap_err()
            .to_string();
    assert!(error.ends_with(&format!("does not exist: mkdir -p {none}")), "{error}");

    std::fs::write(&stale, "precious").unwrap();
    let error = Server::start(&stale, requester, EventLog::new(1, 1), 1, Access::owner_only())
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, ServerError::NotASocket(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&stale).unwrap(), "precious");
}

#[test]
fn lists_are_read_page_by_page() {
    let fake = Fake::start();
    let client = Client::new(fake.socket()).unwrap();
    let present = client.list::<RegionInfo>("/v1/regions").unwrap().len();
    let added = MAX_PAGE + 5;
    for number in 0..added {
        let body = json!({ "name": format!("r{number}"), "size": "4 KiB", "access": "w" });
        client.post::<Value>("/v1/regions", &body).unwrap();
    }
    let (_, page) = json_request(&fake, "GET", "/v1/regions", "");
    assert_eq!(page.as_array().unwrap().len(), MAX_PAGE, "the default is bounded");
    let (_, page) = json_request(&fake, "GET", "/v1/regions?limit=100000", "");
    assert_eq!(page.as_array().unwrap().len(), MAX_PAGE);
    let (_, page) = json_request(&fake, "GET", "/v1/regions?limit=2&after=r10", "");
    assert_eq!((&page[0]["name"], &page[1]["name"]), (&json!("r100"), &json!("r1000")));
    let all: Vec<RegionInfo> = client.list("/v1/regions").unwrap();
    assert_eq!(all.len(), present + added);
    assert!(all.is_sorted_by(|a, b| a.name < b.name));
    let first: Vec<RegionInfo> = client.list_first("/v1/regions", "", MAX_PAGE + 1).unwrap();
    assert_eq!(first.len(), MAX_PAGE + 1);
    let streams = json_request(&fake, "GET", "/v1/streams?after=0001000000000007", "");
    assert_eq!(streams, (200, json!([])));
    let listeners = json_request(&fake, "GET", "/v1/listeners?after=ingest", "");
    assert_eq!(listeners, (200, json!([])));
}

#[test]
fn region_data_returns_bytes() {
    let fake = Fake::start();
    json_request(
        &fake,
        "POST",
        "/v1/regions",
        r#"{"name": "new", "size": "64 KiB", "access": "rw"}"#,
    );
    let client = Client::new(fake.socket()).unwrap();
    let bytes = client.bytes("/v1/regions/new/data?offset=5&length=3").unwrap();
    assert_eq!(bytes, [5, 6, 7]);
    let long = json_request(&fake, "GET", "/v1/regions/new/data?offset=0&length=16777217", "");
    assert_eq!(long.0, 400, "{long:?}");
    assert_eq!(json_request(&fake, "GET", "/v1/regions/old/data?offset=0&length=1", "").0, 404);
}

#[test]
fn region_is_added_and_removed_by_api() {
    let fake = Fake::start();
    let body = r#"{"name": "new", "size": "64 KiB", "access": "rw"}"#;
    let (status, region) = json_request(&fake, "POST", "/v1/regions", body);
    assert_eq!((status, &region["size"]), (201, &json!(65536)));
    let again = json_request(&fake, "POST", "/v1/regions", body);
    assert_eq!((again.0, &again.1["error"]), (409, &json!("conflict")));
    let (status, body) = json_request(&fake, "DELETE", "/v1/regions/new?force=true", "");
    assert_eq!((status, body), (200, json!({})));
    assert_eq!(json_request(&fake, "DELETE", "/v1/regions/new", "").0, 404);
}

#[test]
fn malformed_bodies_get_400_with_message() {
    let fake = Fake::start();
    let cases = [
        ("/v1/regions", "{", "the body is not JSON: EOF"),
        ("/v1/regions", "[]", "the body must be a JSON object with the keys of [[region]]"),
        ("/v1/regions", "", "the body is not JSON: EOF"),
        (
            "/v1/regions",
            r#"{"name": "a", "size": "big", "access": "w"}"#,
            "region.size: is \"big\", but must be bytes or a size such as \"64 MiB\"",
        ),
        (
            "/v1/listeners",
            r#"{"name": "a", "interface": "lan", "port": 0}"#,
            "listener.port: is 0, but must be from 1 to 65535",
        ),
        (
            "/v1/connect",
            r#"{"remote": "10.0.0.1:1", "fast": true}"#,
            "the body cannot be parsed: unknown field `fast`",
        ),
        ("/v1/connect", r#"{"remote": "peer:1"}"#, "the body cannot be parsed: "),
        (
            "/v1/put",
            r#"{"file": "x", "via": {"stream": "1"}, "target": {"region": {"name": "r"}}}"#,
            "file: x must be an absolute path",
        ),
        (
            "/v1/send",
            r#"{"via": {"stream": "1"}, "data": "%"}"#,
            "the body cannot be parsed: not base64",
        ),
        ("/v1/send", r#"{"via": {"stream": "zz"}, "data": ""}"#, "the body cannot be parsed: `zz`"),
    ];
    for (path, body, sentence) in cases {
        let answer = json_request(&fake, "POST", path, body);
        assert_eq!(answer.0, 400, "{path} {body}: {answer:?}");
        assert!(message(&answer).starts_with(sentence), "{path} {body}: {}", message(&answer));
    }
    assert_eq!(fake.request_count(), 0, "no request reached the control thread");
}

#[test]
fn bodies_over_limit_get_413_with_and_without_length() {
    let fake = Fake::start();
    let long = " ".repeat(fake::BODY_LIMIT as usize + 1);
    let answer = json_request(&fake, "POST", "/v1/regions", &long);
    assert_eq!((answer.0, &answer.1["error"]), (413, &json!("too_large")));
    let len = long.len();
    let head = "POST /v1/regions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{len:x}\r\n{long}\r\n0\r\n\r\n");
    let (status, body) = raw_request(&fake, &chunked);
    assert_eq!(status, 413, "{body}");
    let fits = format!("{:1$}", r#"{"name":"a","size":1,"access":"w"}"#, len - 1);
    assert_eq!(json_request(&fake, "POST", "/v1/regions", &fits).0, 201);
}

#[test]
fn unknown_paths_methods_names_and_queries_are_refused() {
    let fake = Fake::start();
    let cases = [
        ("GET", "/", 404, "there is no /"),
        ("GET", "/v1/regions/x/y", 404, "there is no /v1/regions/x/y"),
        ("PUT", "/v1/regions", 405, "PUT is not possible on /v1/regions"),
        ("GET", "/v1/streams/nothex", 404, "there is nothing with the number `nothex`"),
        ("GET", "/v1/associations/5", 404, "there is no association 0000000000000005"),
        ("GET", "/v1/streams/5", 404, "there is no stream 0000000000000005"),
        ("DELETE", "/v1/listeners/none", 404, "there is no listener \"none\""),
        ("GET", "/v1/jobs/-1", 404, "there is nothing with the number `-1`"),
        ("GET", "/v1/events?limit=x", 400, "the query cannot be parsed"),
        ("GET", "/v1/events?severity=loud", 400, "the query cannot be parsed"),
        ("GET", "/v1/events?colour=red", 400, "the query cannot be parsed"),
        ("GET", "/v1/events?queue=0", 400, "queue selects messages"),
    ];
    for (method, path, status, sentence) in cases {
        let answer = json_request(&fake, method, path, "");
        assert_eq!(answer.0, status, "{method} {path}: {answer:?}");
        assert!(message(&answer).starts_with(sentence), "{method} {path}: {}", message(&answer));
    }
}

#[test]
fn stopped_control_thread_gives_503() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let (requester, inbox) = channel().unwrap();
    drop(inbox);
    let _server =
        Server::start(&socket, requester, EventLog::new(1, 1), 1024, Access::owner_only()).unwrap();
    let client = Client::new(&socket).unwrap();
    let error = client.get::<Status>("/v1/status").unwrap_err();
    let ClientError::Refused(error) = error else { panic!("{error}") };
    assert_eq!(error.error, ErrorKind::Unavailable);
}

/// connect(2) of a non-blocking socket fails with EAGAIN while the listener's queue is full.
#[test]
fn client_retries_while_listen_queue_is_full() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, accept, bind, listen, socket};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Client::new(&path).unwrap().get::<Status>("/v1/status"));
        // Gives the client time to find the queue full. The test also passes if the client is slower.
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(accept(&listener).unwrap());
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        let second = poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 }));
        assert_eq!(second, Ok(1), "the client connects again");
        drop(accept(&listener).unwrap());
        let error = client.join().unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{error}");
    });
}

#[test]
fn full_request_queue_and_dropped_call_give_503() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let (requester, inbox) = channel().unwrap();
    let _server =
        Server::start(&socket, requester.clone(), EventLog::new(1, 1), 1024, Access::owner_only())
            .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut waiting = Vec::new();
        loop {
            let mut call = Box::pin(requester.call(Request::Status));
            match poll_once(&mut call) {
                Poll::Pending => waiting.push(call),
                Poll::Ready(result) => {
                    assert_eq!(result.unwrap_err().error, ErrorKind::Unavailable);
                    break;
                }
            }
        }
        assert_eq!(waiting.len(), 256);
        drop(inbox.try_recv().unwrap());
        let dropped = waiting.remove(0).await.unwrap_err();
        assert_eq!(dropped.error, ErrorKind::Unavailable);
        inbox.try_recv().unwrap().responder.send(Ok(Reply::EMPTY));
        assert_eq!(waiting.remove(0).await, Ok(Reply::EMPTY));
        drop(waiting);
        assert!(inbox.try_recv().unwrap().responder.is_abandoned());
    });
}

#[test]
fn inbox_fd_is_readable_iff_requests_wait() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (requester, inbox) = channel().unwrap();
    let readable = |inbox: &Inbox| {
        let mut fds = [PollFd::from_borrowed_fd(inbox.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(!readable(&inbox));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut call = Box::pin(requester.call(Request::Status));
        assert!(poll_once(&mut call).is_pending());
        assert!(readable(&inbox));
        assert!(inbox.try_recv().is_some());
        assert!(inbox.try_recv().is_none());
        assert!(!readable(&inbox));
    });
}

#[test]
fn events_are_paged_filtered_and_waited_for() {
    let fake = Fake::start();
    fake.events.push(EventKind::Draining);
    fake.events.push(fake::message("in", 0, b"abc"));
    fake.events.push(fake::message("in", 5, b"xyz"));
    let (_, page) = json_request(&fake, "GET", "/v1/events?limit=2", "");
    assert_eq!(page["events"][0]["event"], "draining");
    assert_eq!((&page["next"], &page["lost"]), (&json!(2), &json!(0)));
    let (_, page) = json_request(&fake, "GET", "/v1/messages?queue=5", "");
    assert_eq!(page["events"].as_array().unwrap().len(), 1);
    assert_eq!(page["events"][0]["data"], "eHl6");
    let (_, page) = json_request(&fake, "GET", "/v1/messages?listener=other", "");
    assert_eq!((&page["events"], &page["next"]), (&json!([]), &json!(3)));
    let (_, page) = json_request(&fake, "GET", "/v1/events?after=3", "");
    assert_eq!(page["events"], json!([]));
    let (_, page) = json_request(&fake, "GET", "/v1/events?listener=in&stream=7", "");
    assert_eq!(
        (&page["events"][0]["seq"], &page["events"][0]["severity"]),
        (&json!(2), &json!("info"))
    );
    let (_, page) = json_request(&fake, "GET", "/v1/events?severity=warning", "");
    assert_eq!((&page["events"], &page["lost"]), (&json!([]), &json!(0)));
    let (_, page) = json_request(&fake, "GET", "/v1/events?since_us=9999999999999999", "");
    assert_eq!(page["events"], json!([]));

    // A long poll ignores events that do not match and ends with a matching event.
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client::new(fake.socket()).unwrap();
            let page: EventPage = client.get("/v1/messages?after=3&wait_ms=60000&queue=9").unwrap();
            sender.send(page).unwrap();
        });
        fake.events.push(EventKind::Draining);
        fake.events.push(fake::message("in", 9, b"late"));
        let page = receiver.recv().unwrap();
        assert_eq!(page.events[0].kind, fake::message("in", 9, b"late"));
        assert_eq!(page.next, 5);
    });
}

#[test]
fn events_are_followed_until_the_server_stops() {
    let fake = Fake::start();
    fake.events.push(EventKind::Draining);
    let socket = fake.socket().to_owned();
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let client = Client::new(&socket).unwrap();
        client.follow("/v1/events?follow=true", |line| {
            sender.send(serde_json::from_str::<Event>(line).unwrap()).unwrap();
            Ok(true)
        })
    });
    assert_eq!(receiver.recv().unwrap().seq, 1);
    fake.events.push(EventKind::Draining);
    assert_eq!(receiver.recv().unwrap().seq, 2);
    drop(fake);
    reader.join().unwrap().unwrap();
    assert!(receiver.recv().is_err());
}

#[test]
fn stream_ids_are_parsed_and_printed() {
    assert_eq!(StreamId(0x1_0000).to_string(), "0000000000010000");
    assert_eq!("10000".parse(), Ok(StreamId(0x1_0000)));
    for bad in ["", "+1", "0x1", "g", "00000000000000001"] {
        assert!(bad.parse::<StreamId>().is_err(), "{bad}");
    }
}

#[test]
fn path_segments_are_escaped() {
    assert_eq!(path_segment("a-b_c.d~9"), "a-b_c.d~9");
    assert_eq!(path_segment("a/b ?%ü"), "a%2Fb%20%3F%25%C3%BC");
}

#[test]
fn every_path_in_the_documentation_is_served() {
    let fake = Fake::start();
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let text = std::fs::read_to_string(file).unwrap();
    let mut checked = 0;
    for line in text.lines() {
        let Some((method, rest)) = line.strip_prefix("| ").and_then(|l| l.split_once(" `/v1/"))
        else {
            continue;
        };
        let path = rest.split(['`', '?']).next().unwrap().replace("NAME", "x").replace("ID", "5");
        let (status, body) = json_request(&fake, method, &format!("/v1/{path}"), "");
        let unknown = body["message"].as_str().is_some_and(|m| m.starts_with("there is no /"));
        assert!(status != 405 && !unknown, "{method} {path}: {status} {body}");
        checked += 1;
    }
    assert_eq!(checked, crate::routes::route_table().len());
}
