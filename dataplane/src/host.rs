//! Frames between workers and the host's kernel, on interfaces that share their port with the kernel
//! (`host = "tap"`).
//!
//! A worker copies frames for the host into a ring. A thread outside the dataplane reads the ring and passes the
//! frames to the kernel. Another ring carries the kernel's frames to the worker with the port's first queue. Both
//! rings are bounded in frames and in bytes. A frame that does not fit is lost and counted. The TAP interface and the
//! thread are in `control`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::io::Errno;

use crate::ids::InterfaceId;
use crate::net::neighbour::Mac;
use crate::wake::Wake;

/// Capacity of a ring, in frames.
const MAX_FRAMES: usize = 1024;
/// Capacity of a ring, in bytes of frames.
const MAX_BYTES: usize = 4 << 20;

/// A frame from the Ethernet header on, without a VLAN tag.
type Bytes = Box<[u8]>;

fn ring_pair() -> (Sender, Receiver) {
    let (frames, taken) = RingBuffer::new(MAX_FRAMES);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Sender { frames, bytes: bytes.clone() }, Receiver { frames: taken, bytes })
}

/// The writing end of a ring.
#[derive(Debug)]
struct Sender {
    frames: Producer<Bytes>,
    /// Bytes of the frames in the ring, shared by both ends.
    bytes: Arc<AtomicUsize>,
}

impl Sender {
    /// Returns true if a frame of `len` bytes fits. Only the sender adds bytes, so a result of true remains valid
    /// until the next push.
    fn has_room(&self, len: usize) -> bool {
        !self.frames.is_full() && self.bytes.load(Ordering::Relaxed) + len <= MAX_BYTES
    }

    /// Pushes a frame. Returns false if it does not fit.
    fn push(&mut self, frame: Bytes) -> bool {
        let len = frame.len();
        if !self.has_room(len) {
            return false;
        }
        self.bytes.fetch_add(len, Ordering::Relaxed);
        self.frames.push(frame).is_ok()
    }
}

/// The reading end of a ring.
#[derive(Debug)]
struct Receiver {
    frames: Consumer<Bytes>,
    bytes: Arc<AtomicUsize>,
}

impl Receiver {
    fn next_len(&self) -> Option<usize> {
        self.frames.peek().ok().map(|frame| frame.len())
    }

    fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop().ok()?;
        self.bytes.fetch_sub(frame.len(), Ordering::Relaxed);
        Some(frame)
    }
}

/// Frames lost by the thread that serves the kernel. The worker adds them to its counters.
#[derive(Debug, Default)]
struct LossCounters {
    /// Frames that the kernel refused.
    to_host: AtomicU64,
    /// Frames of the kernel that did not fit into the ring.
    from_host: AtomicU64,
}

/// A worker's ends of the rings of one interface.
#[derive(Debug)]
pub(crate) struct HostPort {
    to_host: Sender,
    /// Ring with frames of the kernel; present only at the worker with the port's first queue.
    from_host: Option<Receiver>,
    lost: Arc<LossCounters>,
    wake: Arc<Wake>,
    pushed: bool,
}

impl HostPort {
    /// Copies a frame for the host into the ring, without its VLAN tag. Returns false if the frame does not fit.
    pub(crate) fn push(&mut self, frame: &[u8]) -> bool {
        let tag = frame.get(12..14) == Some(&[0x81, 0x00]) && frame.len() >= 18;
        let copy = match tag {
            _ if !self.to_host.has_room(frame.len()) => return false,
            true => [&frame[..12], &frame[16..]].concat().into(),
            false => frame.into(),
        };
        let is_pushed = self.to_host.push(copy);
        self.pushed |= is_pushed;
        is_pushed
    }

    /// Returns the length in bytes of the next frame from the host; `None` if no frame waits for this worker.
    pub(crate) fn next_len(&self) -> Option<usize> {
        self.from_host.as_ref()?.next_len()
    }

    /// Pops the next frame from the host; `None` if no frame waits for this worker.
    pub(crate) fn pop(&mut self) -> Option<Box<[u8]>> {
        self.from_host.as_mut()?.pop()
    }

    /// Returns the numbers of frames lost since the last call: first of frames that the kernel refused, then of frames
    /// of the kernel that did not fit into the ring. Always zero at workers without the port's first queue.
    pub(crate) fn take_lost(&self) -> (u64, u64) {
        if self.from_host.is_none() {
            return (0, 0);
        }
        let take = |counter: &AtomicU64| match counter.load(Ordering::Relaxed) {
            0 => 0,
            _ => counter.swap(0, Ordering::Relaxed),
        };
        (take(&self.lost.to_host), take(&self.lost.from_host))
    }

    /// Wakes the thread that serves the kernel, if a frame was pushed since the last call.
    pub(crate) fn wake(&mut self) {
        if core::mem::take(&mut self.pushed) {
            self.wake.notify();
        }
    }
}

/// The kernel-side ends of the rings of one interface, for the thread that serves the host's kernel.
#[derive(Debug)]
pub struct HostEnd {
    /// The shared interface.
    pub interface: InterfaceId,
    /// Link-layer address of the port.
    pub mac: Mac,
    from_workers: Vec<Receiver>,
    /// Index in `from_workers` of the next ring to read, round-robin.
    next: usize,
    to_worker: Sender,
    worker: Arc<Wake>,
    lost: Arc<LossCounters>,
    wake: Arc<Wake>,
}

impl HostEnd {
    /// Returns a file descriptor that becomes readable when a worker pushes a frame. Call [`arm`](Self::arm) before
    /// waiting for the descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Arms the wake-up before a sleep on [`fd`](Self::fd). Returns false if frames already wait: the caller pops them
    /// instead of sleeping.
    pub fn arm(&self) -> bool {
        self.wake.arm();
        self.from_workers.iter().all(|ring| ring.frames.is_empty())
    }

