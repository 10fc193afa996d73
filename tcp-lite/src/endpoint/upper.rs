//! The layers above TCP: the start-up, then MPA and DDP. TCP calls them through the traits of the [seam](crate::seam).
//! Start-up bytes precede the first FPDU, which begins a new segment.
//!
//! Not included: events for the owner, and the ends of a stream ([`teardown`](super::teardown)).

use super::config::EndpointConfig;
use crate::mpa::{
    EnhancedRepr, HoldBudget, Params, Peer, Progress, Receiver, Request, Revision, Sender, Startup,
    StartupError,
};
use crate::seam::{SegmentSource, SpanOutcome, SpanSink, TxBatch};
use crate::tcp::Segment;
use base::{Instant, Prefetch};
use ddp::llp::{KeepLimit, UlpduSource};
use ddp::{
    BufferPool, OpenRequest, PdId, PeerId, RegionMemory, StagTable, StreamId, Ulp, UlpConfig,
    VersionPolicy,
};
use std::sync::Arc;
use wire::crc32c::Sum;

/// Maximum bytes of FPDUs that are kept between an MPA request and its acceptance.
pub(super) const MAX_BACKLOG: usize = 16 * 1024;

/// State of the worker that an endpoint borrows for one call.
#[derive(Debug)]
pub struct Context<'a, M> {
    /// The worker's table of STags.
    pub stags: &'a StagTable<M>,
    /// The worker's pool of buffers for untagged messages.
    pub buffers: &'a mut BufferPool,
    /// The worker's budget for data held beyond gaps.
    pub hold: &'a mut HoldBudget,
}

/// Outcome of received start-up bytes that the endpoint must handle after the call into TCP.
#[derive(Debug)]
pub(super) enum Notice {
    Request(Request),
    Accepted { private_data: Vec<u8> },
    Unsuitable(StartupError),
    Rejected { private_data: Vec<u8>, enhanced: Option<EnhancedRepr> },
    Error(StartupError),
}

/// The layers above TCP: the start-up, later MPA and DDP.
#[derive(Debug)]
pub(super) struct Upper<M: RegionMemory> {
    /// Effective MSS, bytes.
    emss: u32,
    /// Length of the start-up bytes that this end sends before its first FPDU.
    prologue_len: u16,
    /// Number of these bytes that were sent at least once.
    prologue_sent: u16,
    pub(super) stage: Stage<M>,
    pending_startup: Option<Box<PendingStartup>>,
}

impl<M: RegionMemory> Prefetch for Upper<M> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let Stage::Full(full) = &self.stage {
            full.prefetch(steps, hint);
        }
    }
}

/// State that is freed once the start-up bytes are acknowledged and the notice is handled.
#[derive(Debug, Default)]
struct PendingStartup {
    /// Start-up bytes to send before the first FPDU. Empty once acknowledged.
    prologue: Box<[u8]>,
    notice: Option<Notice>,
}

/// Stage of a stream, which decides how received bytes are processed.
#[derive(Debug)]
pub(super) enum Stage<M: RegionMemory> {
    Startup(Box<StartupPhase>),
    Full(Box<FullOperation<M>>),
    /// Received bytes are acknowledged and discarded.
    Discarding,
}

/// State of the Startup Phase (RFC 5044 §7.1).
#[derive(Debug)]
pub(super) struct StartupPhase {
    config: Arc<EndpointConfig>,
    id: StreamId,
    peer: PeerId,
    pub(super) startup: Startup,
    /// Number of received bytes that belong to the start-up.
    received: u64,
    /// FPDUs received after the request.
    backlog: Vec<u8>,
    initiator: bool,
    /// The initiator's open request, until Full Operation.
    open: Option<OpenRequest>,
}

