//! The conformance suite of RFC 5041 §3 over two endpoints: with and without markers, with retransmission of
//! segments whose CRC is wrong, and with RDMAP.

use super::net::{Fate, Net, Side as End, has_payload};
use super::peers::*;
use crate::endpoint::*;
use crate::mpa::{self, BadCrcPolicy};
use crate::tcp;
use core::time::Duration;
use ddp::conformance::{self, Fault, Pair, Side};
use ddp::{Cookie, Counters, EndpointPolicy, Stag, VecMemory};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

const HOUR: Duration = Duration::from_secs(3600);

/// Planned faults of the data segments of each end, in order.
type Plans = Rc<RefCell<[VecDeque<Fault>; 2]>>;

struct Endpoints<const MARKERS: bool, const DROP: bool, const RDMAP: bool> {
    net: Net<Node, Node>,
    plans: Plans,
    cut: Rc<Cell<bool>>,
    seen: [usize; 2],
}

fn config(markers: bool, drop: bool) -> EndpointConfig {
    let on_bad_crc = if drop { BadCrcPolicy::Retransmit } else { BadCrcPolicy::Error };
    let limits = tcp::Limits { fin_wait_2: HOUR, ..tcp::Limits::default() };
    EndpointConfig {
        // Long time-outs, because the suite itself closes both ends.
        tcp: Arc::new(tcp::Config { limits, ..tcp::Config::default() }),
        policy: EndpointPolicy {
            teardown_timeout: HOUR,
            half_closed_timeout: None,
            ..EndpointPolicy::default()
        },
        mpa: mpa::Config { markers, on_bad_crc, ..mpa::Config::default() },
    }
}

fn ulp(rdmap: bool) -> UlpConfig {
    match rdmap {
        true => rdmap::Config { recv_size: 16 * 1024, ..rdmap::Config::default() }.into(),
        false => stream_config().into(),
    }
}

/// Posts the message; on an RDMAP stream, posts the equivalent operation.
fn post(node: &mut Node, message: Message<VecMemory>) -> Result<(), PostError> {
    if matches!(node.ulp, UlpConfig::Ddp(_)) {
        return node.ep().post(message);
    }
    node.ep().post_rdmap(match message {
        Message::Tagged { stag, to, source, cookie, .. } => {
            WorkRequest::Write { stag, to, source, cookie }
        }
        Message::Untagged { source, cookie, .. } => WorkRequest::send(source, cookie),
    })
}

