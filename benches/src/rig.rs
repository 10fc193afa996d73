//! Data planes with one worker on a core of its own, for the end-to-end measurements: an asking and
//! an asked end, in one process or in two. Their configuration is the appliance's
//! ([`crate::product`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::memory::{Backing, Memory, MemoryConfig};
use dataplane::port::{Port, Ports};
use dataplane::{
    Command, Connect, Dataplane, EndpointConfig, Event, InterfaceId, Listed, ListenerConfig,
    ListenerId, Load, LoadReport, Service, StreamStats, Ticket,
};
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};
use tcp_lite::endpoint::UlpConfig;

use crate::product::{self, PORT, Product};
use crate::setup::{Link, RigConfig, SINK, Side, source};

const PD: PdId = PdId(1);
/// Time-out of a step; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);
/// One end: a data plane with its port and its streams.
pub struct End {
    /// The data plane.
    pub dataplane: Dataplane,
    /// The end's only port.
    pub port: Port,
    /// Accepted streams, by this end's identifiers.
    pub accepted: Vec<StreamId>,
    rig: RigConfig,
    /// Endpoint configurations of opened streams and the remote port of each. The appliance has one
    /// for all streams; an A/B cell has two.
    ways: Vec<(EndpointConfig, u16)>,
    /// ULP of accepted streams and of opened streams.
    ulps: [UlpConfig; 2],
    events: Vec<Event>,
}

impl End {
    /// Starts the worker, adds its regions and, on the asked side, its listener.
    pub fn new(rig: &RigConfig, ports: &Ports, side: Side) -> anyhow::Result<End> {
        let product = Product::new(rig, side)?;
        let Product { port, dataplane, ulps, .. } = &product;
        let mut opened = vec![ports.open(port)?];
        let dataplane = Dataplane::start(dataplane, &mut opened, ports.eal())?;
        let (port, rig, ulps) = (opened.remove(0), rig.clone(), ulps.clone());
        let (accepted, ways, events) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = End { dataplane, port, accepted, rig, ways, ulps, events };
        end.add_regions(side)?;
        end.add_way(product)?;
        Ok(end)
    }

    /// Adds another endpoint configuration, on the next port, with a listener on the asked side.
    /// The first has number 0.
    pub fn add_way(&mut self, product: Product) -> anyhow::Result<()> {
        let n = u16::try_from(self.ways.len())?;
        let port = PORT + n;
        self.ways.push((product.connect, port));
        match product.listener {
            Some(listener) => {
                let id = ListenerId(listener.id.0 + u32::from(n));
                self.listen(ListenerConfig { id, port, ..listener })
            }
            None => Ok(()),
        }
    }

