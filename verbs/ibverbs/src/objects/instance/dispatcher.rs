//! The thread that reads the events of a session and passes them to the objects, and to the connection manager.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use verbs_client::{ConnectionRequest, Event, PairEvent, SharedReceivesEvent};

use super::{Instance, Target};
use crate::errno::{EAGAIN, Result};
use crate::report;
use verbs_client::lock::lock;
use verbs_client::signals::with_blocked;

/// Receiver of the events of sessions. The functions run on the dispatcher's thread and must not wait for another
/// event.
pub trait SessionEvents: Send + Sync {
    /// A peer requests a connection. The request may arrive before `Session::listen` has returned its listener.
    fn incoming(&self, request: ConnectionRequest);

    /// The session has ended.
    fn ended(&self, instance: &Arc<Instance>);
}

static HANDLER: OnceLock<&dyn SessionEvents> = OnceLock::new();

/// Sets the receiver of the events of sessions. Only the first call has an effect.
pub(crate) fn set_session_events(handler: &'static dyn SessionEvents) {
    // An error means that the handler is set already.
    let _ = HANDLER.set(handler);
}

/// Starts the thread of a session.
pub(super) fn start(instance: &Arc<Instance>) -> Result<()> {
    let instance = instance.clone();
    let thread = std::thread::Builder::new().name("ddpd-events".into());
    with_blocked(|| thread.spawn(move || run(&instance))).map_err(|_| EAGAIN)?;
    Ok(())
}

/// An event with the object that handles it.
enum Found {
    Incoming(ConnectionRequest),
    Pair(Arc<dyn Target<PairEvent>>, PairEvent),
    SharedReceives(Arc<dyn Target<SharedReceivesEvent>>, SharedReceivesEvent),
    CompletionQueue(Arc<dyn Target<String>>, String),
}

fn run(instance: &Arc<Instance>) {
    loop {
        // An error is ignored: `next` then finds no event.
        let _ = poll(&mut [PollFd::new(instance.session(), PollFlags::IN)], None);
        match next(instance) {
            Ok(None) => {}
            Ok(Some(found)) => {
                // A panic is a defect of this library. Without the thread, the program would wait for events for ever.
                if catch_unwind(AssertUnwindSafe(|| dispatch(found))).is_err() {
                    report::line(format_args!("the library failed: its session ends"));
                    instance.session().end("the library failed");
                }
            }
            Err(_) => break,
        }
    }
    let contexts = std::mem::take(&mut lock(&instance.objects).contexts);
    contexts.iter().filter_map(Weak::upgrade).for_each(|events| events.device_fatal());
    if let Some(handler) = HANDLER.get() {
        handler.ended(instance);
    }
}

/// Takes an event and finds its object; `None`: there is no event, or the object was destroyed. Holds the lock of the
/// objects for both steps, because the appliance may reuse a number once its object is removed.
fn next(instance: &Instance) -> std::result::Result<Option<Found>, verbs_client::Error> {
    let objects = lock(&instance.objects);
    let Some(event) = instance.session().next_event(Some(Duration::ZERO))? else {
        return Ok(None);
    };
    Ok(match event {
        Event::Incoming(request) => Some(Found::Incoming(request)),
        Event::Pair { pair, event } => {
            let pair = objects.pairs.get(&pair).and_then(Weak::upgrade);
            pair.map(|pair| Found::Pair(pair, event))
        }
        Event::SharedReceives { queue, event } => {
            let queue = objects.shared_receives.get(&queue).and_then(Weak::upgrade);
            queue.map(|queue| Found::SharedReceives(queue, event))
        }
        Event::CompletionQueueFailed { queue, message } => {
            let queue = objects.completion_queues.get(&queue).and_then(Weak::upgrade);
            queue.map(|queue| Found::CompletionQueue(queue, message))
        }
    })
}

fn dispatch(found: Found) {
    match found {
        Found::Incoming(request) => {
            if let Some(handler) = HANDLER.get() {
                handler.incoming(request);
            }
        }
        Found::Pair(pair, event) => pair.handle(event),
        Found::SharedReceives(queue, event) => queue.handle(event),
        Found::CompletionQueue(queue, message) => queue.handle(message),
    }
}