/// Returns the DDP event that is equivalent to an endpoint's event; `None` if there is none.
fn ddp_event(event: &Event) -> Option<ddp::Event> {
    use rdmap::Event as RdmapEvent;
    Some(match event {
        Event::Ddp(event) => event.clone(),
        Event::Rdmap(RdmapEvent::Received { data, .. }) => {
            let (qn, msn) = (ddp::MESSAGE_QUEUE, ddp::Msn(0));
            ddp::Event::UntaggedDelivered { qn, msn, data: data.clone(), rsvd_ulp: [0; 5] }
        }
        Event::Rdmap(RdmapEvent::WriteDelivered { stag, to, len }) => {
            ddp::Event::TaggedDelivered { stag: *stag, to: *to, len: *len, rsvd_ulp: 0 }
        }
        Event::Rdmap(RdmapEvent::Completed { cookie, .. }) => {
            ddp::Event::Sent { cookie: *cookie, messages: 1 }
        }
        Event::Rdmap(RdmapEvent::Flushed { cookie }) => ddp::Event::Flushed { cookie: *cookie },
        Event::Rdmap(RdmapEvent::PeerClosed { incomplete }) => {
            ddp::Event::PeerClosed { incomplete: *incomplete }
        }
        Event::Rdmap(RdmapEvent::Error(rdmap::Error::Ddp(error))) => {
            ddp::Event::Error(error.clone())
        }
        Event::Rdmap(RdmapEvent::Failed(why)) => ddp::Event::Failed(*why),
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

impl<const MARKERS: bool, const DROP: bool, const RDMAP: bool> Endpoints<MARKERS, DROP, RDMAP> {
    fn node(&self, side: Side) -> &Node {
        match side {
            Side::A => &self.net.a,
            Side::B => &self.net.b,
        }
    }

    fn node_mut(&mut self, side: Side) -> &mut Node {
        match side {
            Side::A => &mut self.net.a,
            Side::B => &mut self.net.b,
        }
    }
}

impl<const MARKERS: bool, const DROP: bool, const RDMAP: bool> Pair
    for Endpoints<MARKERS, DROP, RDMAP>
{
    const PLACES_OUT_OF_ORDER: bool = MARKERS;

    fn new() -> Self {
        let plans = Plans::default();
        let cut = Rc::new(Cell::new(false));
        let config = || config(MARKERS, DROP);
        let a = Node::initiator_with_ulp(config(), ulp(RDMAP), b"");
        let mut net = Net::new(a, Node::responder_with_ulp(config(), ulp(RDMAP)));
        net.run_until(|net| net.a.is_established() && net.b.is_established());
        // RFC 5044 §7.1.2 (4): the responder may send only after the initiator's first FPDU.
        let source = ddp::Source::Bytes([].into());
        let to = ddp::TaggedOffset(0);
        post(
            &mut net.a,
            Message::Tagged { stag: STAG, to, rsvd_ulp: 0, source, cookie: Cookie::user(0) },
        )
        .expect("room to post");
        net.run();
        let (planned, is_cut) = (plans.clone(), cut.clone());
        let net = net.with_fate(move |side, _, segment| {
            if is_cut.get() {
                return Fate::Drop;
            }
            let end = if side == End::A { 0 } else { 1 };
            let fault = match has_payload(segment) {
                true => planned.borrow_mut()[end].pop_front(),
                false => None,
            };
            fate(fault.unwrap_or(Fault::None))
        });
        Endpoints { net, plans, cut, seen: [0; 2] }
    }

    fn stag(&self) -> Stag {
        STAG
    }

    fn region(&self, side: Side) -> Vec<u8> {
        self.node(side).memory.to_vec()
    }

    fn post(&mut self, side: Side, message: Message<VecMemory>) -> Result<(), PostError> {
        post(self.node_mut(side), message)
    }

    fn close(&mut self, side: Side) {
        let now = self.net.now;
        self.node_mut(side).ep().shutdown(now);
    }

    fn plan(&mut self, from: Side, fault: Fault) {
        self.plans.borrow_mut()[from as usize].push_back(fault);
    }

    fn cut(&mut self) {
        self.cut.set(true);
    }

    fn mulpdu(&self, side: Side) -> usize {
        let params = self.node(side).ep.as_ref().and_then(|ep| ep.params());
        params.expect("in Full Operation").mulpdu
    }

    fn limit_mulpdu(&mut self, side: Side, mulpdu: usize) {
        let now = self.net.now;
        self.node_mut(side).ep().set_path_mss(now, mulpdu as u16);
    }

    fn start(&mut self) {
        self.net.transmit();
    }

    fn run(&mut self) {
        self.net.run();
    }

    fn events(&mut self, side: Side) -> Vec<ddp::Event> {
        let events: Vec<ddp::Event> = self.node(side).events.iter().filter_map(ddp_event).collect();
        let seen = core::mem::replace(&mut self.seen[side as usize], events.len());
        events[seen..].to_vec()
    }

    fn counters(&self, side: Side) -> Counters {
        self.node(side).stats().ddp
    }

    fn is_up(&self, side: Side) -> bool {
        self.node(side).state() != Some(State::Closed)
    }
}

type Markers = Endpoints<true, false, false>;
type Plain = Endpoints<false, false, false>;
type Dropping = Endpoints<true, true, false>;
type Rdmap = Endpoints<true, false, true>;

#[test]
fn mpa_exposes_mulpdu_and_its_changes() {
    conformance::mulpdu_and_its_changes_are_exposed::<Markers>();
    conformance::mulpdu_and_its_changes_are_exposed::<Plain>();
    conformance::mulpdu_and_its_changes_are_exposed::<Dropping>();
    conformance::mulpdu_and_its_changes_are_exposed::<Rdmap>();
}

#[test]
fn mpa_keeps_segments_when_mulpdu_changes() {
    conformance::segments_survive_a_change_of_mulpdu::<Markers>();
    conformance::segments_survive_a_change_of_mulpdu::<Plain>();
    conformance::segments_survive_a_change_of_mulpdu::<Dropping>();
    conformance::segments_survive_a_change_of_mulpdu::<Rdmap>();
}

#[test]
fn mpa_delivers_reliably_or_reports_failure() {
    conformance::transfer_is_reliable_or_reported::<Markers>();
    conformance::transfer_is_reliable_or_reported::<Plain>();
    conformance::transfer_is_reliable_or_reported::<Dropping>();
    conformance::transfer_is_reliable_or_reported::<Rdmap>();
}

#[test]
fn mpa_preserves_boundaries() {
    conformance::boundaries_are_preserved::<Markers>();
    conformance::boundaries_are_preserved::<Plain>();
    conformance::boundaries_are_preserved::<Dropping>();
    conformance::boundaries_are_preserved::<Rdmap>();
}

#[test]
fn mpa_reports_order_of_ulpdus() {
    conformance::segments_out_of_order_carry_their_order::<Markers>();
    conformance::segments_out_of_order_carry_their_order::<Plain>();
    conformance::segments_out_of_order_carry_their_order::<Dropping>();
    conformance::segments_out_of_order_carry_their_order::<Rdmap>();
}

#[test]
fn mpa_passes_no_corrupt_ulpdu() {
    conformance::corrupt_segments_are_not_placed::<Markers>();
    conformance::corrupt_segments_are_not_placed::<Plain>();
    conformance::corrupt_segments_are_not_placed::<Dropping>();
    conformance::corrupt_segments_are_not_placed::<Rdmap>();
}

#[test]
fn mpa_provides_lengths() {
    conformance::lengths_are_provided::<Markers>();
    conformance::lengths_are_provided::<Plain>();
    conformance::lengths_are_provided::<Dropping>();
    conformance::lengths_are_provided::<Rdmap>();
}

#[test]
fn mpa_carries_no_ulpdu_after_an_error() {
    conformance::failed_stream_carries_no_more_data::<Markers>();
    conformance::failed_stream_carries_no_more_data::<Plain>();
    conformance::failed_stream_carries_no_more_data::<Dropping>();
    conformance::failed_stream_carries_no_more_data::<Rdmap>();
}

#[test]
fn mpa_indicates_graceful_teardown() {
    conformance::graceful_teardown_is_indicated::<Markers>();
    conformance::graceful_teardown_is_indicated::<Plain>();
    conformance::graceful_teardown_is_indicated::<Dropping>();
    conformance::graceful_teardown_is_indicated::<Rdmap>();
}

#[test]
fn mpa_connection_ends_with_its_stream() {
    conformance::the_connection_ends_with_its_streams::<Markers>();
    conformance::the_connection_ends_with_its_streams::<Plain>();
    conformance::the_connection_ends_with_its_streams::<Dropping>();
    conformance::the_connection_ends_with_its_streams::<Rdmap>();
}

#[test]
fn mpa_passes_no_duplicate() {
    conformance::duplicates_are_not_passed::<Markers>();
    conformance::duplicates_are_not_passed::<Plain>();
    conformance::duplicates_are_not_passed::<Dropping>();
    conformance::duplicates_are_not_passed::<Rdmap>();
}
