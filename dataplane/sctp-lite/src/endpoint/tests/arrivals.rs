//! Sessions of two ends over a lower layer that delivers messages in any order, and delivers refused messages again.

use super::host::*;
use crate::endpoint::*;
use crate::seam::MessageOutcome;
use ddp::Cookie;
use ddp::VecMemory;
use proptest::prelude::*;
use wire::sctp::ddp::PPID_SEGMENT;

/// Two connected hosts. `choices` determines the order of delivery, the split into pieces and the acknowledgements.
struct HostPair {
    hosts: [Host; 2],
    choices: Vec<u16>,
    step_count: usize,
}

impl HostPair {
    fn new(config: &EndpointConfig, ulp: &UlpConfig, choices: Vec<u16>) -> HostPair {
        let host = |initiator| Host::with_config(config.clone(), initiator, ulp.clone());
        HostPair { hosts: [host(true), host(false)], choices, step_count: 0 }
    }

    fn choose(&mut self, n: usize) -> usize {
        self.step_count += 1;
        usize::from(self.choices[self.step_count % self.choices.len()]) % n
    }

    /// Delivers one of the messages in flight. Returns false if there is none.
    fn step(&mut self) -> bool {
        self.hosts.iter_mut().for_each(Host::send_messages);
        let in_flight: Vec<(usize, usize)> = (0..2)
            .flat_map(|side| {
                let flying = self.hosts[side].in_flight.iter().enumerate();
                flying.filter(|(_, f)| !f.arrived).map(move |(i, _)| (side, i)).collect::<Vec<_>>()
            })
            .collect();
        if in_flight.is_empty() {
            return false;
        }
        let (from, i) = in_flight[self.choose(in_flight.len())];
        let message = self.hosts[from].in_flight[i].clone();
        // Every transmission of a message has the same bytes.
        assert_eq!(self.hosts[from].rewrite(message.message), message.bytes);
        let cut = self.choose(message.bytes.len() + 1);
        let (head, tail) = message.bytes.split_at(cut);
        let to = &mut self.hosts[1 - from];
        let pieces: &[&[u8]] =
            if cut.is_multiple_of(2) { &[&message.bytes] } else { &[head, tail] };
        let taken = to.receive_raw(message.message.stream, message.ppid, true, pieces);
        self.hosts[from].in_flight[i].arrived = taken == MessageOutcome::Accepted;
        if self.choose(3) > 0 {
            self.acknowledge(from);
        }
        true
    }

    fn acknowledge(&mut self, side: usize) {
        let n = self.hosts[side].in_flight.iter().take_while(|flying| flying.arrived).count();
        self.hosts[side].acknowledge(n);
    }

    /// Runs until no message is in flight.
    fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                let outstanding = [self.hosts[0].in_flight.len(), self.hosts[1].in_flight.len()];
                self.acknowledge(0);
                self.acknowledge(1);
                self.hosts.iter_mut().for_each(Host::send_messages);
                if outstanding == [0, 0] && self.hosts.iter().all(|host| host.in_flight.is_empty())
                {
                    return;
                }
            }
        }
        panic!("the exchange does not end");
    }
}

