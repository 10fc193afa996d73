//! Configuration of the streams of a listener or of an active open.

use std::sync::Arc;

use ddp::EndpointPolicy;

use crate::mpa;
use crate::tcp;

/// Configuration of [`Endpoint`](super::Endpoint)s. All streams of a listener share one value.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EndpointConfig {
    /// Parameters of the TCP connections.
    pub tcp: Arc<tcp::Config>,
    /// Parameters of MPA, for the start-up and for Full Operation.
    pub mpa: mpa::Config,
    /// Teardown and idle policy. A teardown that the peer does not answer in time ends with a reset. DDP's last
    /// message, which reports an error, may then be lost in flight.
    pub policy: EndpointPolicy,
}
