//! Configuration of the associations of one listener or of one active open.

use core::time::Duration;

use ddp::EndpointPolicy;

use crate::session;

/// Configuration of an [`Endpoint`](super::Endpoint). By default an association does not linger.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EndpointConfig {
    /// Configuration of the sessions.
    pub session: session::Config,
    /// Time-outs and messages at the end of sessions. An expired teardown time-out ends the session but not the
    /// association, which still delivers messages already sent.
    pub policy: EndpointPolicy,
    /// Time for which the association remains open after its last session, so that another session can begin.
    pub linger: Duration,
}
