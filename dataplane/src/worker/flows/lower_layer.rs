//! The lower layer of a stream: its own TCP connection, or a session of a shared SCTP association. Operations on either
//! are methods of [`LowerLayerMut`].

use std::sync::Arc;

use base::Instant;
use ddp::rdmap::{Receive, ReceiveSource, WorkRequest};
use ddp::{Message, PdId, PostError, Qn, Stag, StreamId, Ulp};
use sctp_lite::endpoint::{
    AnswerError as SctpAnswerError, Context as SessionContext, Endpoint as SctpEndpoint, SessionId,
};
use tcp_lite::endpoint::{AnswerError as TcpAnswerError, Context, Endpoint, UlpConfig};

use super::carrier::Carrier;
use crate::api::{FlowInfo, StreamParams, StreamStats, Transport};
use crate::flow::FlowKey;
use crate::memory::Memory;
use crate::worker::flows::associations::{Association, Associations};
use crate::worker::flows::flow_info;

/// The lower layer of a stream. A connection is stored inline, so that its state is reached from the stream's slot
/// without a further pointer.
#[allow(clippy::large_enum_variant)]
pub(in crate::worker) enum LowerLayer {
    Tcp(Carrier<Endpoint<Memory>>),
    Sctp(Session),
}

/// Reference of a stream to its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) struct Session {
    /// Slot of the association.
    pub(in crate::worker) association: u32,
    pub(in crate::worker) id: SessionId,
    /// Flow of the association.
    pub(in crate::worker) flow: FlowKey,
}

/// Error of an answer to a peer's request to open a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum AnswerError {
    /// No request awaits an answer.
    NoRequest,
    /// The private data is longer than the answer can carry.
    TooLong,
}

/// A mutable reference to the endpoint that carries a stream.
pub(in crate::worker) enum LowerLayerMut<'a> {
    /// The endpoint of the stream's own TCP connection.
    Tcp(&'a mut Endpoint<Memory>),
    /// The endpoint of the association, and the session.
    Sctp(&'a mut SctpEndpoint<Memory>, SessionId),
}

impl LowerLayer {
    /// Borrows the endpoint mutably. Over SCTP, `association` is the session's association; without one, returns
    /// `None`.
    #[inline]
    pub(in crate::worker) fn as_mut<'a>(
        &'a mut self,
        association: Option<&'a mut Association>,
    ) -> Option<LowerLayerMut<'a>> {
        match self {
            LowerLayer::Tcp(carrier) => Some(LowerLayerMut::Tcp(carrier.endpoint_mut())),
            LowerLayer::Sctp(session) => {
                Some(LowerLayerMut::Sctp(association?.endpoint_mut(), session.id))
            }
        }
    }

    /// Returns the flow of the packets of the stream's connection or association.
    #[inline]
    pub(in crate::worker) fn flow(&self) -> FlowKey {
        match self {
            LowerLayer::Tcp(carrier) => carrier.flow(),
            LowerLayer::Sctp(session) => session.flow,
        }
    }

    /// Returns true if the [`flow`](Self::flow) equals `flow`.
    #[inline]
    pub(in crate::worker) fn has_flow(&self, flow: &FlowKey) -> bool {
        match self {
            LowerLayer::Tcp(carrier) => carrier.has_flow(flow),
            LowerLayer::Sctp(session) => session.flow == *flow,
        }
    }

    /// Returns the stream's own TCP connection; `None` over SCTP.
    #[inline]
    pub(in crate::worker) fn connection(&mut self) -> Option<&mut Carrier<Endpoint<Memory>>> {
        match self {
            LowerLayer::Tcp(carrier) => Some(carrier),
            LowerLayer::Sctp(_) => None,
        }
    }

    pub(in crate::worker) fn transport(&self) -> Transport {
        match self {
            LowerLayer::Tcp(_) => Transport::Tcp,
            LowerLayer::Sctp(_) => Transport::Sctp,
        }
    }

    /// Returns the identifier of the stream's association; `None` over TCP.
    pub(in crate::worker) fn association(&self, associations: &Associations) -> Option<StreamId> {
        match self {
            LowerLayer::Tcp(_) => None,
            LowerLayer::Sctp(session) => associations.id(session.association),
        }
    }

    /// Returns the statistics of the stream and of the connection or association that carries it.
    pub(in crate::worker) fn stats(&self, associations: &Associations) -> StreamStats {
        match self {
            LowerLayer::Tcp(carrier) => StreamStats::Tcp(carrier.endpoint().stats()),
            LowerLayer::Sctp(session) => {
                let association = associations.get(session.association);
                let own = association.and_then(|a| a.endpoint().session_stats(session.id));
                let stats = association.map(Association::stats);
                StreamStats::Sctp(own.unwrap_or_default(), stats.unwrap_or_default())
            }
        }
    }

    /// Returns path and congestion control state of the connection or association.
    pub(in crate::worker) fn flow_info(
        &self,
        associations: &Associations,
        now: Instant,
    ) -> FlowInfo {
        match self {
            LowerLayer::Tcp(carrier) => flow_info::connection_info(carrier, now),
            LowerLayer::Sctp(session) => {
                let association = associations.get(session.association);
                association.map(|association| association.flow_info(now)).unwrap_or_default()
            }
        }
    }

    /// Returns the name of the state of the connection or session.
    pub(in crate::worker) fn state(&self, associations: &Associations) -> &'static str {
        match self {
            LowerLayer::Tcp(carrier) => carrier.endpoint().state().name(),
            LowerLayer::Sctp(session) => {
                let association = associations.get(session.association);
                let state = association.and_then(|a| a.endpoint().session_state(session.id));
                state.map_or("closed", |state| state.name())
            }
        }
    }
}

