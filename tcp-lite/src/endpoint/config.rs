//! Configuration of the streams of a listener or of an active open.

use std::sync::Arc;

use ddp::EndpointPolicy;

use crate::mpa;
use crate::tcp;

/// Configuration of an [`Endpoint`](super::Endpoint), shared by its streams.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EndpointConfig {
    /// Parameters of TCP.
    pub tcp: Arc<tcp::Config>,
    /// Parameters of MPA.
    pub mpa: mpa::Config,
    /// Teardown and idle policy. If the peer does not answer a teardown in time, the stream ends with a reset, which
    /// would destroy the last message in flight.
    pub policy: EndpointPolicy,
}
