//! Frees large memory on a dedicated thread. Unmapping several GiB takes about a second, and the last handle may be
//! dropped by a worker or by the control thread, neither of which may block that long.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use super::map::Mapping;

/// Memory of at least this many bytes is freed on the free thread.
pub(super) const MIN_DEFERRED_BYTES: usize = 64 << 20;

/// Channel to the process's free thread. `None` if the thread could not be started.
static FREE_THREAD: OnceLock<Option<Sender<MemoryResources>>> = OnceLock::new();

/// All resources of one [`Memory`](super::Memory).
pub(super) struct MemoryResources {
    pub(super) mapping: Mapping,
    pub(super) shared: Option<OwnedFd>,
    pub(super) charge: Option<Box<dyn Any + Send + Sync>>,
}

impl MemoryResources {
    /// Frees the resources. Pages are released with the mapping and the descriptor; the charge is dropped last.
    pub(super) fn free(self) {
        let MemoryResources { mapping, shared, charge } = self;
        drop(mapping);
        drop(shared);
        drop(charge);
    }
}

/// Starts the free thread unless it runs. Called when large memory is prepared, never on a worker.
pub(super) fn start_thread() {
    FREE_THREAD.get_or_init(|| {
        let (outbox, inbox) = channel::<MemoryResources>();
        let run = move || inbox.into_iter().for_each(MemoryResources::free);
        std::thread::Builder::new().name("free".into()).spawn(run).ok().map(|_| outbox)
    });
}

/// Frees the resources on the free thread, or on the calling thread if the free thread does not run.
pub(super) fn free_deferred(resources: MemoryResources) {
    match FREE_THREAD.get() {
        Some(Some(inbox)) => match inbox.send(resources) {
            Ok(()) => {}
            Err(returned) => returned.0.free(),
        },
        _ => resources.free(),
    }
}
