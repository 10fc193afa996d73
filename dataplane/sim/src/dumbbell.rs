//! Several pairs of hosts whose data share one slow link. Measures the share of each flow.
//!
//! ```text
//!  client 0 ──> path ─┐                                     ┌──> server 0 ──> path ──> client 0
//!  client 1 ──> path ─┼──> queue, slow link (shared) ───────┼──> server 1 ──> path ──> client 1
//!  client 2 ──> path ─┘                                     └──> server 2 ──> path ──> client 2
//! ```
//!
//! Clients always have data to write to their servers. Each flow has its own paths in both directions, which
//! determine its round-trip time.

use core::time::Duration;

use base::Instant;
use ddp::{RegionMemory, VecMemory};
use link::{FaultyLink, Rng};

use crate::dialogue::Batch;
use crate::host::{Host, HostConfig};
use crate::packet::Packet;
use crate::pair::{BURST, MAX_STEPS, Stall, transmit};
use crate::path::{self, Path};

/// Length of a message, bytes.
const MESSAGE: u64 = 64 * 1024;
/// Number of messages that each client keeps queued, so that it always has data to send.
const BACKLOG: usize = 8;

/// Configuration of a flow: its hosts, paths and start.
#[derive(Clone, Debug)]
pub struct FlowConfig {
    /// Configuration of both hosts.
    pub host: HostConfig,
    /// Path from the client to the shared link.
    pub forward: path::Config,
    /// Path from the server to the client.
    pub backward: path::Config,
    /// Time after the start of the simulation at which the client connects.
    pub start: Duration,
}

/// One client, its server, and the paths that only this flow uses.
#[derive(Debug)]
pub struct Flow {
    /// Host that sends data.
    pub client: Host,
    /// Host that receives data.
    pub server: Host,
    forward: Path,
    backward: Path,
    start: Option<Instant>,
    source: VecMemory,
    written: u64,
}

/// Hosts around one shared link.
#[derive(Debug)]
pub struct Dumbbell {
    /// Virtual time.
    pub now: Instant,
    /// The flows, in the order of their configurations.
    pub flows: Vec<Flow>,
    bottleneck: FaultyLink<Packet>,
    tx: Batch,
}

impl Dumbbell {
    /// Creates unconnected hosts around a shared link.
    pub fn new(bottleneck: link::Config, flows: Vec<FlowConfig>) -> Self {
        let now = Instant::from_millis(1000);
        let flow = |(n, config): (usize, FlowConfig)| {
            let mut rng = Rng::new(n as u64);
            let bytes = (0..config.host.region).map(|_| rng.next_u64() as u8).collect();
            Flow {
                client: Host::new(config.host.clone(), false),
                server: Host::new(config.host, true),
                forward: Path::new(config.forward),
                backward: Path::new(config.backward),
                start: Some(now + config.start),
                source: VecMemory::from_vec(bytes).into_stable(),
                written: 0,
            }
        };
        Dumbbell {
            now,
            flows: flows.into_iter().enumerate().map(flow).collect(),
            bottleneck: FaultyLink::new(bottleneck),
            tx: Batch::bounded(BURST),
        }
    }

    /// Advances virtual time by `time`.
    ///
    /// # Errors
    /// [`Stall::Spinning`]: virtual time does not advance.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Stall> {
        let end = self.now + time;
        let mut steps_at_now = 0;
        loop {
            self.work();
            let next = self.next_time().unwrap_or(end);
            if next > end {
                self.now = end;
                return Ok(());
            }
            steps_at_now = if next > self.now { 0 } else { steps_at_now + 1 };
            if steps_at_now > MAX_STEPS {
                return Err(Stall::Spinning(self.now));
            }
            self.now = self.now.max(next);
            if self.now == end {
                return Ok(());
            }
        }
    }

    /// Advances virtual time by `time`. Returns the stream bytes that each server received in this time.
    ///
    /// # Errors
    /// [`Stall::Spinning`]: virtual time does not advance.
    pub fn measure(&mut self, time: Duration) -> Result<Vec<u64>, Stall> {
        let bytes = |flow: &Flow| flow.server.stats().tcp.recv.bytes;
        let before: Vec<u64> = self.flows.iter().map(bytes).collect();
        self.run_for(time)?;
        Ok(self.flows.iter().zip(before).map(|(flow, b)| bytes(flow) - b).collect())
    }

    /// Returns the counters of the shared link.
    pub fn bottleneck(&self) -> &link::Counters {
        self.bottleneck.counters()
    }

    /// Checks that no stream has ended, and that each byte of each server's region is correct or zero.
    ///
    /// # Errors
    /// The first violation.
    pub fn verify(&self) -> Result<(), String> {
        for (n, flow) in self.flows.iter().enumerate() {
            if let Some(reason) = flow.client.closed().or(flow.server.closed()) {
                return Err(format!("flow {n} has ended: {reason:?}"));
            }
            let (source, got) = (flow.source.to_vec(), flow.server.region());
            if let Some(at) = got.iter().zip(&source).position(|(g, s)| *g != 0 && g != s) {
                return Err(format!("flow {n}: a wrong byte at {at}"));
            }
        }
        Ok(())
    }

    fn next_time(&self) -> Option<Instant> {
        let of_flow = |flow: &Flow| {
            [
                flow.start,
                flow.forward.next_time(),
                flow.backward.next_time(),
                flow.client.timeout(),
                flow.server.timeout(),
            ]
        };
        let flows = self.flows.iter().flat_map(of_flow).flatten();
        flows.chain(self.bottleneck.next_delivery()).min()
    }

    /// Performs the work due now: forwards packets to and from the shared link, and runs the hosts.
    fn work(&mut self) {
        let Dumbbell { now, flows, bottleneck, tx } = self;
        let now = *now;
        for (n, flow) in flows.iter_mut().enumerate() {
            while let Some(packet) = flow.forward.pop(now) {
                bottleneck.push(now, Packet { flow: n, ..packet });
            }
        }
        while let Some(packet) = bottleneck.pop(now) {
            flows[packet.flow].server.input(now, &packet, tx);
            let Flow { server, backward, .. } = &mut flows[packet.flow];
            transmit(now, server, backward, tx, MAX_STEPS, |_, _| {});
        }
        for flow in flows {
            flow.work(now, tx);
        }
    }
}

impl Flow {
    fn work(&mut self, now: Instant, tx: &mut Batch) {
        if self.start.is_some_and(|at| at <= now) {
            self.start = None;
            // Fails only if the private data is too long, and this client's is empty.
            let connected = self.client.connect(now);
            debug_assert!(connected.is_ok());
        }
        while self.client.backlog() < BACKLOG {
            let at = self.written % self.source.len();
            let end = (at + MESSAGE).min(self.source.len());
            self.client.write(&self.source, at..end, at);
            self.written += end - at;
        }
        while let Some(packet) = self.backward.pop(now) {
            self.client.input(now, &packet, tx);
        }
        transmit(now, &mut self.client, &mut self.forward, tx, MAX_STEPS, |_, _| {});
        if self.server.timeout().is_some_and(|at| at <= now) {
            transmit(now, &mut self.server, &mut self.backward, tx, MAX_STEPS, |_, _| {});
        }
    }
}

/// Returns Jain's fairness index: 1 for equal shares, 1/n if one flow has the whole rate.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&x| x as f64).sum();
    let squares: f64 = shares.iter().map(|&x| (x as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_index_is_one_for_equal_and_one_nth_for_single_share() {
        assert!((jain(&[7, 7, 7]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[2, 1]) - 0.9).abs() < 1e-9);
    }
}
