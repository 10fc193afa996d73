//! Streams that require IPsec protection. No change of policies and SAs lets a byte be sent or placed with less
//! protection. A stream that loses its protection ends, with the reason `not_protected`.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory as _, Stag, StreamId};
use ipsec::crypto::Algorithm;
use ipsec::policy::{Action, Policy, Selector, Spd, Unmatched};

use super::ipsec::*;
use super::ipsec_paths::{change_sa, listen_requiring};
use super::test_host::*;
use crate::api::{
    Command, Event, ListenerId, Protection, SaChange, SaDirection, SctpConfig, SynCookieMode,
    WorkerId,
};

/// Returns an SCTP configuration without path MTU probes. With probes, the outages of these tests would lower the path
/// MTU. SCTP would then retransmit longer packets in IP fragments, which cannot be sealed.
fn sctp() -> SctpConfig {
    let config = super::sctp::config();
    let probing = sctp_lite::sctp::Config { path_mtu_probing: false, ..(*config.sctp).clone() };
    SctpConfig { sctp: Arc::new(probing), ..config }
}

/// Builds a change of policies. `None` removes all policies, so that packets pass in clear.
fn policies(suite: Option<Suite>, host: usize, workers: u16) -> SaChange {
    match suite {
        None => {
            let policies = Arc::new(Spd::from_checked(Vec::new(), Unmatched::PASS));
            SaChange::Policies { policies, owners: Arc::from([]) }
        }
        Some(suite) => {
            let ipsec = config(suite, host as u8 + 1, workers);
            let (policies, owners) = (Arc::new(ipsec.policies.clone()), ipsec.owners.clone());
            SaChange::Policies { policies, owners: owners.into() }
        }
    }
}

/// Removes the requirement at host 0, which then sends as its policies allow.
fn clear_peer_requirement(net: &mut Net) {
    for core in &mut net.hosts[0].cores {
        for slot in core.streams.slots() {
            if let Some(carrier) = core.streams.carrier_mut(slot) {
                carrier.clear_requirement();
            }
        }
        for at in core.associations.slots() {
            if let Some(association) = core.associations.get_mut(at) {
                association.carrier.clear_requirement();
            }
        }
    }
}

/// Counts the TCP and SCTP frames that each host sends in clear.
fn watch_clear(net: &mut Net) -> Rc<[Cell<u64>; 2]> {
    let clear = Rc::new([Cell::new(0), Cell::new(0)]);
    let seen = clear.clone();
    net.is_lost = Box::new(move |from, frame| {
        if protocol(frame).is_some_and(|(_, protocol)| [6, 132].contains(&protocol)) {
            seen[from].set(seen[from].get() + 1);
        }
        false
    });
    clear
}

/// Begins a write of 50,000 bytes to host 1. Returns the destination.
fn begin_write(net: &mut Net, stream: StreamId, stag: u32) -> crate::memory::Memory {
    let from = net.hosts[0].region(stag, 50_000, Access::NONE);
    let to = net.hosts[1].region(stag + 1, 50_000, Access::REMOTE_WRITE);
    from.write(0, &pattern(50_000));
    net.hosts[0].write(stream, (Stag(stag), &from), Stag(stag + 1), 50_000);
    to
}

/// Takes a host's event of a stream's end. Returns the name of its reason.
fn take_end(net: &mut Net, host: usize) -> Option<&'static str> {
    net.hosts[host].take_event(|event| match event {
        Event::Closed { reason, .. } => Some(reason.name()),
        _ => None,
    })
}

#[derive(Debug)]
struct Case {
    over_sctp: bool,
    workers: u16,
    /// True for IPv6. The address family selects the owner of the SAs: SAs of IPv6 belong to the last worker.
    v6: bool,
    /// True if the peer has no requirement and continues in clear.
    lenient: bool,
    /// True if every SYN is answered with a cookie.
    cookies: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        (0..32).map(|n| Case {
            over_sctp: n & 1 > 0,
            workers: if n & 2 > 0 { 2 } else { 1 },
            v6: n & 4 > 0,
            lenient: n & 8 > 0,
            cookies: n & 16 > 0,
        })
    }

    /// Opens a stream, with this suite, to a listener that requires encryption with keys of `bits` bits.
    fn open(&self, suite: Suite, bits: u16) -> (Net, StreamId, StreamId) {
        let mut net = net(suite, |plan| {
            (plan.workers, plan.rss) = (self.workers, Rss::None);
            if self.cookies {
                plan.limits.syn_cookies = SynCookieMode::Always;
            }
        });
        listen_requiring(&mut net, 5000, self.over_sctp, bits);
        let address = if self.v6 { v6(2) } else { v4(2) };
        let remote = SocketAddr::new(address, 5000);
        let worker = usize::from(self.workers) - 1;
        let (here, there) = match self.over_sctp {
            false => net.open(0, worker, 1, remote),
            true => net.open_as(0, worker, 1, remote, sctp()),
        };
        write(&mut net, here, 10, 20_000);
        if self.lenient {
            clear_peer_requirement(&mut net);
        }
        (net, here, there)
    }
}

