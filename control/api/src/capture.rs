//! Captures of a port's frames: the request, and the pcapng file, sent as a response body of unknown length.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::app::{App, Params, PathParam, RouteResult};
use super::{Request, StreamId};

/// Maximum number of parts of the file that wait for the client. A part is at most 64 KiB plus one frame.
const CHANNEL_DEPTH: usize = 16;

/// Selection of frames and bounds of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureSpec {
    /// Only frames of this stream, or of the association that carries it. Default: all frames.
    pub stream: Option<StreamId>,
    /// Filter expression. Empty: all frames.
    #[schemars(length(max = 1024))]
    pub filter: String,
    /// Maximum captured length of a frame, bytes, 1 to 65535.
    #[schemars(range(min = 1, max = 65_535))]
    pub snap: u32,
    /// True: packets protected by IPsec are captured decrypted. False: as on the wire.
    pub inside: bool,
    /// Maximum size of the file, bytes, 4 KiB to 1 TiB.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64))]
    pub limit: u64,
}

impl CaptureSpec {
    /// Range of [`CaptureSpec::limit`].
    pub const LIMIT_RANGE: std::ops::RangeInclusive<u64> = 4096..=1 << 40;
    /// Range of [`CaptureSpec::snap`].
    pub const SNAP_RANGE: std::ops::RangeInclusive<u32> = 1..=65_535;
}

impl Default for CaptureSpec {
    fn default() -> Self {
        Self { stream: None, filter: String::new(), snap: 65_535, inside: false, limit: 100 << 20 }
    }
}

/// Sender of the parts of a capture file to the client. The queue is closed when the client disconnects.
#[derive(Clone, Debug)]
pub struct CaptureSink(mpsc::Sender<Vec<u8>>);

impl CaptureSink {
    /// Creates a sink, and the receiver of its parts.
    pub fn pair() -> (CaptureSink, mpsc::Receiver<Vec<u8>>) {
        let (sender, receiver) = mpsc::channel(CHANNEL_DEPTH);
        (CaptureSink(sender), receiver)
    }

    /// Sends a part. Blocks the thread while the queue is full. Returns false if the client has disconnected.
    pub fn send(&self, part: Vec<u8>) -> bool {
        self.0.blocking_send(part).is_ok()
    }

    /// Returns true if the client has disconnected.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl PartialEq for CaptureSink {
    fn eq(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

pub(super) async fn begin_capture(
    State(app): State<App>,
    PathParam(port): PathParam<String>,
    Params(spec): Params<CaptureSpec>,
) -> RouteResult {
    let (sink, parts) = CaptureSink::pair();
    let closing = app.closing();
    app.request(Request::Capture { port, spec, sink }).await?;
    Ok(capture_body(parts, closing))
}

pub(super) async fn end_capture(
    State(app): State<App>,
    PathParam(port): PathParam<String>,
) -> RouteResult {
    app.respond_ok(Request::EndCapture { port }).await
}

/// Returns a response whose body consists of the parts as they arrive. The body ends after the last part or when the
/// server stops.
fn capture_body(parts: mpsc::Receiver<Vec<u8>>, closing: watch::Receiver<bool>) -> Response {
    let parts = stream::unfold((parts, closing), |(mut parts, mut closing)| async move {
        let part = tokio::select! {
            part = parts.recv() => part?,
            _ = closing.wait_for(|&closing| closing) => return None,
        };
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(part)), (parts, closing)))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-pcapng")];
    (kind, Body::from_stream(parts)).into_response()
}
