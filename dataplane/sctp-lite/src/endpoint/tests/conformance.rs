//! Conformance suite of RFC 5041 §3 over two endpoints, with bare DDP and with RDMAP.

use super::host::{STAG, stream_config};
use super::net::{Fate, Net, Node, Setup, Side as End, has_data};
use crate::endpoint::*;
use core::time::Duration;
use ddp::conformance::{self, Fault, Pair, Side};
use ddp::rdmap::{self, WorkRequest};
use ddp::{Counters, EndpointPolicy, Message, PostError, Stag, VecMemory};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

const HOUR: Duration = Duration::from_secs(3600);
/// Bytes of an SCTP packet without its DDP segment, including room for control chunks.
const OVERHEAD: usize = 12 + 16 + 16 + 2 + 16;

/// Faults for the next packets with data, per sending end.
type Plans = Rc<RefCell<[VecDeque<Fault>; 2]>>;

struct Endpoints<const RDMAP: bool> {
    net: Net,
    sessions: [SessionId; 2],
    plans: Plans,
    cut: Rc<Cell<bool>>,
    seen: [usize; 2],
}

fn setup(rdmap: bool) -> Setup {
    let endpoint = EndpointConfig {
        // No time-out closes a session before the suite does.
        policy: EndpointPolicy {
            teardown_timeout: HOUR,
            half_closed_timeout: None,
            ..EndpointPolicy::default()
        },
        ..EndpointConfig::default()
    };
    let ulp = match rdmap {
        true => rdmap::Config { recv_size: 16 * 1024, ..rdmap::Config::default() }.into(),
        false => stream_config().into(),
    };
    Setup { endpoint, ulp, ..Setup::default() }
}

/// Returns the DDP event that is equivalent to an event of the session; `None` if there is none.
fn to_ddp_event(event: &SessionEvent) -> Option<ddp::Event> {
    use rdmap::Event as RdmapEvent;
    Some(match event {
        SessionEvent::Ddp(event) => event.clone(),
        SessionEvent::Rdmap(RdmapEvent::Received { data, .. }) => {
            let (qn, msn) = (ddp::MESSAGE_QUEUE, ddp::Msn(0));
            ddp::Event::UntaggedDelivered { qn, msn, data: data.clone(), rsvd_ulp: [0; 5] }
        }
        SessionEvent::Rdmap(RdmapEvent::WriteDelivered { stag, to, len }) => {
            ddp::Event::TaggedDelivered { stag: *stag, to: *to, len: *len, rsvd_ulp: 0 }
        }
        SessionEvent::Rdmap(RdmapEvent::Completed { cookie, .. }) => {
            ddp::Event::Sent { cookie: *cookie, messages: 1 }
        }
        SessionEvent::Rdmap(RdmapEvent::Flushed { cookie }) => {
            ddp::Event::Flushed { cookie: *cookie }
        }
        SessionEvent::Rdmap(RdmapEvent::PeerClosed { incomplete }) => {
            ddp::Event::PeerClosed { incomplete: *incomplete }
        }
        SessionEvent::Rdmap(RdmapEvent::Error(rdmap::Error::Ddp(error))) => {
            ddp::Event::Error(error.clone())
        }
        SessionEvent::Rdmap(RdmapEvent::Failed(why)) => ddp::Event::Failed(*why),
        _ => return None,
    })
}

fn fate(fault: Fault) -> Fate {
    match fault {
        Fault::None => Fate::Pass,
        Fault::Lose => Fate::Drop,
        Fault::Delay => Fate::Delay(Duration::from_millis(2)),
        Fault::Duplicate => Fate::Duplicate,
        Fault::Corrupt => Fate::Corrupt,
    }
}

impl<const RDMAP: bool> Endpoints<RDMAP> {
    fn node(&self, side: Side) -> (&Node, SessionId) {
        match side {
            Side::A => (&self.net.a, self.sessions[0]),
            Side::B => (&self.net.b, self.sessions[1]),
        }
    }

    fn node_mut(&mut self, side: Side) -> (&mut Node, SessionId) {
        match side {
            Side::A => (&mut self.net.a, self.sessions[0]),
            Side::B => (&mut self.net.b, self.sessions[1]),
        }
    }
}

impl<const RDMAP: bool> Pair for Endpoints<RDMAP> {
    const PLACES_OUT_OF_ORDER: bool = true;

    fn new() -> Self {
        let plans = Plans::default();
        let cut = Rc::new(Cell::new(false));
        let mut net = Net::established(&setup(RDMAP));
        let (planned, is_cut) = (plans.clone(), cut.clone());
        net.set_fate(move |side, _, packet| {
            if is_cut.get() {
                return Fate::Drop;
            }
            let end = if side == End::A { 0 } else { 1 };
            let fault = match has_data(packet) {
                true => planned.borrow_mut()[end].pop_front(),
                false => None,
            };
            fate(fault.unwrap_or(Fault::None))
        });
        let sessions = [net.a.session(), net.b.session()];
        Endpoints { net, sessions, plans, cut, seen: [0; 2] }
    }

