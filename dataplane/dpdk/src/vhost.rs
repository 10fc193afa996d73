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

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use dpdk_sys as sys;
use rustix::event::{Timespec, epoll};

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
    /// DPDK's number of the frontend that is connected.
    frontend: RwLock<Option<c_int>>,
    /// What it waits on.
    epoll: OwnedFd,
    kick: Mutex<Kick>,
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
            let fd = frontend.and_then(|frontend| unsafe { duplicate(frontend, queue) });
            kick.replace(&own.epoll, fd, changes);
        }
        own.forget_kicks();
        let Some(frontend) = *frontend else { return Some(own.epoll.as_fd()) };
        kick.fd.as_ref()?;
        // SAFETY: the frontend is not freed before its leaving is noted, which the lock does not allow now.
        let waiting = unsafe {
            sys::ddpd_vhost_notify(frontend, queue, 1);
            sys::ddpd_vhost_waiting(frontend, queue)
        };
        (waiting == 0).then(|| own.epoll.as_fd())
    }

    /// The frontend need not report any more: the queue is polled.
    pub(crate) fn disarm(&self, queue: u16) {
        if let Ok(frontend) = self.queues[usize::from(queue)].frontend.try_read()
            && let Some(frontend) = *frontend
        {
            // SAFETY: as in `arm`.
            unsafe { sys::ddpd_vhost_notify(frontend, queue, 0) }
        }
    }

    /// Looks which frontend there is.
    fn look(&self) {
        let mut queues: Vec<_> = (self.queues.iter())
            .map(|queue| queue.frontend.write().unwrap_or_else(PoisonError::into_inner))
            .collect();
        // SAFETY: the port is valid for as long as this value is.
        let number = unsafe { sys::ddpd_vhost_frontend(self.port) };
        let frontend = Some(number).filter(|&number| number >= 0);
        queues.iter_mut().for_each(|queue| **queue = frontend);
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
