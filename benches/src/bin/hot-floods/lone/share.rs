//! Share of a worker's processor time that a stream keeps under a flood. The flooded worker is the responder. The other
//! end is a second worker (initiator), whose instructions are not counted.
//!
//! With [`FrameMix::Mixed`], each segment of the stream is followed by [`FLOOD_RATIO`] flood frames, in full bursts.
//! With [`FrameMix::Flood`], an RST that matches no stream takes the place of each segment, so that a burst has the
//! same number of flood frames as with [`FrameMix::Mixed`]. The cost of a flood frame depends on this number, because
//! the worker examines only a few unmatched frames per burst.
//!
//! ```text
//!  share = instructions per segment without a flood / (mixed - flood)
//!  mixed:  instructions per segment of the stream and the flood frames that follow it
//!  flood:  instructions per RST in place of a segment and the flood frames that follow it
//! ```

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
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

use super::{FloodedWorker, FramePort, leak_frames};

/// Frames of the flood per segment of the stream.
pub(crate) const FLOOD_RATIO: usize = 4;
/// Number of counted segments. With [`FrameMix::Flood`], RSTs are counted in their place.
pub(crate) const FRAMES: usize = 512;

/// Maximum number of bursts per turn of the worker. A turn ends earlier after a burst in which many frames belong to
/// streams or half-open connections.
const BURSTS_PER_TURN: usize = 4;
/// Rounds of warm-up, after which the flood has filled the worker's tables.
const WARM_UP_TURNS: usize = 32;
/// Number of full frames after which the stream's congestion window is large enough for the measurement.
const OPENING_FRAMES: usize = 400;
/// Bytes of the write that is always in flight.
const WRITE_LEN: u32 = 4 << 20;
const PD: PdId = PdId(1);
const SOURCE: Stag = Stag(0x100);
const SINK: Stag = Stag(0x200);
/// Minimum length of a full frame. An SCTP packet with a message leaves free space for a SACK.
const FULL_FRAME_LEN: usize = 1400;
/// Maximum number of turns of a step. A step that has not ended after them has failed.
const MAX_TURNS: usize = 10_000;
/// Time in which a full burst arrives, nanoseconds: 200 ns per frame.
const BURST_NANOS: u64 = 6400;
/// Byte ranges of the EtherType and of the IPv4 destination address in a frame.
const ETHER_TYPE: Range<usize> = 12..14;
const DESTINATION: Range<usize> = 30..34;
/// EtherType of ARP.
const ARP: [u8; 2] = [0x08, 0x06];

/// Function that runs its argument: `measured_hot_path`, in which callgrind counts instructions, or a plain call for
/// uncounted work.
type Runner<'a> = &'a mut dyn FnMut(&mut dyn FnMut());

/// Frames whose instructions are counted.
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

/// All paths: name, kind of flood, counted frames.
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

/// Two workers with a stream between them.
struct StreamPair {
    responder: FloodedWorker,
    initiator: DrivenWorker<FramePort>,
    /// Address of the initiator.
    initiator_address: IpAddr,
    /// Frames of the stream that are not passed to the responder yet.
    pending: VecDeque<&'static [u8]>,
    flood: &'static [&'static [u8]],
    resets: &'static [&'static [u8]],
    /// Number of frames passed to the responder in rounds so far.
    mixed: usize,
}

/// Runs a path: the warm-up, then rounds with [`FRAMES`] segments in total. `counted` runs the responder's turns of
/// these rounds.
pub(crate) fn run(kind: Kind, mix: FrameMix, counted: Runner<'_>) -> anyhow::Result<()> {
    let mut pair = StreamPair::new(kind, mix)?;
    for _ in 0..WARM_UP_TURNS {
        pair.run_round(mix, &mut |work| work())?;
    }
    let mut frames = 0;
    while frames < FRAMES {
        frames += pair.run_round(mix, counted)?;
    }
    ensure!(frames == FRAMES, "{frames} frames were counted");
    let counters = pair.responder.worker.handle.counters();
    ensure!(counters.unaccounted() == 0, "frames are not accounted for");
    Ok(())
}

