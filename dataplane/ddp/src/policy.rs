//! An operator's choices for the lifecycle of the streams of one listener or of one active open, over any LLP.

use core::time::Duration;

/// Default of [`EndpointPolicy::half_closed_timeout`].
pub const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30);

/// Rules for the end of streams. Part of each LLP's endpoint configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointPolicy {
    /// Longest wait of a teardown for the peer without progress. Then the LLP ends the stream. The wait
    /// gives the last message time to arrive.
    pub teardown_timeout: Duration,
    /// Silence of the peer after which its streams and their carrier are closed. `None`: no time-out.
    pub idle_timeout: Option<Duration>,
    /// Longest wait without progress for the ULP to close after the peer has closed its direction. Meanwhile
    /// the ULP's answers are still sent (RFC 5041 §6.2.1). Then the stream is aborted. `None`: no bound.
    pub half_closed_timeout: Option<Duration>,
    /// True to report the peer's error to it, by bare DDP's last message or by RDMAP's Terminate.
    pub last_message: bool,
}

impl Default for EndpointPolicy {
    /// Returns 5 s of teardown, no idle time-out, 30 s for the ULP after the peer's close, with the last
    /// message.
    fn default() -> Self {
        EndpointPolicy {
            teardown_timeout: Duration::from_secs(5),
            idle_timeout: None,
            half_closed_timeout: Some(HALF_CLOSED_TIMEOUT),
            last_message: true,
        }
    }
}
