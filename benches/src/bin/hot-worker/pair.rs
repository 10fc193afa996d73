//! Two workers with streams between them, on in-memory queues and in virtual time. The initiator writes to the
//! responder without a pause. Either end's turns can be counted; the other end's are not.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::{bail, ensure};
use base::Instant;
use benches::end_config::{self, EndConfig, PORT};
use benches::floods::frames::LinkAddresses;
use benches::frame_port::{FramePort, leak_frames};
use benches::hot_path::{Runner, uncounted};
use benches::rig::stable_region;
use benches::rig_config::{RigConfig, Side};
use dataplane::io::BURST;
use dataplane::memory::Memory;
use dataplane::{Command, Connect, DrivenWorker, Event, InterfaceId, ListenerId, Service, Ticket};
use ddp::{Access, Cookie, Message, PdId, Source, Stag, StagEntry, StreamId, TaggedOffset};

use crate::flooded::{BURST_TIME, FloodedWorker};

/// Maximum number of bursts per turn of the responder. A turn ends earlier after a burst in which many frames belong to
/// streams or half-open connections.
pub(crate) const BURSTS_PER_TURN: usize = 4;
/// Number of full frames after which the streams' congestion windows are large enough for the measurement.
const OPENING_FRAMES: usize = 400;
/// Length of a write, bytes.
const WRITE_LEN: u32 = 4 << 20;
const PD: PdId = PdId(1);
const SOURCE: Stag = Stag(0x100);
const SINK: Stag = Stag(0x200);
/// Maximum number of turns of a step. Only a hang reaches it.
pub(crate) const MAX_TURNS: usize = 10_000;
/// Byte ranges of the EtherType and of the IPv4 addresses in a frame.
const ETHER_TYPE: Range<usize> = 12..14;
const SOURCE_ADDRESS: Range<usize> = 26..30;
const DESTINATION_ADDRESS: Range<usize> = 30..34;
/// EtherType of ARP.
const ARP: [u8; 2] = [0x08, 0x06];
/// Buffers of each end: more than it sends in a turn.
const BUFFERS: usize = 512;

/// Two workers with streams between them.
pub(crate) struct StreamPair {
    pub(crate) responder: DrivenWorker<FramePort>,
    pub(crate) initiator: DrivenWorker<FramePort>,
    pub(crate) addresses: LinkAddresses,
    /// Virtual time of both ends.
    now: Instant,
    /// Frames of the initiator that the responder has not received yet.
    pending: VecDeque<&'static [u8]>,
    /// Frames of the responder that the initiator has not received yet.
    answers: Vec<&'static [u8]>,
    /// Minimum length of a frame that counts as full, bytes.
    full_len: usize,
    /// Number of streams, each from a separate address.
    streams: u32,
}

impl StreamPair {
    /// Opens `rig.streams` streams and posts `writes` writes on each. Returns once the congestion windows are open.
    pub(crate) fn new(rig: &RigConfig, writes: usize) -> anyhow::Result<StreamPair> {
        let FloodedWorker { worker: responder, now, addresses } = FloodedWorker::idle(rig)?;
        let config = EndConfig::new(rig, Side::Initiator)?;
        let port = FramePort::default();
        let mut pair = StreamPair {
            initiator: config.driven_worker(addresses.generator, port, now)?,
            responder,
            addresses,
            now,
            pending: VecDeque::new(),
            answers: Vec::new(),
            // An SCTP packet with a message leaves free space for a SACK; ESP adds its trailer.
            full_len: usize::from(rig.mtu) - 100,
            streams: rig.streams,
        };
        for port in [pair.initiator.port(0), pair.responder.port(0)].into_iter().flatten() {
            port.keep_sent(true);
        }
        let sink = end_config::allocate_region(u64::from(WRITE_LEN))?;
        let entry = stag_entry(SINK, Access::REMOTE_WRITE, &sink);
        pair.command_responder(Command::AddStag { entry, ticket: Ticket(2) })?;
        let streams: Vec<_> = (0..rig.streams)
            .map(|n| pair.open_stream(rig, &config, n))
            .collect::<Result<_, _>>()?;
        pair.post_writes(&streams, writes, rig.unstable)?;
        pair.open_windows()?;
        Ok(pair)
    }

