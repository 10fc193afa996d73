//! The state that all handlers share, and the extractors of their arguments: JSON body, query, and name in the path.

use std::time::Duration;

use axum::Extension;
use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query};
use axum::http::{StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::error::Failure;
use super::{ApiError, ErrorKind, EventLog, Reply, Request, Requester};

/// Time-out for a request's body: the maximum time from the request's header to the end of its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// State that all handlers share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    requester: Requester,
    pub(crate) events: EventLog,
    body_limit: usize,
    closing: watch::Receiver<bool>,
}

impl App {
    pub(crate) fn new(
        requester: Requester,
        events: EventLog,
        body_limit: usize,
        closing: watch::Receiver<bool>,
    ) -> Self {
        Self { requester, events, body_limit, closing }
    }

    /// Returns a receiver whose value becomes true when the server ends.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.clone()
    }

    pub(crate) async fn request(&self, request: Request) -> Result<Reply, ApiError> {
        self.requester.call(request).await
    }

    /// Sends a request to the control thread. Returns its reply as JSON with this HTTP status.
    pub(crate) async fn respond(
        &self,
        status: StatusCode,
        request: Request,
    ) -> Result<Response, ApiError> {
        Ok((status, axum::Json(self.request(request).await?)).into_response())
    }

    pub(crate) async fn respond_ok(&self, request: Request) -> Result<Response, ApiError> {
        self.respond(StatusCode::OK, request).await
    }
}

pub(crate) type RouteResult = Result<Response, ApiError>;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.error.status());
        let why = Failure { kind: self.error, message: self.message.clone() };
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Extension(why), axum::Json(self)).into_response()
    }
}

/// Extractor of a JSON body of at most `limits.api_body` bytes. The content type is ignored.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(
        request: axum::extract::Request,
        app: &App,
    ) -> Result<Self, Self::Rejection> {
        let limit = app.body_limit;
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
        let too_large = || {
            let message = format!(
                "the body is longer than {limit} bytes: send less, or raise limits.api_body"
            );
            ApiError::new(ErrorKind::TooLarge, message)
        };
        if announced.is_some_and(|len| len > limit as u64) {
            return Err(too_large());
        }
        let body = tokio::time::timeout(BODY_TIMEOUT, to_bytes(request.into_body(), limit)).await;
        let body = body.map_err(|_| {
            ApiError::bad_request(format!(
                "the body has not arrived within {} s",
                BODY_TIMEOUT.as_secs()
            ))
        })?;
        let bytes = body.map_err(|error| match std::error::Error::source(&error) {
            Some(source) if source.is::<http_body_util::LengthLimitError>() => too_large(),
            _ => ApiError::bad_request(format!("the body cannot be read: {error}")),
        })?;
        let value: serde_json::Value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))?;
        serde_json::from_value(value)
            .map(Self)
            .map_err(|error| ApiError::bad_request(format!("the body cannot be parsed: {error}")))
    }
}

/// Extractor of the query's parameters. Answers 400 if they cannot be parsed.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Self::Rejection> {
        let query = Query::<T>::try_from_uri(&parts.uri).map_err(|error| {
            ApiError::bad_request(format!("the query cannot be parsed: {}", error.body_text()))
        })?;
        Ok(Self(query.0))
    }
}

/// Extractor of the path parameter, which names an object. Answers 404 if it cannot be parsed.
pub(crate) struct PathParam<T>(pub(crate) T);

impl<T: std::str::FromStr> FromRequestParts<App> for PathParam<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        let Path(text) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|error| ApiError::not_found(error.body_text()))?;
        text.parse().map(Self).map_err(|_| {
            ApiError::not_found(format!(
                "there is nothing with the number `{}`",
                text.escape_debug()
            ))
        })
    }
}
