//! Programs with one connection each: two programs that are connected to each other, and a program whose messages the
//! worker echoes. One thread runs all of them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use verbs_client::{
    Completed, Completion, CompletionChannel, CompletionQueue, ConnectOptions, MemoryAccess,
    MemoryRegion, NO_COMPLETION, ProtectionDomain, QueuePair, QueuePairConfig, SendWork, Session,
    Status, post,
};

use super::super::programs::connect_pairs;
use super::super::{Latencies, TIMEOUT};

pub(super) const ACCESS: MemoryAccess =
    MemoryAccess { local_write: true, remote_write: true, remote_read: true, remote_atomic: false };
/// Length of each program's memory, bytes. The region of the worker's own load has the same length.
pub(super) const MEMORY: usize = 16 << 20;
/// Maximum number of completions of a poll, and of operations that are posted with one doorbell.
pub(super) const BATCH: usize = 64;

/// A program: its memory and queues.
pub(super) struct End {
    pub(super) pairs: Vec<QueuePair>,
    pub(super) queue: CompletionQueue,
    pub(super) memory: MemoryRegion,
    _domain: ProtectionDomain,
    pub(super) session: Session,
}

impl End {
    /// Creates a program with `pairs` QPs.
    pub(super) fn new(
        path: &Path,
        pairs: u32,
        (sends, receives): (u32, u32),
        channel: impl FnOnce(&Session) -> anyhow::Result<Option<CompletionChannel>>,
    ) -> anyhow::Result<End> {
        let session = Session::connect(path)?;
        let channel = channel(&session)?;
        let domain = session.create_domain()?;
        let memory = domain.alloc(MEMORY, ACCESS)?;
        let entries = pairs * (sends + receives);
        let queue = session.create_completion_queue(entries, channel.as_ref())?;
        let config = QueuePairConfig {
            send_completions: &queue,
            receive_completions: &queue,
            max_sends: sends,
            max_receives: receives,
            copy_sources: false,
            shared_receives: None,
        };
        let pairs =
            (0..pairs).map(|_| domain.create_queue_pair(&config)).collect::<Result<_, _>>()?;
        Ok(End { pairs, queue, memory, _domain: domain, session })
    }

    pub(super) fn pair(&self) -> &QueuePair {
        &self.pairs[0]
    }

    /// Posts the `n`-th receive of messages of `len` bytes.
    fn post_receive(&self, n: u64, len: usize) -> anyhow::Result<()> {
        let at = offset(n, len);
        let work = post::receive(n, &[self.memory.sge(at..at + len)?])?;
        Ok(self.pair().post_receive(&work)?)
    }
}

/// Returns the offset of the `n`-th message of `len` bytes in a program's memory.
pub(super) fn offset(n: u64, len: usize) -> usize {
    n as usize % (MEMORY / len) * len
}

/// Connects the QPs of two programs, one after the other.
pub(super) fn connect(from: &End, to: &End) -> anyhow::Result<()> {
    connect_pairs(&from.pairs, &to.pairs, &to.session, super::local(0))
}

/// Polls a CQ. Fails if an operation has failed.
pub(super) fn poll<'a>(
    queue: &CompletionQueue,
    to: &'a mut [Completion; BATCH],
) -> anyhow::Result<&'a [Completion]> {
    let many = queue.poll(to)?;
    let failed = to[..many].iter().find(|completion| completion.status != Status::Success);
    anyhow::ensure!(failed.is_none(), "an operation has failed: {failed:?}");
    Ok(&to[..many])
}

/// Two programs that are connected to each other.
pub(super) struct Ends {
    near: End,
    far: End,
    /// Length of a message, bytes.
    len: usize,
    /// Messages in flight.
    depth: u64,
    /// Messages that `near` has posted so far.
    sent: u64,
    /// Receives that `far` has posted so far.
    received: u64,
}

impl Ends {
    pub(super) fn connect(path: &Path, len: u32, depth: u32) -> anyhow::Result<Ends> {
        let none = |_: &Session| Ok(None);
        let near = End::new(path, 1, (depth.max(4), 4), none)?;
        // A receive that is complete is missing until `post_for` posts it again. Messages that arrive in this time also
        // need receives: twice as many receives as messages in flight suffice.
        let far = End::new(path, 1, (4, 2 * depth.max(4)), none)?;
        connect(&near, &far)?;
        let (sent, received) = (0, 0);
        Ok(Ends { near, far, len: len as usize, depth: depth.into(), sent, received })
    }

    /// Posts Writes for `time`, and waits until all are complete. Returns their rate, messages per second.
    pub(super) fn write_for(&mut self, time: Duration) -> anyhow::Result<f64> {
        self.post_for(time, |this, n| {
            let at = offset(n, this.len);
            let sges = [this.near.memory.sge(at..at + this.len)?];
            Ok(post::write(this.far.memory.remote(at), post::gather(&sges)?))
        })
    }

