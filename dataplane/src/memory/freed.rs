//! Freeing large memory on a thread of its own: unmapping takes about a second for some GiB, and the last handle may be
//! dropped by a worker or by the control thread.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use super::map::Mapping;

/// Memory of so many bytes and more is freed by the thread.
pub(super) const LARGE: usize = 64 << 20;

/// The thread's inbox, one for the process. `None` where it cannot be started.
static INBOX: OnceLock<Option<Sender<Freed>>> = OnceLock::new();

/// Everything that a memory holds.
pub(super) struct Freed {
    pub(super) mapping: Mapping,
    pub(super) shared: Option<OwnedFd>,
    pub(super) charge: Option<Box<dyn Any + Send + Sync>>,
}

impl Freed {
    /// Frees it: the pages of a memory file with the last mapping and descriptor, and then the charge.
    pub(super) fn free(self) {
        let Freed { mapping, shared, charge } = self;
        drop(mapping);
        drop(shared);
        drop(charge);
    }
}

/// Starts the thread, where it does not run yet. To be called when large memory is made, which no worker does.
pub(super) fn start() {
    INBOX.get_or_init(|| {
        let (outbox, inbox) = channel::<Freed>();
        let run = move || inbox.into_iter().for_each(Freed::free);
        std::thread::Builder::new().name("free".into()).spawn(run).ok().map(|_| outbox)
    });
}

/// Frees the memory on its own thread; at once without a thread.
pub(super) fn hand_over(freed: Freed) {
    match INBOX.get() {
        Some(Some(inbox)) => match inbox.send(freed) {
            Ok(()) => {}
            Err(returned) => returned.0.free(),
        },
        _ => freed.free(),
    }
}
