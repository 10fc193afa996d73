//! Blocking client of the management API, as used by `ddpctl`. Each request has its own connection.
//!
//! A slow answer is not an error: when an answer is overdue, the client probes the appliance with `GET /v1/status`, and
//! fails only if the probe is not answered. With a deadline, a request fails once the deadline has passed, even if the
//! appliance answers probes. The client never repeats a request.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{self, Stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{ApiError, ErrorKind, MAX_PAGE, Paged};

/// Maximum length of a line of a followed event stream, bytes. The longest line is an event with a message of maximum
/// length.
const MAX_LINE: usize = 64 << 20;

/// Maximum number of bytes that one read of an upload's source returns.
const UPLOAD_CHUNK: usize = 256 << 10;

/// Content types of request bodies.
const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Interval between checks of a capture's stop request, and between retries of connect(2) while the accept queue of the
/// appliance's socket is full.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum wait of connect(2) while the accept queue of the appliance's socket is full.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one appliance.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
    /// Time without an answer after which the client probes the appliance; `None` for no limit and no probes.
    timeout: Option<Duration>,
    /// Deadline of all requests together; `None` for no deadline.
    deadline: Option<Deadline>,
}

/// Deadline for a whole command of `ddpctl`, which may consist of several requests.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    timeout: Duration,
    expires_at: Instant,
}

/// Additional wait after the deadline. An appliance that observes the same deadline answers when the deadline passes,
/// and its answer names the step that is not done.
const DEADLINE_GRACE: Duration = Duration::from_millis(250);

/// Maximum wait for the response to a probe after the command's deadline.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Error of a request: no answer, or an error response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client cannot connect to the socket.
    #[error("cannot reach the appliance at {}: {source}{}", socket.display(), connect_hint(source))]
    Unreachable {
        /// Path of the socket.
        socket: PathBuf,
        /// Error of connect(2).
        source: io::Error,
    },
    /// The socket accepts connections, but neither an answer nor the response to a probe arrives.
    #[error(
        "the appliance at {} does not answer: nothing came for {}; is ddpd stopped (state T of ps)? A longer \
         wait: --timeout",
        socket.display(),
        humantime::format_duration(*timeout)
    )]
    Silent {
        /// Path of the socket.
        socket: PathBuf,
        /// The time-out for an answer.
        timeout: Duration,
    },
    /// The deadline of the whole command has passed. The appliance may still be executing the command.
    #[error("not done within {}: the appliance answers, and may go on with it", base::plural::seconds(*within))]
    Late {
        /// Time from the start of the command to its deadline.
        within: Duration,
    },
    /// The appliance answered with an error response.
    #[error("{0}")]
    Refused(#[from] ApiError),
    /// The body of the request cannot be written as JSON.
    #[error("the request cannot be written as JSON: {0}")]
    Request(#[from] serde_json::Error),
    /// The connection failed, or the answer is not valid, as from a server that is not an appliance.
    #[error("the appliance's answer cannot be parsed: {0}")]
    Protocol(String),
}

fn connect_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "; is ddpd running? name its management.socket with --socket"
        }
        io::ErrorKind::PermissionDenied => {
            "; use the user that runs ddpd, or one of the group of its socket (management.access)"
        }
        _ => "",
    }
}