impl StreamPair {
    /// Opens the stream and starts a write on it. Returns once the congestion window is open.
    fn new(kind: Kind, mix: FrameMix) -> anyhow::Result<StreamPair> {
        // The stream is over TCP with every kind of flood, except for `FrameMix::Association`.
        let sctp = mix == FrameMix::Association;
        let rig = RigConfig { sctp, ..RigConfig::default() };
        let responder = FloodedWorker::new(if sctp { Kind::Init } else { Kind::Rst })?;
        let config = EndConfig::new(&rig, Side::Initiator)?;
        let addresses = &responder.addresses;
        let mut pair = StreamPair {
            initiator: config.driven_worker(
                addresses.generator,
                FramePort::default(),
                responder.now,
            )?,
            initiator_address: end_config::initiator_address(&rig, 0),
            pending: VecDeque::new(),
            flood: leak_frames(addresses.flood_frames(kind)),
            resets: leak_frames(addresses.flood_frames(Kind::Rst)),
            mixed: 0,
            responder,
        };
        if kind == Kind::Init && !sctp {
            pair.add_flooded_listener(&kind.adapt_rig(rig.clone()))?;
        }
        let stream = pair.open_stream(&rig, &config)?;
        pair.post_write(stream)?;
        pair.open_window()?;
        Ok(pair)
    }

    /// Adds the listener that the flood addresses, in addition to the stream's listener.
    fn add_flooded_listener(&mut self, rig: &RigConfig) -> anyhow::Result<()> {
        let Some(listener) = EndConfig::new(rig, Side::Responder)?.listener else { return Ok(()) };
        let listener = Arc::new(ListenerConfig { id: ListenerId(2), ..listener });
        self.command_responder(Command::AddListener { listener, ticket: Ticket(5) })
    }