/// Generates messages of 0 to 4999 bytes: tagged if the flag is true, otherwise untagged.
fn messages() -> impl Strategy<Value = Vec<(bool, u16)>> {
    prop::collection::vec((any::<bool>(), 0u16..5000), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// RFC 5043 §6.1, §10; RFC 5041 §5.3: with any order of arrival and any refusals, messages are placed and
    /// delivered once and in order. Sessions follow one another on the same streams.
    #[test]
    fn any_arrival_order_delivers_each_message_once_in_order(
        choices in prop::collection::vec(any::<u16>(), 64..256),
        messages in messages(),
        sessions in 1usize..4,
        rounds in 1usize..3,
    ) {
        let mut two = HostPair::new(&EndpointConfig::default(), &stream_config().into(), choices);
        for round in 0..rounds {
            let open: Vec<SessionId> = (0..sessions).map(|_| two.hosts[0].open(&[round as u8])).collect();
            two.run();
            let peer_sessions: Vec<SessionId> =
                open.iter().map(|id| two.hosts[1].session(id.stream)).collect();
            for (i, id) in open.iter().enumerate() {
                prop_assert!(two.hosts[0].is_established(*id) && two.hosts[1].is_established(peer_sessions[i]));
            }
            let mut expected: Vec<Vec<Vec<u8>>> = vec![Vec::new(); sessions];
            for (n, (tagged, len)) in messages.iter().enumerate() {
                let data = vec![(n + round) as u8 | 1; usize::from(*len)];
                for (i, id) in open.iter().enumerate() {
                    let at = ((i * messages.len() + n) * 5000) as u64;
                    let message = match tagged {
                        true => write_message(at, &data, n as u64),
                        false => {
                            expected[i].push(data.clone());
                            send_message(&data, n as u64)
                        }
                    };
                    two.hosts[0].post(*id, message).expect("room");
                }
                two.step();
            }
            let answer = two.hosts[1].post(peer_sessions[0], send_message(b"answer", 77));
            prop_assert_eq!(answer, Ok(()));
            two.hosts[0].shutdown(open[0]);
            for id in &peer_sessions[1..] {
                two.hosts[1].shutdown(*id);
            }
            two.run();
            for (i, id) in open.iter().enumerate() {
                check(&two.hosts[0], *id, &messages);
                let data = untagged(&two.hosts[1], peer_sessions[i]);
                prop_assert_eq!(&data, &expected[i]);
                let wrote = messages.iter().enumerate().filter(|(_, (tagged, _))| *tagged);
                for (n, (_, len)) in wrote {
                    let at = (i * messages.len() + n) * 5000;
                    let data = vec![(n + round) as u8 | 1; usize::from(*len)];
                    prop_assert_eq!(&two.hosts[1].memory.to_vec()[at..at + data.len()], &data[..]);
                }
                let reasons = [two.hosts[0].reason(*id), two.hosts[1].reason(peer_sessions[i])];
                let graceful = |reason: &Option<CloseReason>| {
                    reason.as_ref().is_some_and(CloseReason::is_graceful)
                };
                prop_assert!(reasons.iter().all(graceful), "{:?}", reasons);
            }
            prop_assert_eq!(untagged(&two.hosts[0], open[0]), vec![b"answer".to_vec()]);
            two.hosts.iter().for_each(Host::assert_nothing_left);
        }
    }

    /// Arbitrary messages on any streams cause no panic. Limits hold, and data is placed only within the region.
    #[test]
    fn arbitrary_messages_stay_within_region_and_bounds(
        hostile in prop::collection::vec(
            (0u16..PAIRS + 2, 0u16..8, 0u16..9, prop::collection::vec(any::<u8>(), 0..40), any::<u8>()),
            1..80,
        ),
    ) {
        let mut host = Host::new(false);
        for (stream, ssn, function, data, kind) in hostile {
            let mut bytes = ssn.to_be_bytes().to_vec();
            let ppid = match kind % 8 {
                0 => { bytes.extend_from_slice(&data); PPID_SEGMENT }
                1 => { bytes = data; u32::from(kind) % 20 }
                2..=3 => { bytes = segment(ssn, u64::from(kind) * 4096, &data); PPID_SEGMENT }
                _ => {
                    bytes.extend_from_slice(&function.to_be_bytes());
                    bytes.extend_from_slice(&data);
                    17
                }
            };
            host.receive_raw(stream, ppid, kind % 31 != 0, &[&bytes]);
            if kind % 3 == 0 {
                host.send_messages();
            }
            if kind % 5 == 0 {
                host.acknowledge_all();
            }
            prop_assert!(host.upper.occupied_slots() <= usize::from(PAIRS));
        }
        host.send_messages();
        host.acknowledge_all();
        // Every session ends, regardless of the peer.
        for session in host.sessions() {
            host.abort(session);
        }
        host.send_messages();
        host.acknowledge_all();
        host.send_messages();
        host.acknowledge_all();
        prop_assert_eq!(host.upper.live_count(), 0);
        prop_assert_eq!(host.buffers.in_use(), 0);
        prop_assert!(host.in_flight.is_empty());
    }
}

fn untagged(host: &Host, session: SessionId) -> Vec<Vec<u8>> {
    let message_body = |event| match event {
        ddp::Event::UntaggedDelivered { data, .. } => Some(data),
        _ => None,
    };
    host.ddp_events(session).into_iter().filter_map(message_body).collect()
}

/// Checks that a `Sent` event was reported for each of the `messages`, in the order of the posts.
fn check(host: &Host, session: SessionId, messages: &[(bool, u16)]) {
    let delivered_body = |event| match event {
        ddp::Event::Sent { cookie, .. } => Some(cookie),
        _ => None,
    };
    let sent: Vec<Cookie> =
        host.ddp_events(session).into_iter().filter_map(delivered_body).collect();
    assert_eq!(sent, (0..messages.len() as u64).map(Cookie::user).collect::<Vec<_>>());
}

/// The program changes the source after the first transmission. The retransmission still has the original bytes.
#[test]
fn unstable_source_is_retransmitted_from_its_copy() {
    use ddp::RegionMemory;
    let (mut host, session) = Host::established_active();
    let memory = VecMemory::new(5000);
    memory.write(0, &[3; 5000]);
    let source = ddp::Source::Region { memory: memory.clone(), offset: 0, len: 5000 };
    let to = ddp::TaggedOffset(0);
    let message =
        ddp::Message::Tagged { stag: STAG, to, rsvd_ulp: 0, source, cookie: Cookie::user(1) };
    host.post(session, message).expect("room");
    host.send_messages();
    memory.write(0, &[4; 5000]);
    assert_eq!(host.in_flight.len(), 4);
    for flying in host.in_flight.clone() {
        assert_eq!(host.rewrite(flying.message), flying.bytes);
    }
    let kept = |host: &Host| host.upper.slot(session).map(|slot| slot.stats().session.tx.kept);
    let bytes: usize = host.in_flight.iter().map(|flying| flying.bytes.len()).sum();
    let wanted = if memory.is_stable() { 0 } else { bytes as u64 };
    assert_eq!(kept(&host), Some(wanted));
    host.acknowledge_all();
    assert_eq!(kept(&host), Some(0));
    assert_eq!(
        host.ddp_events(session),
        [ddp::Event::Sent { cookie: Cookie::user(1), messages: 1 }]
    );
}
