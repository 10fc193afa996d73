//! What an operator chooses about the associations of one listener or of one active open.

use core::time::Duration;

use ddp::EndpointPolicy;

use crate::session;

/// Configuration of an [`Endpoint`](super::Endpoint), shared by many. By default an association does not linger.
#[derive(Clone, Debug, Default)]
pub struct EndpointConfig {
    /// Sessions.
    pub session: session::Config,
    /// How sessions end. Nothing is lost by the end of a wait for the peer: the association goes on.
    pub policy: EndpointPolicy,
    /// How long the association outlives its last session, for another one to be opened on it.
    pub linger: Duration,
}
