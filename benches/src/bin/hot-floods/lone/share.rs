//! A stream on a flooded worker (responder). The other end is a second worker (initiator), whose turns are not counted.
//!
//! In a mixed path, each segment of the stream is followed by [`FLOOD_RATIO`] frames of the flood, in full bursts. In a
//! path of the flood alone, RSTs that match no stream replace the segments. The cost of a flood's frame depends on the
//! number of such frames in a burst, because the worker examines only a few unmatched frames per burst.

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

use benches::end_config::{self, EndConfig, PORT};
use benches::floods::frames::Kind;
use benches::rig::stable_region;
use benches::rig_config::{RigConfig, Side};

use super::{FloodedWorker, FramePort, driven_worker, leak_frames};

/// Frames of the flood per segment of the stream.
pub(crate) const FLOOD_RATIO: usize = 4;
/// Number of counted segments, or with [`FrameMix::Flood`] of counted RSTs in their place.
pub(crate) const FRAMES: usize = 512;

/// Bursts per turn while few of their frames belong to streams.
const BURSTS_PER_TURN: usize = 4;
/// Turns of warm-up, after which the flood has filled the worker's tables.
const WARM_UP_TURNS: usize = 32;
/// Full frames of the stream after which its congestion window is open.
const OPENING_FRAMES: usize = 400;
/// Bytes of the write that is always in flight.
const WRITE_LEN: u32 = 4 << 20;
const PD: PdId = PdId(1);
const SOURCE: Stag = Stag(0x100);
const SINK: Stag = Stag(0x200);
/// Minimum length of a full frame. An SCTP packet with a message leaves free space for a SACK.
const FULL_FRAME_LEN: usize = 1400;
/// Time-out, in turns; reached only by a hang.
const MAX_TURNS: usize = 10_000;

/// Counted frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameMix {
    /// Frames of the TCP stream only.
    Stream,
    /// Frames of the SCTP stream only.
    Association,
    /// The flood only, with RSTs instead of segments. The stream is idle.
    Flood,
    /// Stream and flood in the same bursts.
    Mixed,
}

/// The paths: name, kind of flood, counted frames.
pub(crate) const SHARE_PATHS: [(&str, Kind, FrameMix); 8] = [
    ("share-alone", Kind::Rst, FrameMix::Stream),
    ("share-alone-sctp", Kind::Init, FrameMix::Association),
    ("share-flood-rst", Kind::Rst, FrameMix::Flood),
    ("share-flood-syn", Kind::Syn, FrameMix::Flood),
    ("share-flood-init", Kind::Init, FrameMix::Flood),
    ("share-rst", Kind::Rst, FrameMix::Mixed),
    ("share-syn", Kind::Syn, FrameMix::Mixed),
    ("share-init", Kind::Init, FrameMix::Mixed),
];

/// The two workers.
struct StreamPair {
    responder: FloodedWorker,
    initiator: DrivenWorker<FramePort>,
    /// Frames of the stream that are not passed to the responder yet.
    pending: VecDeque<&'static [u8]>,
    flood: &'static [&'static [u8]],
    resets: &'static [&'static [u8]],
    /// Number of mixed frames so far.
    mixed: usize,
}

/// Runs a path. `counted` calls its argument and counts the instructions.
pub(crate) fn run(
    kind: Kind,
    load: FrameMix,
    counted: &mut dyn FnMut(&mut dyn FnMut()),
) -> anyhow::Result<()> {
    let mut pair = StreamPair::new(kind, load)?;
    let direct: &mut dyn FnMut(&mut dyn FnMut()) = &mut |work| work();
    for _ in 0..WARM_UP_TURNS {
        pair.run_round(load, direct)?;
    }
    let mut frames = 0;
    while frames < FRAMES {
        frames += pair.run_round(load, counted)?;
    }
    ensure!(frames == FRAMES, "{frames} frames were counted");
    let counters = pair.responder.worker.handle.counters();
    ensure!(counters.unaccounted() == 0, "frames are not accounted for");
    Ok(())
}

