//! Events of a QP's stream. Events about messages complete posts; events about the stream's state go to the control
//! thread.

use ddp::rdmap::{self, Event, Outcome, Terminate};
use ddp::{ErrorCode, Poster};
use verbs_layout::work::{Carried, Status};

use super::Program;
use crate::io::PortIo;
use crate::worker::Env;
use crate::worker::flows::conn::Stream;

impl<Io: PortIo> Env<Io> {
    /// Handles an event of a QP's stream. Returns the event if the control thread must receive it, too.
    pub(in crate::worker) fn handle_pair_event(
        &mut self,
        stream: &Stream<'_>,
        event: Event,
    ) -> Option<Event> {
        let reference = stream.conn.transient.pair;
        let Some((program, number)) = reference.and_then(|pair| self.programs.pair_mut(pair))
        else {
            // The QP has been removed, so its stream is ending.
            return is_for_control_thread(&event).then_some(event);
        };
        let Program { pairs, completions, windows, .. } = program;
        let Some(Some(pair)) = pairs.get_mut(number as usize) else { return None };
        let counters = &self.control.counters().programs;
        if let Event::ReceivedInto { .. }
        | Event::ImmediateInto { .. }
        | Event::ReceiveFlushed { .. } = event
        {
            // Receives of an SRQ are counted here, because the code that takes them from the SRQ (`Source`) has no
            // access to the counters.
            counters.program_receives.add(pair.receives.shared.is_some().into());
        }
        match event {
            Event::Completed { cookie, outcome } => {
                if let Poster::User(_) = cookie.poster() {
                    let original = match outcome {
                        Outcome::Atomic { original } => Some(original),
                        Outcome::Sent | Outcome::Written | Outcome::Read { .. } => None,
                    };
                    let performed = pair.finish_send(Some(original), completions);
                    counters.program_sends_completed.add(performed);
                }
            }
            Event::Flushed { cookie } => {
                if let Poster::User(_) = cookie.poster() {
                    pair.finish_send(None, completions);
                }
            }
            Event::WriteDelivered { len, .. } => {
                // An RDMA Write of the peer completes no post, so the QP need not be served.
                pair.written = u32::try_from(len).unwrap_or(u32::MAX);
                return None;
            }
            Event::ReceivedInto { cookie, len, solicited, invalidated } => {
                pair.written = 0;
                if let Some(stag) = invalidated {
                    windows.on_invalidated(stag, number, &mut self.tables);
                }
                let carried = invalidated.map_or(Carried::Nothing, |s| Carried::Invalidated(s.0));
                counters.program_receives_completed.add(1);
                pair.fill_receive(cookie, len, solicited, carried, completions);
            }
            Event::ImmediateInto { cookie, data, solicited } => {
                counters.program_receives_completed.add(1);
                let carried = Carried::Immediate(data);
                // RFC 7306 §6: Immediate Data may belong to the RDMA Write before it.
                let written = std::mem::take(&mut pair.written);
                pair.fill_receive(cookie, written, solicited, carried, completions);
            }
            Event::ReceiveFlushed { cookie } => pair.flush_receive(cookie, completions),
            Event::Error(error) => {
                pair.refused_receive = refused_receive(&error);
                return Some(Event::Error(error));
            }
            Event::Terminated { by_peer, terminate } => {
                if by_peer {
                    pair.refused_request = refused_request(&terminate);
                }
                return Some(Event::Terminated { by_peer, terminate });
            }
            event => return is_for_control_thread(&event).then_some(event),
        }
        // The completion may end a fence or make room in a queue, or its CQ has failed: the QP is served again.
        program.make_ready(number);
        None
    }
}

/// Returns the status of a receive whose message was refused because it is longer than the receive; `None` for other
/// errors.
fn refused_receive(error: &rdmap::Error) -> Option<Status> {
    match error {
        rdmap::Error::Ddp(error)
            if matches!(error.code, ErrorCode::MessageTooLong | ErrorCode::InvalidMo) =>
        {
            Some(Status::LocalLength)
        }
        _ => None,
    }
}

/// Returns the status of the Read that the peer's Terminate quotes (RFC 5040 §4.8); `None` if the Terminate quotes no
/// Read.
fn refused_request(terminate: &Terminate) -> Option<Status> {
    terminate.read_request.as_ref()?;
    match terminate.numbers().error_type {
        // RFC 5040 §4.8: RDMAP error type 1 is Remote Protection Error.
        1 => Some(Status::RemoteAccess),
        _ => Some(Status::RemoteOperation),
    }
}

/// Returns true for events about the stream's state, false for events about messages.
fn is_for_control_thread(event: &Event) -> bool {
    match event {
        Event::Error(_)
        | Event::Terminated { .. }
        | Event::PeerClosed { .. }
        | Event::Failed(_)
        | Event::ReadHeld
        | Event::ReadyToReceive => true,
        Event::Received { .. }
        | Event::Immediate { .. }
        | Event::ReceivedInto { .. }
        | Event::ImmediateInto { .. }
        | Event::ReceiveFlushed { .. }
        | Event::WriteDelivered { .. }
        | Event::ReadServed { .. }
        | Event::AtomicServed { .. }
        | Event::Completed { .. }
        | Event::Flushed { .. } => false,
    }
}