    /// Disarms the wake-up after a sleep: [`fd`](Self::fd) is no longer readable.
    pub fn disarm(&self) {
        self.wake.disarm();
    }

    /// Pops the next frame for the kernel, round-robin over the workers; `None` if no frame waits.
    pub fn pop(&mut self) -> Option<Box<[u8]>> {
        for _ in 0..self.from_workers.len() {
            let at = self.next;
            self.next = (self.next + 1) % self.from_workers.len();
            if let Some(frame) = self.from_workers[at].pop() {
                return Some(frame);
            }
        }
        None
    }

    /// Counts a frame as `host_lost`, because the kernel refused it.
    pub fn count_lost(&self) {
        self.lost.to_host.fetch_add(1, Ordering::Relaxed);
    }

    /// Pushes a frame of the kernel for the worker that transmits it. If the ring has no free space, the frame is lost
    /// and counted as `host_sent_lost`.
    pub fn push(&mut self, frame: &[u8]) {
        if !self.to_worker.has_room(frame.len()) || !self.to_worker.push(frame.into()) {
            self.lost.from_host.fetch_add(1, Ordering::Relaxed);
        }
        self.worker.notify();
    }

    /// Returns true if all workers of the port have ended, so that no more frames arrive.
    pub fn is_abandoned(&self) -> bool {
        self.from_workers.iter().all(|ring| ring.frames.is_abandoned())
    }
}

/// Creates the rings of an interface: the end of each worker, and the end for the thread that serves the kernel. `mac`
/// is the port's link-layer address. `workers` are the workers with a queue of the port, in queue order. Without
/// workers there is no [`HostEnd`].
pub(crate) fn create_ends(
    interface: InterfaceId,
    mac: Mac,
    workers: &[Arc<Wake>],
) -> Result<(Vec<HostPort>, Option<HostEnd>), Errno> {
    let Some(first) = workers.first() else { return Ok((Vec::new(), None)) };
    let wake = Arc::new(Wake::new()?);
    let lost = Arc::new(LossCounters::default());
    let (to_worker, from_host) = ring_pair();
    let (mut ports, mut from_workers, mut from_host) = (Vec::new(), Vec::new(), Some(from_host));
    for _ in workers {
        let (to, taken) = ring_pair();
        from_workers.push(taken);
        let (from, lost, wake) = (from_host.take(), lost.clone(), wake.clone());
        ports.push(HostPort { to_host: to, from_host: from, lost, wake, pushed: false });
    }
    let worker = first.clone();
    let end = HostEnd { interface, mac, from_workers, next: 0, to_worker, worker, lost, wake };
    Ok((ports, Some(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(workers: usize) -> (Vec<HostPort>, HostEnd) {
        let wakes: Vec<_> = (0..workers).map(|_| Arc::new(Wake::new().unwrap())).collect();
        let (ports, end) = create_ends(InterfaceId(0), [2; 6], &wakes).unwrap();
        (ports, end.unwrap())
    }

    #[test]
    fn host_frames_pass_in_both_directions_round_robin() {
        let (mut ports, mut end) = pair(2);
        for n in 0..2 {
            assert!(ports[0].push(&[n; 60]) && ports[1].push(&[10 + n; 60]));
        }
        let taken: Vec<u8> = std::iter::from_fn(|| end.pop()).map(|frame| frame[0]).collect();
        assert_eq!(taken, [0, 10, 1, 11]);
        end.push(&[7; 80]);
        assert_eq!((ports[0].next_len(), ports[1].next_len()), (Some(80), None));
        assert_eq!(ports[0].pop().as_deref(), Some(&[7; 80][..]));
        assert_eq!(ports[0].pop(), None);
    }

    #[test]
    fn vlan_tag_is_removed_for_host() {
        let (mut ports, mut end) = pair(1);
        let mut frame = vec![1; 12];
        frame.extend([0x81, 0, 0, 5, 8, 0, 0x45, 9]);
        assert!(ports[0].push(&frame));
        assert_eq!(end.pop().unwrap()[12..], [8, 0, 0x45, 9]);
    }

    #[test]
    fn host_rings_are_bounded_and_count_losses() {
        let (mut ports, mut end) = pair(1);
        let given = (0..2 * MAX_FRAMES).filter(|_| ports[0].push(&[0; 60])).count();
        assert_eq!(given, MAX_FRAMES);
        (0..MAX_FRAMES + 3).for_each(|_| end.push(&[0; 60]));
        end.count_lost();
        assert_eq!(ports[0].take_lost(), (1, 3));
        assert_eq!(ports[0].take_lost(), (0, 0));
        while end.pop().is_some() {}
        let given = (0..MAX_FRAMES).filter(|_| ports[0].push(&[0; 65_000])).count();
        assert_eq!(given, MAX_BYTES / 65_000);
        while end.pop().is_some() {}
        assert!(ports[0].push(&[0; 65_000]), "there is room again");
    }

    #[test]
    fn armed_host_end_is_woken_by_frame() {
        let (mut ports, end) = pair(1);
        let readable = || {
            let mut fds =
                [rustix::event::PollFd::from_borrowed_fd(end.fd(), rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
        };
        assert!(end.arm() && !readable());
        assert!(ports[0].push(&[0; 60]));
        assert!(!readable(), "a push alone does not wake the thread");
        ports[0].wake();
        assert!(readable() && !end.arm());
        end.disarm();
        assert!(!readable());
        assert!(!end.is_abandoned());
        drop(ports);
        assert!(end.is_abandoned());
    }
}
