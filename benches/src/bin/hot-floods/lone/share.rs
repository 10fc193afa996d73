//! A stream on a flooded worker. Its other end is a second worker; only the turns of the asked
//! worker are counted.
//!
//! In a mixed path each segment of the stream is followed by [`FLOOD`] frames of the flood, in full
//! bursts. In the path of the flood alone, RSTs that match no stream take the places of the
//! segments. The worker examines only a few unmatched frames of a burst, so the cost of a flood's
//! frame depends on the number of them in a burst.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use dataplane::io::BURST;
use dataplane::{
    Command, Connect, DrivenWorker, Event, InterfaceId, ListenerConfig, ListenerId, Service, Ticket,
};
use ddp::{Access, Cookie, Message, PdId, Source, Stag, StagEntry, StreamId, TaggedOffset};

use benches::floods::frames::Kind;
use benches::product::{self, PORT, Product};
use benches::rig::stable;
use benches::setup::{RigConfig, Side};

use super::{Lone, Wire, shared, worker};

/// Frames of the flood per segment of the stream.
pub(crate) const FLOOD: usize = 4;
/// Number of counted segments, or of RSTs in their places.
pub(crate) const FRAMES: usize = 512;

/// Bursts of a turn while few of their frames belong to streams.
const BURSTS: usize = 4;
/// Turns of warm-up, after which a flood has reached its bounds.
const BEFORE: usize = 32;
/// Frames of the stream that open its congestion window.
const OPENING: usize = 400;
/// Bytes of the write that is in flight all the time.
const WRITE: u32 = 4 << 20;
const PD: PdId = PdId(1);
const SOURCE: Stag = Stag(0x100);
const SINK: Stag = Stag(0x200);
/// Least length of a full frame: an SCTP packet with a message leaves room for a SACK.
const FULL: usize = 1400;
/// Time-out in turns; only a hang reaches it.
const PATIENCE: usize = 10_000;

/// Counted frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Frames of the TCP stream only.
    Stream,
    /// Frames of the SCTP stream only.
    Association,
    /// The flood only, with RSTs in the segments' places; the stream is idle.
    Flood,
    /// Stream and flood.
    Mixed,
}

/// The paths: name, flood, load.
pub(crate) const PATHS: [(&str, Kind, Load); 8] = [
    ("share-alone", Kind::Rst, Load::Stream),
    ("share-alone-sctp", Kind::Init, Load::Association),
    ("share-flood-rst", Kind::Rst, Load::Flood),
    ("share-flood-syn", Kind::Syn, Load::Flood),
    ("share-flood-init", Kind::Init, Load::Flood),
    ("share-rst", Kind::Rst, Load::Mixed),
    ("share-syn", Kind::Syn, Load::Mixed),
    ("share-init", Kind::Init, Load::Mixed),
];

/// The two workers.
struct Pair {
    lone: Lone,
    asking: DrivenWorker<Wire>,
    /// Frames of the stream that have not been passed to the asked worker.
    waiting: VecDeque<&'static [u8]>,
    flood: &'static [&'static [u8]],
    resets: &'static [&'static [u8]],
    /// Mixed frames so far.
    mixed: usize,
}

/// Runs a path; `counted` calls its argument and counts the instructions.
pub(crate) fn run(
    kind: Kind,
    load: Load,
    counted: &mut dyn FnMut(&mut dyn FnMut()),
) -> anyhow::Result<()> {
    let mut pair = Pair::new(kind, load)?;
    let direct: &mut dyn FnMut(&mut dyn FnMut()) = &mut |work| work();
    for _ in 0..BEFORE {
        pair.round(load, direct)?;
    }
    let mut frames = 0;
    while frames < FRAMES {
        frames += pair.round(load, counted)?;
    }
    ensure!(frames == FRAMES, "{frames} frames were counted");
    let counters = pair.lone.worker.handle.counters();
    ensure!(counters.unaccounted() == 0, "frames are not accounted for");
    Ok(())
}

