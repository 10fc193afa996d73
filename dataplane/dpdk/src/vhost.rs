//! Workers' access to the frontend of a vhost-user port, and notifications from the frontend to idle workers.
//!
//! A frontend provides a descriptor per queue. After sending, the frontend writes to the descriptor ("kicks") if
//! notifications are enabled. The descriptors are closed when the frontend disconnects, and may be replaced at any
//! time. Each queue therefore keeps its own epoll instance for as long as the device is open, and registers a duplicate
//! of the frontend's descriptor in it. The duplicate is never read, because the frontend chooses the kind of file, and
//! a read may block. A kicked descriptor therefore stays readable, and is watched edge-triggered.
//!
//! DPDK frees a frontend in its vhost thread, even if another thread is requesting notifications:
//! `rte_eth_dev_rx_intr_enable` would then access freed memory. In addition, `net_vhost` of DPDK 22.11 waits for
//! bursts with a store and a load that the processor may reorder. A burst may then access unmapped memory (seen once
//! in some thousand frontend connections). A worker therefore uses its queue under a lock, which the vhost thread
//! takes when a frontend connects or disconnects. A worker does not wait for the lock: if the lock is taken, the
//! worker treats the queue as one without a frontend.
//!
//! The features that the frontend has negotiated are read under the same lock. Packets are therefore merged only for a
//! frontend that supports large packets, and no merged packet is kept for the next frontend.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use dpdk_sys as sys;
use rustix::event::{Timespec, epoll};

use crate::types::Segmentation;

const NEG_EAGAIN: c_int = -11;

/// State of a vhost-user port: its queues and the frontend connected to them.
pub(crate) struct Vhost {
    port: u16,
    watch: sys::ddpd_vhost_watch,
    /// Counter, advanced when a frontend connects, disconnects or changes a queue.
    changes: AtomicU64,
    queues: Vec<Queue>,
}

/// State of one queue, used by its worker. Occupies separate cache lines.
#[repr(align(128))]
struct Queue {
    /// The connected frontend, if any.
    frontend: RwLock<Option<Frontend>>,
    /// The descriptor on which an idle worker waits.
    epoll: OwnedFd,
    kick: Mutex<Kick>,
}

#[derive(Clone, Copy)]
struct Frontend {
    /// DPDK's number of the frontend (vid).
    id: c_int,
    /// Large packets that the frontend accepts.
    segmentation: Segmentation,
}

struct Kick {
    /// A duplicate of the frontend's kick descriptor.
    fd: Option<OwnedFd>,
    /// Value of [`Vhost::changes`] when `fd` was duplicated.
    changes_seen: u64,
}

// SAFETY: the only pointers in the value are in `watch`: to functions, and to the value itself.
unsafe impl Send for Vhost {}
// SAFETY: as for `Send`; `watch` is only read.
unsafe impl Sync for Vhost {}

impl Vhost {
    /// Creates the state of a port that is not watched yet. Returns an error number (errno) on failure.
    pub(crate) fn new(port: u16, queues: u16) -> Result<Box<Vhost>, c_int> {
        let queues = (0..queues)
            .map(|_| {
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let kick = Mutex::new(Kick { fd: None, changes_seen: 0 });
                Ok(Queue { frontend: RwLock::new(None), epoll, kick })
            })
            .collect::<rustix::io::Result<_>>()
            .map_err(rustix::io::Errno::raw_os_error)?;
        let mut vhost = Box::new(Vhost {
            port,
            watch: sys::ddpd_vhost_watch::default(),
            changes: AtomicU64::new(1),
            queues,
        });
        vhost.watch = sys::ddpd_vhost_watch {
            changed: Some(on_frontend_change),
            queues: Some(on_queue_change),
            arg: std::ptr::from_ref::<Vhost>(&vhost).cast_mut().cast(),
        };
        Ok(vhost)
    }

    /// Registers callbacks for changes of the port's frontends. Returns 0 or an error code of DPDK.
    ///
    /// # Safety
    /// The port is started, and this value is not dropped before [`Vhost::unwatch`] succeeds.
    pub(crate) unsafe fn watch(&self) -> c_int {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { sys::ddpd_vhost_watch(self.port, &self.watch) };
        // A frontend may have connected before the registration.
        self.update_frontend();
        code
    }