impl LowerLayerMut<'_> {
    pub(in crate::worker) fn post(&mut self, message: Message<Memory>) -> Result<(), PostError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.post(message),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.post(*session, message),
        }
    }

    /// Posts a message with a borrowed reference to its source region.
    pub(in crate::worker) fn post_borrowed(
        &mut self,
        message: Message<&Memory>,
    ) -> Result<(), PostError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.post_borrowed(message),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.post(*session, message.cloned()),
        }
    }

    pub(in crate::worker) fn post_rdmap(
        &mut self,
        request: WorkRequest<Memory>,
    ) -> Result<(), PostError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.post_rdmap(request),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.post_rdmap(*session, request),
        }
    }

    pub(in crate::worker) fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.post_buffers(qn, n),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.post_buffers(*session, qn, n),
        }
    }

    /// Posts a receive of an RDMAP stream.
    pub(in crate::worker) fn post_receive(
        &mut self,
        receive: Receive<Memory>,
    ) -> Result<(), PostError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.post_receive(receive),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.post_receive(*session, receive),
        }
    }

    /// Sets the shared receive queue from which an RDMAP stream takes its receives.
    pub(in crate::worker) fn set_receive_source(
        &mut self,
        source: Arc<dyn ReceiveSource<Memory>>,
    ) -> Result<(), PostError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.set_receive_source(source),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.set_receive_source(*session, source),
        }
    }

    /// Revokes a region from the posted receives: no more data is placed in it.
    pub(in crate::worker) fn revoke_receives(&mut self, memory: &Memory) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.revoke_receives(memory),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.revoke_receives(*session, memory),
        }
    }

    /// Returns the negotiated parameters; `None` before the handshake is complete.
    pub(in crate::worker) fn params(&self) -> Option<StreamParams> {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.params().map(StreamParams::Tcp),
            LowerLayerMut::Sctp(endpoint, session) => {
                endpoint.params(*session).map(StreamParams::Sctp)
            }
        }
    }

    /// Returns true once the ULP exists: the passive side has accepted the request to open the stream.
    pub(in crate::worker) fn has_ulp(&self) -> bool {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.stream().is_some(),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.stream(*session).is_some(),
        }
    }

    /// Accepts the peer's request to open stream `id`.
    pub(in crate::worker) fn accept(
        &mut self,
        now: Instant,
        id: StreamId,
        pd: PdId,
        private_data: &[u8],
        ulp: UlpConfig,
        cx: &mut Context<'_, Memory>,
    ) -> Result<(), AnswerError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => {
                Ok(endpoint.mpa_accept(now, pd, private_data, ulp, cx)?)
            }
            LowerLayerMut::Sctp(endpoint, session) => {
                let cx = &mut session_context(cx);
                Ok(endpoint.accept_session(now, *session, id, pd, private_data, ulp, cx)?)
            }
        }
    }

    /// Rejects the peer's request to open a stream.
    pub(in crate::worker) fn reject(
        &mut self,
        now: Instant,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        match self {
            LowerLayerMut::Tcp(endpoint) => Ok(endpoint.mpa_reject(now, private_data)?),
            LowerLayerMut::Sctp(endpoint, session) => {
                Ok(endpoint.reject_session(now, *session, private_data)?)
            }
        }
    }

    /// Ends the stream because of an error at this end.
    pub(in crate::worker) fn fail(&mut self, now: Instant, cx: &mut Context<'_, Memory>) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.fail(now, cx),
            LowerLayerMut::Sctp(endpoint, session) => {
                endpoint.fail_session(now, *session, &mut session_context(cx))
            }
        }
    }

    /// Ends the stream because this end's ULP cannot complete an operation.
    pub(in crate::worker) fn fail_ulp(&mut self, now: Instant, cx: &mut Context<'_, Memory>) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.fail_ulp(now, cx),
            LowerLayerMut::Sctp(endpoint, session) => {
                endpoint.fail_ulp(now, *session, &mut session_context(cx))
            }
        }
    }

    /// Answers the oldest of the peer's RDMA Reads whose answers are withheld
    /// ([`hold_confirmations`](ddp::rdmap::Config::hold_confirmations)).
    pub(in crate::worker) fn release_read(&mut self) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.release_read(),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.release_read(*session),
        }
    }

    /// Returns true if the close of the stream confirms received data to the peer. The control thread closes such a
    /// stream once the data is written to files.
    pub(in crate::worker) fn holds_confirmations(&self) -> bool {
        let stream = match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.stream(),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.stream(*session),
        };
        stream.is_some_and(Ulp::holds_confirmations)
    }

    /// Notifies the endpoint that the control thread is about to close the stream. The close confirms all data whose
    /// events the control thread has read so far.
    pub(in crate::worker) fn begin_confirmation(&mut self, now: Instant) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.begin_confirmation(),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.begin_confirmation(now, *session),
        }
    }

    /// Returns true if a close would also confirm data that arrived after
    /// [`begin_confirmation`](Self::begin_confirmation).
    pub(in crate::worker) fn is_unconfirmed(&self) -> bool {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.is_unconfirmed(),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.is_unconfirmed(*session),
        }
    }

    /// Closes the stream gracefully.
    pub(in crate::worker) fn shutdown(&mut self, now: Instant) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.shutdown(now),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.shutdown_session(now, *session),
        }
    }

    /// Ends the stream at once. The other sessions of its association continue.
    pub(in crate::worker) fn abort(&mut self, now: Instant, cx: &mut Context<'_, Memory>) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.abort(now, cx),
            LowerLayerMut::Sctp(endpoint, session) => {
                endpoint.abort_session(now, *session, &mut session_context(cx));
            }
        }
    }

    /// Returns the number of ULP events in the endpoint that were not polled yet.
    pub(in crate::worker) fn pending_events(&self) -> usize {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.pending_events(),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.pending_events(*session),
        }
    }

    /// Pauses the stream: its events are not polled, the peer's window is not extended, and the endpoint holds at most
    /// `most_events` events. `None` resumes the stream.
    pub(in crate::worker) fn pause(&mut self, most_events: Option<u32>) {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.pause(most_events),
            LowerLayerMut::Sctp(endpoint, session) => endpoint.pause_session(*session, most_events),
        }
    }

    /// Notifies the stream that an STag is no longer valid for it. Returns true if a Read response was incomplete and
    /// the stream ends with a Terminate.
    pub(in crate::worker) fn revoke_stag(
        &mut self,
        now: Instant,
        stag: Stag,
        cx: &mut Context<'_, Memory>,
    ) -> bool {
        match self {
            LowerLayerMut::Tcp(endpoint) => endpoint.on_stag_revoked(now, stag, cx),
            LowerLayerMut::Sctp(endpoint, session) => {
                endpoint.on_stag_revoked(now, *session, stag, &mut session_context(cx))
            }
        }
    }
}

impl From<TcpAnswerError> for AnswerError {
    fn from(error: TcpAnswerError) -> Self {
        match error {
            TcpAnswerError::NoRequest => AnswerError::NoRequest,
            TcpAnswerError::PrivateData(_) => AnswerError::TooLong,
        }
    }
}

impl From<SctpAnswerError> for AnswerError {
    fn from(error: SctpAnswerError) -> Self {
        match error {
            SctpAnswerError::NoRequest => AnswerError::NoRequest,
            SctpAnswerError::PrivateData(_) => AnswerError::TooLong,
        }
    }
}

/// Converts the context for a connection's endpoint into the context for an association's endpoint.
fn session_context<'a>(cx: &'a mut Context<'_, Memory>) -> SessionContext<'a, Memory> {
    SessionContext { stags: cx.stags, buffers: cx.buffers, hold: cx.hold }
}
