//! The thread that moves frames between a TAP and the rings of the workers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dataplane::host::HostEnd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of frames per direction in one round.
const BATCH: usize = 64;
/// Maximum length of a frame from the kernel, bytes.
const MAX_FRAME: usize = 65_536;
/// Interval at which the thread checks whether the workers have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A non-blocking source and sink of frames.
pub(super) trait Device: AsFd {
    /// Sends a frame to the kernel.
    fn send(&self, frame: &[u8]) -> io::Result<usize>;
    /// Receives a frame from the kernel. Returns its length.
    fn receive(&self, frame: &mut [u8]) -> io::Result<usize>;
}

/// Moves frames until the workers have ended.
pub(super) fn run(name: &str, device: &impl Device, mut end: HostEnd) {
    let (mut buffer, mut is_present) = (vec![0; MAX_FRAME], true);
    loop {
        let sent = to_kernel(device, &mut end);
        let taken = is_present && from_kernel(name, device, &mut end, &mut buffer, &mut is_present);
        if sent || taken {
            continue;
        }
        if end.is_abandoned() {
            return;
        }
        if end.arm() {
            wait(end.fd(), is_present.then(|| device.as_fd()));
        }
        end.disarm();
    }
}

/// Moves up to `BATCH` frames from the workers to the kernel. Returns true if there were any.
fn to_kernel(device: &impl Device, end: &mut HostEnd) -> bool {
    for n in 0..BATCH {
        let Some(frame) = end.pop() else { return n > 0 };
        if device.send(&frame).is_err() {
            // The TAP is down, or its queue is full: the frame is dropped and counted.
            end.count_lost();
        }
    }
    true
}

/// Moves up to `BATCH` frames from the kernel to the workers. Returns true if there were any. `is_present` becomes
/// false when the device fails, for example because the host deleted it.
fn from_kernel(
    name: &str,
    device: &impl Device,
    end: &mut HostEnd,
    buffer: &mut [u8],
    is_present: &mut bool,
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
    // An interrupted poll needs no handling: the caller polls again.
    let _ = poll(&mut fds, Some(&limit));
}