impl Client {
    /// Returns the path of the appliance's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Creates a client of the appliance at `socket`, without time-out and deadline. Does not connect.
    pub fn new(socket: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime, timeout: None, deadline: None })
    }

    /// Sets the time-out for an answer. Each time that `timeout` passes without an answer, the client sends a probe. If
    /// the appliance answers the probe within `timeout`, the request continues. Otherwise the request fails.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets a deadline for all requests together, `within` from now. The deadline replaces the time-out as the limit of
    /// each wait. It has no effect unless [`with_timeout`](Client::with_timeout) has set a time-out.
    pub fn with_deadline(self, within: Duration) -> Self {
        Self {
            deadline: Some(Deadline { timeout: within, expires_at: Instant::now() + within }),
            ..self
        }
    }

    /// Returns the time until the deadline, at least one microsecond; `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.deadline?.expires_at.saturating_duration_since(Instant::now());
        Some(left.max(Duration::from_micros(1)))
    }

    /// Returns [`ClientError::Late`] once the deadline and [`DEADLINE_GRACE`] have passed. The appliance may still be
    /// executing the command.
    pub fn check_deadline(&self) -> Result<(), ClientError> {
        match self.deadline {
            Some(Deadline { timeout: within, expires_at: at })
                if Instant::now() >= at + DEADLINE_GRACE =>
            {
                Err(ClientError::Late { within })
            }
            _ => Ok(()),
        }
    }

    /// Sends GET and returns the JSON answer.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None)
    }

    /// Returns a whole list, which is read page by page. `path` must not contain a query.
    pub fn list<T: DeserializeOwned + Paged>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        self.list_first(path, "", usize::MAX)
    }

    /// Returns the first `most` objects of a list, which is read page by page. `parameters` is appended to the query,
    /// such as `&counters=sent_bytes`.
    pub fn list_first<T: DeserializeOwned + Paged>(
        &self,
        path: &str,
        parameters: &str,
        most: usize,
    ) -> Result<Vec<T>, ClientError> {
        let mut list: Vec<T> = Vec::new();
        loop {
            let limit = (most - list.len()).min(MAX_PAGE);
            let last = list.last().map(|last| format!("&after={}", path_segment(&last.key())));
            let after = last.unwrap_or_default();
            let page: Vec<T> = self.get(&format!("{path}?limit={limit}{after}{parameters}"))?;
            let complete = page.len() < MAX_PAGE;
            list.extend(page);
            if complete || list.len() >= most {
                return Ok(list);
            }
        }
    }

    /// Sends DELETE and returns the JSON answer.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::DELETE, path, None)
    }

    /// Sends POST with a JSON body and returns the JSON answer.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body)?;
        self.call(Method::POST, path, Some(body))
    }

    /// Sends POST with the bytes of `reader` as they arrive. An error of `reader` truncates the body. Waits for the
    /// answer, which may arrive before the end of `reader`.
    pub fn upload(
        &self,
        path: &str,
        reader: impl io::Read + Send + 'static,
    ) -> Result<(), ClientError> {
        let body = StreamBody::new(read_chunks(reader)).boxed_unsync();
        self.runtime.block_on(async {
            collect(self.request(Method::POST, path, BINARY, body).await?).await.map(drop)
        })
    }

    /// Sends GET and returns the body, which must be UTF-8.
    pub fn text(&self, path: &str) -> Result<String, ClientError> {
        String::from_utf8(self.bytes(path)?).map_err(protocol_error)
    }

    /// Sends GET and returns the bytes of the body.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let bytes = self.exchange(Method::GET, path, None)?;
        Ok(bytes.to_vec())
    }

    /// Sends GET and calls `line` with each line of the response body, until `line` returns false or the appliance ends
    /// the body.
    pub fn follow(
        &self,
        path: &str,
        mut line: impl FnMut(&str) -> Result<bool, ClientError>,
    ) -> Result<(), ClientError> {
        self.runtime.block_on(async {
            let response = self.await_with_probes(self.send(Method::GET, path, None)).await??;
            if !response.status().is_success() {
                collect(response).await?;
                return Ok(());
            }
            let mut body = response.into_body();
            let mut buffer: Vec<u8> = Vec::new();
            while let Some(frame) = self.await_with_probes(body.frame()).await? {
                let Ok(data) = frame.map_err(protocol_error)?.into_data() else { continue };
                buffer.extend_from_slice(&data);
                while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
                    let rest = buffer.split_off(end + 1);
                    let text = std::str::from_utf8(&buffer[..end]).map_err(protocol_error)?;
                    if !line(text)? {
                        return Ok(());
                    }
                    buffer = rest;
                }
                if buffer.len() > MAX_LINE {
                    return Err(ClientError::Protocol("a line of the answer is too long".into()));
                }
            }
            Ok(())
        })
    }

    /// Requests a capture. Calls `part` with each part of the file, until the end of the file or until `part` returns
    /// false. Once `stop` is set, requests the end of the capture and receives the rest of the file.
    pub fn capture(
        &self,
        path: &str,
        query: &str,
        stop: &AtomicBool,
        mut part: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        self.runtime.block_on(async {
            let whole = format!("{path}?{query}");
            let response = self.await_with_probes(self.send(Method::GET, &whole, None)).await??;
            if !response.status().is_success() {
                collect(response).await?;
                return Ok(());
            }
            let (mut body, mut stopped) = (response.into_body(), false);
            loop {
                if !stopped && stop.load(Ordering::Relaxed) {
                    stopped = true;
                    // The result is ignored: the request fails if the capture has already ended.
                    let ended =
                        self.await_with_probes(self.send(Method::DELETE, path, None)).await??;
                    drop(collect(ended).await);
                }
                let Ok(frame) = tokio::time::timeout(POLL_INTERVAL, body.frame()).await else {
                    continue;
                };
                let Some(frame) = frame else { return Ok(()) };
                if let Ok(data) = frame.map_err(protocol_error)?.into_data()
                    && !part(&data)
                {
                    return Ok(());
                }
            }
        })
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, ClientError> {
        let bytes = self.exchange(method, path, body)?;
        serde_json::from_slice(&bytes).map_err(protocol_error)
    }

    fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Bytes, ClientError> {
        self.runtime.block_on(self.await_with_probes(async {
            let response = self.send(method, path, body).await?;
            collect(response).await
        }))?
    }

    /// Awaits `answer`. Fails if the appliance does not answer a probe, or if the deadline has passed.
    async fn await_with_probes<T>(
        &self,
        answer: impl Future<Output = T>,
    ) -> Result<T, ClientError> {
        let Some(timeout) = self.timeout else { return Ok(answer.await) };
        let mut answer = std::pin::pin!(answer);
        loop {
            self.check_deadline()?;
            // With a deadline, only the deadline limits the wait, not the time-out for an answer.
            let left = |limit: Deadline| {
                (limit.expires_at + DEADLINE_GRACE).saturating_duration_since(Instant::now())
            };
            let (wait, probe_timeout) = match self.deadline {
                Some(limit) => (left(limit), PROBE_TIMEOUT),
                None => (timeout, timeout),
            };
            if let Ok(done) = tokio::time::timeout(wait, &mut answer).await {
                return Ok(done);
            }
            let probe = async {
                let response = self.send(Method::GET, "/v1/status", None).await?;
                collect(response).await
            };
            // Any answer to the probe suffices, even an error response.
            if tokio::time::timeout(probe_timeout, probe).await.is_err() {
                return Err(ClientError::Silent { socket: self.socket.clone(), timeout });
            }
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let kind = if body.is_some() { JSON } else { "" };
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let body = body.map_err(|never| match never {}).boxed_unsync();
        self.request(method, path, kind, body).await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Body,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = connect(&self.socket)
            .await
            .map_err(|source| ClientError::Unreachable { socket: self.socket.clone(), source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(protocol_error)?;
        // The error of the connection is dropped, because the request or the body also returns it.
        tokio::spawn(async move { drop(connection.await) });
        let mut request = hyper::Request::builder().method(method).uri(path).header("host", "ddpd");
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        let request = request.body(body).map_err(protocol_error)?;
        sender.send_request(request).await.map_err(protocol_error)
    }
}

/// Returns the bytes of a reader as a stream. A separate thread reads, because a reader such as a terminal may block
/// for a long time.
fn read_chunks(
    reader: impl io::Read + Send + 'static,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send {
    stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; UPLOAD_CHUNK];
            let read = loop {
                match reader.read(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            let part = read.map(|n| {
                bytes.truncate(n);
                bytes
            });
            (part, reader)
        });
        match read.await {
            Ok((Ok(part), _)) if part.is_empty() => None,
            Ok((Ok(part), reader)) => Some((Ok(Frame::data(part.into())), Some(reader))),
            Ok((Err(error), _)) => Some((Err(error), None)),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

/// Connects to the socket. Retries for at most [`QUEUE_TIMEOUT`] while the server's queue of new connections is full.
async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let end = Instant::now() + QUEUE_TIMEOUT;
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            result => return result,
        }
    }
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(protocol_error)?.to_bytes();
    if status.is_success() {
        return Ok(bytes);
    }
    Err(match serde_json::from_slice::<ApiError>(&bytes) {
        Ok(error) => error.into(),
        Err(_) => {
            ApiError::new(ErrorKind::Internal, format!("the appliance answered {status}")).into()
        }
    })
}

fn protocol_error(error: impl std::fmt::Display) -> ClientError {
    ClientError::Protocol(error.to_string())
}

/// Percent-encodes one segment of a URL path: all bytes except letters, digits and `-._~` (RFC 3986 §2.3).
pub fn path_segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
