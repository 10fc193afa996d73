//! Frees large memory, and all memory of local programs, on a dedicated thread (the free thread). Unmapping several GiB
//! takes about a second. A worker or the control thread may drop the memory's last handle, and neither may block that
//! long.
//!
//! Memory of programs is freed on this thread regardless of its size. A program decides how often its memory is freed,
//! and each unmapping on a worker would delay other programs by some microseconds.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

use super::map::Mapping;

/// Memory of at least this many bytes is freed on the free thread, regardless of its use.
pub(super) const MIN_DEFERRED_BYTES: usize = 64 << 20;

/// Channel to the process's free thread. `None` if the thread could not be started.
static FREE_THREAD: OnceLock<Option<Sender<Job>>> = OnceLock::new();

enum Job {
    Free(MemoryResources),
    /// Reports that all earlier jobs are done.
    Report(SyncSender<()>),
}

/// Resources of one [`Memory`](super::Memory), freed together.
pub(super) struct MemoryResources {
    pub(super) mapping: Mapping,
    pub(super) shared: Option<OwnedFd>,
    pub(super) charge: Option<Box<dyn Any + Send + Sync>>,
}

impl MemoryResources {
    /// Frees the resources. Pages are released with the mapping and the descriptor. The charge is dropped last, so that
    /// a memory budget is not credited before the pages are free.
    pub(super) fn free(self) {
        let MemoryResources { mapping, shared, charge } = self;
        drop(mapping);
        drop(shared);
        drop(charge);
    }
}

/// Starts the free thread unless it is running. Called before the creation of memory that the free thread will free.
/// Must not be called on a worker.
pub(super) fn start_thread() {
    FREE_THREAD.get_or_init(|| {
        let (outbox, inbox) = channel::<Job>();
        let run = move || {
            inbox.into_iter().for_each(|job| match job {
                Job::Free(resources) => resources.free(),
                // The send fails if the caller of `wait` has ended.
                Job::Report(done) => drop(done.send(())),
            });
        };
        std::thread::Builder::new().name("free".into()).spawn(run).ok().map(|_| outbox)
    });
}

/// Frees the resources on the free thread, or on the calling thread if the free thread does not run.
pub(super) fn free_deferred(resources: MemoryResources) {
    match FREE_THREAD.get() {
        // The thread ends with the process: the send does not fail.
        Some(Some(inbox)) => drop(inbox.send(Job::Free(resources))),
        _ => resources.free(),
    }
}

/// Waits until the free thread has freed all memory whose last handle was dropped before this call.
pub(super) fn wait() {
    let (report, done) = sync_channel(1);
    if let Some(Some(inbox)) = FREE_THREAD.get()
        && inbox.send(Job::Report(report)).is_ok()
    {
        // The receive fails if the thread has ended.
        let _ = done.recv();
    }
}