impl StartupPhase {
    /// Returns the DDP version policy for an MPA revision.
    fn ddp_version_policy(&self, revision: Revision, configured: VersionPolicy) -> VersionPolicy {
        match revision {
            // The figures of MPA's first draft show DDP version 0.
            Revision::Draft => VersionPolicy::V0,
            Revision::Zero if !self.initiator => VersionPolicy::AdoptFirst,
            // RFC 5044 §C.2.5: a reply with Rev 0 to a request with Rev 1 shows a peer of the RDMA Consortium, which
            // uses DDP version 0.
            Revision::Zero if self.config.mpa.initiate == Revision::One => VersionPolicy::V0,
            Revision::Zero | Revision::One | Revision::Two => configured,
        }
    }
}

/// State of Full Operation: MPA, and bare DDP or RDMAP above it.
#[derive(Debug)]
pub(super) struct FullOperation<M: RegionMemory> {
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    pub(super) stream: Ulp<M>,
    pub(super) params: Params,
    initiator: bool,
    /// True if the ULP has evidence that the initiator is in Full Operation.
    peer_ready: bool,
    paused: bool,
    /// Maximum number of pending ULP events while paused.
    max_pending_events: u32,
}

base::prefetch!(FullOperation<M> [M: RegionMemory]: sender, stream);

impl<M: RegionMemory> FullOperation<M> {
    /// Returns true if FPDUs may be sent. RFC 5044 §7.1.2 (4): a responder sends none before it has verified a received
    /// FPDU.
    pub(super) fn may_send(&self) -> bool {
        self.initiator || self.peer_ready || self.receiver.has_handed_up()
    }

    /// Sets the limit of kept copies. Returns true if the next FPDU needs a copy and the limit is reached.
    #[inline]
    fn must_wait(&mut self, keep: KeepLimit) -> bool {
        !self.sender.may_keep(keep) && !self.sender.is_cut() && !self.stream.next_is_stable()
    }

    /// Pauses or resumes delivery: see [`Endpoint::pause`](super::Endpoint::pause).
    pub(super) fn pause(&mut self, max_pending_events: Option<u32>) {
        self.paused = max_pending_events.is_some();
        self.max_pending_events = max_pending_events.unwrap_or(0);
    }

    /// Returns true if the right edge of the window must not move because the owner does not poll events. After an
    /// error the window stays open, because data is discarded.
    fn closes_window(&self) -> bool {
        self.paused && !self.receiver.is_discarding()
    }

    /// Permits FPDUs before the peer's first FPDU: see [`Endpoint::set_peer_ready`](super::Endpoint::set_peer_ready).
    pub(super) fn set_peer_ready(&mut self) {
        self.peer_ready = true;
    }

    /// Returns true once an FPDU has been passed to DDP in order.
    pub(super) fn has_handed_up_in_order(&self) -> bool {
        self.receiver.has_handed_up_in_order()
    }
}

impl<M: RegionMemory> Upper<M> {
    pub(super) fn initiator(
        config: Arc<EndpointConfig>,
        id: StreamId,
        peer: PeerId,
        startup: Startup,
        open: OpenRequest,
    ) -> Self {
        Upper::new(config, id, peer, startup, Some(open))
    }

    pub(super) fn responder(config: Arc<EndpointConfig>, id: StreamId, peer: PeerId) -> Self {
        let startup = Startup::responder(&config.mpa);
        Upper::new(config, id, peer, startup, None)
    }

    fn new(
        config: Arc<EndpointConfig>,
        id: StreamId,
        peer: PeerId,
        startup: Startup,
        open: Option<OpenRequest>,
    ) -> Self {
        let prologue: Box<[u8]> = startup.output().into();
        Upper {
            emss: 536,
            prologue_len: prologue.len() as u16,
            prologue_sent: 0,
            pending_startup: Some(Box::new(PendingStartup { prologue, notice: None })),
            stage: Stage::Startup(Box::new(StartupPhase {
                config,
                id,
                peer,
                initiator: open.is_some(),
                startup,
                received: 0,
                backlog: Vec::new(),
                open,
            })),
        }
    }

    /// Stores a notice for the endpoint to handle.
    fn notify(&mut self, notice: Notice) {
        self.pending_startup.get_or_insert_default().notice = Some(notice);
    }

