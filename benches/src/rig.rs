//! A rig: two data planes for the end-to-end measurements, initiator and responder, in one process or in two. Each
//! data plane has one worker on its own core and the appliance's configuration ([`crate::end_config`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::memory::{Backing, Memory, MemoryConfig};
use dataplane::port::{Port, PortFactory};
use dataplane::{
    Command, Connect, Dataplane, EndpointConfig, Event, InterfaceId, ListenerConfig, ListenerId,
    Load, LoadReport, Service, StreamSelection, StreamStats, Ticket,
};
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};
use tcp_lite::endpoint::UlpConfig;

use crate::end_config::{self, EndConfig, PORT};
use crate::rig_config::{Link, RigConfig, SINK_STAG, Side, source_stag};

const PD: PdId = PdId(1);
/// Time-out of a step. Only a hang takes this long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// One end of a rig: a data plane with its port and its streams.
pub struct RigEnd {
    /// The data plane, with one worker.
    pub dataplane: Dataplane,
    /// The end's only port.
    pub port: Port,
    /// This end's identifiers of the accepted streams.
    pub accepted: Vec<StreamId>,
    rig: RigConfig,
    /// Endpoint configurations for the streams that this end opens, each with its remote port. An A/B cell has two,
    /// other cells have one.
    endpoints: Vec<(EndpointConfig, u16)>,
    /// ULP configuration of accepted streams, then of opened streams.
    ulps: [UlpConfig; 2],
    /// Events that arrived while another event was awaited. [`poll_event`](Self::poll_event) returns them first.
    events: Vec<Event>,
}

impl RigEnd {
    /// Starts the worker, adds its regions and, for the responder, its listener.
    pub fn new(rig: &RigConfig, ports: &PortFactory, side: Side) -> anyhow::Result<RigEnd> {
        let product = EndConfig::new(rig, side)?;
        let EndConfig { port, dataplane, ulps, .. } = &product;
        let mut opened = vec![ports.open(port)?];
        let dataplane = Dataplane::start(dataplane, &mut opened, ports.eal())?;
        let (port, rig, ulps) = (opened.remove(0), rig.clone(), ulps.clone());
        let (accepted, ways, events) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = RigEnd { dataplane, port, accepted, rig, endpoints: ways, ulps, events };
        end.add_side_regions(side)?;
        end.add_endpoint(product)?;
        Ok(end)
    }

    /// Adds an endpoint configuration, numbered from 0. Configuration `n` uses port `PORT + n`; the responder listens
    /// on this port.
    pub fn add_endpoint(&mut self, product: EndConfig) -> anyhow::Result<()> {
        let n = u16::try_from(self.endpoints.len())?;
        let port = PORT + n;
        self.endpoints.push((product.connect, port));
        match product.listener {
            Some(listener) => {
                let id = ListenerId(listener.id.0 + u32::from(n));
                self.add_listener(ListenerConfig { id, port, ..listener })
            }
            None => Ok(()),
        }
    }

    /// Sends a command to the worker. Waits while the command ring is full, at most 30 s.
    pub fn send_command(&mut self, command: Command) -> anyhow::Result<()> {
        let mut command = Some(command);
        let begin = Instant::now();
        while let Some(again) = command.take() {
            command = self.dataplane.workers[0].send(again).err().map(|full| full.0);
            if command.is_some() {
                anyhow::ensure!(begin.elapsed() < TIMEOUT, "the command ring stays full");
                self.queue_events();
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Returns the statistics of this end's first stream; `None` without streams.
    fn first_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.send_command(Command::ListStreams {
            selection: StreamSelection::All,
            ticket: Ticket(3),
        })?;
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            match self.dataplane.workers[0].poll() {
                Some(Event::Streams { streams, .. }) => {
                    return Ok(streams.first().map(|info| info.stats));
                }
                Some(other) => self.events.push(other),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        anyhow::bail!("no answer to the request for the streams")
    }

    /// Returns the worker's next event, without waiting. `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.dataplane.workers[0].poll()
        } else {
            Some(self.events.remove(0))
        }
    }

    fn queue_events(&mut self) {
        while let Some(event) = self.dataplane.workers[0].poll() {
            self.events.push(event);
        }
    }

    /// Returns the sum of the worker's counters with this name; 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        let mut total = 0;
        self.dataplane.workers[0].counters().for_each(|counter, value| {
            if counter.name == name {
                total += value;
            }
        });
        total
    }

