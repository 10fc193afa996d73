//! The HTTP server for observers, over TCP. It serves only metrics and health and cannot change anything. It may
//! therefore listen on addresses on which the management API must not listen.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::connection_slots::{ConnectionBounds, Peer};
use super::connections::{Acceptor, Limits, serve};
use super::routes::render_metrics;
use super::{AccessTally, Reply, Request, Requester};

/// Maximum number of connections. One IPv4 address or one IPv6 /64 prefix can have at most a quarter of them.
pub const MAX_OBSERVERS: usize = 64;

const LIMITS: Limits = Limits {
    connections: ConnectionBounds {
        total: MAX_OBSERVERS,
        reserved: 0,
        per_peer: MAX_OBSERVERS / 4,
    },
    header_timeout: Duration::from_secs(10),
    write_timeout: Duration::from_secs(10),
};

/// Maximum time for an answer of the control thread. Without an answer, a request gets status 503.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The running server for observers. Dropping it stops the server.
#[derive(Debug)]
pub struct Observer {
    address: SocketAddr,
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Error of [`Observer::start`]: the server cannot listen on the address or cannot be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "management.listen.address {address}: cannot be listened on: {source}; choose an address of this machine and a \
         free port"
)]
pub struct ObserverError {
    address: SocketAddr,
    source: io::Error,
}

impl Observer {
    /// Listens on `address` and starts a thread that serves `/metrics`, `/livez` and `/readyz`.
    pub fn start(
        address: SocketAddr,
        requester: Requester,
        tally: Arc<AccessTally>,
    ) -> Result<Observer, ObserverError> {
        let failed = |source| ObserverError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let name = format!("management.listen {address}");
        let (closing, watching) = watch::channel(false);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("observers".into())
            .spawn(move || {
                runtime.block_on(async {
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    let router = router(requester);
                    serve(name, listener, router, LIMITS, &tally.observers, watching).await;
                    Ok(())
                })
            })
            .map_err(failed)?;
        Ok(Observer { address, closing, thread: Some(thread) })
    }

    /// Returns the local address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        if let Err(error) = ended {
            tracing::warn!(address = %self.address, %error, "the server for observers did not end cleanly");
        }
    }
}

impl Acceptor for tokio::net::TcpListener {
    type Io = TcpStream;
    type Caller = SocketAddr;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        tokio::net::TcpListener::accept(self).await
    }

    fn peer(caller: &SocketAddr) -> Peer {
        let key = match caller.ip().to_canonical() {
            IpAddr::V4(address) => address.to_bits().into(),
            // An IPv6 host can usually use all addresses of its /64, so the limit applies to the /64.
            IpAddr::V6(address) => address.to_bits() >> 64 << 64,
        };
        Peer { key, privileged: false }
    }
}

fn router(requester: Requester) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(liveness))
        .route("/readyz", get(readiness))
        .fallback(|| async { (StatusCode::NOT_FOUND, "here are /metrics, /livez and /readyz\n") })
        .with_state(requester)
}

/// Sends a request to the control thread and waits for the reply, at most [`ANSWER_TIMEOUT`]. The error is a sentence.
async fn call_control(requester: &Requester, request: Request) -> Result<Reply, String> {
    match tokio::time::timeout(ANSWER_TIMEOUT, requester.call(request)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(error.message),
        Err(_) => {
            Err(format!("the control thread has not answered for {} s", ANSWER_TIMEOUT.as_secs()))
        }
    }
}

fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

async fn scrape(State(requester): State<Requester>, headers: HeaderMap) -> Response {
    let stats = match call_control(&requester, Request::Stats).await {
        Ok(Reply::Stats(stats)) => stats,
        Ok(_) => return unavailable("the control thread did not answer with counters"),
        Err(why) => return unavailable(&why),
    };
    render_metrics(&stats, &headers)
        .unwrap_or_else(|error| unavailable(&format!("the metrics cannot be written: {error}")))
}

/// Handles `/livez`: status 200 if the control thread answers, else 503 with the reason.
async fn liveness(State(requester): State<Requester>) -> Response {
    match call_control(&requester, Request::Status).await {
        Ok(_) => "ok\n".into_response(),
        Err(why) => unavailable(&why),
    }
}

/// Handles `/readyz`: status 200 if the appliance accepts new streams on all of its ports, else 503 with the reason.
async fn readiness(State(requester): State<Requester>) -> Response {
    match call_control(&requester, Request::Status).await {
        Ok(Reply::Status(status)) if !status.unusable.is_empty() => {
            unavailable(&status.unusable.join("\n"))
        }
        Ok(Reply::Status(status)) if status.state == "running" => "ok\n".into_response(),
        Ok(Reply::Status(status)) => unavailable(&format!("the appliance is {}", status.state)),
        Ok(_) => unavailable("the control thread did not answer with its status"),
        Err(why) => unavailable(&why),
    }
}