    /// Returns true if the stream is paused and its limit of pending events is reached. All data is then refused, even
    /// within the window.
    fn refuses_text(&self) -> bool {
        self.full().is_some_and(|full| {
            full.closes_window() && full.stream.pending_events() >= full.max_pending_events as usize
        })
    }

    /// Returns true in Full Operation without a notice, an error, or an FPDU that DDP refused.
    #[inline]
    pub(super) fn is_uneventful(&self) -> bool {
        let is_uneventful = |full: &FullOperation<M>| {
            full.stream.is_sound() && !full.receiver.is_blocked() && !full.receiver.is_discarding()
        };
        self.pending_startup.is_none() && self.full().is_some_and(is_uneventful)
    }

    /// Takes the pending notice, if any. Frees the start-up's state once the start-up bytes are
    /// acknowledged.
    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        let begin = self.pending_startup.as_mut()?;
        let notice = begin.notice.take();
        if begin.prologue.is_empty() {
            self.pending_startup = None;
        }
        notice
    }

    /// Sets the effective MSS, in bytes.
    pub(super) fn set_emss(&mut self, emss: usize) {
        self.emss = emss as u32;
        if let Stage::Full(full) = &mut self.stage {
            full.sender.set_emss(emss);
        }
    }

    /// Frees memory that an idle stream does not need.
    pub(super) fn shrink(&mut self) {
        if let Stage::Full(full) = &mut self.stage {
            full.receiver.shrink();
            full.sender.shrink();
            full.stream.shrink();
        }
    }

    pub(super) fn full(&self) -> Option<&FullOperation<M>> {
        match &self.stage {
            Stage::Full(full) => Some(full),
            Stage::Startup(_) | Stage::Discarding => None,
        }
    }

    pub(super) fn full_mut(&mut self) -> Option<&mut FullOperation<M>> {
        match &mut self.stage {
            Stage::Full(full) => Some(full),
            Stage::Startup(_) | Stage::Discarding => None,
        }
    }

    /// Copies the responder's reply from the start-up, for transmission. Has no effect on an initiator.
    pub(super) fn take_prologue(&mut self) {
        if let Stage::Startup(begin) = &self.stage
            && !begin.initiator
        {
            let prologue: Box<[u8]> = begin.startup.output().into();
            self.prologue_len = prologue.len() as u16;
            self.pending_startup.get_or_insert_default().prologue = prologue;
        }
    }

    /// Enters Full Operation. FPDUs that arrived before the acceptance are passed to MPA and DDP.
    pub(super) fn enter_full(
        &mut self,
        params: Params,
        pd: PdId,
        mut ulp: UlpConfig,
        cx: &mut Context<'_, M>,
    ) {
        self.take_prologue();
        let Stage::Startup(begin) = core::mem::replace(&mut self.stage, Stage::Discarding) else {
            return;
        };
        *ulp.version_mut() = begin.ddp_version_policy(params.revision, *ulp.version_mut());
        let rtr_stag = begin.config.mpa.peer.rtr_stag();
        if let UlpConfig::Rdmap(config) = &mut ulp {
            config.siw = begin.config.mpa.peer == Peer::Siw;
        }
        let stream = Ulp::new_accepted(begin.id, pd, begin.peer, ulp, params.agreed, rtr_stag);
        let mut full = Box::new(FullOperation {
            receiver: Receiver::new(&begin.config.mpa, &params, begin.received),
            sender: Sender::new(&params, self.prologue_len.into(), self.emss as usize),
            stream,
            params,
            initiator: begin.initiator,
            peer_ready: false,
            paused: false,
            max_pending_events: 0,
        });
        if !begin.backlog.is_empty() {
            let FullOperation { receiver, stream, .. } = &mut *full;
            let ddp = ddp::Context { stags: cx.stags, buffers: cx.buffers };
            let (offset, bytes) = (begin.received, &begin.backlog);
            let taken = receiver.take_span(offset, bytes, None, &mut stream.sink(ddp), cx.hold);
            // TCP has acknowledged these bytes, so bytes that DDP refuses now are lost, and the stream fails.
            if let SpanOutcome::Part(_) = taken {
                stream.fail(ddp::Failure::LlpLost);
            }
        }
        self.stage = Stage::Full(full);
    }

    fn startup_span(
        &mut self,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
        cx: &mut Context<'_, M>,
    ) -> SpanOutcome {
        let Stage::Startup(begin) = &mut self.stage else { return SpanOutcome::All };
        if !in_order {
            // Bytes beyond a gap are refused, because the start of Full Operation is not known yet.
            // The peer retransmits them.
            return SpanOutcome::Part(offset..offset);
        }
        let (used, progress) = match begin.startup.input(bytes) {
            Ok(done) => done,
            Err(error) => {
                self.notify(Notice::Error(error));
                self.stage = Stage::Discarding;
                return SpanOutcome::All;
            }
        };
        begin.received += used as u64;
        let rest = &bytes[used..];
        match progress {
            None | Some(Progress::Request(_)) => {
                let n = rest.len().min(MAX_BACKLOG - begin.backlog.len());
                begin.backlog.extend_from_slice(&rest[..n]);
                if let Some(Progress::Request(request)) = progress {
                    self.notify(Notice::Request(request));
                }
                let taken = used + n;
                if taken == bytes.len() {
                    return SpanOutcome::All;
                }
                SpanOutcome::Part(offset..offset + taken as u64)
            }
            Some(Progress::Rejected { private_data, enhanced }) => {
                self.notify(Notice::Rejected { private_data, enhanced });
                self.stage = Stage::Discarding;
                SpanOutcome::All
            }
            Some(Progress::Unsuitable { params, error }) => {
                let Some(open) = begin.open.take() else { return SpanOutcome::All };
                self.notify(Notice::Unsuitable(error));
                self.enter_full(params, open.pd, open.ulp, cx);
                SpanOutcome::All
            }
            Some(Progress::Accepted { params, private_data }) => {
                let Some(open) = begin.open.take() else { return SpanOutcome::All };
                self.notify(Notice::Accepted { private_data });
                self.enter_full(params, open.pd, open.ulp, cx);
                if rest.is_empty() {
                    return SpanOutcome::All;
                }
                self.full_span(offset + used as u64, rest, None, cx).with_prefix_taken(offset)
            }
        }
    }

    fn full_span(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        cx: &mut Context<'_, M>,
    ) -> SpanOutcome {
        let Stage::Full(full) = &mut self.stage else { return SpanOutcome::All };
        let FullOperation { receiver, stream, .. } = &mut **full;
        let ddp = ddp::Context { stags: cx.stags, buffers: cx.buffers };
        let hold = &mut *cx.hold;
        match stream {
            Ulp::Ddp(stream) => receiver.take_span(offset, bytes, crc, &mut stream.sink(ddp), hold),
            Ulp::Rdmap(stream) => {
                receiver.take_span(offset, bytes, crc, &mut stream.sink(ddp), hold)
            }
        }
    }
}

