//! Messages to a program, sent by any thread. While the socket is full, messages wait in a backlog, which the session's
//! thread sends when the program reads. A program whose backlog overflows is disconnected.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use verbs_session::message::{Answer, Event, Message, Refusal, Reply};
use verbs_session::socket::{SessionSocket, SocketError};

use crate::waker::Waker;

/// Maximum number of unanswered calls. The session's thread reads no further call while this many are unanswered.
pub(super) const MAX_UNANSWERED: usize = 1024;

/// The sending side of a session.
#[derive(Debug)]
pub(in crate::appliance) struct Outbox {
    socket: SessionSocket,
    /// Wakes the session's thread.
    waker: Waker,
    /// Maximum number of messages in the backlog.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Messages that wait for the socket, each with its descriptors, oldest first.
    backlog: VecDeque<(Message, Vec<OwnedFd>)>,
    /// Number of calls without a reply, at most [`MAX_UNANSWERED`].
    unanswered: usize,
    /// True once ddpd has closed the session.
    closed: bool,
}

/// Readiness of the socket for which the session's thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interest {
    /// True to wait for a call.
    pub(super) read: bool,
    /// True to wait until the socket accepts a message, because the backlog is not empty.
    pub(super) write: bool,
}

impl Outbox {
    pub(super) fn new(socket: SessionSocket, waker: Waker, limit: usize) -> Outbox {
        Outbox { socket, waker, limit, state: Mutex::default() }
    }

    pub(super) fn socket(&self) -> &SessionSocket {
        &self.socket
    }

    /// Counts a call as unanswered.
    pub(in crate::appliance) fn count_call(&self) {
        self.lock().unanswered += 1;
    }

    /// Sends the reply to a call.
    pub(in crate::appliance) fn reply(
        &self,
        id: u32,
        result: Result<Answer, Refusal>,
        descriptors: Vec<OwnedFd>,
    ) {
        let mut state = self.lock();
        if state.unanswered >= MAX_UNANSWERED {
            self.waker.wake();
        }
        state.unanswered = state.unanswered.saturating_sub(1);
        self.send(&mut state, Message::Reply(Reply { id, result }), descriptors);
    }

    pub(super) fn event(&self, event: Event) {
        self.send(&mut self.lock(), Message::Event(event), Vec::new());
    }

    /// Closes the session. Messages in the backlog are lost.
    pub(in crate::appliance) fn close(&self) {
        self.close_locked(&mut self.lock());
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns true if the program or ddpd has closed the session.
    pub(in crate::appliance) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let hung_up = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        hung_up || self.is_closed()
    }

    /// Returns the readiness to wait for; `None` if ddpd has closed the session.
    pub(super) fn interest(&self) -> Option<Interest> {
        let state = self.lock();
        let (read, write) = (state.unanswered < MAX_UNANSWERED, !state.backlog.is_empty());
        (!state.closed).then_some(Interest { read, write })
    }

    /// Sends messages of the backlog until the socket is full.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        while let Some((message, descriptors)) = state.backlog.front() {
            match self.socket.send(message, &borrow(descriptors)) {
                Ok(()) => drop(state.backlog.pop_front()),
                Err(SocketError::WouldBlock) => return,
                Err(_) => return self.close_locked(&mut state),
            }
        }
    }

    fn send(&self, state: &mut State, message: Message, descriptors: Vec<OwnedFd>) {
        if state.closed {
            return;
        }
        if state.backlog.is_empty() {
            match self.socket.send(&message, &borrow(&descriptors)) {
                Ok(()) => return,
                Err(SocketError::WouldBlock) => {}
                Err(error) => {
                    tracing::debug!("a program is disconnected: {error}");
                    return self.close_locked(state);
                }
            }
        }
        if state.backlog.len() >= self.limit {
            tracing::warn!("a program is disconnected: it does not read {} messages", self.limit);
            return self.close_locked(state);
        }
        state.backlog.push_back((message, descriptors));
        self.waker.wake();
    }

    fn close_locked(&self, state: &mut State) {
        if !state.closed {
            state.closed = true;
            state.backlog.clear();
            // shutdown(2) fails if the program has closed its end.
            let _ = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both);
            self.waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn borrow(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
