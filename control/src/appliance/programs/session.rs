//! The thread of one session: reads calls, allocates their memory, forwards them to the control thread, and sends the
//! backlog of messages. The thread ends with the session.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::AttachedProcess;
use dataplane::ProgramId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_session::message::Request;
use verbs_session::socket::SocketError;

use super::inbox::{InputKind, SessionQueues};
use super::outbox::{Interest, Outbox};
use super::prepare::Preparer;
use crate::waker::Waker;

/// Time-out of the hello. A session without an accepted hello ends after this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A session and its thread's state.
pub(super) struct Session {
    id: ProgramId,
    queues: SessionQueues,
    outbox: Arc<Outbox>,
    waker: Waker,
    preparer: Preparer,
    /// Deadline of the hello.
    deadline: Instant,
    /// True if an input has been forwarded. The control thread then must be notified of the session's end.
    is_known: bool,
}

impl Session {
    pub(super) fn new(
        id: ProgramId,
        queues: SessionQueues,
        outbox: Arc<Outbox>,
        waker: Waker,
        process: AttachedProcess,
    ) -> Session {
        let preparer = Preparer::new(queues.shared(), Arc::clone(&outbox), process);
        let deadline = Instant::now() + HELLO_TIMEOUT;
        Session { id, queues, outbox, waker, preparer, deadline, is_known: false }
    }

    /// Serves the session until it ends.
    pub(super) fn run(mut self) {
        while let Some(interest) = self.outbox.interest() {
            if !self.wait(interest) {
                break;
            }
            self.waker.reset();
            self.outbox.flush();
            if interest.read && !self.receive() {
                break;
            }
        }
        self.outbox.close();
        if self.is_known {
            self.forward(InputKind::HungUp);
        }
    }

    /// Waits for the socket or a wake-up. Returns false if the program has hung up, or at the deadline of the hello.
    fn wait(&self, interest: Interest) -> bool {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        let rest = self.deadline.saturating_duration_since(Instant::now());
        let timeout =
            (!self.preparer.is_open()).then(|| Timespec::try_from(rest)).and_then(Result::ok);
        let socket = self.outbox.socket().as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(socket, flags),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => false,
            Ok(_) => !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(error) => error == Errno::INTR,
        }
    }

    /// Reads and forwards a call. Returns false if the session is to end.
    fn receive(&mut self) -> bool {
        // Descriptors sent with a call have no meaning, and are closed.
        let request = match self.outbox.socket().receive::<Request>() {
            Ok((request, _)) => request,
            Err(SocketError::WouldBlock) => return true,
            Err(SocketError::Closed) => return false,
            Err(error) => {
                tracing::warn!("program {} is disconnected: {error}", self.id.0);
                return false;
            }
        };
        self.outbox.count_call();
        match self.preparer.prepare(request.call) {
            Ok(call) => self.forward(InputKind::Call { request: request.id, call }),
            Err(refusal) => {
                let is_open = self.preparer.is_open();
                let report = self.preparer.report(&refusal);
                self.outbox.reply(request.id, Err(refusal), Vec::new());
                let is_served =
                    report.is_none_or(|report| self.forward(InputKind::Refused(report)));
                is_open && is_served
            }
        }
    }

    /// Passes an input to the control thread. Returns false if the control thread has ended.
    fn forward(&mut self, kind: InputKind) -> bool {
        self.is_known = true;
        self.queues.forward(self.id, kind)
    }
}