impl SpanOutcome {
    /// Returns this outcome for a longer span that begins at `offset`. The additional bytes at its start were accepted.
    fn with_prefix_taken(self, offset: u64) -> SpanOutcome {
        match self {
            SpanOutcome::All => SpanOutcome::All,
            SpanOutcome::Part(range) => SpanOutcome::Part(offset..range.end),
        }
    }
}

/// [`Upper`] and its context, borrowed for one call into TCP.
pub(super) struct UpperCall<'a, 'c, M: RegionMemory> {
    pub(super) upper: &'a mut Upper<M>,
    /// Context for received spans. With `None` all spans are refused.
    cx: Option<&'a mut Context<'c, M>>,
    /// Limit on copies of unacknowledged data: see [`TxBatch::keep_limit`](crate::seam::TxBatch::keep_limit).
    pub(super) keep: KeepLimit,
    /// True if the payload's checksum is useful to the batch: see
    /// [`TxBatch::uses_sum`](crate::seam::TxBatch::uses_sum).
    uses_sum: bool,
    /// Internet checksum of the payload written last: see [`SegmentSource::text_sum`].
    text_sum: Option<Sum>,
    /// Length of a received segment's payload, and its [`Segment::text_crc`].
    text_crc: Option<(usize, u32)>,
}