    /// Ends the registration. Returns false if DPDK refuses, or if a callback is still in progress after about a
    /// second.
    pub(crate) fn unwatch(&self) -> bool {
        for _ in 0..1000 {
            // SAFETY: the port is valid; `watch` passed the same value.
            match unsafe { sys::ddpd_vhost_unwatch(self.port, &self.watch) } {
                NEG_EAGAIN => std::thread::sleep(Duration::from_millis(1)),
                code => return code == 0,
            }
        }
        false
    }

    /// Runs `poll` if the queue has a frontend. The frontend is not freed while `poll` runs. Returns `None` without a
    /// frontend, and while the frontend changes.
    pub(crate) fn pass<T>(&self, queue: u16, poll: impl FnOnce() -> T) -> Option<T> {
        let frontend = self.queues[usize::from(queue)].frontend.try_read().ok()?;
        frontend.is_some().then(poll)
    }

    /// Runs `burst` under the conditions of [`pass`](Self::pass). The argument of `burst` is the segmentation that the
    /// frontend supports.
    pub(crate) fn pass_with_segmentation<T>(
        &self,
        queue: u16,
        burst: impl FnOnce(Segmentation) -> T,
    ) -> Option<T> {
        let frontend = self.queues[usize::from(queue)].frontend.try_read().ok()?;
        frontend.map(|frontend| burst(frontend.segmentation))
    }

