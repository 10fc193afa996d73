//! An HTTP server with a limited number of connections, used for the API and for observers.
//!
//! The number of connections is limited ([`ConnectionSlots`]). Time-outs limit two waits for a client: for the header
//! of the next request, including idle time between two requests, and for space to write a response. A connection that
//! waits for the appliance, such as an event stream without events, has no time-out.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_io_timeout::TimeoutStream;

use super::connection_slots::{
    Activity, Admission, ConnectionBounds, ConnectionSlots, OpenRequest, Peer,
};
use crate::accept::Backoff;

/// Maximum time for open requests to finish once the server is stopping.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum size of a connection's buffers for a request's header and for a part of a body, bytes.
const MAX_BUFFER: usize = 64 << 10;

/// Source of a server's connections: a listening socket.
pub(super) trait Acceptor: Send + 'static {
    /// Byte stream of a connection.
    type Io: AsyncRead + AsyncWrite + Send + 'static;
    /// Peer of a connection, which handlers can extract as `ConnectInfo`.
    type Caller: Clone + Send + Sync + 'static;

    /// Accepts one connection. The future can be cancelled without loss of a connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Io, Self::Caller)>> + Send;

    /// Returns the peer for the limits on connections.
    fn peer(caller: &Self::Caller) -> Peer;
}

/// Limits of a server on connections and on waits for a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Limits on the number of connections.
    pub(super) connections: ConnectionBounds,
    /// Maximum time from the accept, or from the end of a response, to the end of the next request's header.
    pub(super) header_timeout: Duration,
    /// Maximum time of a write without progress, because the client does not read the response.
    pub(super) write_timeout: Duration,
}

/// Counters of a server's connections.
#[derive(Debug, Default)]
pub struct ConnectionTally {
    refused: AtomicU64,
    expired: AtomicU64,
    accept_failures: AtomicU64,
}

/// Values of a [`ConnectionTally`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ConnectionCounts {
    /// Connections closed at once, because all connections that count towards a limit had open requests.
    pub refused: u64,
    /// Connections closed because their first request did not arrive in time, because a new connection needed the slot,
    /// or because the client did not read a response.
    pub expired: u64,
    /// Failures of accept(2). Errors of a single connection are not counted.
    pub accept_failures: u64,
}

impl ConnectionTally {
    /// Returns the present values of the counters.
    pub fn counts(&self) -> ConnectionCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ConnectionCounts {
            refused: of(&self.refused),
            expired: of(&self.expired),
            accept_failures: of(&self.accept_failures),
        }
    }
}

/// Serves until `closing` is true or its sender is dropped. Open requests may then finish within [`GRACE`]. `name` is
/// the server's name in the log. Handlers can extract the peer of their connection as `ConnectInfo`.
pub(super) async fn serve<D: Acceptor>(
    name: String,
    door: D,
    router: Router,
    limits: Limits,
    tally: &ConnectionTally,
    mut closing: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let mut server = ConnectionSet {
        router,
        limits,
        tally,
        slots: ConnectionSlots::new(limits.connections),
        tasks: JoinSet::new(),
    };
    let mut backoff = Backoff::new(name);
    loop {
        tokio::select! {
            // An error means that the sender was dropped, which also ends the server.
            _ = closing.wait_for(|&closing| closing) => break,
            Some(ended) = server.tasks.join_next_with_id() => server.finish(ended),
            accepted = accept(&door, &backoff) => match accepted {
                Ok((io, caller)) => {
                    backoff.record_success();
                    server.serve_connection::<D>(io, caller, &graceful);
                }
                Err(error) => {
                    let before = backoff.failures();
                    backoff.record_failure(&error, Instant::now());
                    tally.accept_failures.fetch_add(backoff.failures() - before, Ordering::Relaxed);
                }
            },
        }
    }
    drop(door);
    // Dropping `server.tasks` aborts the tasks that are unfinished after this wait.
    drop(tokio::time::timeout(GRACE, graceful.shutdown()).await);
}

/// Waits for the end of the back-off, then accepts a connection.
async fn accept<D: Acceptor>(door: &D, backoff: &Backoff) -> io::Result<(D::Io, D::Caller)> {
    if let Some(until) = backoff.retry_at() {
        tokio::time::sleep_until(until.into()).await;
    }
    door.accept().await
}

/// The connections of a server, each served by its own task.
struct ConnectionSet<'t> {
    router: Router,
    limits: Limits,
    tally: &'t ConnectionTally,
    slots: ConnectionSlots<Id, AbortHandle>,
    tasks: JoinSet<hyper::Result<()>>,
}

impl ConnectionSet<'_> {
    /// Starts a task that serves the connection. Closes the connection instead if a limit is reached and all
    /// connections that count towards this limit have open requests.
    fn serve_connection<D: Acceptor>(
        &mut self,
        io: D::Io,
        caller: D::Caller,
        graceful: &GracefulShutdown,
    ) {
        let peer = D::peer(&caller);
        let Admission::Admitted(idle) = self.slots.admit(peer) else {
            return increment(&self.tally.refused);
        };
        idle.iter().for_each(AbortHandle::abort);
        let activity = Activity::new(Instant::now());
        let (router, of_requests) =
            (TowerToHyperService::new(self.router.clone()), Arc::clone(&activity));
        let service = service_fn(move |mut request: Request<Incoming>| {
            let busy = of_requests.begin_request();
            request.extensions_mut().insert(ConnectInfo(caller.clone()));
            let response = router.call(request);
            async move { Ok::<_, Infallible>(hold_until_complete(busy, response.await?)) }
        });
        let mut stream = TimeoutStream::new(io);
        stream.set_write_timeout(Some(self.limits.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(MAX_BUFFER)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let handle = self.tasks.spawn(graceful.watch(connection));
        self.slots.insert(handle.id(), peer, activity, handle);
    }

    /// Frees the slot of a connection whose task has ended. Counts the connection as expired if its first request or a
    /// write timed out, or if it was closed for a new connection.
    fn finish(&mut self, ended: Result<(Id, hyper::Result<()>), JoinError>) {
        let expired = match ended {
            Ok((id, result)) => {
                let requests = self.slots.remove(&id).unwrap_or_default();
                // The time-out of an idle connection that had requests is a normal end and is not counted.
                result.is_err_and(|error| match error.is_timeout() {
                    true => requests == 0,
                    false => is_write_timeout(&error),
                })
            }
            // The task was aborted in favour of a new connection.
            Err(error) if error.is_cancelled() => true,
            Err(error) => {
                self.slots.remove(&error.id());
                tracing::error!("a connection of a management server ended by a defect: {error}");
                false
            }
        };
        if expired {
            increment(&self.tally.expired);
        }
    }
}

/// Stores `busy` in the body of the response, so that the request counts as open until hyper drops the body. hyper
/// drops the body when the response is complete.
fn hold_until_complete(busy: OpenRequest, response: Response) -> Response {
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &busy;
            frame
        }))
    })
}

fn is_write_timeout(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

fn increment(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
