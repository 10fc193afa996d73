//! Exit codes of `ddpctl`, and the failures behind them.

use std::io;
use std::time::Duration;

use api::{ClientError, ErrorKind};
use config::ConfigErrors;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::kernel::KernelError;

/// Exit codes; they are stable and documented in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded.
    Success = 0,
    /// The operation failed.
    Failed = 1,
    /// The command line, its input or the resulting request is invalid.
    Usage = 2,
    /// The appliance cannot be reached; with `--kernel`, the peer.
    Unreachable = 3,
    /// The peer refused: it rejected the connection or ended the stream with an error.
    Refused = 4,
    /// The peer's TCP or SCTP acknowledged all bytes, but placement or reading of the bytes is not confirmed.
    Unconfirmed = 5,
    /// The appliance accepts connections but does not answer: it is stopped or hangs.
    Silent = 6,
    /// The time limit of --timeout expired.
    TimedOut = 7,
    /// SIGHUP cancelled a transfer.
    HangUp = 128 + SIGHUP as u8,
    /// SIGINT cancelled a transfer.
    Interrupt = 128 + SIGINT as u8,
    /// SIGTERM cancelled a transfer.
    Terminate = 128 + SIGTERM as u8,
}

impl Exit {
    /// Returns the signal that is to end the process, if any.
    pub fn signal(self) -> Option<i32> {
        match self {
            Exit::HangUp => Some(SIGHUP),
            Exit::Interrupt => Some(SIGINT),
            Exit::Terminate => Some(SIGTERM),
            _ => None,
        }
    }
}

/// Failure of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Failure {
    #[serde(skip)]
    pub(super) exit: Exit,
    /// Kind of the error, stable for scripts.
    pub(super) error: &'static str,
    /// Description of the failure in one sentence.
    pub(super) message: String,
    /// Remedy, if one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let error = match exit {
            Exit::Success | Exit::Failed => "failed",
            Exit::Usage => "bad_request",
            Exit::Unreachable => "unreachable",
            Exit::Refused => "peer_refused",
            Exit::Unconfirmed => "unconfirmed",
            Exit::Silent => "silent",
            Exit::HangUp | Exit::Interrupt | Exit::Terminate => "interrupted",
            Exit::TimedOut => "timeout",
        };
        Self { exit, error, message: message.into(), hint: None }
    }

    /// Returns the failure of a transfer whose bytes are acknowledged but not confirmed.
    pub(super) fn unconfirmed(bytes: u64) -> Self {
        let message = format!(
            "{bytes} bytes are acknowledged by the peer's TCP or SCTP, and not confirmed by its DDP: no error came"
        );
        let hint =
            "a stream of its own (without --stream) is confirmed by its end, and RDMAP by a Read";
        Self::new(Exit::Unconfirmed, message).with_hint(Some(hint.to_owned()))
    }

    /// Changes [`Exit::Failed`] into [`Exit::TimedOut`] if the time limit of --timeout has passed.
    pub(super) fn with_timeout_applied(self, timeout: Duration, elapsed: Duration) -> Self {
        match self.exit {
            Exit::Failed if elapsed >= timeout => {
                Self { exit: Exit::TimedOut, error: "timeout", ..self }
            }
            _ => self,
        }
    }

    pub(super) fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    /// Returns the failure with the exit code of a signal, if one arrived.
    pub(super) fn with_signal(self, signal: Option<Exit>) -> Self {
        Self { exit: signal.unwrap_or(self.exit), ..self }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::Unreachable { .. } => Exit::Unreachable,
            ClientError::Silent { .. } => Exit::Silent,
            ClientError::Request(_) => Exit::Usage,
            ClientError::Late { .. } => Exit::TimedOut,
            ClientError::Protocol(_) => Exit::Failed,
            ClientError::Refused(refusal) => match refusal.error {
                ErrorKind::PeerRefused => Exit::Refused,
                ErrorKind::BadRequest | ErrorKind::TooLarge => Exit::Usage,
                _ => Exit::Failed,
            },
        };
        let mut failure = Self::new(exit, error.to_string());
        if let ClientError::Refused(refusal) = &error {
            failure.error = error_name(refusal.error);
            failure.hint.clone_from(&refusal.hint);
        }
        failure
    }
}

fn error_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::BadRequest => "bad_request",
        ErrorKind::Forbidden => "forbidden",
        ErrorKind::NotFound => "not_found",
        ErrorKind::MethodNotAllowed => "method_not_allowed",
        ErrorKind::Conflict => "conflict",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::Internal => "internal",
        ErrorKind::PeerRefused => "peer_refused",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Timeout => "timeout",
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        io::Error::from(error).into()
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(Exit::Usage, errors.to_string())
    }
}

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Self {
        let exit = match &error {
            KernelError::Resolve { .. } | KernelError::Connect(_) => Exit::Unreachable,
            // As with an appliance, a transfer that the peer's advertisement excludes is a refusal by the peer.
            KernelError::Rejected { .. }
            | KernelError::Peer(_)
            | KernelError::NoRegion { .. }
            | KernelError::Busy { .. }
            | KernelError::NotWritable { .. } => Exit::Refused,
            KernelError::NeedsStag => Exit::Usage,
            KernelError::Late { .. } => Exit::TimedOut,
            _ => Exit::Failed,
        };
        let hint = error.hint().map(str::to_owned);
        Self::new(exit, error.to_string()).with_hint(hint)
    }
}
