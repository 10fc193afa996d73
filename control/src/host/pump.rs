//! The thread that moves frames between a TAP and the workers' rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dataplane::host::HostEnd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Frames of each direction in a round.
const BATCH: usize = 64;
/// The longest frame of the kernel, bytes: that of the largest MTU.
const MAX_FRAME: usize = 65_536;
/// Between two looks whether the workers are still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A non-blocking source and sink of frames.
pub(super) trait Device: AsFd {
    /// Gives the kernel a frame.
    fn send(&self, frame: &[u8]) -> io::Result<usize>;
    /// Takes one of the kernel's.
    fn receive(&self, frame: &mut [u8]) -> io::Result<usize>;
}

/// Moves frames until the workers have ended.
pub(super) fn run(name: &str, device: &impl Device, mut end: HostEnd) {
    let (mut buffer, mut is_there) = (vec![0; MAX_FRAME], true);
    loop {
        let sent = to_kernel(device, &mut end);
        let taken = is_there && from_kernel(name, device, &mut end, (&mut buffer, &mut is_there));
        if sent || taken {
            continue;
        }
        if end.is_abandoned() {
            return;
        }
        if end.arm() {
            wait(end.fd(), is_there.then(|| device.as_fd()));
        }
        end.disarm();
    }
}

/// Moves frames of the workers to the kernel and returns whether there were any.
fn to_kernel(device: &impl Device, end: &mut HostEnd) -> bool {
    for n in 0..BATCH {
        let Some(frame) = end.pop() else { return n > 0 };
        if device.send(&frame).is_err() {
            // The TAP is down, or its queue is full.
            end.count_lost();
        }
    }
    true
}

/// Moves frames of the kernel to the workers and returns whether there were any. The device
/// disappears if it is deleted on the host.
fn from_kernel(
    name: &str,
    device: &impl Device,
    end: &mut HostEnd,
    (buffer, is_present): (&mut [u8], &mut bool),
) -> bool {
    for n in 0..BATCH {
        match device.receive(buffer) {
            Ok(len) => end.push(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return n > 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::error!(
                    "the TAP of interface {name} is gone ({error}): the host's kernel gets nothing more by this port, \
                     streams go on; restart ddpd to make it again"
                );
                *is_present = false;
                return n > 0;
            }
        }
    }
    true
}

fn wait(rings: BorrowedFd<'_>, device: Option<BorrowedFd<'_>>) {
    let both = [Some(rings), device];
    let mut fds: Vec<PollFd<'_>> =
        both.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 0, tv_nsec: CHECK_INTERVAL.subsec_nanos().into() };
    // An interruption is as good as a notification: the caller polls again.
    let _ = poll(&mut fds, Some(&limit));
}
