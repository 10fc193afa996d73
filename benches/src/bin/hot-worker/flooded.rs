//! A worker that processes floods, without a device or a second core, so that its instructions can be counted. The
//! worker has the appliance's configuration.

use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use benches::end_config::EndConfig;
use benches::floods::frames::{Kind, LinkAddresses};
use benches::frame_port::{FramePort, leak_frames};
use benches::rig_config::{RigConfig, Side};
use dataplane::io::BURST;
use dataplane::{Command, DrivenWorker, Ticket};

/// Time in which a full burst arrives: 200 ns per frame.
pub(crate) const BURST_TIME: Duration = Duration::from_nanos(6400);

/// The responder's worker, under a flood.
pub(crate) struct FloodedWorker {
    /// The worker. Each call of `turn` runs one iteration of its loop.
    pub(crate) worker: DrivenWorker<FramePort>,
    /// Virtual time.
    pub(crate) now: Instant,
    /// Link-layer addresses of worker and generator.
    pub(crate) addresses: LinkAddresses,
}

impl FloodedWorker {
    /// Returns a worker with its listener, and with a stream if this kind of flood needs it.
    pub(crate) fn new(kind: Kind) -> anyhow::Result<FloodedWorker> {
        let mut flooded = FloodedWorker::idle(&kind.adapt_rig(RigConfig::default()))?;
        if kind.needs_stream() {
            flooded.open_stream()?;
        }
        Ok(flooded)
    }

    /// Returns a worker with its listener.
    pub(crate) fn idle(rig: &RigConfig) -> anyhow::Result<FloodedWorker> {
        let mut config = EndConfig::new(rig, Side::Responder)?;
        // A fixed hash secret, because the number of peers per hash bucket affects the instruction count.
        config.dataplane.secret = [0x5a; 32].into();
        let now = Instant::from_millis(1000);
        let addresses = LinkAddresses { worker: [2, 0, 0, 0, 0, 1], generator: [2, 0, 0, 0, 0, 2] };
        let mut worker = config.driven_worker(addresses.worker, FramePort::default(), now)?;
        if let Some(listener) = config.listener {
            let listener = Arc::new(listener);
            let sent = worker.handle.send(Command::AddListener { listener, ticket: Ticket(1) });
            anyhow::ensure!(sent.is_ok(), "the command ring is full");
        }
        let mut flooded = FloodedWorker { worker, now, addresses };
        flooded.run_turns(4);
        Ok(flooded)
    }

    fn open_stream(&mut self) -> anyhow::Result<()> {
        let ends = self.addresses;
        self.exchange_frame(ends.gratuitous_arp());
        let answers = self.exchange_frame(ends.syn());
        let ack = answers.iter().find_map(|frame| ends.ack_of(frame));
        self.exchange_frame(ack.ok_or_else(|| anyhow::anyhow!("the SYN was not answered"))?);
        Ok(())
    }

    fn exchange_frame(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        if let Some(port) = self.worker.port(0) {
            port.set_arrivals(leak_frames(vec![frame]), 1);
            port.keep_sent(true);
        }
        self.run_turns(4);
        let Some(port) = self.worker.port(0) else { return Vec::new() };
        port.keep_sent(false);
        port.take_sent()
    }

    fn run_turns(&mut self, n: u32) {
        for _ in 0..n {
            self.now += Duration::from_micros(1);
            self.worker.turn(self.now);
        }
    }

    /// Sets the frames that arrive from now on, repeated in a loop.
    pub(crate) fn set_flood(&mut self, frames: &'static [&'static [u8]]) {
        if let Some(port) = self.worker.port(0) {
            port.set_arrivals(frames, 0);
        }
    }

    /// Receives `frames` frames, one burst per turn. A turn takes 6.4 µs of virtual time.
    pub(crate) fn receive_frames(&mut self, frames: usize) {
        if let Some(port) = self.worker.port(0) {
            port.continue_arrivals(frames);
        }
        for _ in 0..frames.div_ceil(BURST) {
            self.now += BURST_TIME;
            self.worker.turn(self.now);
        }
    }
}
