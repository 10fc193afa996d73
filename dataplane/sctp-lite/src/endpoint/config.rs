//! What an operator chooses about the associations of one listener or of one active open.

use crate::session;
use core::time::Duration;
use ddp::OnPeerClose;

/// Configuration of an [`Endpoint`](super::Endpoint), shared by many.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Sessions.
    pub session: session::Config,
    /// How long the teardown of a session waits for the peer without any progress. Nothing is lost by an end
    /// of the wait: the association goes on.
    pub teardown_timeout: Duration,
    /// Silence of the peer after which all its sessions are closed, and the association with them, if at all.
    pub idle_timeout: Option<Duration>,
    /// What to do when the peer has terminated its direction of a session.
    pub on_peer_close: OnPeerClose,
    /// Whether to tell the peer of its error, by bare DDP's one last message or by RDMAP's Terminate.
    pub last_message: bool,
    /// How long the association outlives its last session, for another one to be opened on it.
    pub linger: Duration,
}

impl Default for EndpointConfig {
    /// 5 s of teardown, no idle time-out, closing when the peer does, with the last message, without a linger.
    fn default() -> Self {
        EndpointConfig {
            session: session::Config::default(),
            teardown_timeout: Duration::from_secs(5),
            idle_timeout: None,
            on_peer_close: OnPeerClose::Finish,
            last_message: true,
            linger: Duration::ZERO,
        }
    }
}
