//! The operator's settings for the lifecycle of the streams of a listener or of an active open, over any LLP.

use core::time::Duration;

/// Default of [`EndpointPolicy::half_closed_timeout`].
pub const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30);

/// Time-outs of idle and ending streams, and the choice to report errors. Part of each LLP's endpoint configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointPolicy {
    /// Maximum time without progress for which a teardown waits for the peer, so that the last message can arrive.
    /// After this time the LLP ends the stream.
    pub teardown_timeout: Duration,
    /// Time without packets from the peer after which its streams and their connection or association are closed.
    /// `None`: no time-out.
    pub idle_timeout: Option<Duration>,
    /// Maximum time without progress between the peer's close of its direction and the ULP's close. Meanwhile the ULP's
    /// answers are still sent (RFC 5041 §6.2.1). Afterwards the stream is aborted. `None`: no bound.
    pub half_closed_timeout: Option<Duration>,
    /// True to report an error of the peer to the peer, by bare DDP's last message or by RDMAP's Terminate.
    pub last_message: bool,
}

impl Default for EndpointPolicy {
    /// Returns a teardown time-out of 5 s, no idle time-out, a half-closed time-out of 30 s, and error reports enabled.
    fn default() -> Self {
        EndpointPolicy {
            teardown_timeout: Duration::from_secs(5),
            idle_timeout: None,
            half_closed_timeout: Some(HALF_CLOSED_TIMEOUT),
            last_message: true,
        }
    }
}