    /// Posts Sends for `time`, and waits until all are complete. Returns their rate, messages per second.
    pub(super) fn send_for(&mut self, time: Duration) -> anyhow::Result<f64> {
        while self.received < self.sent + 2 * self.depth {
            self.far.post_receive(self.received, self.len)?;
            self.received += 1;
        }
        self.post_for(time, |this, n| {
            let at = offset(n, this.len);
            let sges = [this.near.memory.sge(at..at + this.len)?];
            Ok(post::send(post::gather(&sges)?))
        })
    }

    fn post_for(
        &mut self,
        time: Duration,
        make: impl Fn(&Self, u64) -> anyhow::Result<SendWork>,
    ) -> anyhow::Result<f64> {
        let mut completions = [NO_COMPLETION; BATCH];
        let mut works = Vec::with_capacity(BATCH);
        let (begin, first, mut complete) = (Instant::now(), self.sent, 0);
        let mut last = begin;
        while last - begin < time || first + complete < self.sent {
            anyhow::ensure!(last - begin < time + TIMEOUT, "operations do not complete");
            if last - begin < time {
                let room = self.depth - (self.sent - first - complete);
                for _ in 0..room.min(BATCH as u64) {
                    works.push(make(self, self.sent)?);
                    self.sent += 1;
                }
                if !works.is_empty() {
                    self.near.pair().post_sends(&works).map_err(|error| error.error)?;
                    works.clear();
                }
            }
            complete += poll(&self.near.queue, &mut completions)?.len() as u64;
            for _ in poll(&self.far.queue, &mut completions)? {
                self.far.post_receive(self.received, self.len)?;
                self.received += 1;
            }
            last = Instant::now();
        }
        Ok(complete as f64 / (last - begin).as_secs_f64())
    }

    /// Exchanges messages for `time`, one at a time. Returns their round-trip times.
    pub(super) fn echo_for(&mut self, time: Duration) -> anyhow::Result<Latencies> {
        let mut latencies = Latencies::new()?;
        let begin = Instant::now();
        let message = |end: &End| -> anyhow::Result<SendWork> {
            let payload = post::gather(&[end.memory.sge(0..self.len)?])?;
            Ok(SendWork { signalled: false, ..post::send(payload) })
        };
        let (question, answer) = (message(&self.near)?, message(&self.far)?);
        while begin.elapsed() < time {
            self.near.post_receive(1, self.len)?;
            self.far.post_receive(1, self.len)?;
            let from = Instant::now();
            self.near.pair().post_send(&question)?;
            await_message(&self.far.queue)?;
            self.far.pair().post_send(&answer)?;
            await_message(&self.near.queue)?;
            latencies.add(from.elapsed())?;
        }
        Ok(latencies)
    }
}

/// Polls until a message has arrived.
fn await_message(queue: &CompletionQueue) -> anyhow::Result<()> {
    let mut polls = 0u32;
    let begin = Instant::now();
    loop {
        if let Some(completion) = queue.poll_one()? {
            return check_message(&completion);
        }
        polls += 1;
        // Reads the clock only at every 1024th poll, because reading it slows the poll down.
        anyhow::ensure!(
            !polls.is_multiple_of(1024) || begin.elapsed() < TIMEOUT,
            "no message arrives"
        );
    }
}

fn check_message(completion: &Completion) -> anyhow::Result<()> {
    let is_message = matches!(completion.completed, Completed::Received { .. });
    anyhow::ensure!(is_message && completion.status == Status::Success, "{completion:?}");
    Ok(())
}

/// A program whose messages the worker echoes.
pub(super) struct Echoed(End);

/// Length of a message, bytes.
const ECHO_LEN: usize = 64;

impl Echoed {
    pub(super) fn connect(path: &Path, remote: SocketAddr) -> anyhow::Result<Echoed> {
        let end = End::new(path, 1, (4, 4), |session| Ok(Some(session.create_channel()?)))?;
        end.pair().connect(remote, &ConnectOptions::default())?;
        Ok(Echoed(end))
    }

    /// Sends messages for `time` and polls for each echo. Returns the round-trip times.
    pub(super) fn poll_for(&self, time: Duration) -> anyhow::Result<Latencies> {
        self.echo_for(time, Duration::ZERO, await_message)
    }

    /// Sends messages for `time`, and sleeps until the notification of each echo. Returns the round-trip times.
    pub(super) fn sleep_for(&self, time: Duration, pause: Duration) -> anyhow::Result<Latencies> {
        self.echo_for(time, pause, |queue| {
            check_message(&queue.next(Some(TIMEOUT))?.context("no message arrives")?)
        })
    }

    fn echo_for(
        &self,
        time: Duration,
        pause: Duration,
        wait: impl Fn(&CompletionQueue) -> anyhow::Result<()>,
    ) -> anyhow::Result<Latencies> {
        let Echoed(end) = self;
        let mut latencies = Latencies::new()?;
        let begin = Instant::now();
        let payload = post::gather(&[end.memory.sge(0..ECHO_LEN)?])?;
        let message = SendWork { signalled: false, ..post::send(payload) };
        while begin.elapsed() < time {
            end.post_receive(1, ECHO_LEN)?;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let from = Instant::now();
            end.pair().post_send(&message)?;
            wait(&end.queue)?;
            latencies.add(from.elapsed())?;
        }
        Ok(latencies)
    }
}
