//! What an operator chooses about the life of the streams of one listener or of one active open, over any LLP.

use core::time::Duration;

/// Default of [`EndpointPolicy::half_closed_timeout`].
pub const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30);

/// How streams end. Part of the configuration of each LLP's endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointPolicy {
    /// How long a teardown waits for the peer without any progress, before the LLP ends the stream without it. The
    /// wait lets the last message arrive.
    pub teardown_timeout: Duration,
    /// Silence of the peer after which its streams are closed, and what carries them, if at all.
    pub idle_timeout: Option<Duration>,
    /// Longest wait without progress for the ULP to close after the peer has closed its direction: the ULP's answers are
    /// still sent (RFC 5041 §6.2.1). Then the stream is aborted. `None`: no bound.
    pub half_closed_timeout: Option<Duration>,
    /// Whether to send the peer its error, by bare DDP's last message or by RDMAP's Terminate.
    pub last_message: bool,
}

impl Default for EndpointPolicy {
    /// 5 s of teardown, no idle time-out, 30 s for the ULP after the peer's close, with the last message.
    fn default() -> Self {
        EndpointPolicy {
            teardown_timeout: Duration::from_secs(5),
            idle_timeout: None,
            half_closed_timeout: Some(HALF_CLOSED_TIMEOUT),
            last_message: true,
        }
    }
}
