//! What an operator chooses about the streams of one listener or of one active open.

use crate::mpa;
use crate::tcp;
use core::time::Duration;
use ddp::OnPeerClose;
use std::sync::Arc;

/// Configuration of an [`Endpoint`](super::Endpoint), shared by many.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// TCP.
    pub tcp: Arc<tcp::Config>,
    /// MPA.
    pub mpa: mpa::Config,
    /// How long a teardown waits for the peer without any progress, before the reset. The wait lets
    /// the one last message arrive: a reset would destroy it on its way.
    pub teardown_timeout: Duration,
    /// Silence of the peer after which the stream is closed, if at all.
    pub idle_timeout: Option<Duration>,
    /// What to do when the peer has closed its direction.
    pub on_peer_close: OnPeerClose,
    /// Whether to tell the peer of its error, by bare DDP's one last message or by RDMAP's Terminate.
    pub last_message: bool,
}

impl Default for EndpointConfig {
    /// 5 s of teardown, no idle time-out, closing when the peer does, with the last message.
    fn default() -> Self {
        EndpointConfig {
            tcp: Arc::new(tcp::Config::default()),
            mpa: mpa::Config::default(),
            teardown_timeout: Duration::from_secs(5),
            idle_timeout: None,
            on_peer_close: OnPeerClose::Finish,
            last_message: true,
        }
    }
}
