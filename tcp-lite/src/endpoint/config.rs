//! What an operator chooses about the streams of one listener or of one active open.

use crate::mpa;
use crate::tcp;
use core::time::Duration;
use ddp::{OnPeerClose, PdId, UlpConfig};
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

/// What an active open needs besides the configuration.
#[derive(Clone, Debug)]
pub struct Open {
    /// Protection domain of the stream.
    pub pd: PdId,
    /// What is spoken above MPA. Its DDP version is not looked at where MPA decides it: the draft's
    /// Start Key, and a revision 0 reply to a revision 1 request, mean version 0.
    pub ulp: UlpConfig,
    /// Private data of the request, at most 512 octets; none with the draft's Start Key.
    pub private_data: Vec<u8>,
}
