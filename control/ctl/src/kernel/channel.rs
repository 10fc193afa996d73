//! An MPA connection and its DDP stream over an ordered byte stream. Sans-IO: the caller owns the socket and transfers
//! the bytes.
//!
//! ```text
//!  input(bytes)          --> Startup --> Receiver --> ddp::Stream --> poll_event
//!  poll_transmit(room)   <-- Startup <-- Sender   <-- ddp::Stream <-- post
//! ```

use ddp::last_message::LastMessage;
use ddp::{
    BufferPool, Context, DdpError, Event, Message, PdId, StagTable, Stream, StreamConfig, StreamId,
    UlpKind, VersionPolicy, advert,
};
use tcp_lite::mpa::{
    AcceptError, Config, Depths, HoldBudget, MpaError, Params, PrivateDataTooLong, Progress,
    Receiver, Revision, Sender, Startup, StartupError,
};

use super::{KernelMemory, MpaOptions, NegotiatedParameters};

/// Maximum number of bytes in a peer's unfinished untagged messages.
const BUFFER_BYTES: u64 = 1 << 20;

/// One MPA connection, initiator or responder.
#[derive(Debug)]
pub(super) struct Channel {
    config: Config,
    startup: Startup,
    operation: Option<FullOperation>,
    /// Stream offset of the next received byte.
    received_offset: u64,
    /// Stream offset of the next byte to send.
    sent_offset: u64,
    initiator: bool,
    budget: HoldBudget,
}

/// State of MPA's Full Operation phase.
#[derive(Debug)]
struct FullOperation {
    params: Params,
    sender: Sender,
    receiver: Receiver,
    stream: Stream<KernelMemory>,
    buffers: BufferPool,
}

impl Channel {
    /// Creates the initiator, which sends the first start-up frame.
    pub(super) fn initiator(options: MpaOptions) -> Result<Self, PrivateDataTooLong> {
        let config = Config {
            initiate: options.revision,
            markers: options.markers,
            crc: options.crc,
            ..Config::default()
        };
        // The Start Key of the first MPA draft has no private data. In other revisions the private data states bare DDP
        // as the ULP.
        let private_data = match options.revision {
            Revision::Draft => Vec::new(),
            _ => advert::encode_for(UlpKind::Ddp, &[]),
        };
        let startup = Startup::initiator(&config, Depths::NONE, &private_data)?;
        Ok(Self::new(config, startup, true))
    }

    /// Creates the responder, which waits for the initiator's start-up frame.
    pub(super) fn responder(config: Config) -> Self {
        let startup = Startup::responder(&config);
        Self::new(config, startup, false)
    }

    fn new(config: Config, startup: Startup, initiator: bool) -> Self {
        Channel {
            config,
            startup,
            operation: None,
            received_offset: 0,
            sent_offset: 0,
            initiator,
            // Bytes arrive in order, so only a partial FPDU is ever held.
            budget: HoldBudget::new(0),
        }
    }

    /// Handles bytes of the start-up, in order. Returns the number of `bytes` that belong to the start-up, and its
    /// progress.
    pub(super) fn startup_input(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<Progress>), StartupError> {
        let (used, progress) = self.startup.input(bytes)?;
        self.received_offset += used as u64;
        Ok((used, progress))
    }

    /// Accepts the request as responder. [`poll_transmit`](Self::poll_transmit) then returns the reply.
    pub(super) fn accept(&mut self, private_data: &[u8]) -> Result<Params, AcceptError> {
        self.startup.accept(Depths::NONE, private_data)
    }

    /// Enters Full Operation after the start-up, as initiator or responder. `mss`: payload bytes of a TCP segment.
    pub(super) fn start_full_operation(
        &mut self,
        id: StreamId,
        pd: PdId,
        params: Params,
        mss: usize,
    ) {
        let version = match params.revision {
            // The first MPA draft is used with DDP's first drafts, whose version is 0.
            Revision::Draft => VersionPolicy::V0,
            Revision::Zero if !self.initiator => VersionPolicy::AdoptFirst,
            Revision::Zero | Revision::One | Revision::Two => VersionPolicy::V1,
        };
        let start = self.startup.output().len() as u64;
        self.operation = Some(FullOperation {
            params,
            sender: Sender::new(&params, start, mss),
            receiver: Receiver::new(&self.config, &params, self.received_offset),
            stream: Stream::new(id, pd, StreamConfig { version, ..StreamConfig::default() }),
            buffers: BufferPool::new(BUFFER_BYTES),
        });
    }

    /// Returns true after [`start_full_operation`](Self::start_full_operation).
    pub(super) fn is_full_operation(&self) -> bool {
        self.operation.is_some()
    }