impl StreamPair {
    fn new(kind: Kind, load: FrameMix) -> anyhow::Result<StreamPair> {
        // The stream is over TCP with every kind of flood, except for `FrameMix::Association`.
        let sctp = load == FrameMix::Association;
        let rig = RigConfig { sctp, ..RigConfig::default() };
        let lone = FloodedWorker::new(if sctp { Kind::Init } else { Kind::Rst })?;
        let product = EndConfig::new(&rig, Side::Initiator)?;
        let asking = driven_worker(&product, lone.addresses.generator, lone.now)?;
        let flood = leak_frames(lone.addresses.flood_frames(kind));
        let resets = leak_frames(lone.addresses.flood_frames(Kind::Rst));
        let waiting = VecDeque::new();
        let mut pair = StreamPair {
            responder: lone,
            initiator: asking,
            pending: waiting,
            flood,
            resets,
            mixed: 0,
        };
        let flooded = EndConfig::new(&kind.adapt_rig(rig.clone()), Side::Responder)?;
        if let Some(listener) = flooded.listener.filter(|_| kind == Kind::Init && !sctp) {
            let listener = Arc::new(ListenerConfig { id: ListenerId(2), ..listener });
            pair.command_responder(Command::AddListener { listener, ticket: Ticket(5) })?;
        }
        let stream = pair.open_stream(&rig, &product)?;
        let memory = stable_region(u64::from(WRITE_LEN))?;
        let entry = stag_entry(SOURCE, Access::REMOTE_READ, &memory);
        pair.command_initiator(Command::AddStag { entry, ticket: Ticket(3) })?;
        let source = Source::Region { memory, offset: 0, len: WRITE_LEN };
        let (stag, to, cookie) = (SINK, TaggedOffset(0), Cookie::user(0));
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie };
        pair.command_initiator(Command::Post {
            stream,
            message,
            region: Some(SOURCE),
            ticket: Ticket(4),
        })?;
        let mut frames = 0;
        for _ in 0..MAX_TURNS {
            frames += pair.exchange();
            if frames >= OPENING_FRAMES {
                return Ok(pair);
            }
        }
        anyhow::bail!("the stream carries nothing")
    }

    fn command_initiator(&mut self, command: Command) -> anyhow::Result<()> {
        ensure!(self.initiator.handle.send(command).is_ok(), "the command ring is full");
        Ok(())
    }

    fn command_responder(&mut self, command: Command) -> anyhow::Result<()> {
        ensure!(self.responder.worker.handle.send(command).is_ok(), "the command ring is full");
        Ok(())
    }

    fn open_stream(&mut self, rig: &RigConfig, product: &EndConfig) -> anyhow::Result<StreamId> {
        let accepted = EndConfig::new(rig, Side::Responder)?.ulps[0].clone();
        let memory = end_config::allocate_region(u64::from(WRITE_LEN))?;
        let entry = stag_entry(SINK, Access::REMOTE_WRITE, &memory);
        self.command_responder(Command::AddStag { entry, ticket: Ticket(2) })?;
        self.command_initiator(Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket: Ticket(1),
            interface: InterfaceId(0),
            local: Some(end_config::initiator_address(rig, 0)),
            remote: SocketAddr::new(end_config::side_address(rig, Side::Responder), PORT),
            endpoint: product.connect.clone(),
            ulp: product.ulps[1].clone(),
            service: Service::Sink,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        })))?;
        for _ in 0..MAX_TURNS {
            self.exchange();
            while let Some(event) = self.responder.worker.handle.poll() {
                if let Event::Incoming { stream, .. } = event {
                    let (ulp, service) = (accepted.clone(), Service::Sink);
                    let private_data = Vec::new();
                    self.command_responder(Command::Accept {
                        stream,
                        pd: PD,
                        private_data,
                        ulp,
                        service,
                    })?;
                    self.command_responder(Command::Credits {
                        listener: ListenerId(1),
                        additional: 1,
                    })?;
                }
            }
            while let Some(event) = self.initiator.handle.poll() {
                match event {
                    Event::Established { stream, .. } => return Ok(stream),
                    Event::ConnectFailed { reason, .. } => anyhow::bail!("no stream: {reason}"),
                    _ => {}
                }
            }
        }
        anyhow::bail!("the stream is not opened")
    }

    /// Runs an uncounted turn of each worker. Returns the number of full frames that arrived.
    fn exchange(&mut self) -> usize {
        self.run_initiator();
        let frames: Vec<_> = self.pending.drain(..).collect();
        let full = frames.iter().filter(|frame| frame.len() >= FULL_FRAME_LEN).count();
        for burst in frames.chunks(BURST) {
            self.run_responder(burst.to_vec(), &mut |work| work());
        }
        if frames.is_empty() {
            self.run_responder(Vec::new(), &mut |work| work());
        }
        full
    }

    /// Runs a turn of the initiator, one microsecond later.
    fn run_initiator(&mut self) {
        self.responder.now += Duration::from_micros(1);
        if let Some(wire) = self.initiator.port(0) {
            wire.keep_sent = true;
        }
        self.initiator.turn(self.responder.now);
        if let Some(wire) = self.initiator.port(0) {
            self.pending.extend(wire.sent.drain(..).map(|frame| &*frame.leak()));
        }
    }

    /// Runs a turn of the responder with these frames, and up to [`BURSTS_PER_TURN`] more while frames remain. Passes
    /// its answers to the initiator.
    fn run_responder(
        &mut self,
        frames: Vec<&'static [u8]>,
        counted: &mut dyn FnMut(&mut dyn FnMut()),
    ) {
        self.responder.now += Duration::from_nanos(6400) * frames.len().div_ceil(BURST) as u32;
        let (worker, now) = (&mut self.responder.worker, self.responder.now);
        if let Some(wire) = worker.port(0) {
            (wire.remaining, wire.next_frame, wire.keep_sent) = (frames.len(), 0, true);
            wire.frames = frames.leak();
        }
        counted(&mut || {
            worker.turn(now);
            // A turn ends after a burst in which many frames belong to streams or half-open connections.
            for _ in 0..BURSTS_PER_TURN {
                if worker.port(0).is_some_and(|wire| wire.remaining > 0) {
                    worker.turn(now);
                }
            }
        });
        let Some(wire) = worker.port(0) else { return };
        let ours = |frame: &Vec<u8>| frame[12..14] == [8, 6] || frame[30..34] == [10, 9, 1, 1];
        let back: Vec<Vec<u8>> = wire.sent.iter().filter(|frame| ours(frame)).cloned().collect();
        wire.spare.append(&mut wire.sent);
        for burst in back.chunks(BURST) {
            if let Some(wire) = self.initiator.port(0) {
                (wire.frames, wire.next_frame, wire.remaining) =
                    (leak_frames(burst.to_vec()), 0, burst.len());
            }
            self.initiator.turn(now);
        }
    }

    /// Runs one round: a burst of the stream's segments, or [`BURSTS_PER_TURN`] bursts mixed with flood frames. Returns
    /// the number of frames that are not flood frames: segments, or with [`FrameMix::Flood`] the RSTs in their place.
    fn run_round(
        &mut self,
        load: FrameMix,
        counted: &mut dyn FnMut(&mut dyn FnMut()),
    ) -> anyhow::Result<usize> {
        let alone = matches!(load, FrameMix::Stream | FrameMix::Association);
        let many = if alone { BURST } else { BURSTS_PER_TURN * BURST };
        let (mut frames, mut places) = (Vec::with_capacity(many), 0);
        for _ in 0..many {
            let at = self.mixed;
            self.mixed += 1;
            if !alone && !at.is_multiple_of(FLOOD_RATIO + 1) {
                frames.push(self.flood[at % self.flood.len()]);
                continue;
            }
            places += 1;
            frames.push(match load {
                FrameMix::Flood => self.resets[at % self.resets.len()],
                FrameMix::Stream | FrameMix::Association | FrameMix::Mixed => {
                    self.next_segment()?
                }
            });
        }
        self.run_responder(frames, counted);
        let left = self.responder.worker.port(0).map_or(0, |wire| wire.remaining);
        ensure!(left == 0, "{left} frames were not taken");
        while self.responder.worker.handle.poll().is_some() {}
        while self.initiator.handle.poll().is_some() {}
        Ok(places)
    }

    /// Returns the next full frame of the stream.
    fn next_segment(&mut self) -> anyhow::Result<&'static [u8]> {
        for _ in 0..MAX_TURNS {
            if let Some(frame) = self.pending.pop_front() {
                ensure!(frame.len() >= FULL_FRAME_LEN, "a frame of {} bytes", frame.len());
                return Ok(frame);
            }
            self.run_initiator();
        }
        None.context("the stream's other end sends nothing")
    }
}

fn stag_entry(
    stag: Stag,
    access: Access,
    memory: &dataplane::memory::Memory,
) -> StagEntry<dataplane::memory::Memory> {
    StagEntry {
        stag,
        pd: PD,
        stream: None,
        base_to: TaggedOffset(0),
        len: u64::from(WRITE_LEN),
        access,
        memory: memory.clone(),
        memory_offset: 0,
    }
}
