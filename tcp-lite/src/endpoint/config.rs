//! What an operator chooses about the streams of one listener or of one active open.

use std::sync::Arc;

use ddp::EndpointPolicy;

use crate::mpa;
use crate::tcp;

/// Configuration of an [`Endpoint`](super::Endpoint), shared by many.
#[derive(Clone, Debug, Default)]
pub struct EndpointConfig {
    /// TCP.
    pub tcp: Arc<tcp::Config>,
    /// MPA.
    pub mpa: mpa::Config,
    /// How streams end. A teardown that the peer does not answer ends with a reset, which would destroy the last
    /// message on its way.
    pub policy: EndpointPolicy,
}