    /// Posts the write that is always in flight.
    fn post_write(&mut self, stream: StreamId) -> anyhow::Result<()> {
        let memory = stable_region(u64::from(WRITE_LEN))?;
        let entry = stag_entry(SOURCE, Access::REMOTE_READ, &memory);
        self.command_initiator(Command::AddStag { entry, ticket: Ticket(3) })?;
        let source = Source::Region { memory, offset: 0, len: WRITE_LEN };
        let (stag, to, cookie) = (SINK, TaggedOffset(0), Cookie::user(0));
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie };
        let region = Some(SOURCE);
        self.command_initiator(Command::Post { stream, message, region, ticket: Ticket(4) })
    }

    /// Exchanges frames until the stream's congestion window is open.
    fn open_window(&mut self) -> anyhow::Result<()> {
        let mut frames = 0;
        for _ in 0..MAX_TURNS {
            frames += self.exchange();
            if frames >= OPENING_FRAMES {
                return Ok(());
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

    fn open_stream(&mut self, rig: &RigConfig, config: &EndConfig) -> anyhow::Result<StreamId> {
        let [responder_ulp, _] = EndConfig::new(rig, Side::Responder)?.ulps;
        let memory = end_config::allocate_region(u64::from(WRITE_LEN))?;
        let entry = stag_entry(SINK, Access::REMOTE_WRITE, &memory);
        self.command_responder(Command::AddStag { entry, ticket: Ticket(2) })?;
        self.command_initiator(Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket: Ticket(1),
            interface: InterfaceId(0),
            local: Some(self.initiator_address),
            remote: SocketAddr::new(end_config::side_address(rig, Side::Responder), PORT),
            endpoint: config.connect.clone(),
            ulp: config.ulps[1].clone(),
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
                    self.command_responder(Command::Accept {
                        stream,
                        pd: PD,
                        private_data: Vec::new(),
                        ulp: responder_ulp.clone(),
                        service: Service::Sink,
                    })?;
                    let (listener, additional) = (ListenerId(1), 1);
                    self.command_responder(Command::Credits { listener, additional })?;
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

    /// Runs a turn of the initiator, then passes its frames to the responder. No instructions are counted. Returns the
    /// number of full frames that the responder received.
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

    /// Advances the time by one microsecond, runs a turn of the initiator, and appends its frames to `pending`.
    fn run_initiator(&mut self) {
        self.responder.now += Duration::from_micros(1);
        if let Some(port) = self.initiator.port(0) {
            port.keep_sent = true;
        }
        self.initiator.turn(self.responder.now);
        if let Some(port) = self.initiator.port(0) {
            self.pending.extend(port.sent.drain(..).map(|frame| &*frame.leak()));
        }
    }

    /// Runs a turn of the responder with these frames, and up to [`BURSTS_PER_TURN`] more turns while frames remain.
    /// Passes the responder's answers to the initiator.
    fn run_responder(&mut self, frames: Vec<&'static [u8]>, counted: Runner<'_>) {
        let bursts = frames.len().div_ceil(BURST) as u64;
        self.responder.now += Duration::from_nanos(BURST_NANOS * bursts);
        let (worker, now) = (&mut self.responder.worker, self.responder.now);
        if let Some(port) = worker.port(0) {
            (port.remaining, port.next_frame, port.keep_sent) = (frames.len(), 0, true);
            port.frames = frames.leak();
        }
        counted(&mut || {
            worker.turn(now);
            // A turn ends after a burst in which many frames belong to streams or half-open connections.
            for _ in 0..BURSTS_PER_TURN {
                if worker.port(0).is_some_and(|port| port.remaining > 0) {
                    worker.turn(now);
                }
            }
        });
        self.return_answers();
    }

    /// Passes the responder's ARP frames and its packets for the initiator to the initiator. Discards the responder's
    /// answers to the flood.
    fn return_answers(&mut self) {
        let IpAddr::V4(initiator) = self.initiator_address else { return };
        let address = initiator.octets();
        let is_for_initiator =
            |frame: &Vec<u8>| frame[ETHER_TYPE] == ARP || frame[DESTINATION] == address;
        let Some(port) = self.responder.worker.port(0) else { return };
        let answers: Vec<_> = port.sent.iter().filter(|f| is_for_initiator(f)).cloned().collect();
        port.spare.append(&mut port.sent);
        for burst in answers.chunks(BURST) {
            if let Some(port) = self.initiator.port(0) {
                (port.frames, port.next_frame, port.remaining) =
                    (leak_frames(burst.to_vec()), 0, burst.len());
            }
            self.initiator.turn(self.responder.now);
        }
    }

    /// Runs one round: a burst of the stream's segments, or [`BURSTS_PER_TURN`] bursts mixed with flood frames. Returns
    /// the number of frames that are not flood frames: segments, or with [`FrameMix::Flood`] the RSTs in their place.
    fn run_round(&mut self, mix: FrameMix, counted: Runner<'_>) -> anyhow::Result<usize> {
        let has_flood = !matches!(mix, FrameMix::Stream | FrameMix::Association);
        let total = if has_flood { BURSTS_PER_TURN * BURST } else { BURST };
        let (mut frames, mut segments) = (Vec::with_capacity(total), 0);
        for _ in 0..total {
            let index = self.mixed;
            self.mixed += 1;
            if has_flood && !index.is_multiple_of(FLOOD_RATIO + 1) {
                frames.push(self.flood[index % self.flood.len()]);
                continue;
            }
            segments += 1;
            frames.push(match mix {
                FrameMix::Flood => self.resets[index % self.resets.len()],
                FrameMix::Stream | FrameMix::Association | FrameMix::Mixed => {
                    self.next_segment()?
                }
            });
        }
        self.run_responder(frames, counted);
        let left = self.responder.worker.port(0).map_or(0, |port| port.remaining);
        ensure!(left == 0, "{left} frames were not received");
        while self.responder.worker.handle.poll().is_some() {}
        while self.initiator.handle.poll().is_some() {}
        Ok(segments)
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