#[test]
fn stream_without_policies_sends_nothing_in_clear_and_ends() {
    for (n, case) in Case::all().enumerate() {
        let (mut net, stream, _) = case.open(PLAIN, 128);
        // The requirement remains after the removal of the listener.
        net.hosts[1]
            .command_all(|ticket| Command::RemoveListener { listener: ListenerId(5000), ticket });
        let clear = watch_clear(&mut net);
        for host in 0..2 {
            change_sa(&mut net, host, policies(None, host, case.workers));
        }
        let to = begin_write(&mut net, stream, 20);
        net.advance(Duration::from_secs(1));
        assert!(read_memory(&to).iter().all(|byte| *byte == 0), "{n}: placed");
        assert_eq!((clear[0].get() > 0, clear[1].get()), (case.lenient, 0), "{n}");
        let unsent = |net: &Net, host: usize| net.hosts[host].count("unsent_not_protected");
        assert_eq!(net.hosts[1].count("not_protected") > 0, case.lenient, "{n}");
        assert_eq!(unsent(&net, 0) > 0, !case.lenient, "{n}");
        // Host 1 ends the stream after 60 s. The peer may end it earlier because of its own time-outs.
        net.advance(Duration::from_secs(58));
        assert_eq!(take_end(&mut net, 1), None, "{n}");
        net.advance(Duration::from_secs(2));
        assert_eq!(take_end(&mut net, 1), Some("not_protected"), "{n}");
        assert_eq!(clear[1].get(), 0, "{n}: the reset");
        assert!(unsent(&net, 1) > 0, "{n}");
    }
}

#[test]
fn stream_resumes_when_its_policies_return() {
    for case in Case::all().filter(|case| !case.cookies) {
        let (mut net, stream, _) = case.open(PLAIN, 128);
        for host in 0..2 {
            change_sa(&mut net, host, policies(None, host, case.workers));
        }
        let to = begin_write(&mut net, stream, 20);
        net.advance(Duration::from_secs(5));
        for host in 0..2 {
            change_sa(&mut net, host, policies(Some(PLAIN), host, case.workers));
        }
        net.advance(Duration::from_secs(115));
        assert!(read_memory(&to) == pattern(50_000), "{case:?}");
        assert_eq!((take_end(&mut net, 0), take_end(&mut net, 1)), (None, None));
    }
}

#[test]
fn rekey_to_weaker_algorithm_stalls_and_then_ends_the_stream() {
    let strong = Suite { algorithm: Algorithm::AesGcm256, ..PLAIN };
    let weak = Suite { algorithm: Algorithm::AesGcm128, ..PLAIN };
    for case in Case::all().filter(|case| !case.cookies) {
        for taken_back in [false, true] {
            let (mut net, stream, _) = case.open(strong, 256);
            let ids = [0, 1].map(|host| {
                let pair = sas(weak, host + 1, 2 - host, case.v6, 2);
                for sa in &pair {
                    change_sa(&mut net, host.into(), SaChange::Add(sa.clone()));
                }
                pair.map(|sa| sa.id)
            });
            let to = begin_write(&mut net, stream, 20);
            net.advance(Duration::from_secs(5));
            assert!(read_memory(&to).iter().all(|byte| *byte == 0));
            assert!(net.hosts[1].count("not_protected") > 0);
            if taken_back {
                for (host, [inbound, outbound]) in ids.into_iter().enumerate() {
                    change_sa(&mut net, host, SaChange::Remove(outbound, SaDirection::Out));
                    change_sa(&mut net, host, SaChange::Remove(inbound, SaDirection::In));
                }
                net.advance(Duration::from_secs(115));
                assert!(read_memory(&to) == pattern(50_000), "{case:?}");
                assert_eq!(take_end(&mut net, 1), None, "{case:?}");
            } else {
                let sealed = net.hosts[1].count("ipsec_sealed");
                net.advance(Duration::from_secs(56));
                assert_eq!(take_end(&mut net, 1), Some("not_protected"), "{case:?}");
                assert_eq!(net.hosts[1].count("ipsec_sealed"), sealed, "{case:?}");
            }
        }
    }
}

// Without an SA no packet passes. The stream waits until IKE has created the next SA.
#[test]
fn idle_stream_survives_a_missing_sa() {
    for case in Case::all().filter(|case| !case.cookies && !case.lenient) {
        let (mut net, stream, _) = case.open(PLAIN, 128);
        for host in [0, 1] {
            let ids = sas(PLAIN, host + 1, 2 - host, case.v6, 1).map(|sa| sa.id);
            change_sa(&mut net, host.into(), SaChange::Remove(ids[0], SaDirection::In));
            change_sa(&mut net, host.into(), SaChange::Remove(ids[1], SaDirection::Out));
        }
        net.advance(Duration::from_secs(25));
        for host in [0, 1] {
            for sa in sas(PLAIN, host + 1, 2 - host, case.v6, 2) {
                change_sa(&mut net, host.into(), SaChange::Add(sa));
            }
        }
        net.advance(Duration::from_secs(60));
        let to = begin_write(&mut net, stream, 20);
        net.advance(Duration::from_secs(20));
        assert!(read_memory(&to) == pattern(50_000));
    }
}

