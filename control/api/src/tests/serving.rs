//! Tests of the limits on connections, over real sockets.

use std::future::pending;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use rustix::io::Errno;
use tokio::sync::watch;

use super::fake::Fake;
use crate::connection_slots::{ConnectionBounds, Peer};
use crate::connections::{Acceptor, ConnectionCounts, ConnectionTally, Limits, serve};
use crate::{AccessTally, MAX_OBSERVERS, Observer};

const LONG_TIMEOUT: Duration = Duration::from_secs(600);
const SHORT_TIMEOUT: Duration = Duration::from_millis(50);

/// A server that admits two connections per address and four in total.
struct BoundedServer {
    address: std::net::SocketAddr,
    tally: Arc<ConnectionTally>,
    /// Number of requests for `/never`, which are never answered.
    waiting: Arc<AtomicU64>,
    closing: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl BoundedServer {
    fn start(header: Duration, write: Duration) -> BoundedServer {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let places = ConnectionBounds { total: 4, reserved: 0, per_peer: 2 };
        let limits = Limits { connections: places, header_timeout: header, write_timeout: write };
        let tally = Arc::<ConnectionTally>::default();
        let (closing, watching) = watch::channel(false);
        let counted = Arc::clone(&tally);
        let waiting = Arc::<AtomicU64>::default();
        let waits = Arc::clone(&waiting);
        let never = move || {
            waits.fetch_add(1, Ordering::Relaxed);
            pending::<&str>()
        };
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let router = Router::new()
                    .route("/", get(|| async { "served" }))
                    .route("/large", get(|| async { vec![b'x'; 64 << 20] }))
                    .route("/never", get(never));
                serve("test".into(), listener, router, limits, &counted, watching).await;
            });
        });
        BoundedServer { address, tally, waiting, closing, thread: Some(thread) }
    }

    /// Opens a connection and sends `text` on it.
    fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    fn wait_for(&self, wanted: impl Fn(ConnectionCounts) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !wanted(self.tally.counts()) {
            assert!(Instant::now() < end, "{:?}", self.tally.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for BoundedServer {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn get_line(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
}

/// Reads until the server closes or resets the connection.
fn read_to_end(mut stream: TcpStream) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(n @ 1..) => text.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                panic!("the connection is open")
            }
            Ok(0) | Err(_) => return String::from_utf8(text).unwrap(),
        }
    }
}

#[test]
fn incomplete_header_and_idle_connection_time_out() {
    let server = BoundedServer::start(SHORT_TIMEOUT, LONG_TIMEOUT);
    assert_eq!(read_to_end(server.send("")), "");
    assert_eq!(read_to_end(server.send("GET / HTTP/1.1\r\nhost:")), "");
    server.wait_for(|counts| counts.expired == 2);
    // A connection that idles after a response is closed gracefully and not counted as expired.
    assert!(read_to_end(server.send(&get_line("/"))).ends_with("served"));
    assert_eq!(server.tally.counts(), ConnectionCounts { expired: 2, ..Default::default() });
}

#[test]
fn client_that_does_not_read_is_closed() {
    let server = BoundedServer::start(LONG_TIMEOUT, SHORT_TIMEOUT);
    let _silent = server.send(&get_line("/large"));
    server.wait_for(|counts| counts.expired == 1);
}

#[test]
fn idle_connection_is_evicted_and_busy_connection_stays() {
    let server = BoundedServer::start(LONG_TIMEOUT, LONG_TIMEOUT);
    let idle: Vec<_> = (0..10).map(|_| server.send("GET / HT")).collect();
    server.wait_for(|counts| counts.expired == 8);
    let busy = [(); 2].map(|()| server.send(&get_line("/never")));
    server.wait_for(|counts| counts.expired == 10);
    let waits = || server.waiting.load(Ordering::Relaxed) == 2;
    server.wait_for(|_| waits());
    // A third connection is refused, because both connections of this address have open requests.
    assert_eq!(read_to_end(server.send(&get_line("/"))), "");
    assert_eq!(server.tally.counts().refused, 1);
    drop((idle, busy));
}

#[test]
fn half_sent_requests_do_not_lock_out_observers() {
    let fake = Fake::start();
    let tally = Arc::<AccessTally>::default();
    let observer =
        Observer::start("127.0.0.1:0".parse().unwrap(), fake.requester(), Arc::clone(&tally));
    let observer = observer.unwrap();
    let connect = || TcpStream::connect(observer.address()).unwrap();
    let half = |_| {
        let mut stream = connect();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost:").unwrap();
        stream
    };
    let clients: Vec<_> = (0..500).map(half).collect();
    let mut late = connect();
    late.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
    assert!(read_to_end(late).ends_with("ok\n"));
    assert!(tally.observers.counts().expired >= 500 - MAX_OBSERVERS as u64);
    drop(clients);
}

/// An acceptor whose process has no free file descriptors: accept always fails.
struct FailingAcceptor(Arc<AtomicU64>);

impl Acceptor for FailingAcceptor {
    type Io = tokio::net::TcpStream;
    type Caller = ();

    async fn accept(&self) -> io::Result<(tokio::net::TcpStream, ())> {
        tokio::task::yield_now().await;
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(Errno::MFILE.into())
    }

    fn peer((): &()) -> Peer {
        Peer { key: 0, privileged: false }
    }
}

#[test]
fn accept_backs_off_without_descriptors() {
    let (tally, accepts) = (ConnectionTally::default(), Arc::<AtomicU64>::default());
    let (closing, watching) = watch::channel(false);
    let places = ConnectionBounds { total: 4, reserved: 0, per_peer: 4 };
    let limits =
        Limits { connections: places, header_timeout: LONG_TIMEOUT, write_timeout: LONG_TIMEOUT };
    let acceptor = FailingAcceptor(Arc::clone(&accepts));
    runtime().block_on(async {
        let end = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            closing.send_replace(true);
        };
        tokio::join!(serve("test".into(), acceptor, Router::new(), limits, &tally, watching), end);
    });
    // With doubling back-off, accept is called after 0, 10, 30, 70, 150 and 310 ms.
    let accepts = accepts.load(Ordering::Relaxed);
    assert!((1..=6).contains(&accepts), "{accepts}");
    assert!(tally.counts().accept_failures >= accepts - 1);
}
