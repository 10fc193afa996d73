//! Events of connections, for the connection manager.

use crate::objects::instance::set_session_events;
use crate::objects::queue_pair::set_pair_events;

pub use crate::objects::instance::SessionEvents;
pub use crate::objects::queue_pair::ConnectionEvents;

/// Sets the receiver of the events of connections. Only the first call has an effect.
pub fn set_connection_events(handler: &'static dyn ConnectionEvents) {
    set_session_events(handler);
    set_pair_events(handler);
}
