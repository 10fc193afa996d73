//! RFC 5041 §3 over MPA and TCP: DDP's suite, with markers (placement out of order) and without.

use super::net::{Fate, Net, Side as NetSide, has_payload};
use super::peers::*;
use crate::endpoint::*;
use crate::mpa;
use core::cell::RefCell;
use core::time::Duration;
use ddp::conformance::{self, Fault, Pair, Side};
use ddp::{Counters, Event as DdpEvent, Stag, VecMemory};
use std::collections::VecDeque;
use std::rc::Rc;

/// What the path is told to do.
#[derive(Default)]
struct Plan {
    faults: [VecDeque<Fault>; 2],
    cut: bool,
}

impl Plan {
    fn fate(&mut self, from: NetSide, segment: &[u8]) -> Fate {
        if self.cut {
            return Fate::Drop;
        }
        if !has_payload(segment) {
            return Fate::Pass;
        }
        match self.faults[from as usize].pop_front().unwrap_or(Fault::None) {
            Fault::None => Fate::Pass,
            Fault::Lose => Fate::Drop,
            Fault::Delay => Fate::Delay(Duration::from_micros(300)),
            Fault::Duplicate => Fate::Duplicate,
            Fault::Corrupt => Fate::Corrupt,
        }
    }
}

/// Two endpoints.
struct Endpoints<const MARKERS: bool> {
    net: Net<Node, Node>,
    plan: Rc<RefCell<Plan>>,
    /// Events already given to the suite.
    seen: [usize; 2],
}

impl<const MARKERS: bool> Endpoints<MARKERS> {
    fn node(&self, side: Side) -> &Node {
        match side {
            Side::A => &self.net.a,
            Side::B => &self.net.b,
        }
    }

    fn endpoint(&mut self, side: Side) -> &mut Endpoint<VecMemory> {
        match side {
            Side::A => self.net.a.ep(),
            Side::B => self.net.b.ep(),
        }
    }
}

impl<const MARKERS: bool> Pair for Endpoints<MARKERS> {
    const PLACES_OUT_OF_ORDER: bool = MARKERS;

    fn new() -> Self {
        let mpa = mpa::Config { markers: MARKERS, ..mpa::Config::default() };
        let on_peer_close = OnPeerClose::KeepOpen;
        let config = EndpointConfig { mpa, on_peer_close, ..EndpointConfig::default() };
        let plan = Rc::<RefCell<Plan>>::default();
        let mut net = established(config.clone(), config).with_fate({
            let plan = plan.clone();
            move |from, _, segment| plan.borrow_mut().fate(from, segment)
        });
        // RFC 5044 §7.1.2 (4): the responder sends once it has had an FPDU.
        net.a.write(0, b"", 0);
        net.run();
        Endpoints { net, plan, seen: [0; 2] }
    }

    fn stag(&self) -> Stag {
        STAG
    }

    fn region(&self, side: Side) -> Vec<u8> {
        self.node(side).memory.to_vec()
    }

    fn post(&mut self, side: Side, message: Message<VecMemory>) -> Result<(), PostError> {
        self.endpoint(side).post(message)
    }

    fn close(&mut self, side: Side) {
        let now = self.net.now;
        self.endpoint(side).shutdown(now);
    }

    fn plan(&mut self, from: Side, fault: Fault) {
        self.plan.borrow_mut().faults[from as usize].push_back(fault);
    }

    fn cut(&mut self) {
        self.plan.borrow_mut().cut = true;
    }

    fn mulpdu(&self, side: Side) -> usize {
        let params = self.node(side).ep.as_ref().and_then(|ep| ep.params());
        params.expect("established").mulpdu
    }

    fn limit_mulpdu(&mut self, side: Side, mulpdu: usize) {
        self.endpoint(side).path_mtu(mulpdu as u16);
        self.start();
    }

    fn start(&mut self) {
        self.net.run_for(Duration::from_micros(1));
    }

    fn run(&mut self) {
        if self.plan.borrow().cut {
            // A run ends after ten virtual minutes; TCP may be more patient.
            self.net.run();
            self.net.run();
        } else {
            self.net.run_for(Duration::from_secs(2));
        }
    }

    fn events(&mut self, side: Side) -> Vec<DdpEvent> {
        let all = self.node(side).ddp_events();
        let new = all[self.seen[side as usize]..].to_vec();
        self.seen[side as usize] = all.len();
        new
    }

    fn counters(&self, side: Side) -> Counters {
        self.node(side).stats().ddp
    }

    fn is_up(&self, side: Side) -> bool {
        self.node(side).state() != Some(State::Closed)
    }
}

type Markers = Endpoints<true>;
type Plain = Endpoints<false>;

#[test]
fn mpa_exposes_mulpdu_and_its_changes() {
    conformance::mulpdu_and_its_changes_are_exposed::<Markers>();
    conformance::mulpdu_and_its_changes_are_exposed::<Plain>();
}

#[test]
fn mpa_keeps_segments_when_mulpdu_changes() {
    conformance::segments_survive_a_change_of_mulpdu::<Markers>();
    conformance::segments_survive_a_change_of_mulpdu::<Plain>();
}

#[test]
fn mpa_is_reliable_or_says_so() {
    conformance::transfer_is_reliable_or_reported::<Markers>();
    conformance::transfer_is_reliable_or_reported::<Plain>();
}

#[test]
fn mpa_preserves_boundaries() {
    conformance::boundaries_are_preserved::<Markers>();
    conformance::boundaries_are_preserved::<Plain>();
}

#[test]
fn mpa_tells_the_order() {
    conformance::segments_out_of_order_carry_their_order::<Markers>();
    conformance::segments_out_of_order_carry_their_order::<Plain>();
}

#[test]
fn mpa_passes_nothing_corrupt() {
    conformance::nothing_corrupt_is_placed::<Markers>();
    conformance::nothing_corrupt_is_placed::<Plain>();
}

#[test]
fn mpa_provides_lengths() {
    conformance::lengths_are_provided::<Markers>();
    conformance::lengths_are_provided::<Plain>();
}

#[test]
fn mpa_carries_nothing_after_an_error() {
    conformance::an_erroneous_stream_carries_nothing_more::<Markers>();
    conformance::an_erroneous_stream_carries_nothing_more::<Plain>();
}

#[test]
fn mpa_indicates_graceful_teardown() {
    conformance::graceful_teardown_is_indicated::<Markers>();
    conformance::graceful_teardown_is_indicated::<Plain>();
}

#[test]
fn mpa_connection_ends_with_its_stream() {
    conformance::the_connection_ends_with_its_streams::<Markers>();
    conformance::the_connection_ends_with_its_streams::<Plain>();
}

#[test]
fn mpa_passes_no_duplicate() {
    conformance::duplicates_are_not_passed::<Markers>();
    conformance::duplicates_are_not_passed::<Plain>();
}