    /// Posts writes on each stream, which are in flight during the whole measurement.
    fn post_writes(
        &mut self,
        streams: &[StreamId],
        writes: usize,
        unstable: bool,
    ) -> anyhow::Result<()> {
        let len = u64::from(WRITE_LEN);
        let memory = if unstable { end_config::allocate_region(len)? } else { stable_region(len)? };
        let entry = stag_entry(SOURCE, Access::REMOTE_READ, &memory);
        self.command_initiator(Command::AddStag { entry, ticket: Ticket(3) })?;
        for &stream in streams.iter().flat_map(|stream| std::iter::repeat_n(stream, writes)) {
            let source = Source::Region { memory: memory.clone(), offset: 0, len: WRITE_LEN };
            let (stag, to, cookie) = (SINK, TaggedOffset(0), Cookie::user(0));
            let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie };
            let (region, ticket) = (Some(SOURCE), Ticket(4));
            self.command_initiator(Command::Post { stream, message, region, ticket })?;
        }
        Ok(())
    }

    /// Exchanges frames until the streams' congestion windows are open.
    fn open_windows(&mut self) -> anyhow::Result<()> {
        let mut frames = 0;
        for _ in 0..MAX_TURNS {
            frames += self.exchange();
            if frames >= OPENING_FRAMES {
                return Ok(());
            }
        }
        bail!("the streams carry nothing")
    }

    fn command_initiator(&mut self, command: Command) -> anyhow::Result<()> {
        ensure!(self.initiator.handle.send(command).is_ok(), "the command ring is full");
        Ok(())
    }

    /// Sends a command to the responder.
    pub(crate) fn command_responder(&mut self, command: Command) -> anyhow::Result<()> {
        ensure!(self.responder.handle.send(command).is_ok(), "the command ring is full");
        Ok(())
    }

    /// Opens the `n`-th stream, from the `n`-th address of the initiator.
    fn open_stream(
        &mut self,
        rig: &RigConfig,
        config: &EndConfig,
        n: u32,
    ) -> anyhow::Result<StreamId> {
        let [responder_ulp, _] = EndConfig::new(rig, Side::Responder)?.ulps;
        self.command_initiator(Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket: Ticket(1),
            interface: InterfaceId(0),
            local: Some(end_config::initiator_address(rig, n)),
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
            while let Some(event) = self.responder.handle.poll() {
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
                    Event::ConnectFailed { reason, .. } => bail!("no stream: {reason}"),
                    _ => {}
                }
            }
        }
        bail!("the stream is not opened")
    }

    /// Runs a turn of the initiator and passes its frames to the responder, all uncounted. Returns the number of full
    /// frames.
    fn exchange(&mut self) -> usize {
        let full = self.run_initiator(&mut uncounted);
        self.deliver_pending();
        full
    }

    /// Passes all pending frames to the responder, uncounted.
    pub(crate) fn deliver_pending(&mut self) {
        let frames: Vec<_> = self.pending.drain(..).collect();
        for burst in frames.chunks(BURST) {
            self.run_responder(burst.to_vec(), &mut uncounted);
        }
        if frames.is_empty() {
            self.run_responder(Vec::new(), &mut uncounted);
        }
    }

    /// Runs a turn of the initiator, a microsecond later, in which the responder's answers arrive. Returns the number
    /// of full frames that it sent.
    pub(crate) fn run_initiator(&mut self, runner: Runner<'_>) -> usize {
        self.now += Duration::from_micros(1);
        let answers = self.answers.split_off(0);
        let (worker, now) = (&mut self.initiator, self.now);
        if let Some(port) = worker.port(0) {
            let count = answers.len();
            port.set_arrivals(answers.leak(), count);
            port.reserve_buffers(BUFFERS);
        }
        runner(&mut || {
            worker.turn(now);
        });
        let Some(port) = worker.port(0) else { return 0 };
        let before = self.pending.len();
        self.pending.extend(leak_frames(port.take_sent()));
        self.pending.range(before..).filter(|frame| frame.len() >= self.full_len).count()
    }

    /// Runs a turn of the responder with these frames, and up to [`BURSTS_PER_TURN`] more turns while frames remain.
    /// Keeps the responder's answers to the initiator, and discards its answers to other hosts.
    pub(crate) fn run_responder(&mut self, frames: Vec<&'static [u8]>, runner: Runner<'_>) {
        self.now += BURST_TIME * frames.len().div_ceil(BURST) as u32;
        let (worker, now) = (&mut self.responder, self.now);
        if let Some(port) = worker.port(0) {
            let count = frames.len();
            port.set_arrivals(frames.leak(), count);
            port.reserve_buffers(BUFFERS);
        }
        runner(&mut || {
            worker.turn(now);
            // One turn may leave frames: a turn ends after a burst in which many frames belong to streams or half-open
            // connections.
            for _ in 0..BURSTS_PER_TURN {
                if worker.port(0).is_some_and(|port| port.remaining() > 0) {
                    worker.turn(now);
                }
            }
        });
        let Some(port) = worker.port(0) else { return };
        for frame in leak_frames(port.take_sent()) {
            if self.is_for_initiator(frame) {
                self.answers.push(frame);
            }
        }
    }

    /// Discards the workers' events.
    pub(crate) fn discard_events(&mut self) {
        while self.responder.handle.poll().is_some() {}
        while self.initiator.handle.poll().is_some() {}
    }

    /// Returns the initiator's next full frame. Runs its turns, uncounted, until it has one.
    pub(crate) fn next_frame(&mut self) -> anyhow::Result<&'static [u8]> {
        for _ in 0..MAX_TURNS {
            if let Some(frame) = self.pending.pop_front() {
                ensure!(frame.len() >= self.full_len, "a frame of {} bytes", frame.len());
                return Ok(frame);
            }
            self.run_initiator(&mut uncounted);
        }
        bail!("the initiator sends nothing")
    }
}