    /// Returns the number of frames that the worker dropped, for any reason.
    pub fn drops(&self) -> u64 {
        self.dataplane.workers[0].counters().drops.total()
    }

    /// Waits for `left` successful completions of commands.
    fn await_completions(&mut self, mut left: u32, what: &str) -> anyhow::Result<()> {
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
                    anyhow::ensure!(begin.elapsed() < TIMEOUT, "waiting for {what}");
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        Ok(())
    }

    /// Adds the source region and the sink regions that this side needs.
    fn add_side_regions(&mut self, side: Side) -> anyhow::Result<()> {
        let (both, rdmap) = (self.rig.both, self.rig.rdmap);
        let is_initiator = side == Side::Initiator;
        self.add_source(side, self.rig.unstable)?;
        if !is_initiator || both || rdmap {
            let sink = end_config::allocate_region(self.rig.region)?;
            let (part, access) =
                (self.rig.stag_bytes(), Access::REMOTE_WRITE | Access::REMOTE_READ);
            let stags = (0..if is_initiator { 1 } else { self.rig.stags.max(1) }).map(|index| {
                let len = if self.rig.stags <= 1 { self.rig.region } else { part };
                stag_entry(
                    Stag(SINK_STAG.0 + (index << 8)),
                    u64::from(index) * part,
                    len,
                    access,
                    &sink,
                )
            });
            self.add_stags(stags.collect())?;
        }
        Ok(())
    }

    /// Adds the source region if this side sends or serves Reads.
    fn add_source(&mut self, side: Side, unstable: bool) -> anyhow::Result<()> {
        if side == Side::Responder && !self.rig.both && !self.rig.rdmap {
            return Ok(());
        }
        let len = self.rig.region;
        let memory = if unstable { end_config::allocate_region(len)? } else { stable_region(len)? };
        self.add_stags(vec![stag_entry(
            source_stag(unstable),
            0,
            len,
            Access::REMOTE_READ,
            &memory,
        )])
    }

    fn add_stags(&mut self, entries: Vec<StagEntry<Memory>>) -> anyhow::Result<()> {
        let many = entries.len() as u32;
        for entry in entries {
            self.send_command(Command::AddStag { entry, ticket: Ticket(1) })?;
        }
        self.await_completions(many, "a region")
    }

    fn add_listener(&mut self, listener: ListenerConfig) -> anyhow::Result<()> {
        let listener = Arc::new(listener);
        self.send_command(Command::AddListener { listener, ticket: Ticket(2) })?;
        self.await_completions(1, "a listener")
    }

    /// Starts to open a stream from the `n`-th local address. The worker reports the result as an event.
    pub fn connect(&mut self, n: u32) -> anyhow::Result<()> {
        self.connect_with(0, n)
    }

    fn connect_with(&mut self, way: usize, n: u32) -> anyhow::Result<()> {
        let (endpoint, port) = self.endpoints[way].clone();
        self.send_command(Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket: Ticket(u64::from(n)),
            interface: InterfaceId(0),
            local: Some(end_config::initiator_address(&self.rig, n)),
            remote: SocketAddr::new(end_config::side_address(&self.rig, Side::Responder), port),
            endpoint,
            ulp: self.ulps[1].clone(),
            // A rig has no control thread. With this service the worker itself discards untagged messages.
            service: Service::Sink,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        })))
    }

    /// Handles the responder's events: accepts streams with `service`, and closes a stream when the peer closes it.
    /// Returns true if there were events.
    pub fn handle_events(&mut self, service: Service) -> anyhow::Result<bool> {
        let mut busy = false;
        while let Some(event) = self.poll_event() {
            busy = true;
            match event {
                Event::Incoming { stream, listener, .. } => {
                    let (ulp, pd) = (self.ulps[0].clone(), PD);
                    let accept =
                        Command::Accept { stream, pd, private_data: Vec::new(), ulp, service };
                    self.send_command(accept)?;
                    // Each incoming stream consumes a credit of the listener. An appliance's control thread returns the
                    // credit in the same way.
                    self.send_command(Command::Credits { listener, additional: 1 })?;
                }
                Event::Established { stream, .. } => self.accepted.push(stream),
                Event::PeerClosed { stream, .. } => {
                    self.send_command(Command::Close { stream, abort: false })?;
                }
                Event::LoadDone { report, .. } => {
                    if let Some(failure) = report.failure {
                        anyhow::bail!("the responder's load failed: {failure}");
                    }
                }
                Event::Error { error, .. } => anyhow::bail!("the responder: {error}"),
                Event::RdmapError { error, .. } => anyhow::bail!("the responder: {error}"),
                Event::Failed { message, .. } => {
                    anyhow::bail!("the responder's worker: {message}")
                }
                _ => {}
            }
        }
        Ok(busy)
    }
}

