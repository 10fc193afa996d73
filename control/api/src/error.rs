//! Error responses of the API: a kind, which determines the HTTP status, one sentence, and a remedy if known.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error response. Its kind determines the HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the error.
    pub error: ErrorKind,
    /// The error in one sentence, for people.
    pub message: String,
    /// Remedy for the operator. Absent if none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Kinds of errors, with their HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// 400: the request is not JSON, or has an unknown member or an invalid value.
    BadRequest,
    /// 403: the caller's role does not allow the call.
    Forbidden,
    /// 404: no such path, name or number.
    NotFound,
    /// 405: the path exists, the method does not.
    MethodNotAllowed,
    /// 409: the object exists already, is in use, or is in another state.
    Conflict,
    /// 413: the body is too large.
    TooLarge,
    /// 500: a defect or a failed system call.
    Internal,
    /// 502: the peer rejected the connection or ended the stream with an error.
    PeerRefused,
    /// 503: a limit is reached, or the appliance drains or is overloaded.
    Unavailable,
    /// 504: the peer did not answer in time.
    Timeout,
}

impl ErrorKind {
    /// Returns the HTTP status, 400 to 504.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::Internal => 500,
            Self::PeerRefused => 502,
            Self::Unavailable => 503,
            Self::Timeout => 504,
        }
    }
}

impl ErrorKind {
    /// Returns the description of this kind for the OpenAPI document: one sentence without a full stop.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::BadRequest => "The body or the query is invalid",
            Self::Forbidden => "The caller's role does not allow the call",
            Self::NotFound => "No such path, name or number",
            Self::MethodNotAllowed => "The path exists, the method does not",
            Self::Conflict => "The object exists already, is in use, or is in another state",
            Self::TooLarge => "The body is larger than limits.api_body",
            Self::Internal => "A defect, or a failed system call",
            Self::PeerRefused => {
                "The peer rejected the connection or ended the stream with an error"
            }
            Self::Unavailable => "A limit is reached, or the appliance drains or is overloaded",
            Self::Timeout => "The peer did not answer in time",
        }
    }
}

impl ApiError {
    /// Creates an error response of this kind. `message` is one sentence.
    pub fn new(error: ErrorKind, message: impl Into<String>) -> Self {
        Self { error, message: message.into(), hint: None }
    }

    /// Sets or removes the remedy for the operator.
    #[must_use]
    pub fn with_hint(self, hint: Option<&str>) -> Self {
        Self { hint: hint.map(str::to_owned), ..self }
    }

    /// Creates an error response with status 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadRequest, message)
    }
    /// Creates an error response with status 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, message)
    }
    /// Creates an error response with status 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }
    /// Creates an error response with status 409.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }
    /// Creates an error response with status 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
    /// Creates an error response with status 502.
    pub fn peer_refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::PeerRefused, message)
    }
    /// Creates an error response with status 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }
    /// Creates an error response with status 504.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Timeout, message)
    }
}

/// Kind and message of an error response. The response carries them as an extension for the log and the audit.
#[derive(Clone)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}
