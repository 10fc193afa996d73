//! Tests of the endpoint for metrics and health over TCP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::fake::Fake;
use crate::{Call, Observer, Reply, Status, channel};

fn get(observer: &Observer, request: &str) -> String {
    get_with(observer, request, "")
}

/// Sends a request (method and path) with additional header lines. Returns the response.
fn get_with(observer: &Observer, request: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(observer.address()).unwrap();
    let text = format!("{request} HTTP/1.1\r\nHost: here\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn observers_can_get_metrics_and_health_only() {
    let fake = Fake::start();
    let observer =
        Observer::start("127.0.0.1:0".parse().unwrap(), fake.requester(), Arc::default()).unwrap();
    let metrics = get(&observer, "GET /metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0\r\n";
    let metrics = get_with(&observer, "GET /metrics", accept);
    assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
    assert!(metrics.contains("ddpd_worker_rx_frames_total{worker=\"0\"} 7"), "{metrics}");
    for path in ["/livez", "/readyz"] {
        let answer = get(&observer, &format!("GET {path}"));
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
    }
    for request in ["GET /v1/status", "GET /", "DELETE /v1/regions/inbox"] {
        let answer = get(&observer, request);
        assert!(answer.starts_with("HTTP/1.1 404"), "{request}: {answer}");
    }
    for request in ["POST /metrics", "PUT /readyz"] {
        let answer = get(&observer, request);
        assert!(answer.starts_with("HTTP/1.1 405"), "{request}: {answer}");
    }
    // A connection that does not speak HTTP is closed. The next connection is served.
    get(&observer, "\x16\x03\x01");
    assert!(get(&observer, "GET /livez").ends_with("ok\n"));
    let again = Observer::start(observer.address(), fake.requester(), Arc::default()).map(|_| ());
    let error = again.unwrap_err().to_string();
    assert!(error.starts_with("management.listen.address 127.0.0.1:"), "{error}");
    assert!(error.contains("in use"), "{error}");
}

#[test]
fn stopped_or_stuck_control_thread_is_not_live_or_ready() {
    let (requester, inbox) = channel().unwrap();
    let observer =
        Observer::start("127.0.0.1:0".parse().unwrap(), requester, Arc::default()).unwrap();
    let answer = get(&observer, "GET /livez");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("has not answered for 2 s"), "{answer}");
    drop(inbox);
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = get(&observer, &format!("GET {path}"));
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
}

#[test]
fn draining_appliance_is_live_and_not_ready() {
    let (requester, inbox) = channel().unwrap();
    let observer =
        Observer::start("127.0.0.1:0".parse().unwrap(), requester, Arc::default()).unwrap();
    let control = std::thread::spawn(move || {
        let mut requests = 0;
        while requests < 2 {
            let mut fds =
                [rustix::event::PollFd::from_borrowed_fd(inbox.fd(), rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            let Some(Call { responder: answer, .. }) = inbox.try_recv() else { continue };
            requests += 1;
            let status = Status { state: "draining".into(), ..Status::default() };
            answer.send(Ok(Reply::Status(status)));
        }
    });
    let answer = get(&observer, "GET /readyz");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.ends_with("the appliance is draining\n"), "{answer}");
    assert!(get(&observer, "GET /livez").starts_with("HTTP/1.1 200"));
    control.join().unwrap();
}