/// Workers apply a change at different times: worker 0 has removed its policies, and worker 1 still requires protection.
/// Worker 0 forwards frames in clear to worker 1, and receives frames to seal from worker 1. Both are dropped.
#[test]
fn policy_change_on_one_worker_leaks_nothing_in_clear() {
    for over_sctp in [false, true] {
        // The SAs belong to worker 0, which receives all frames.
        let case = Case { over_sctp, workers: 2, v6: false, lenient: true, cookies: false };
        let (mut net, mut stream, mut there) = case.open(PLAIN, 128);
        let mut stag = 30;
        for worker in [0, 1].into_iter().cycle() {
            if there.worker() == 1 {
                break;
            }
            let remote = SocketAddr::new(v4(2), 5000);
            (stream, there) = match over_sctp {
                false => net.open(0, worker, 1, remote),
                true => net.open_as(0, worker, 1, remote, sctp()),
            };
            write(&mut net, stream, stag, 10_000);
            stag += 10;
        }
        clear_peer_requirement(&mut net);
        let clear = watch_clear(&mut net);
        change_sa(&mut net, 0, policies(None, 0, 2));
        let no_policies = policies(None, 1, 2);
        net.hosts[1].command(0, |ticket| Command::Sa { change: no_policies, ticket });
        net.run_until_idle();
        let to = begin_write(&mut net, stream, 900);
        // The second host also has data to send.
        net.hosts[1].send(there, b"a message");
        net.advance(Duration::from_secs(2));
        assert!(read_memory(&to).iter().all(|byte| *byte == 0));
        assert!(net.hosts[1].count("not_protected") > 0);
        assert!(net.hosts[1].count("unsent_not_protected") > 0);
        assert_eq!((clear[0].get() > 0, clear[1].get()), (true, 0));
    }
}

/// Builds policies that protect only the TCP flows of this local port.
fn policies_for_port(port: u16) -> SaChange {
    let selector = Selector { protocol: Some(6), local_ports: port..=port, ..selector(false) };
    let action = Action::Protect(Protection(0));
    let policies = vec![Policy { direction: None, selector, action }];
    let policies = Arc::new(Spd::from_checked(policies, Unmatched::PASS));
    SaChange::Policies { policies, owners: Arc::from([WorkerId(0)]) }
}

/// No policy protects the second connection attempt, which has MPA revision 1 and another local port.
#[test]
fn second_attempt_requires_the_protection_of_the_first() {
    use tcp_lite::mpa;
    let mut net = net(PLAIN, |_| {});
    let remote = SocketAddr::new(v4(2), 5000);
    let revisions = mpa::Revisions { one: true, ..mpa::Revisions::NONE };
    let responder = mpa::Config { revisions, ..mpa::Config::default() };
    let endpoint = |mpa| tcp_lite::endpoint::EndpointConfig { mpa, ..Default::default() };
    net.hosts[1].listen_as(5000, 10, 10, endpoint(responder));
    net.run_until_idle();
    // Holds back the frames after the SYN-ACK, including the reset.
    let held: Rc<std::cell::RefCell<Vec<Vec<u8>>>> = Rc::default();
    let (recorder, answers) = (held.clone(), Cell::new(0));
    net.is_lost = Box::new(move |from, frame| {
        let sealed = from == 1 && protocol(frame).is_some_and(|(_, protocol)| protocol == 50);
        answers.set(answers.get() + u32::from(sealed));
        let behind_syn = sealed && answers.get() > 1;
        if behind_syn {
            recorder.borrow_mut().push(frame.to_vec());
        }
        behind_syn
    });
    let initiate = mpa::Revision::Two;
    let initiator = mpa::Config { initiate, retry_rev1: true, ..mpa::Config::default() };
    let ulp = ddp::rdmap::Config::default().into();
    net.hosts[0].connect_ulp(0, remote, endpoint(initiator).into(), ulp);
    net.advance(Duration::from_millis(50));
    assert!(!held.borrow().is_empty());
    let core = &mut net.hosts[0].cores[0];
    let slot = core.streams.slots()[0];
    let port = core.streams.carrier_mut(slot).expect("the first attempt").flow().local.port();
    change_sa(&mut net, 0, policies_for_port(port));
    let clear = watch_clear(&mut net);
    for frame in held.borrow().iter() {
        net.hosts[0].deliver(TestFrame::new(frame.clone()));
    }
    net.run_until("the second attempt", |net| {
        net.hosts[0].take_event(|event| matches!(event, Event::Retrying { .. }).then_some(()))
    });
    net.advance(Duration::from_secs(5));
    assert_eq!(clear[0].get(), 0);
    assert!(net.hosts[0].count("unsent_not_protected") > 0);
}