fn stag_entry(
    stag: Stag,
    offset: u64,
    len: u64,
    access: Access,
    memory: &Memory,
) -> StagEntry<Memory> {
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

/// Returns memory that remote peers cannot write, so that its contents are stable during transmission. The appliance
/// maps such memory for the file of a put.
pub fn stable_region(len: u64) -> anyhow::Result<Memory> {
    let config = MemoryConfig { backing: Backing::Anonymous, len, remote_write: false, lock: true };
    Ok(Memory::new(&config)?)
}

/// Both ends of a rig, or only the initiator if the responder is in another process.
pub struct Rig {
    /// The end that opens streams and posts messages.
    pub initiator: RigEnd,
    /// The end that accepts streams; `None` if it is in another process.
    pub responder: Option<RigEnd>,
    /// Service of the streams that the responder accepts.
    pub service: Service,
    /// The initiator's identifiers of the open streams.
    pub streams: Vec<StreamId>,
    /// True if both sides post messages.
    bidirectional: bool,
}

impl Rig {
    /// Starts the data planes of this process: both, except with memif, where the responder is in another process.
    pub fn new(config: &RigConfig, ports: &PortFactory, service: Service) -> anyhow::Result<Rig> {
        // The responder starts first, so that its listener exists when the initiator connects.
        let responder = match config.link {
            Link::Memif => None,
            _ => Some(RigEnd::new(config, ports, Side::Responder)?),
        };
        let initiator = RigEnd::new(config, ports, Side::Initiator)?;
        Ok(Rig { initiator, responder, service, streams: Vec::new(), bidirectional: config.both })
    }

    /// Handles the responder's events if it is in this process. Returns true if there were events.
    pub fn serve(&mut self) -> anyhow::Result<bool> {
        self.responder.as_mut().map_or(Ok(false), |end| end.handle_events(self.service))
    }

    /// Passes the initiator's events to `done` until `done` returns a value, at most for `timeout`. Handles the
    /// responder's events meanwhile. `what` names the awaited result in the error.
    pub fn poll_until<T>(
        &mut self,
        what: &str,
        timeout: Duration,
        mut done: impl FnMut(&mut RigEnd, Event) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            let mut busy = self.serve()?;
            while let Some(event) = self.initiator.poll_event() {
                busy = true;
                if let Event::Failed { message, .. } = &event {
                    anyhow::bail!("the initiator's worker: {message}");
                }
                if let Some(found) = done(&mut self.initiator, event)? {
                    return Ok(found);
                }
            }
            anyhow::ensure!(begin.elapsed() < timeout, "timed out: {what}");
            if !busy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Adds another endpoint configuration to both ends, with the next number. `rig` may differ from the first
    /// configuration only in its endpoints and its source region.
    pub fn add_endpoint(&mut self, rig: &RigConfig) -> anyhow::Result<()> {
        let [initiator, responder] = EndConfig::for_both_sides(rig)?;
        let ends = [
            (Side::Responder, self.responder.as_mut(), responder),
            (Side::Initiator, Some(&mut self.initiator), initiator),
        ];
        for (side, end, product) in ends {
            let Some(end) = end else { continue };
            if rig.unstable != end.rig.unstable {
                end.add_source(side, rig.unstable)?;
            }
            end.add_endpoint(product)?;
        }
        Ok(())
    }

    /// Opens `n` more streams with the first endpoint configuration, at most 256 handshakes at a time.
    pub fn open_streams(&mut self, n: u32) -> anyhow::Result<()> {
        self.open_with(0, n)
    }

    /// Opens `n` more streams with endpoint configuration number `way`, at most 256 handshakes at a time.
    pub fn open_with(&mut self, way: usize, n: u32) -> anyhow::Result<()> {
        let (mut requested, mut opened) = (0, Vec::new());
        let window = 256.min(n);
        while requested < window {
            self.initiator.connect_with(way, requested)?;
            requested += 1;
        }
        self.poll_until("opening streams", TIMEOUT * 2, |initiator, event| {
            match event {
                Event::Established { stream, .. } => {
                    opened.push(stream);
                    if requested < n {
                        initiator.connect_with(way, requested)?;
                        requested += 1;
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

    /// Starts `load(n)` on the `n`-th stream, for all streams. If both sides post messages, the responder starts the
    /// same load on its `n`-th accepted stream.
    pub fn start_load(&mut self, load: impl Fn(u32) -> Load) -> anyhow::Result<()> {
        for (n, stream) in (0..).zip(self.streams.clone()) {
            let load = load(n);
            self.initiator.send_command(Command::Load { stream, load, ticket: Ticket(9) })?;
        }
        if self.bidirectional {
            let many = self.streams.len();
            let begin = Instant::now();
            while self.responder.as_ref().is_some_and(|end| end.accepted.len() < many) {
                anyhow::ensure!(
                    begin.elapsed() < TIMEOUT,
                    "the responder has not accepted all streams"
                );
                self.serve()?;
            }
            if let Some(responder) = &mut self.responder {
                for (n, stream) in (0..).zip(responder.accepted.clone()) {
                    let load = load(n);
                    responder.send_command(Command::Load { stream, load, ticket: Ticket(9) })?;
                }
            }
        }
        Ok(())
    }

    /// Stops the load on each stream. Returns the initiator's reports, merged into one with all latencies.
    pub fn stop_load(&mut self) -> anyhow::Result<LoadReport> {
        if let Some(responder) = self.responder.as_mut().filter(|_| self.bidirectional) {
            for stream in responder.accepted.clone() {
                responder.send_command(Command::StopLoad { stream })?;
            }
        }
        for stream in self.streams.clone() {
            self.initiator.send_command(Command::StopLoad { stream })?;
        }
        self.await_load_end(TIMEOUT)
    }

    /// Starts a load on the `n`-th stream.
    pub fn start_load_on(&mut self, n: usize, load: Load) -> anyhow::Result<()> {
        let stream = self.streams[n];
        self.initiator.send_command(Command::Load { stream, load, ticket: Ticket(9) })
    }

    /// Stops the load on the `n`-th stream and returns its report.
    pub fn stop_load_on(&mut self, n: usize) -> anyhow::Result<LoadReport> {
        let stream = self.streams[n];
        self.initiator.send_command(Command::StopLoad { stream })?;
        self.await_reports(1, TIMEOUT)
    }

    /// Waits for the end of the load on each stream. Returns the initiator's reports, merged into one.
    pub fn await_load_end(&mut self, timeout: Duration) -> anyhow::Result<LoadReport> {
        self.await_reports(self.streams.len(), timeout)
    }

    fn await_reports(&mut self, mut left: usize, timeout: Duration) -> anyhow::Result<LoadReport> {
        let mut total: Option<LoadReport> = None;
        self.poll_until("the load", timeout, |_, event| {
            match event {
                Event::LoadDone { report, .. } => {
                    left -= 1;
                    if let Some(failure) = &report.failure {
                        anyhow::bail!("the load failed: {failure}");
                    }
                    total = Some(match total.take() {
                        None => *report,
                        Some(total) => merge_reports(total, &report),
                    });
                }
                Event::Closed { reason, .. } => anyhow::bail!("a stream ended: {reason}"),
                _ => {}
            }
            Ok((left == 0).then_some(()))
        })?;
        total.ok_or_else(|| anyhow::anyhow!("there was no stream"))
    }

    /// Returns the statistics of the responder's first stream; `None` without streams or if the responder is in another
    /// process.
    pub fn responder_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.responder.as_mut().map_or(Ok(None), RigEnd::first_stats)
    }

    /// Returns the statistics of the initiator's first stream; `None` without streams.
    pub fn initiator_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.initiator.first_stats()
    }
}

fn merge_reports(mut total: LoadReport, other: &LoadReport) -> LoadReport {
    total.messages += other.messages;
    total.bytes += other.bytes;
    total.nanoseconds = total.nanoseconds.max(other.nanoseconds);
    if let (Some(all), Some(more)) = (&mut total.latency, &other.latency) {
        // All histograms have the same bounds, so no value is out of range.
        let _ = all.add(more);
    }
    total
}
