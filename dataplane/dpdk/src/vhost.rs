//! How workers use the frontend of a vhost-user port, and wait for it when they are idle.
//!
//! A frontend brings a descriptor per queue, to which it writes ("kicks") after sending, if it was asked to. It closes
//! them when it goes and may replace them at any time. So each queue has an epoll descriptor for as long as the
//! device, with a duplicate of the frontend's in it. Edge-triggered: the frontend's is never read, because it could be
//! anything.
//!
//! DPDK frees a frontend in its vhost thread, without regard to who asks for notifications in another one
//! (`rte_eth_dev_rx_intr_enable` would use it after that); and of 22.11 `net_vhost` waits for bursts with a store and a
//! load that the processor may exchange, so that a burst may touch memory that is no longer mapped (seen once in some
//! thousand frontends). So a worker uses its queue under a lock, which the vhost thread takes when a frontend comes or
//! goes. A worker does not wait for it: there is no frontend then.
//!
//! What a frontend agreed to is known under the same lock: large packets are made for the frontend that takes them, and
//! none is left for the next one.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use dpdk_sys as sys;
use rustix::event::{Timespec, epoll};

use crate::types::Segmentation;

/// A negative EAGAIN.
const AGAIN: c_int = -11;

/// The frontends of a port.
pub(crate) struct Vhost {
    port: u16,
    watch: sys::ddpd_vhost_watch,
    /// How often one came or went or changed its queues.
    changes: AtomicU64,
    queues: Vec<Queue>,
}

/// What a queue's worker uses; the lines of the cache are its own.
#[repr(align(128))]
struct Queue {
    /// The frontend that is connected.
    frontend: RwLock<Option<Frontend>>,
    /// What it waits on.
    epoll: OwnedFd,
    kick: Mutex<Kick>,
}

#[derive(Clone, Copy)]
struct Frontend {
    /// DPDK's number of it.
    id: c_int,
    /// The large packets that it takes.
    segmentation: Segmentation,
}

struct Kick {
    /// A duplicate of the frontend's descriptor.
    fd: Option<OwnedFd>,
    /// [`Vhost::changes`] when it was made.
    as_of: u64,
}

// SAFETY: the only pointers in it are of `watch`: they are those of functions, and of the value itself.
unsafe impl Send for Vhost {}
// SAFETY: as above; `watch` is only read.
unsafe impl Sync for Vhost {}

impl Vhost {
    /// For a port that is not watched yet. Fails with an error number.
    pub(crate) fn new(port: u16, queues: u16) -> Result<Box<Vhost>, c_int> {
        let queues = (0..queues)
            .map(|_| {
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let kick = Mutex::new(Kick { fd: None, as_of: 0 });
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
            changed: Some(changed),
            queues: Some(queues_changed),
            arg: std::ptr::from_ref::<Vhost>(&vhost).cast_mut().cast(),
        };
        Ok(vhost)
    }

    /// Begins to follow the port's frontends; returns an error code of DPDK.
    ///
    /// # Safety
    /// The port is started, and this value does not go before [`Vhost::unwatch`] succeeds.
    pub(crate) unsafe fn watch(&self) -> c_int {
        // SAFETY: by the caller's promise.
        let code = unsafe { sys::ddpd_vhost_watch(self.port, &self.watch) };
        // One may have come before.
        self.look();
        code
    }

    /// Ends it; false if that is impossible. Waits for a call that is under way, a second at most.
    pub(crate) fn unwatch(&self) -> bool {
        for _ in 0..1000 {
            // SAFETY: the port is valid; this is what `watch` handed over.
            match unsafe { sys::ddpd_vhost_unwatch(self.port, &self.watch) } {
                AGAIN => std::thread::sleep(Duration::from_millis(1)),
                code => return code == 0,
            }
        }
        false
    }

    /// Runs `poll` on a queue if there is a frontend, and keeps it meanwhile.
    pub(crate) fn pass<T>(&self, queue: u16, poll: impl FnOnce() -> T) -> Option<T> {
        let frontend = self.queues[usize::from(queue)].frontend.try_read().ok()?;
        frontend.is_some().then(poll)
    }

    /// As [`pass`](Self::pass); `burst` is told which large packets the frontend takes.
    pub(crate) fn pass_cutting<T>(
        &self,
        queue: u16,
        burst: impl FnOnce(Segmentation) -> T,
    ) -> Option<T> {
        let frontend = self.queues[usize::from(queue)].frontend.try_read().ok()?;
        frontend.map(|frontend| burst(frontend.segmentation))
    }

    /// Asks the frontend to report what it sends, and returns what to wait on. `None`: look again soon, because frames
    /// wait, or because the frontend reports nothing or just changes.
    pub(crate) fn arm(&self, queue: u16) -> Option<BorrowedFd<'_>> {
        let own = &self.queues[usize::from(queue)];
        let frontend = own.frontend.try_read().ok()?;
        let mut kick = own.kick.try_lock().ok()?;
        let changes = self.changes.load(Ordering::Acquire);
        if kick.as_of != changes {
            // SAFETY: DPDK closes the descriptor after it has reported the change. Should it be another one by now,
            // this one reports too much until the next change is seen.
            let fd = frontend.and_then(|frontend| unsafe { duplicate(frontend.id, queue) });
            kick.replace(&own.epoll, fd, changes);
        }
        own.forget_kicks();
        let Some(Frontend { id, .. }) = *frontend else { return Some(own.epoll.as_fd()) };
        kick.fd.as_ref()?;
        // SAFETY: the frontend is not freed before its leaving is noted, which the lock does not allow now.
        let waiting = unsafe {
            sys::ddpd_vhost_notify(id, queue, 1);
            sys::ddpd_vhost_waiting(id, queue)
        };
        (waiting == 0).then(|| own.epoll.as_fd())
    }