    fn stag(&self) -> Stag {
        STAG
    }

    fn region(&self, side: Side) -> Vec<u8> {
        self.node(side).0.memory.to_vec()
    }

    fn post(&mut self, side: Side, message: Message<VecMemory>) -> Result<(), PostError> {
        let (node, session) = self.node_mut(side);
        if !RDMAP {
            return node.ep().post(session, message);
        }
        let request = match message {
            Message::Tagged { stag, to, source, cookie, .. } => {
                WorkRequest::Write { stag, to, source, cookie }
            }
            Message::Untagged { source, cookie, .. } => {
                WorkRequest::Send { source, solicited: false, invalidate: None, cookie }
            }
        };
        node.ep().post_rdmap(session, request)
    }

    fn close(&mut self, side: Side) {
        let now = self.net.now;
        let (node, session) = self.node_mut(side);
        node.ep().shutdown_session(now, session);
    }

    fn plan(&mut self, from: Side, fault: Fault) {
        self.plans.borrow_mut()[from as usize].push_back(fault);
    }

    fn cut(&mut self) {
        self.cut.set(true);
    }

    fn mulpdu(&self, side: Side) -> usize {
        let (node, session) = self.node(side);
        let params = node.ep.as_ref().and_then(|ep| ep.params(session));
        params.expect("an accepted session").mulpdu
    }

    fn limit_mulpdu(&mut self, side: Side, mulpdu: usize) {
        let now = self.net.now;
        let (node, _) = self.node_mut(side);
        node.ep().set_path_mtu(now, mulpdu + OVERHEAD);
    }

    fn start(&mut self) {
        self.net.transmit();
    }

    fn run(&mut self) {
        self.net.run();
    }

    fn events(&mut self, side: Side) -> Vec<ddp::Event> {
        let (node, session) = self.node(side);
        let events: Vec<ddp::Event> = node.events_of(session).filter_map(to_ddp_event).collect();
        let seen = core::mem::replace(&mut self.seen[side as usize], events.len());
        events[seen..].to_vec()
    }

    fn counters(&self, side: Side) -> Counters {
        let (node, session) = self.node(side);
        node.stats(session).ddp
    }

    fn is_up(&self, side: Side) -> bool {
        self.node(side).0.is_up()
    }
}

type Bare = Endpoints<false>;
type Rdmap = Endpoints<true>;

#[test]
fn sctp_exposes_mulpdu_and_its_changes() {
    conformance::mulpdu_and_its_changes_are_exposed::<Bare>();
    conformance::mulpdu_and_its_changes_are_exposed::<Rdmap>();
}

#[test]
fn sctp_keeps_segments_when_mulpdu_changes() {
    conformance::segments_survive_a_change_of_mulpdu::<Bare>();
    conformance::segments_survive_a_change_of_mulpdu::<Rdmap>();
}

#[test]
fn sctp_is_reliable_or_reports_failure() {
    conformance::transfer_is_reliable_or_reported::<Bare>();
    conformance::transfer_is_reliable_or_reported::<Rdmap>();
}

#[test]
fn sctp_preserves_boundaries() {
    conformance::boundaries_are_preserved::<Bare>();
    conformance::boundaries_are_preserved::<Rdmap>();
}

#[test]
fn sctp_reports_submission_order() {
    conformance::segments_out_of_order_carry_their_order::<Bare>();
    conformance::segments_out_of_order_carry_their_order::<Rdmap>();
}

#[test]
fn sctp_delivers_no_corrupt_message() {
    conformance::corrupt_segments_are_not_placed::<Bare>();
    conformance::corrupt_segments_are_not_placed::<Rdmap>();
}

#[test]
fn sctp_provides_lengths() {
    conformance::lengths_are_provided::<Bare>();
    conformance::lengths_are_provided::<Rdmap>();
}

#[test]
fn sctp_carries_no_data_after_an_error() {
    conformance::failed_stream_carries_no_more_data::<Bare>();
    conformance::failed_stream_carries_no_more_data::<Rdmap>();
}

#[test]
fn sctp_indicates_graceful_teardown() {
    conformance::graceful_teardown_is_indicated::<Bare>();
    conformance::graceful_teardown_is_indicated::<Rdmap>();
}

#[test]
fn sctp_association_ends_with_its_session() {
    conformance::the_connection_ends_with_its_streams::<Bare>();
    conformance::the_connection_ends_with_its_streams::<Rdmap>();
}

#[test]
fn sctp_delivers_no_duplicate() {
    conformance::duplicates_are_not_passed::<Bare>();
    conformance::duplicates_are_not_passed::<Rdmap>();
}