impl<'a, 'c, M: RegionMemory> UpperCall<'a, 'c, M> {
    /// Creates a call in which TCP may pass spans to MPA.
    pub(super) fn for_receive(upper: &'a mut Upper<M>, cx: &'a mut Context<'c, M>) -> Self {
        let (wants_sum, text_sum, text_crc) = (false, None, None);
        UpperCall {
            upper,
            cx: Some(cx),
            keep: KeepLimit::NONE,
            uses_sum: wants_sum,
            text_sum,
            text_crc,
        }
    }

    /// Creates a call that processes a received segment.
    pub(super) fn for_segment(
        upper: &'a mut Upper<M>,
        cx: &'a mut Context<'c, M>,
        segment: &Segment<'_>,
    ) -> Self {
        let text_crc = segment.text_crc.map(|crc| (segment.payload.len(), crc));
        UpperCall { text_crc, ..UpperCall::for_receive(upper, cx) }
    }

    /// Creates a call that writes segments into the batch `tx`.
    pub(super) fn for_transmit(upper: &'a mut Upper<M>, tx: &impl TxBatch) -> Self {
        let keep = KeepLimit::new(tx.keep_limit());
        let (wants_sum, text_sum, text_crc) = (tx.uses_sum(), None, None);
        UpperCall { upper, cx: None, keep, uses_sum: wants_sum, text_sum, text_crc }
    }
}

impl<M: RegionMemory> SpanSink for UpperCall<'_, '_, M> {
    fn receive_span(
        &mut self,
        _now: Instant,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
    ) -> SpanOutcome {
        let Some(cx) = self.cx.as_deref_mut() else { return SpanOutcome::Part(offset..offset) };
        if self.upper.refuses_text() {
            return SpanOutcome::Part(offset..offset);
        }
        match &self.upper.stage {
            Stage::Startup(_) => self.upper.startup_span(offset, bytes, in_order, cx),
            Stage::Full(_) => {
                // The CRC is valid only for the whole payload.
                let crc = self.text_crc.filter(|(len, _)| *len == bytes.len()).map(|(_, crc)| crc);
                self.upper.full_span(offset, bytes, crc, cx)
            }
            Stage::Discarding => SpanOutcome::All,
        }
    }

    /// No-op: MPA itself notifies DDP of in-order data when it passes an FPDU up.
    fn advance_in_order(&mut self, _now: Instant, _offset: u64) {}

    fn room(&self) -> u64 {
        match &self.upper.stage {
            // RFC 9293 §3.8.6: the right edge does not move, and the window shrinks by the bytes that the peer sends.
            Stage::Full(full) if full.closes_window() => 0,
            Stage::Startup(begin) => (MAX_BACKLOG - begin.backlog.len()) as u64,
            Stage::Full(full) => full.receiver.room(),
            Stage::Discarding => u64::MAX,
        }
    }

    fn grow_window(&mut self, grown: u64, increase: u64) -> bool {
        let Some(cx) = self.cx.as_deref_mut() else { return false };
        // After an error received data is discarded, so a larger window has no benefit.
        self.upper.full().is_some_and(|full| !full.receiver.is_discarding())
            && cx.hold.windows_mut().widen(grown, increase)
    }
}

impl<M: RegionMemory> SegmentSource for UpperCall<'_, '_, M> {
    fn has_data(&self) -> bool {
        if self.upper.prologue_sent < self.upper.prologue_len {
            return true;
        }
        match &self.upper.stage {
            Stage::Full(full) => full.may_send() && full.sender.has_data(&full.stream),
            Stage::Startup(_) | Stage::Discarding => false,
        }
    }

