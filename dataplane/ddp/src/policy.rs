//! What an operator chooses about the life of the streams of one listener or of one active open, over any LLP.

use core::time::Duration;

use crate::ulp::OnPeerClose;

/// How streams end. Part of the configuration of each LLP's endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointPolicy {
    /// How long a teardown waits for the peer without any progress, before the LLP ends the stream without it. The
    /// wait lets the last message arrive.
    pub teardown_timeout: Duration,
    /// Silence of the peer after which its streams are closed, and what carries them, if at all.
    pub idle_timeout: Option<Duration>,
    /// What to do when the peer has closed its direction.
    pub on_peer_close: OnPeerClose,
    /// Whether to send the peer its error, by bare DDP's last message or by RDMAP's Terminate.
    pub last_message: bool,
}

impl Default for EndpointPolicy {
    /// 5 s of teardown, no idle time-out, closing when the peer does, with the last message.
    fn default() -> Self {
        EndpointPolicy {
            teardown_timeout: Duration::from_secs(5),
            idle_timeout: None,
            on_peer_close: OnPeerClose::Finish,
            last_message: true,
        }
    }
}
