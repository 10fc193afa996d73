//! Events of connections, for the connection manager.

use std::sync::Arc;

use verbs_client::{ConnectionRequest, PairEvent};

use crate::objects::instance::{Instance, SessionEvents, set_session_events};
use crate::objects::queue_pair::{PairEvents, QueuePair, set_pair_events};

/// Receiver of the events of connections. The functions run on the dispatcher's thread and must not wait for another
/// event.
pub trait ConnectionEvents: Send + Sync {
    /// A peer requests a connection. The request may arrive before `Session::listen` has returned its listener.
    fn incoming(&self, request: ConnectionRequest);

    /// The connection of a QP has changed. The state of the QP is already updated.
    fn pair(&self, pair: &Arc<QueuePair>, event: PairEvent);

    /// The session has ended.
    fn ended(&self, instance: &Arc<Instance>);
}

/// Sets the receiver of the events of connections. Only the first call has an effect.
pub fn set_connection_events(handler: &'static dyn ConnectionEvents) {
    set_session_events(Box::new(Receiver(handler)));
    set_pair_events(Box::new(Receiver(handler)));
}

struct Receiver(&'static dyn ConnectionEvents);

impl SessionEvents for Receiver {
    fn incoming(&self, request: ConnectionRequest) {
        self.0.incoming(request);
    }

    fn ended(&self, instance: &Arc<Instance>) {
        self.0.ended(instance);
    }
}

impl PairEvents for Receiver {
    fn pair(&self, pair: &Arc<QueuePair>, event: PairEvent) {
        self.0.pair(pair, event);
    }
}
