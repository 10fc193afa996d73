//! Configuration of the associations of one listener or of one active open.

use core::time::Duration;

use ddp::EndpointPolicy;

use crate::session;

/// Configuration of an [`Endpoint`](super::Endpoint). By default an association does not linger.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EndpointConfig {
    /// Configuration of the sessions.
    pub session: session::Config,
    /// Time-outs and messages at the end of sessions. The association survives an expired teardown time-out, so no
    /// data is lost.
    pub policy: EndpointPolicy,
    /// Time for which the association remains open after its last session, so that another one can begin.
    pub linger: Duration,
}