impl StreamPair {
    /// Orders the pending frames so that consecutive frames belong to different streams.
    pub(crate) fn interleave_pending(&mut self) {
        let mut by_stream: BTreeMap<&[u8], VecDeque<&'static [u8]>> = BTreeMap::new();
        for frame in self.pending.drain(..) {
            by_stream.entry(&frame[SOURCE_ADDRESS]).or_default().push_back(frame);
        }
        while !by_stream.is_empty() {
            by_stream.retain(|_, frames| {
                self.pending.extend(frames.pop_front());
                !frames.is_empty()
            });
        }
    }

    /// Takes up to `count` pending frames.
    pub(crate) fn take_pending(&mut self, count: usize) -> Vec<&'static [u8]> {
        let count = count.min(self.pending.len());
        self.pending.drain(..count).collect()
    }

    /// Returns true if the frame is full.
    pub(crate) fn is_full(&self, frame: &[u8]) -> bool {
        frame.len() >= self.full_len
    }

    /// Returns true for ARP frames and for packets to an address of a stream's initiator.
    fn is_for_initiator(&self, frame: &[u8]) -> bool {
        let streams = 1..=self.streams as u8;
        let address = &frame[DESTINATION_ADDRESS];
        frame[ETHER_TYPE] == ARP || (address[..3] == [10, 9, 1] && streams.contains(&address[3]))
    }
}

fn stag_entry(stag: Stag, access: Access, memory: &Memory) -> StagEntry<Memory> {
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
