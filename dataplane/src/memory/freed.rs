//! Frees large memory on its own thread. Unmapping several GiB takes about a second, and the last handle may be
//! dropped by a worker or by the control thread.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use super::map::Mapping;

/// Memory of at least this many bytes is freed on the thread.
pub(super) const LARGE: usize = 64 << 20;

/// Channel to the thread, one per process. `None` if the thread cannot be started.
static INBOX: OnceLock<Option<Sender<Freed>>> = OnceLock::new();

/// All resources of a memory.
pub(super) struct Freed {
    pub(super) mapping: Mapping,
    pub(super) shared: Option<OwnedFd>,
    pub(super) charge: Option<Box<dyn Any + Send + Sync>>,
}

impl Freed {
    /// Frees the resources: pages are released with the last mapping and descriptor, then the charge is dropped.
    pub(super) fn free(self) {
        let Freed { mapping, shared, charge } = self;
        drop(mapping);
        drop(shared);
        drop(charge);
    }
}

/// Starts the thread unless it runs. Called when large memory is made, which no worker does.
pub(super) fn start() {
    INBOX.get_or_init(|| {
        let (outbox, inbox) = channel::<Freed>();
        let run = move || inbox.into_iter().for_each(Freed::free);
        std::thread::Builder::new().name("free".into()).spawn(run).ok().map(|_| outbox)
    });
}

/// Frees the memory on the thread, or at once if there is no thread.
pub(super) fn hand_over(freed: Freed) {
    match INBOX.get() {
        Some(Some(inbox)) => match inbox.send(freed) {
            Ok(()) => {}
            Err(returned) => returned.0.free(),
        },
        _ => freed.free(),
    }
}