impl Pair {
    fn new(kind: Kind, load: Load) -> anyhow::Result<Pair> {
        // The stream is TCP's with every kind of flood, except for `Load::Association`.
        let sctp = load == Load::Association;
        let rig = RigConfig { sctp, ..RigConfig::default() };
        let lone = Lone::new(if sctp { Kind::Init } else { Kind::Rst })?;
        let product = Product::new(&rig, Side::Asking)?;
        let asking = worker(&product, lone.ends.from, lone.now)?;
        let flood = shared(lone.ends.flood(kind));
        let resets = shared(lone.ends.flood(Kind::Rst));
        let waiting = VecDeque::new();
        let mut pair = Pair { lone, asking, waiting, flood, resets, mixed: 0 };
        let flooded = Product::new(&kind.rig(rig.clone()), Side::Asked)?;
        if let Some(listener) = flooded.listener.filter(|_| kind == Kind::Init && !sctp) {
            let listener = Arc::new(ListenerConfig { id: ListenerId(2), ..listener });
            pair.answer(Command::AddListener { listener, ticket: Ticket(5) })?;
        }
        let stream = pair.open(&rig, &product)?;
        let memory = stable(u64::from(WRITE))?;
        let entry = entry(SOURCE, Access::REMOTE_READ, &memory);
        pair.ask(Command::AddStag { entry, ticket: Ticket(3) })?;
        let source = Source::Region { memory, offset: 0, len: WRITE };
        let (stag, to, cookie) = (SINK, TaggedOffset(0), Cookie::of(0));
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie };
        pair.ask(Command::Post { stream, message, region: Some(SOURCE), ticket: Ticket(4) })?;
        let mut frames = 0;
        for _ in 0..PATIENCE {
            frames += pair.exchange();
            if frames >= OPENING {
                return Ok(pair);
            }
        }
        anyhow::bail!("the stream carries nothing")
    }

    fn ask(&mut self, command: Command) -> anyhow::Result<()> {
        ensure!(self.asking.handle.send(command).is_ok(), "the command ring is full");
        Ok(())
    }

    fn answer(&mut self, command: Command) -> anyhow::Result<()> {
        ensure!(self.lone.worker.handle.send(command).is_ok(), "the command ring is full");
        Ok(())
    }

    fn open(&mut self, rig: &RigConfig, product: &Product) -> anyhow::Result<StreamId> {
        let accepted = Product::new(rig, Side::Asked)?.ulps[0].clone();
        let memory = product::region(u64::from(WRITE))?;
        let entry = entry(SINK, Access::REMOTE_WRITE, &memory);
        self.answer(Command::AddStag { entry, ticket: Ticket(2) })?;
        self.ask(Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket: Ticket(1),
            interface: InterfaceId(0),
            local: Some(product::asking_address(rig, 0)),
            remote: SocketAddr::new(product::address(rig, Side::Asked), PORT),
            endpoint: product.connect.clone(),
            ulp: product.ulps[1].clone(),
            service: Service::Sink,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        })))?;
        for _ in 0..PATIENCE {
            self.exchange();
            while let Some(event) = self.lone.worker.handle.poll() {
                if let Event::Incoming { stream, .. } = event {
                    let (ulp, service) = (accepted.clone(), Service::Sink);
                    let private_data = Vec::new();
                    self.answer(Command::Accept { stream, pd: PD, private_data, ulp, service })?;
                    self.answer(Command::Credits { listener: ListenerId(1), more: 1 })?;
                }
            }
            while let Some(event) = self.asking.handle.poll() {
                match event {
                    Event::Established { stream, .. } => return Ok(stream),
                    Event::ConnectFailed { reason, .. } => anyhow::bail!("no stream: {reason}"),
                    _ => {}
                }
            }
        }
        anyhow::bail!("the stream is not opened")
    }

    /// Runs an uncounted turn of each worker; returns the number of full frames that arrived.
    fn exchange(&mut self) -> usize {
        self.send();
        let frames: Vec<_> = self.waiting.drain(..).collect();
        let full = frames.iter().filter(|frame| frame.len() >= FULL).count();
        for burst in frames.chunks(BURST) {
            self.take(burst.to_vec(), &mut |work| work());
        }
        if frames.is_empty() {
            self.take(Vec::new(), &mut |work| work());
        }
        full
    }

    /// Runs a turn of the asking worker, a microsecond later.
    fn send(&mut self) {
        self.lone.now += Duration::from_micros(1);
        if let Some(wire) = self.asking.port(0) {
            wire.keeps = true;
        }
        self.asking.turn(self.lone.now);
        if let Some(wire) = self.asking.port(0) {
            self.waiting.extend(wire.sent.drain(..).map(|frame| &*frame.leak()));
        }
    }

    /// Runs a turn of the asked worker with these frames and passes its answers to the other
    /// worker.
    fn take(&mut self, frames: Vec<&'static [u8]>, counted: &mut dyn FnMut(&mut dyn FnMut())) {
        self.lone.now += Duration::from_nanos(6400) * frames.len().div_ceil(BURST) as u32;
        let (worker, now) = (&mut self.lone.worker, self.lone.now);
        if let Some(wire) = worker.port(0) {
            (wire.left, wire.next, wire.keeps) = (frames.len(), 0, true);
            wire.frames = frames.leak();
        }
        counted(&mut || {
            worker.turn(now);
            // A turn ends after a burst with many frames of streams and half-open connections.
            for _ in 0..BURSTS {
                if worker.port(0).is_some_and(|wire| wire.left > 0) {
                    worker.turn(now);
                }
            }
        });
        let Some(wire) = worker.port(0) else { return };
        let ours = |frame: &Vec<u8>| frame[12..14] == [8, 6] || frame[30..34] == [10, 9, 1, 1];
        let back: Vec<Vec<u8>> = wire.sent.iter().filter(|frame| ours(frame)).cloned().collect();
        wire.spare.append(&mut wire.sent);
        for burst in back.chunks(BURST) {
            if let Some(wire) = self.asking.port(0) {
                (wire.frames, wire.next, wire.left) = (shared(burst.to_vec()), 0, burst.len());
            }
            self.asking.turn(now);
        }
    }

    /// Runs a turn with as many frames as it takes; returns the number of segments or RSTs among
    /// them.
    fn round(
        &mut self,
        load: Load,
        counted: &mut dyn FnMut(&mut dyn FnMut()),
    ) -> anyhow::Result<usize> {
        let alone = matches!(load, Load::Stream | Load::Association);
        let many = if alone { BURST } else { BURSTS * BURST };
        let (mut frames, mut places) = (Vec::with_capacity(many), 0);
        for _ in 0..many {
            let at = self.mixed;
            self.mixed += 1;
            if !alone && !at.is_multiple_of(FLOOD + 1) {
                frames.push(self.flood[at % self.flood.len()]);
                continue;
            }
            places += 1;
            frames.push(match load {
                Load::Flood => self.resets[at % self.resets.len()],
                Load::Stream | Load::Association | Load::Mixed => self.segment()?,
            });
        }
        self.take(frames, counted);
        let left = self.lone.worker.port(0).map_or(0, |wire| wire.left);
        ensure!(left == 0, "{left} frames were not taken");
        while self.lone.worker.handle.poll().is_some() {}
        while self.asking.handle.poll().is_some() {}
        Ok(places)
    }

    /// Returns the next full frame of the stream.
    fn segment(&mut self) -> anyhow::Result<&'static [u8]> {
        for _ in 0..PATIENCE {
            if let Some(frame) = self.waiting.pop_front() {
                ensure!(frame.len() >= FULL, "a frame of {} bytes", frame.len());
                return Ok(frame);
            }
            self.send();
        }
        None.context("the stream's other end sends nothing")
    }
}

fn entry(
    stag: Stag,
    access: Access,
    memory: &dataplane::memory::Memory,
) -> StagEntry<dataplane::memory::Memory> {
    StagEntry {
        stag,
        pd: PD,
        stream: None,
        base_to: TaggedOffset(0),
        len: u64::from(WRITE),
        access,
        memory: memory.clone(),
        memory_offset: 0,
    }
}
