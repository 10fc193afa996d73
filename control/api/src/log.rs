//! The log of the process: the calls that show and set its filter, and log lines about API requests.

use std::time::Instant;

use axum::extract::{Request as HttpRequest, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Request;
use super::app::{App, Json, RouteResult};
use super::error::Failure;

/// State of the process's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogInfo {
    /// Filter, in the syntax of `management.log`.
    pub filter: String,
    /// Format: `text`, `json` or `journald`.
    pub format: String,
    /// Lines suppressed since the start of the process, because one call site wrote too many lines in a second.
    pub suppressed: u64,
}

/// A new filter of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewFilter {
    /// Filter, in the syntax of `management.log`.
    filter: String,
}

pub(super) async fn set_filter(State(app): State<App>, Json(new): Json<NewFilter>) -> RouteResult {
    app.respond_ok(Request::SetLog(new.filter)).await
}

/// Middleware that logs each request. Requests with another method than GET and error responses are logged at level
/// info, other requests at level debug.
pub(super) async fn log_request(request: HttpRequest, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let began = Instant::now();
    let response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), began.elapsed().as_millis() as u64);
    let (what, path) = (method.as_str(), uri.path());
    match response.extensions().get::<Failure>() {
        Some(why) => {
            tracing::info!(
                status,
                ms,
                "API: {what} {path} refused: {}",
                printable_reason(&why.message)
            );
        }
        None if method == Method::GET => tracing::debug!(status, ms, "API: {what} {path}"),
        None => tracing::info!(status, ms, "API: {what} {path}"),
    }
    response
}

/// Maximum number of characters of a refusal's message in a log line. The message may contain input of the client.
const MAX_SHOWN: usize = 500;

fn printable_reason(why: &str) -> String {
    why.chars().take(MAX_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