    /// Sends a command to the worker; waits while the command ring is full.
    pub fn command(&mut self, command: Command) -> anyhow::Result<()> {
        let mut command = Some(command);
        let begin = Instant::now();
        while let Some(again) = command.take() {
            command = self.dataplane.workers[0].send(again).err().map(|full| full.0);
            if command.is_some() {
                anyhow::ensure!(begin.elapsed() < PATIENCE, "the command ring stays full");
                self.drain();
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Returns the statistics of this end's first stream.
    fn first_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.command(Command::ListStreams { which: Listed::Everything, ticket: Ticket(3) })?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            match self.dataplane.workers[0].poll() {
                Some(Event::Streams { streams, .. }) => {
                    return Ok(streams.first().map(|info| info.stats));
                }
                Some(other) => self.events.push(other),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        anyhow::bail!("nothing came of asking for the streams")
    }

    /// Returns the worker's next event.
    pub fn poll(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.dataplane.workers[0].poll()
        } else {
            Some(self.events.remove(0))
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.dataplane.workers[0].poll() {
            self.events.push(event);
        }
    }

    /// Returns a counter of the worker.
    pub fn count(&self, name: &str) -> u64 {
        let mut total = 0;
        self.dataplane.workers[0].counters().for_each(|counter, value| {
            if counter.name == name {
                total += value;
            }
        });
        total
    }

    /// Returns the frames that the worker dropped, over all reasons.
    pub fn drops(&self) -> u64 {
        self.dataplane.workers[0].counters().drops.total()
    }

    /// Waits for `left` completions of commands.
    fn done(&mut self, mut left: u32, what: &str) -> anyhow::Result<()> {
        let begin = Instant::now();
        self.events.retain(|event| {
            let done = matches!(event, Event::Done { result: Ok(()), .. });
            left -= u32::from(done);
            !done
        });
        while left > 0 {
            match self.dataplane.workers[0].poll() {
                Some(Event::Done { result, .. }) => {
                    result?;
                    left -= 1;
                }
                Some(other) => self.events.push(other),
                None => {
                    anyhow::ensure!(begin.elapsed() < PATIENCE, "waiting for {what}");
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        Ok(())
    }

    /// Adds the source region and the sink regions that this side needs.
    fn add_regions(&mut self, side: Side) -> anyhow::Result<()> {
        let (both, rdmap) = (self.rig.both, self.rig.rdmap);
        let asking = side == Side::Asking;
        self.add_source(side, self.rig.unstable)?;
        if !asking || both || rdmap {
            let sink = product::region(self.rig.region)?;
            let (part, access) = (self.rig.part(), Access::REMOTE_WRITE | Access::REMOTE_READ);
            let stags = (0..if asking { 1 } else { self.rig.stags.max(1) }).map(|index| {
                let len = if self.rig.stags <= 1 { self.rig.region } else { part };
                entry(Stag(SINK.0 + (index << 8)), u64::from(index) * part, len, access, &sink)
            });
            self.add(stags.collect())?;
        }
        Ok(())
    }

    /// Adds the source region, if this side sends or serves Reads.
    fn add_source(&mut self, side: Side, unstable: bool) -> anyhow::Result<()> {
        if side == Side::Asked && !self.rig.both && !self.rig.rdmap {
            return Ok(());
        }
        let len = self.rig.region;
        let memory = if unstable { product::region(len)? } else { stable(len)? };
        self.add(vec![entry(source(unstable), 0, len, Access::REMOTE_READ, &memory)])
    }

    fn add(&mut self, entries: Vec<StagEntry<Memory>>) -> anyhow::Result<()> {
        let many = entries.len() as u32;
        for entry in entries {
            self.command(Command::AddStag { entry, ticket: Ticket(1) })?;
        }
        self.done(many, "a region")
    }

    fn listen(&mut self, listener: ListenerConfig) -> anyhow::Result<()> {
        let listener = Arc::new(listener);
        self.command(Command::AddListener { listener, ticket: Ticket(2) })?;
        self.done(1, "a listener")
    }

    /// Requests a stream from the `n`-th local address.
    pub fn connect(&mut self, n: u32) -> anyhow::Result<()> {
        self.connect_by(0, n)
    }

    fn connect_by(&mut self, way: usize, n: u32) -> anyhow::Result<()> {
        let (endpoint, port) = self.ways[way].clone();
        self.command(Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket: Ticket(u64::from(n)),
            interface: InterfaceId(0),
            local: Some(product::asking_address(&self.rig, n)),
            remote: SocketAddr::new(product::address(&self.rig, Side::Asked), port),
            endpoint,
            ulp: self.ulps[1].clone(),
            // No control thread takes part: the worker discards untagged messages itself.
            service: Service::Sink,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        })))
    }

    /// Handles the asked side's events: accepts streams with `service` and answers closes. Returns
    /// true if there were events.
    pub fn serve(&mut self, service: Service) -> anyhow::Result<bool> {
        let mut busy = false;
        while let Some(event) = self.poll() {
            busy = true;
            match event {
                Event::Incoming { stream, listener, .. } => {
                    let (ulp, pd) = (self.ulps[0].clone(), PD);
                    let accept =
                        Command::Accept { stream, pd, private_data: Vec::new(), ulp, service };
                    self.command(accept)?;
                    // The control thread returns the listener's credit in the same way after its
                    // decision.
                    self.command(Command::Credits { listener, more: 1 })?;
                }
                Event::Established { stream, .. } => self.accepted.push(stream),
                Event::PeerClosed { stream, .. } => {
                    self.command(Command::Close { stream, abort: false })?;
                }
                Event::LoadDone { report, .. } => {
                    if let Some(failure) = report.failure {
                        anyhow::bail!("the asked side's load failed: {failure}");
                    }
                }
                Event::Error { error, .. } => anyhow::bail!("the asked side: {error}"),
                Event::RdmapError { error, .. } => anyhow::bail!("the asked side: {error}"),
                Event::Failed { message, .. } => {
                    anyhow::bail!("the asked side's worker: {message}")
                }
                _ => {}
            }
        }
        Ok(busy)
    }
}

fn entry(stag: Stag, offset: u64, len: u64, access: Access, memory: &Memory) -> StagEntry<Memory> {
    StagEntry {
        stag,
        pd: PD,
        stream: None,
        base_to: TaggedOffset(offset),
        len,
        access,
        memory: memory.clone(),
        memory_offset: offset,
    }
}

/// Returns memory whose contents cannot change during transmission, as the appliance maps a file of
/// a put.
pub fn stable(len: u64) -> anyhow::Result<Memory> {
    let config = MemoryConfig { backing: Backing::Anonymous, len, remote_write: false, lock: true };
    Ok(Memory::new(&config)?)
}

/// Both ends, or the asking end if the asked one is in another process.
pub struct Rig {
    /// The end that makes the load.
    pub asking: End,
    /// The end that accepts the load; `None` if it is in another process.
    pub asked: Option<End>,
    /// Service of accepted streams.
    pub service: Service,
    /// Open streams, by the asking side's identifiers.
    pub streams: Vec<StreamId>,
    both: bool,
}

impl Rig {
    /// Starts the data planes of this process.
    pub fn new(config: &RigConfig, ports: &Ports, service: Service) -> anyhow::Result<Rig> {
        // The asked side starts first, so that the asking one finds a listener.
        let asked = match config.link {
            Link::Memif => None,
            _ => Some(End::new(config, ports, Side::Asked)?),
        };
        let asking = End::new(config, ports, Side::Asking)?;
        Ok(Rig { asking, asked, service, streams: Vec::new(), both: config.both })
    }

    /// Handles the asked side's events, if it is in this process. Returns true if there were
    /// events.
    pub fn serve(&mut self) -> anyhow::Result<bool> {
        self.asked.as_mut().map_or(Ok(false), |asked| asked.serve(self.service))
    }

    /// Passes the asking side's events to `done` until it returns a value; serves the asked side
    /// meanwhile.
    pub fn until<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut done: impl FnMut(&mut End, Event) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            let mut busy = self.serve()?;
            while let Some(event) = self.asking.poll() {
                busy = true;
                if let Event::Failed { message, .. } = &event {
                    anyhow::bail!("the asking side's worker: {message}");
                }
                if let Some(found) = done(&mut self.asking, event)? {
                    return Ok(found);
                }
            }
            anyhow::ensure!(begin.elapsed() < patience, "nothing came of {what}");
            if !busy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Adds another endpoint configuration, whose number is the next one. `rig` may differ in its
    /// endpoints and in its source region only.
    pub fn add_way(&mut self, rig: &RigConfig) -> anyhow::Result<()> {
        let [asking, asked] = Product::both(rig)?;
        let ends = [
            (Side::Asked, self.asked.as_mut(), asked),
            (Side::Asking, Some(&mut self.asking), asking),
        ];
        for (side, end, product) in ends {
            let Some(end) = end else { continue };
            if rig.unstable != end.rig.unstable {
                end.add_source(side, rig.unstable)?;
            }
            end.add_way(product)?;
        }
        Ok(())
    }

    /// Opens `n` more streams, at most 256 handshakes at a time.
    pub fn open(&mut self, n: u32) -> anyhow::Result<()> {
        self.open_by(0, n)
    }

    /// Opens `n` more streams with endpoint configuration `way`, at most 256 handshakes at a time.
    pub fn open_by(&mut self, way: usize, n: u32) -> anyhow::Result<()> {
        let (mut asked, mut opened) = (0, Vec::new());
        let window = 256.min(n);
        while asked < window {
            self.asking.connect_by(way, asked)?;
            asked += 1;
        }
        self.until("opening streams", PATIENCE * 2, |asking, event| {
            match event {
                Event::Established { stream, .. } => {
                    opened.push(stream);
                    if asked < n {
                        asking.connect_by(way, asked)?;
                        asked += 1;
                    }
                }
                Event::ConnectFailed { reason, .. } => anyhow::bail!("no stream: {reason}"),
                _ => {}
            }
            Ok((opened.len() == n as usize).then_some(()))
        })?;
        self.streams.append(&mut opened);
        Ok(())
    }

    /// Starts `load(n)` on the `n`-th stream. If both sides make load, the asked side's `n`-th
    /// stream gets it, too.
    pub fn start(&mut self, load: impl Fn(u32) -> Load) -> anyhow::Result<()> {
        for (n, stream) in (0..).zip(self.streams.clone()) {
            let load = load(n);
            self.asking.command(Command::Load { stream, load, ticket: Ticket(9) })?;
        }
        if self.both {
            let many = self.streams.len();
            let begin = Instant::now();
            while self.asked.as_ref().is_some_and(|asked| asked.accepted.len() < many) {
                anyhow::ensure!(begin.elapsed() < PATIENCE, "the asked side has not its streams");
                self.serve()?;
            }
            if let Some(asked) = &mut self.asked {
                for (n, stream) in (0..).zip(asked.accepted.clone()) {
                    let load = load(n);
                    asked.command(Command::Load { stream, load, ticket: Ticket(9) })?;
                }
            }
        }
        Ok(())
    }

    /// Stops the load on each stream. Returns the sum of the asking side's reports with the times
    /// of all messages.
    pub fn stop(&mut self) -> anyhow::Result<LoadReport> {
        if let Some(asked) = self.asked.as_mut().filter(|_| self.both) {
            for stream in asked.accepted.clone() {
                asked.command(Command::StopLoad { stream })?;
            }
        }
        for stream in self.streams.clone() {
            self.asking.command(Command::StopLoad { stream })?;
        }
        self.finish(PATIENCE)
    }

    /// Starts a load on the `n`-th stream.
    pub fn start_one(&mut self, n: usize, load: Load) -> anyhow::Result<()> {
        let stream = self.streams[n];
        self.asking.command(Command::Load { stream, load, ticket: Ticket(9) })
    }

    /// Stops the load on the `n`-th stream and returns its report.
    pub fn stop_one(&mut self, n: usize) -> anyhow::Result<LoadReport> {
        let stream = self.streams[n];
        self.asking.command(Command::StopLoad { stream })?;
        self.ended(1, PATIENCE)
    }

    /// Waits for the end of the load on each stream and returns the sum of the reports.
    pub fn finish(&mut self, patience: Duration) -> anyhow::Result<LoadReport> {
        self.ended(self.streams.len(), patience)
    }

    fn ended(&mut self, mut left: usize, patience: Duration) -> anyhow::Result<LoadReport> {
        let mut total: Option<LoadReport> = None;
        self.until("the load", patience, |_, event| {
            match event {
                Event::LoadDone { report, .. } => {
                    left -= 1;
                    if let Some(failure) = &report.failure {
                        anyhow::bail!("the load failed: {failure}");
                    }
                    total = Some(match total.take() {
                        None => *report,
                        Some(total) => add(total, &report),
                    });
                }
                Event::Closed { reason, .. } => anyhow::bail!("a stream ended: {reason}"),
                _ => {}
            }
            Ok((left == 0).then_some(()))
        })?;
        total.ok_or_else(|| anyhow::anyhow!("there was no stream"))
    }

    /// Returns the statistics of the asked side's first stream, if that side is in this process.
    pub fn asked_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.asked.as_mut().map_or(Ok(None), End::first_stats)
    }

    /// Returns the statistics of the asking side's first stream.
    pub fn asking_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.asking.first_stats()
    }
}

fn add(mut total: LoadReport, other: &LoadReport) -> LoadReport {
    total.messages += other.messages;
    total.bytes += other.bytes;
    total.nanoseconds = total.nanoseconds.max(other.nanoseconds);
    if let (Some(all), Some(more)) = (&mut total.latency, &other.latency) {
        // All histograms have the same bounds, so no value is out of range.
        let _ = all.add(more);
    }
    total
}