    /// Handles bytes of FPDUs, in order.
    ///
    /// # Errors
    /// The peer violated MPA: no further bytes are placed. DDP errors of the peer are reported as events.
    pub(super) fn input(
        &mut self,
        bytes: &[u8],
        stags: &StagTable<KernelMemory>,
    ) -> Result<(), MpaError> {
        let Some(op) = &mut self.operation else { return Ok(()) };
        let cx = Context { stags, buffers: &mut op.buffers };
        // The result is ignored: all bytes are accepted, because they arrive in order and one FPDU can always be held.
        op.receiver.take_span(
            self.received_offset,
            bytes,
            None,
            &mut op.stream.sink(cx),
            &mut self.budget,
        );
        self.received_offset += bytes.len() as u64;
        op.receiver.error().map_or(Ok(()), Err)
    }

    /// Handles the peer's close of its sending direction.
    ///
    /// # Errors
    /// The peer closed inside an FPDU.
    pub(super) fn peer_closed(&mut self) -> Result<(), MpaError> {
        let Some(op) = &mut self.operation else { return Ok(()) };
        if let Some(error) = op.receiver.on_peer_closed(&mut self.budget) {
            return Err(error);
        }
        op.stream.on_peer_closed();
        Ok(())
    }

    /// Replaces the content of `room` by the bytes of the next segment. Leaves `room` empty if nothing can be sent. The
    /// next call treats these bytes as acknowledged, because the kernel then has a copy.
    pub(super) fn poll_transmit(&mut self, room: &mut Vec<u8>, mss: usize) {
        room.clear();
        let startup = self.startup.output();
        if self.sent_offset < startup.len() as u64 {
            room.extend_from_slice(&startup[self.sent_offset as usize..]);
            self.sent_offset += room.len() as u64;
            return;
        }
        let Some(op) = &mut self.operation else { return };
        op.sender.on_acknowledged(&mut op.stream, self.sent_offset);
        op.sender.set_emss(mss);
        if !may_send(self.initiator, op) {
            return;
        }
        room.resize(mss.max(MIN_SEGMENT), 0);
        let n = op.sender.fill(&mut op.stream, self.sent_offset, false, room, &mut None);
        room.truncate(n);
        self.sent_offset += n as u64;
    }

    /// Queues a message for sending. Fails before Full Operation, and if the DDP stream accepts no more messages.
    pub(super) fn post(&mut self, message: Message<KernelMemory>) -> Result<(), ddp::PostError> {
        match &mut self.operation {
            Some(op) => op.stream.post(message),
            None => Err(ddp::PostError::Closed),
        }
    }

    /// Posts the last message, which reports an error of the peer. No message can be posted after it.
    pub(super) fn post_last_message(
        &mut self,
        content: &LastMessage,
    ) -> Result<(), ddp::PostError> {
        match &mut self.operation {
            Some(op) => op.stream.post_last(Stream::<KernelMemory>::last_message_with(content)),
            None => Err(ddp::PostError::Closed),
        }
    }

    /// Returns the next event of the DDP stream. `None` if there is none.
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.operation.as_mut()?.stream.poll_event()
    }

    /// Returns true if an FPDU may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.operation.as_ref().is_some_and(|op| may_send(self.initiator, op))
    }

    /// Returns the number of posted messages that the kernel has not accepted completely.
    pub(super) fn outstanding(&self) -> usize {
        self.operation.as_ref().map_or(0, |op| op.stream.outstanding())
    }

    /// Returns true if posted data remains that [`poll_transmit`](Self::poll_transmit) has not returned yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.operation.as_ref().is_some_and(|op| op.sender.has_data(&op.stream))
    }

    /// Returns the negotiated parameters; `None` before Full Operation. `mss`: payload bytes of a TCP segment.
    pub(super) fn parameters(&self, mss: usize) -> Option<NegotiatedParameters> {
        let op = self.operation.as_ref()?;
        let Params { revision, markers_tx, markers_rx, crc, .. } = op.params;
        Some(NegotiatedParameters {
            revision,
            markers_tx,
            markers_rx,
            crc,
            ddp_version: op.stream.version(),
            mss,
            mulpdu: op.sender.mulpdu(),
        })
    }

    pub(super) fn fpdus_sent(&self) -> u64 {
        self.operation.as_ref().map_or(0, |op| op.sender.stats().fpdus)
    }

    /// Returns the number of payload bytes placed.
    pub(super) fn placed_bytes(&self) -> u64 {
        let stats = self.operation.as_ref().map(|op| op.receiver.stats());
        stats.map_or(0, |s| s.placed_in_order + s.placed_out_of_order)
    }

    /// Returns the number of bytes passed to TCP.
    pub(super) fn stream_bytes(&self) -> u64 {
        self.sent_offset
    }
}

/// Returns true if an FPDU may be sent. RFC 5044 §7.1.2 (4): the responder waits for the first FPDU.
fn may_send(initiator: bool, op: &FullOperation) -> bool {
    initiator || op.receiver.stats().fpdus > 0
}

/// Minimum size of the buffer for a segment, bytes. An FPDU with the minimum MULPDU (128 bytes, RFC 5044 §4.5) fits,
/// even if the kernel's MSS is smaller.
const MIN_SEGMENT: usize = 256;

/// Returns the last message that reports a DDP error.
pub(super) fn last_message(error: &DdpError) -> LastMessage {
    LastMessage::from(error)
}