    /// Enables notifications of the frontend and returns the descriptor to wait on. Without a frontend, returns the
    /// descriptor only. Returns `None` if the worker must poll again soon: frames wait, the frontend does not notify,
    /// or the frontend changes at this moment.
    pub(crate) fn arm(&self, queue: u16) -> Option<BorrowedFd<'_>> {
        let queue_state = &self.queues[usize::from(queue)];
        let frontend = queue_state.frontend.try_read().ok()?;
        let mut kick = queue_state.kick.try_lock().ok()?;
        let changes = self.changes.load(Ordering::Acquire);
        if kick.changes_seen != changes {
            // SAFETY: the lock keeps the frontend valid. DPDK may close the descriptor after it has reported a
            // change. If another file has the descriptor number by then, the duplicate refers to this file. Such a
            // duplicate can only cause spurious wake-ups, until the worker sees the change.
            let fd = frontend.and_then(|frontend| unsafe { duplicate(frontend.id, queue) });
            kick.replace(&queue_state.epoll, fd, changes);
        }
        queue_state.clear_kicks();
        let Some(Frontend { id, .. }) = *frontend else { return Some(queue_state.epoll.as_fd()) };
        kick.fd.as_ref()?;
        // SAFETY: before DPDK frees a frontend, the disconnect callback takes this lock, which the worker holds now.
        let waiting = unsafe {
            sys::ddpd_vhost_notify(id, queue, 1);
            sys::ddpd_vhost_waiting(id, queue)
        };
        (waiting == 0).then(|| queue_state.epoll.as_fd())
    }

    /// Disables notifications of the frontend, because the worker polls the queue again.
    pub(crate) fn disarm(&self, queue: u16) {
        if let Ok(frontend) = self.queues[usize::from(queue)].frontend.try_read()
            && let Some(Frontend { id, .. }) = *frontend
        {
            // SAFETY: as in `arm`.
            unsafe { sys::ddpd_vhost_notify(id, queue, 0) }
        }
    }

    /// Reads the port's frontend from DPDK and records it for all queues.
    fn update_frontend(&self) {
        let mut queues: Vec<_> = (self.queues.iter())
            .map(|queue| queue.frontend.write().unwrap_or_else(PoisonError::into_inner))
            .collect();
        // SAFETY: the port is valid as long as this value exists.
        let number = unsafe { sys::ddpd_vhost_frontend(self.port) };
        for (queue, frontend) in (0..).zip(&mut queues) {
            **frontend = (number >= 0).then(|| {
                // SAFETY: DPDK's functions accept any number, and return no features for a disconnected frontend.
                let features = unsafe { sys::ddpd_vhost_features(number) };
                // SAFETY: as for `ddpd_vhost_features`.
                let ring = unsafe { sys::ddpd_vhost_ring_size(number, queue) };
                Frontend { id: number, segmentation: segmentation(features, ring) }
            });
        }
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Queue {
    fn clear_kicks(&self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
        // One event suffices: the epoll descriptor contains at most one other descriptor.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
    }
}

impl Kick {
    /// Watches `fd`, a duplicate of the frontend's kick descriptor, in `epoll` instead of the previous duplicate. If
    /// `epoll` refuses `fd`, `fd` is dropped.
    fn replace(&mut self, epoll: &OwnedFd, fd: Option<OwnedFd>, changes_seen: u64) {
        if let Some(old) = self.fd.take() {
            let deleted = epoll::delete(epoll, &old);
            debug_assert!(deleted.is_ok());
        }
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        self.fd = fd.filter(|fd| epoll::add(epoll, fd, data, edge).is_ok());
        self.changes_seen = changes_seen;
    }
}

/// Returns the large packets that a frontend with these features accepts on a ring of `ring` descriptors.
///
/// The frontend must merge receive buffers: otherwise each buffer would need room for the largest packet. One packet
/// uses at most a quarter of the ring, because a larger packet would rarely find enough free descriptors. Each
/// descriptor is assumed to hold at least one segment. Every frontend whose buffers hold an ordinary frame meets this
/// assumption.
fn segmentation(features: u64, ring: u16) -> Segmentation {
    let has_feature = |bit: sys::ddpd_virtio_net| features >> bit & 1 == 1;
    let merges =
        has_feature(sys::DDPD_VIRTIO_GUEST_CSUM) && has_feature(sys::DDPD_VIRTIO_MRG_RXBUF);
    Segmentation {
        ipv4: merges && has_feature(sys::DDPD_VIRTIO_GUEST_TSO4),
        ipv6: merges && has_feature(sys::DDPD_VIRTIO_GUEST_TSO6),
        segments: ring / 4,
        virtio: true,
    }
}

/// Duplicates the frontend's kick descriptor of a queue. Returns `None` if there is none or the call fails.
///
/// # Safety
/// The frontend is valid.
unsafe fn duplicate(frontend: c_int, queue: u16) -> Option<OwnedFd> {
    // SAFETY: guaranteed by the caller.
    let fd = unsafe { sys::ddpd_vhost_kick_fd(frontend, queue) };
    // SAFETY: the descriptor is borrowed for the call only; if it is closed during the call, the call fails.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok())?
}

unsafe extern "C" fn on_frontend_change(argument: *mut c_void) {
    // SAFETY: the value is not moved or freed until the last callback, see `unwatch`.
    unsafe { &*argument.cast::<Vhost>() }.update_frontend();
}

unsafe extern "C" fn on_queue_change(argument: *mut c_void) {
    // SAFETY: as in `on_frontend_change`. DPDK holds locks that a worker in `arm` may wait for, so this callback must
    // not block.
    unsafe { &*argument.cast::<Vhost>() }.changes.fetch_add(1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    // Virtio 1.2 §5.1.3.1: segmentation requires checksum offload. The port also requires mergeable buffers.
    #[test]
    fn segmentation_follows_negotiated_features() {
        let [csum, tso4, tso6, merged] = [1, 7, 8, 15].map(|bit| 1_u64 << bit);
        let seen = |features| {
            let segmentation = segmentation(features, 256);
            (segmentation.ipv4, segmentation.ipv6)
        };
        assert_eq!(seen(csum | tso4 | tso6 | merged), (true, true));
        assert_eq!(seen(csum | tso4 | merged), (true, false));
        assert_eq!(seen(csum | tso6 | merged), (false, true));
        for missing in [csum, merged] {
            assert_eq!(seen((csum | tso4 | tso6 | merged) & !missing), (false, false));
        }
        assert_eq!(segmentation(u64::MAX, 256).segments, 64);
        assert!(!segmentation(u64::MAX, 4).is_any());
        assert!(!segmentation(0, 256).is_any());
    }
}
