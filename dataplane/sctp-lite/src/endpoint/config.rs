//! Configuration of the associations of one listener or of one active open.

use core::time::Duration;

use ddp::EndpointPolicy;

use crate::session;

/// Configuration of an [`Endpoint`](super::Endpoint), shared by many. By default an association does not
/// linger.
#[derive(Clone, Debug, Default)]
pub struct EndpointConfig {
    /// Configuration of the sessions.
    pub session: session::Config,
    /// Time-outs and messages at the end of sessions. An expired wait for the peer loses no data: the
    /// association continues.
    pub policy: EndpointPolicy,
    /// Time for which the association remains after its last session, for another one to be opened on it.
    pub linger: Duration,
}
