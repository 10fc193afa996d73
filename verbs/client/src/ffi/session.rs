//! C functions for sessions and their events.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};

use super::types::{CConnection, CEvent, CLimits, MESSAGE_TEXT};
use super::{NULL, borrow, close, copy_text, give, guard, text, timeout};
use crate::event::Event;
use crate::queue_pair::PairEvent;
use crate::session::Session;
use crate::shared_receives::SharedReceivesEvent;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_open(
    socket: *const c_char,
    session: *mut *mut Session,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe {
        give(session, || match socket.is_null() {
            true => Session::open(),
            false => Session::connect(text(socket)?),
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_close(session: *mut Session) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(session) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_session_fd(session: *const Session) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| Ok(unsafe { borrow(session) }?.as_fd().as_raw_fd()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_get_limits(
    session: *const Session,
    limits: *mut CLimits,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let (session, to) = unsafe { (borrow(session)?, limits.as_mut().ok_or(NULL)?) };
        let from = session.limits();
        *to = CLimits {
            memory_bytes: from.memory_bytes,
            arena_bytes: session.arena_len(),
            queue_pairs: from.queue_pairs,
            completion_queues: from.completion_queues,
            memory_regions: from.memory_regions,
            posts: from.posts,
            completions: from.completions,
            ird: from.depths.ird,
            ord: from.depths.ord,
        };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_next_event(
    session: *const Session,
    timeout_ms: c_int,
    event: *mut CEvent,
) -> c_int {
    guard(|| {
        // SAFETY: the handle is NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let session = unsafe { borrow(session) }?;
        if event.is_null() {
            return Err(NULL);
        }
        let Some(next) = session.next_event(timeout(timeout_ms))? else { return Ok(0) };
        // SAFETY: not NULL, checked above, and writable by the contract of C callers. It may be uninitialised: `write`
        // reads nothing.
        unsafe { event.write(convert(next)) };
        Ok(1)
    })
}

fn convert(event: Event) -> CEvent {
    let mut to = CEvent {
        kind: 0,
        number: 0,
        flag: 0,
        reserved: 0,
        request: std::ptr::null_mut(),
        connection: CConnection::EMPTY,
        message: [0; MESSAGE_TEXT],
    };
    match event {
        Event::Incoming(request) => {
            (to.kind, to.number) = (1, request.listener());
            to.connection.set_private_data(request.private_data());
            copy_text(&request.local().to_string(), &mut to.connection.local);
            copy_text(&request.remote().to_string(), &mut to.connection.remote);
            if let Some(depths) = request.depths() {
                (to.connection.ird, to.connection.ord) = (depths.ird, depths.ord);
            }
            to.request = Box::into_raw(Box::new(request)).cast();
        }
        Event::Pair { pair, event } => {
            to.number = pair;
            let message;
            (to.kind, message) = match event {
                PairEvent::Established(connection) => {
                    to.connection = CConnection::new(&connection);
                    (2, String::new())
                }
                PairEvent::Rejected { private_data } => {
                    to.connection.set_private_data(&private_data);
                    (3, String::new())
                }
                PairEvent::ConnectFailed { unreachable, message, .. } => {
                    to.flag = unreachable.into();
                    (4, message)
                }
                PairEvent::Disconnected { graceful, message } => {
                    to.flag = graceful.into();
                    (5, message)
                }
                PairEvent::Failed { message } => (6, message),
            };
            copy_text(&message, &mut to.message);
        }
        Event::SharedReceives { queue, event } => {
            let message;
            (to.kind, message) = match event {
                SharedReceivesEvent::Low => (8, String::new()),
                SharedReceivesEvent::Failed { message } => (9, message),
            };
            to.number = queue;
            copy_text(&message, &mut to.message);
        }
        Event::CompletionQueueFailed { queue, message } => {
            (to.kind, to.number) = (7, queue);
            copy_text(&message, &mut to.message);
        }
    }
    to
}
