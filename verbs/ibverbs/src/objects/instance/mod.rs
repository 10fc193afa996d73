//! The process-wide session with the appliance.

mod dispatcher;

pub use dispatcher::SessionEvents;
pub(crate) use dispatcher::set_session_events;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use rustix::process::{Pid, getpid};
use verbs_client::{Error, PairEvent, Session, SharedReceivesEvent};

use crate::errno::{EACCES, ENODEV, ENOSYS, EPERM, Result};
use crate::objects::counts::Counts;
use crate::objects::events::Events;
use crate::report;
use verbs_client::lock::lock;
use verbs_client::signals::with_blocked;

static CURRENT: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// A session, and its objects by number, to deliver events to them. When the session has ended, and in a forked child,
/// [`Instance::current`] opens a new session. Objects keep the instance that created them.
pub struct Instance {
    session: Session,
    process: Pid,
    pub(crate) objects: Mutex<Objects>,
    counts: Counts,
}

/// Objects of a session by number, and the event queues of its contexts.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) pairs: HashMap<u32, Weak<dyn Target<PairEvent>>>,
    /// The event of a CQ is its failure: a message with the reason.
    pub(crate) completion_queues: HashMap<u32, Weak<dyn Target<String>>>,
    pub(crate) shared_receives: HashMap<u32, Weak<dyn Target<SharedReceivesEvent>>>,
    contexts: Vec<Weak<Events>>,
}

/// An object that receives events of the session.
pub(crate) trait Target<E>: Send + Sync {
    /// Handles an event, on the dispatcher's thread.
    fn handle(self: Arc<Self>, event: E);
}

impl Instance {
    /// Returns the current session. Opens one if there is none.
    ///
    /// # Errors
    /// `ENOSYS`: there is no appliance. `EPERM`: the program may not attach. Others: the errors of [`Session::open`].
    /// The reason is printed once.
    pub fn current() -> Result<Arc<Instance>> {
        let mut current = lock(&CURRENT);
        if let Some(instance) = current.as_ref().filter(|instance| instance.is_usable()) {
            return Ok(instance.clone());
        }
        let session = with_blocked(Session::open).inspect_err(explain).map_err(|error| {
            match crate::errno::errno(&error) {
                EACCES | EPERM => EPERM,
                libc::ENOENT | libc::ECONNREFUSED | libc::ENOTDIR => ENOSYS,
                value => value,
            }
        })?;
        let objects = Mutex::default();
        let instance =
            Arc::new(Instance { session, process: getpid(), objects, counts: Counts::new() });
        dispatcher::start(&instance)?;
        *current = Some(instance.clone());
        Ok(instance)
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the counts of requests of all QPs.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns true once the session has ended.
    pub fn is_ended(&self) -> bool {
        self.session.end_reason().is_some()
    }

    /// Returns an error if the session has ended, or belongs to the parent process.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn check(&self) -> Result<()> {
        if self.is_usable() { Ok(()) } else { Err(ENODEV) }
    }

    fn is_usable(&self) -> bool {
        !self.is_ended() && !self.is_forked()
    }

    /// Returns true in a forked child of the process that opened the session.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != getpid()
    }

    /// Adds the event queue of a context, which receives the event of the session's end.
    pub(crate) fn add_context(&self, events: &Arc<Events>) {
        let contexts = &mut lock(&self.objects).contexts;
        contexts.retain(|other| other.strong_count() > 0);
        contexts.push(Arc::downgrade(events));
    }
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Prints why no session could be opened.
fn explain(error: &Error) {
    let hint = match error {
        Error::Connect { .. } => {
            ". Start an appliance with [programs] in its configuration, or set DDPD_PROGRAMS_SOCKET"
        }
        _ => "",
    };
    report::once("no session", format_args!("{error}{hint}"));
}
