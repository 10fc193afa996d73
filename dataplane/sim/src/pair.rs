//! Two hosts, the two directions of the path between them, and the clock.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Write as _;

use wire::Instant;

use crate::dialogue::Batch;
use crate::host::{Host, HostConfig};
use crate::packet::Ecn;
use crate::path::{self, Entry, Path};
use crate::segment::Segment;

/// Steps at one instant after which the pair is taken to be spinning.
pub(crate) const SPIN: usize = 10_000;
/// Segments of one burst.
pub(crate) const BURST: usize = 32;
/// Segments that are remembered for people who look for a fault.
const MEMORY: usize = 60;

/// What a simulation is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host that connects.
    pub client: HostConfig,
    /// The host that waits.
    pub server: HostConfig,
    /// From the client to the server.
    pub forward: path::Config,
    /// From the server to the client.
    pub backward: path::Config,
    /// The path reports packets that are larger than its MTU (ICMP).
    pub icmp: bool,
}

/// Two hosts and what is between them.
#[derive(Debug)]
pub struct Pair {
    /// The time.
    pub now: Instant,
    /// The host that connects.
    pub client: Host,
    /// The host that waits.
    pub server: Host,
    /// From the client to the server.
    pub forward: Path,
    /// From the server to the client.
    pub backward: Path,
    icmp: bool,
    tx: Batch,
    log: VecDeque<Seen>,
}

/// A segment that went by: time, and the first octets of it.
#[derive(Debug)]
struct Seen {
    at: Instant,
    what: &'static str,
    octets: Vec<u8>,
    len: usize,
}

/// A run that did not get where it should.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stall {
    /// Nothing is due any more: nobody has a timer, nothing is on its way.
    #[error("at {0:?} nothing is due any more")]
    Silence(Instant),
    /// The limit on virtual time was reached.
    #[error("not done at {0:?}")]
    TooLate(Instant),
    /// Something is due at one instant for ever.
    #[error("time stands still at {0:?}")]
    Spinning(Instant),
}

impl Pair {
    /// Two hosts that have not spoken yet.
    pub fn new(config: Config) -> Self {
        Pair {
            now: Instant::from_millis(1000),
            client: Host::new(config.client, false),
            server: Host::new(config.server, true),
            forward: Path::new(config.forward),
            backward: Path::new(config.backward),
            icmp: config.icmp,
            tx: Batch::bounded(BURST),
            log: VecDeque::new(),
        }
    }

    /// Lets time pass until `done`.
    ///
    /// # Errors
    /// When that does not happen within `patience` of virtual time.
    pub fn run_until(
        &mut self,
        patience: Duration,
        mut done: impl FnMut(&Pair) -> bool,
    ) -> Result<(), Stall> {
        let limit = self.now + patience;
        let mut here = 0;
        self.work();
        while !done(self) {
            let next = self.next_time().ok_or(Stall::Silence(self.now))?;
            if next > limit {
                return Err(Stall::TooLate(limit));
            }
            here = if next > self.now { 0 } else { here + 1 };
            if here > SPIN {
                return Err(Stall::Spinning(self.now));
            }
            self.now = self.now.max(next);
            self.work();
        }
        Ok(())
    }

    /// Lets time pass until `done`, however long it takes, while something moves.
    ///
    /// # Errors
    /// When nothing has moved for `patience` of virtual time.
    pub fn run_while_moving(
        &mut self,
        patience: Duration,
        mut done: impl FnMut(&Pair) -> bool,
    ) -> Result<(), Stall> {
        loop {
            let before = self.moved();
            match self.run_until(patience, &mut done) {
                Err(Stall::TooLate(_)) if self.moved() > before => {}
                other => return other,
            }
        }
    }

    /// Octets that either side's TCP has taken in order or has had acknowledged.
    fn moved(&self) -> u64 {
        let octets = |host: &Host| {
            let tcp = host.stats().tcp;
            tcp.octets_in + tcp.octets_acknowledged
        };
        octets(&self.client) + octets(&self.server)
    }

    /// Lets `time` pass.
    ///
    /// # Errors
    /// When time stands still.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Stall> {
        let end = self.now + time;
        match self.run_until(time, |_| false) {
            Err(Stall::Spinning(at)) => Err(Stall::Spinning(at)),
            _ => {
                self.now = end;
                Ok(())
            }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        [
            self.forward.next_time(),
            self.backward.next_time(),
            self.client.timeout(),
            self.server.timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The last segments that were sent and that arrived, one a line.
    pub fn last_segments(&self) -> String {
        let mut text = String::new();
        for Seen { at, what, octets, len } in &self.log {
            if let Some(segment) = Segment::parse(octets) {
                let _ = writeln!(text, "{at:?} {what} {len} octets: {segment:?}");
            }
        }
        text
    }

    /// What is due now, once around: a burst to each host, its timers, its answers.
    fn work(&mut self) {
        let Pair { now, client, server, forward, backward, icmp, tx, log } = self;
        let icmp = *icmp;
        let mut side = Side { host: server, from: forward, to: backward, icmp, tx, log };
        side.work(*now, ["-> server", "   server ->"]);
        let mut side = Side { host: client, from: backward, to: forward, icmp, tx, log };
        side.work(*now, ["-> client", "   client ->"]);
    }
}

/// One host, what leads to it and from it.
struct Side<'a> {
    host: &'a mut Host,
    from: &'a mut Path,
    to: &'a mut Path,
    icmp: bool,
    tx: &'a mut Batch,
    log: &'a mut VecDeque<Seen>,
}

impl Side<'_> {
    fn work(&mut self, now: Instant, names: [&'static str; 2]) {
        for _ in 0..BURST {
            let Some(packet) = self.from.pop(now) else { break };
            remember(self.log, now, names[0], &packet.octets);
            self.host.input(now, &packet, self.tx);
        }
        let Side { host, to, icmp, tx, log, .. } = self;
        transmit(now, host, to, tx, |host, sent| match sent {
            Sent::Segment(octets) => remember(log, now, names[1], octets),
            Sent::TooBig(mtu) if *icmp => host.path_mtu(mtu),
            Sent::TooBig(_) => {}
        });
    }
}

/// What [`transmit`] tells about.
pub(crate) enum Sent<'a> {
    /// A segment that goes to the path.
    Segment(&'a [u8]),
    /// It was larger than the path's MTU, which is this.
    TooBig(usize),
}

/// Runs a host's timers and sends what it has to send: a worker fills one batch after the other while
/// there is something.
pub(crate) fn transmit(
    now: Instant,
    host: &mut Host,
    to: &mut Path,
    tx: &mut Batch,
    mut tell: impl FnMut(&mut Host, Sent<'_>),
) {
    for _ in 0..SPIN {
        host.work(now, tx);
        let segments = tx.take();
        if segments.is_empty() {
            break;
        }
        for octets in segments {
            tell(host, Sent::Segment(&octets));
            if let Entry::TooBig(mtu) = to.push(now, octets, Ecn::NotEct) {
                tell(host, Sent::TooBig(mtu));
            }
        }
    }
}

fn remember(log: &mut VecDeque<Seen>, at: Instant, what: &'static str, octets: &[u8]) {
    if log.len() == MEMORY {
        log.pop_front();
    }
    let len = octets.len();
    let octets = octets[..len.min(60)].to_vec();
    log.push_back(Seen { at, what, octets, len });
}