    /// The frontend need not report any more: the queue is polled.
    pub(crate) fn disarm(&self, queue: u16) {
        if let Ok(frontend) = self.queues[usize::from(queue)].frontend.try_read()
            && let Some(Frontend { id, .. }) = *frontend
        {
            // SAFETY: as in `arm`.
            unsafe { sys::ddpd_vhost_notify(id, queue, 0) }
        }
    }

    /// Looks which frontend there is.
    fn look(&self) {
        let mut queues: Vec<_> = (self.queues.iter())
            .map(|queue| queue.frontend.write().unwrap_or_else(PoisonError::into_inner))
            .collect();
        // SAFETY: the port is valid for as long as this value is.
        let number = unsafe { sys::ddpd_vhost_frontend(self.port) };
        for (queue, frontend) in (0..).zip(&mut queues) {
            **frontend = (number >= 0).then(|| {
                // SAFETY: DPDK's functions take any number; what a frontend that has gone meanwhile agreed to is nothing.
                let features = unsafe { sys::ddpd_vhost_features(number) };
                // SAFETY: as above.
                let ring = unsafe { sys::ddpd_vhost_ring_size(number, queue) };
                Frontend { id: number, segmentation: segmentation(features, ring) }
            });
        }
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Queue {
    fn forget_kicks(&self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
        // One descriptor at most is in it.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
    }
}

impl Kick {
    /// Without a descriptor that can be waited for there is none.
    fn replace(&mut self, epoll: &OwnedFd, fd: Option<OwnedFd>, as_of: u64) {
        if let Some(old) = self.fd.take() {
            let deleted = epoll::delete(epoll, &old);
            debug_assert!(deleted.is_ok());
        }
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        self.fd = fd.filter(|fd| epoll::add(epoll, fd, data, edge).is_ok());
        self.as_of = as_of;
    }
}

/// The large packets that a frontend with these features takes on a ring of so many descriptors.
///
/// It needs to merge buffers of its ring: else each of them would have to take the largest packet. One packet takes a
/// quarter of the ring at most: it is stuck while it finds no room. A descriptor is that of a segment at least, as all
/// frontends have them that do not split a plain frame.
fn segmentation(features: u64, ring: u16) -> Segmentation {
    let has = |bit: sys::ddpd_virtio_net| features >> bit & 1 == 1;
    let merges = has(sys::DDPD_VIRTIO_GUEST_CSUM) && has(sys::DDPD_VIRTIO_MRG_RXBUF);
    Segmentation {
        ipv4: merges && has(sys::DDPD_VIRTIO_GUEST_TSO4),
        ipv6: merges && has(sys::DDPD_VIRTIO_GUEST_TSO6),
        segments: ring / 4,
        virtio: true,
    }
}

/// # Safety
/// The frontend is valid.
unsafe fn duplicate(frontend: c_int, queue: u16) -> Option<OwnedFd> {
    // SAFETY: by the caller's promise.
    let fd = unsafe { sys::ddpd_vhost_kick_fd(frontend, queue) };
    // SAFETY: it is borrowed for the call; one that is closed meanwhile is an error.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok())?
}

unsafe extern "C" fn changed(argument: *mut c_void) {
    // SAFETY: the value stays where it is until nobody calls, see `unwatch`.
    unsafe { &*argument.cast::<Vhost>() }.look();
}

unsafe extern "C" fn queues_changed(argument: *mut c_void) {
    // SAFETY: as above. DPDK holds locks that a worker in `arm` may wait for: nothing to wait for is done here.
    unsafe { &*argument.cast::<Vhost>() }.changes.fetch_add(1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    // Virtio 1.2 §5.1.3.1: segmentation needs checksums, and here buffers that are merged.
    #[test]
    fn a_frontend_takes_what_it_agreed_to() {
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
