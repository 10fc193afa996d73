//! Completion channels: file descriptors that become readable when a worker sends a notification for a completion
//! queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use verbs_session::message::Call;

use crate::error::Error;
use crate::link::wait;
use crate::session::Session;

/// Maximum notifications that one `recv` takes from the socket. A notification is one byte.
const MAX_DRAINED: usize = 512;

/// A channel for the notifications of completion queues. Clones refer to the same channel.
///
/// A notification does not name its completion queue. After [`wait`](Self::wait) or [`drain`](Self::drain) has consumed
/// notifications, the program polls and arms all queues of the channel again. Only one thread should wait per channel:
/// a notification that one thread has consumed does not wake the others.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Session,
    number: u32,
    socket: OwnedFd,
}

impl Session {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// The appliance refuses the channel, or the session has ended.
    pub fn create_channel(&self) -> Result<CompletionChannel, Error> {
        let (number, descriptors) = self.link().call_created(Call::CreateChannel, 1)?;
        let socket = descriptors.into_iter().next();
        let socket = socket.ok_or_else(|| self.link().violation("a descriptor is missing"))?;
        Ok(CompletionChannel(Arc::new(Inner { session: self.clone(), number, socket })))
    }
}

impl CompletionChannel {
    /// Waits for a notification and consumes all that have arrived. Returns false after `timeout`; `None` waits without
    /// a time-out.
    ///
    /// # Errors
    /// The session has ended, or a system call failed.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.drain()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            wait(self.as_fd(), PollFlags::IN, left.as_ref())
                .map_err(Error::system("waiting for a notification"))?;
        }
    }

    /// Consumes the notifications that have arrived, without waiting. Returns true if there were any.
    ///
    /// # Errors
    /// The session has ended and no notification is left, or a system call failed.
    pub fn drain(&self) -> Result<bool, Error> {
        let mut any = false;
        loop {
            let mut bytes = [0; MAX_DRAINED];
            match rustix::net::recv(&self.0.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) if any => return Ok(true),
                Ok((0, _)) | Err(Errno::CONNRESET) => {
                    return Err(self.0.session.link().disconnected());
                }
                Ok((MAX_DRAINED, _)) => any = true,
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => return Ok(any),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::system("reading a notification")(error)),
            }
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.0.session
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }
}

/// The descriptor is readable after a notification, until [`CompletionChannel::drain`] consumes it.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Each CQ of the channel holds a clone, so all CQs are already removed. Errors after the session's end are
        // ignored: the appliance has then removed the channel.
        let _ = self.session.link().call_done(Call::RemoveChannel { channel: self.number });
    }
}