    fn fill(&mut self, offset: u64, emss: usize, in_flight: bool, out: &mut [u8]) -> usize {
        self.text_sum = None;
        let Upper { pending_startup: begin, prologue_sent, stage, .. } = &mut *self.upper;
        let prologue = begin.as_ref().and_then(|begin| begin.prologue.get(offset as usize..));
        if let Some(rest) = prologue.filter(|rest| !rest.is_empty()) {
            // No FPDU follows in this segment, so that the first FPDU begins a segment.
            let n = rest.len().min(out.len());
            out[..n].copy_from_slice(&rest[..n]);
            *prologue_sent = offset as u16 + n as u16;
            return n;
        }
        let Stage::Full(full) = stage else { return 0 };
        if !full.may_send() {
            return 0;
        }
        if full.must_wait(self.keep) {
            self.keep.refuse();
            return 0;
        }
        let FullOperation { sender, stream, .. } = &mut **full;
        sender.set_emss(emss);
        self.text_sum = self.uses_sum.then(Sum::default);
        let sum = &mut self.text_sum;
        // The match on the ULP is outside the loop over FPDUs: once per segment.
        match stream {
            Ulp::Ddp(stream) => sender.fill(&mut **stream, offset, in_flight, out, sum),
            Ulp::Rdmap(stream) => sender.fill(&mut **stream, offset, in_flight, out, sum),
        }
    }

    fn fill_probe(&mut self, offset: u64, emss: usize, out: &mut [u8]) -> usize {
        self.text_sum = None;
        let Upper { prologue_sent, prologue_len, stage, .. } = &mut *self.upper;
        let Stage::Full(full) = stage else { return 0 };
        if prologue_sent != prologue_len || !full.may_send() || full.must_wait(self.keep) {
            return 0;
        }
        let FullOperation { sender, stream, .. } = &mut **full;
        sender.set_emss(emss);
        sender.fill_probe(stream, offset, out)
    }

    fn text_sum(&self) -> Option<Sum> {
        self.text_sum
    }

    fn cut_len(&self, offset: u64, most: usize) -> usize {
        // FPDUs begin in a new segment after the start-up bytes, so no segment contains both.
        match &self.upper.stage {
            Stage::Full(full) if offset >= self.upper.prologue_len.into() => {
                full.sender.cut(offset, most)
            }
            Stage::Startup(_) | Stage::Full(_) | Stage::Discarding => most,
        }
    }

    fn refill(&mut self, offset: u64, out: &mut [u8]) {
        let Upper { pending_startup: begin, prologue_len, stage, .. } = &mut *self.upper;
        let prologue = begin.as_ref().map_or(&[][..], |begin| &begin.prologue);
        let n = u64::from(*prologue_len).saturating_sub(offset).min(out.len() as u64) as usize;
        let (first, rest) = out.split_at_mut(n);
        first.copy_from_slice(&prologue[prologue.len().min(offset as usize)..][..n]);
        if let Stage::Full(full) = stage
            && !rest.is_empty()
        {
            full.sender.refill(&full.stream, offset + n as u64, rest);
        }
    }

    fn on_acknowledged(&mut self, offset: u64) {
        let Upper { pending_startup: begin, prologue_len, stage, .. } = &mut *self.upper;
        if let Some(startup) = begin
            && offset >= (*prologue_len).into()
        {
            startup.prologue = Box::default();
            if startup.notice.is_none() {
                *begin = None;
            }
        }
        let Stage::Full(full) = stage else { return };
        let FullOperation { sender, stream, .. } = &mut **full;
        match stream {
            Ulp::Ddp(stream) => sender.on_acknowledged(&mut **stream, offset),
            Ulp::Rdmap(stream) => sender.on_acknowledged(&mut **stream, offset),
        }
    }

    fn on_emss_changed(&mut self, emss: usize) {
        self.upper.set_emss(emss);
    }
}
