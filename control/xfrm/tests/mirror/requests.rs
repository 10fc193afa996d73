//! Requests of the mirror to the kernel.

use ipsec::guard::Protection;
use ipsec::policy::Flow;
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::*;
use xfrm::{Event, Mirror, SaId, SequenceState};

use crate::kernel::*;

/// Returns the identifiers of the added SAs.
fn added_ids(events: &[Event]) -> Vec<SaId> {
    let name = |event: &Event| match event {
        Event::AddSa { id, .. } => Some(*id),
        _ => None,
    };
    events.iter().filter_map(name).collect()
}

fn flow(local: &str, remote: &str) -> Flow {
    let ports = Some((1000, 4420));
    Flow { local: ip(local), remote: ip(remote), protocol: 6, ports, icmp: None, ike: false }
}

fn acquires(kernel: &mut ModelKernel) -> Vec<AcquireMessage> {
    let acquire = |request| match request {
        ModelRequest::Other(message) => match *message {
            XfrmMessage::Acquire(message) => Some(message),
            _ => None,
        },
        _ => None,
    };
    kernel.take_requests().into_iter().filter_map(acquire).collect()
}

/// Returns the last XFRM_MSG_NEWAE.
fn last_state(kernel: &ModelKernel) -> NewAsyncEventMessage {
    let state = |request: &ModelRequest| match request {
        ModelRequest::Other(message) => match &**message {
            XfrmMessage::NewAsyncEvent(message) => Some(message.clone()),
            _ => None,
        },
        _ => None,
    };
    kernel.requests.iter().rev().find_map(state).expect("a request about the state of an SA")
}

#[test]
fn acquire_has_selector_of_policy_and_flow() {
    let (mut kernel, mut mirror, _) =
        synced_mirror(tunnel(1, 1).into_iter().chain(tunnel(2, 1)), []);
    let protection = mirror.protections()[0].protection;
    mirror.acquire(protection, &flow("10.2.0.9", "10.200.0.7"));
    kernel.run(&mut mirror);
    let [message] = &acquires(&mut kernel)[..] else { panic!() };
    let acquire = &message.acquire;
    // The acquire message contains the policy that matches the flow; the protection has two policies.
    let (_, policy) = kernel
        .policies
        .iter()
        .find(|(_, policy)| {
            let info = &policy.user_policy_info;
            info.direction == XFRM_POLICY_OUT
                && info.selector.saddr == Address::from_ip(&ip("10.2.0.0"))
        })
        .unwrap();
    assert_eq!(acquire.policy, policy.user_policy_info);
    let selector = &acquire.selector;
    assert_eq!(selector.saddr, Address::from_ip(&ip("10.2.0.9")));
    assert_eq!(selector.daddr, Address::from_ip(&ip("10.200.0.7")));
    assert_eq!((selector.prefixlen_s, selector.prefixlen_d, selector.family), (32, 32, AF_INET));
    assert_eq!((selector.proto, selector.sport, selector.dport), (6, 1000, 4420));
    assert_eq!((selector.sport_mask, selector.dport_mask), (u16::MAX, u16::MAX));
    assert_eq!((acquire.id.spi, acquire.id.proto), (0, IPPROTO_ESP));
    assert_eq!(acquire.id.daddr, Address::from_ip(&ip("192.0.2.2")));
    assert_eq!(acquire.saddr, Address::from_ip(&ip("192.0.2.1")));
    assert_eq!(acquire.ealgos, u32::MAX);
    assert!(policy.nlas.iter().all(|nla| message.nlas.contains(nla)));
    assert!(message.nlas.contains(&XfrmAttrs::PolicyType(UserPolicyType::default())));
}

#[test]
fn transport_mode_acquire_has_flow_addresses() {
    let hosts = policy(XFRM_POLICY_OUT, "192.0.2.1/32", "192.0.2.2/32");
    let template = template("0.0.0.0", "0.0.0.0", 5, XFRM_MODE_TRANSPORT);
    let (mut kernel, mut mirror, _) = synced_mirror([protect(hosts, template)], []);
    mirror.acquire(Protection(0), &flow("192.0.2.1", "192.0.2.2"));
    kernel.run(&mut mirror);
    let message = acquires(&mut kernel).remove(0);
    assert_eq!(message.acquire.id.daddr, Address::from_ip(&ip("192.0.2.2")));
    let Some(XfrmAttrs::Template(templates)) =
        message.nlas.iter().find(|nla| matches!(nla, XfrmAttrs::Template(_)))
    else {
        panic!()
    };
    assert_eq!((templates[0].saddr, templates[0].reqid), (message.acquire.saddr, 5));
}

#[test]
fn unprotected_flow_sends_no_acquire_and_acquires_are_bounded() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    mirror.acquire(Protection(0), &flow("10.9.0.9", "10.200.0.7"));
    mirror.acquire(Protection(9), &flow("10.1.0.9", "10.200.0.7"));
    kernel.run(&mut mirror);
    assert!(acquires(&mut kernel).is_empty());
    (0..70).for_each(|_| mirror.acquire(Protection(0), &flow("10.1.0.9", "10.200.0.7")));
    kernel.run(&mut mirror);
    assert_eq!((acquires(&mut kernel).len(), mirror.counters().acquires_lost), (64, 6));
}

#[test]
fn outbound_sa_is_added_after_sequence_reservation() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.add_sa(with_replay(outbound(300, 1), 41, 0));
    mirror.input(&kernel.socket.pop_front().unwrap());
    assert!(mirror.poll_event().is_none());
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    // The kernel has recorded the numbers before the data plane has them.
    assert_eq!(kernel.oseq(300), 1041);
    assert!(mirror.poll_event().is_none());
    let events = kernel.run(&mut mirror);
    let [Event::AddSa { sequence, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*sequence, SequenceState::Outbound { first: 42, numbers: 1000 });
}

#[test]
fn sequence_numbers_grow_after_kernel_acknowledgement() {
    let sa = with_esn(outbound(300, 1), u64::from(u32::MAX), 0, 64);
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [sa]);
    let id = added_ids(&events)[0];
    mirror.reserve_sequence(id);
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    // A second reservation is not requested while one is pending.
    mirror.reserve_sequence(id);
    assert!(mirror.poll_transmit().is_none() && mirror.poll_event().is_none());
    let last = u64::from(u32::MAX) + 2000;
    assert_eq!(kernel.oseq(300), last);
    let events = kernel.run(&mut mirror);
    assert!(matches!(events[..], [Event::Reserved { id: of, last: l }] if of == id && l == last));
}

#[test]
fn restarted_mirror_starts_after_reserved_sequence_numbers() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [outbound(300, 1)]);
    mirror.reserve_sequence(added_ids(&events)[0]);
    kernel.run(&mut mirror);
    let mut restarted = Mirror::new(CONFIG);
    restarted.request_dump();
    let events = kernel.run(&mut restarted);
    let sequence = events.iter().find_map(|event| match event {
        Event::AddSa { sequence, .. } => Some(*sequence),
        _ => None,
    });
    assert_eq!(sequence, Some(SequenceState::Outbound { first: 2001, numbers: 1000 }));
}

#[test]
fn refused_reservation_uses_no_sequence_number() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.refuse_async_events = EINVAL;
    kernel.add_sa(outbound(300, 1));
    let events = kernel.run(&mut mirror);
    assert!(matches!(&events[..], [Event::Warning(text)] if text.contains("the SA is not added")));
    let info = mirror.sas().next().unwrap();
    assert!(info.id.is_none() && info.refused.is_some());
    // The next dump retries the reservation.
    kernel.refuse_async_events = 0;
    mirror.request_dump();
    let events = kernel.run(&mut mirror);
    let [id] = added_ids(&events)[..] else { panic!("{events:?}") };
    kernel.refuse_async_events = ESRCH;
    mirror.reserve_sequence(id);
    let events = kernel.run(&mut mirror);
    assert!(matches!(&events[..], [Event::Warning(text)] if text.contains("no more are reserved")));
}

#[test]
fn refused_dump_is_repeated_on_retry() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.add_sa(outbound(300, 1));
    kernel.socket.clear();
    kernel.refuse_dumps = ENOMEM;
    mirror.request_dump();
    let events = kernel.run(&mut mirror);
    assert!(matches!(&events[..], [Event::Warning(text)] if text.contains("does not list")));
    mirror.retry();
    assert_eq!(kernel.run(&mut mirror).len(), 0, "reported once");
    kernel.refuse_dumps = 0;
    assert_eq!(kernel.run(&mut mirror).len(), 0, "no dump without a call of `retry`");
    mirror.retry();
    assert_eq!(added_ids(&kernel.run(&mut mirror)).len(), 1);
    kernel.take_requests();
    mirror.retry();
    kernel.run(&mut mirror);
    assert!(kernel.take_requests().is_empty(), "no request is pending");
}

#[test]
fn reservation_is_repeated_after_lost_acknowledgement() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.add_sa(outbound(300, 1));
    mirror.input(&kernel.socket.pop_front().unwrap());
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    kernel.socket.clear();
    mirror.request_dump();
    assert_eq!(added_ids(&kernel.run(&mut mirror)).len(), 1);
    assert_eq!(kernel.oseq(300), 1000);
}

#[test]
fn foreign_acknowledgements_are_ignored() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.add_sa(outbound(300, 1));
    mirror.input(&kernel.socket.pop_front().unwrap());
    let request = mirror.poll_transmit().unwrap();
    let sequence = u32::from_ne_bytes(request[8..12].try_into().unwrap());
    mirror.input(&numeric_message(2, 0, sequence + 1, 0));
    assert!(mirror.poll_event().is_none());
    mirror.input(&numeric_message(2, 0, sequence, 0));
    assert!(matches!(mirror.poll_event(), Some(Event::AddSa { .. })));
}

#[test]
fn usage_is_reported_with_reserved_sequence_number() {
    let mut sa = with_esn(outbound(300, 1), 5, 0, 128);
    (sa.user_sa_info.lifetime_cur.bytes, sa.user_sa_info.lifetime_cur.packets) = (1000, 10);
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [sa]);
    let id = added_ids(&events)[0];
    mirror.report_usage(id, 1, 100, 6, 7777);
    mirror.report_usage(id, 2, 300, 7, 8888);
    mirror.reserve_sequence(id);
    kernel.take_requests();
    // The recorded number does not decrease with either of the two requests.
    while let Some(request) = mirror.poll_transmit() {
        kernel.handle_request(&request);
        assert_eq!(kernel.oseq(300), 2005);
    }
    assert_eq!(kernel.requests.len(), 2);
    kernel.run(&mut mirror);
    let (_, sa) = &kernel.sas[0];
    let lifetime = Lifetime { bytes: 1300, packets: 12, add_time: 1000, use_time: 7777 };
    assert_eq!(sa.user_sa_info.lifetime_cur, lifetime);
    mirror.report_usage(id, 3, 400, 8, 9999);
    kernel.run(&mut mirror);
    let state = last_state(&kernel);
    let Some(XfrmAttrs::ReplayStateEsn(replay)) = state.nlas.first() else { panic!("{state:?}") };
    assert_eq!((replay.oseq, replay.bmp_len, replay.replay_window), (2005, 4, 128));
    assert_eq!(replay.bmp, [0; 4]);
    // When an SA is replaced, its use is neither lost nor counted twice.
    let mut update = kernel.sas[0].1.clone();
    update.user_sa_info.flags |= XFRM_STATE_NOECN;
    kernel.send(XfrmMessage::UpdateSa(update));
    let id = added_ids(&kernel.run(&mut mirror))[0];
    mirror.report_usage(id, 1, 50, 2006, 9999);
    kernel.run(&mut mirror);
    let current = kernel.sas[0].1.user_sa_info.lifetime_cur;
    assert_eq!((current.bytes, current.packets, current.use_time), (1450, 14, 7777));
}

#[test]
fn state_update_keeps_unchanged_kernel_values() {
    let (mut kernel, mut mirror, _) =
        synced_mirror(tunnel(1, 1), [with_esn(outbound(300, 1), 5, 0, 128)]);
    // The message of an update contains the times and the window of the daemon's request, not the kernel's.
    let mut update = with_esn(outbound(300, 1), 0, 0, 64);
    update.user_sa_info.lifetime_cur.add_time = 5000;
    kernel.send(XfrmMessage::UpdateSa(update));
    let events = kernel.run(&mut mirror);
    mirror.report_usage(added_ids(&events)[0], 1, 1, 1, 1);
    assert!(kernel.run(&mut mirror).is_empty());
    assert_eq!(kernel.oseq(300), 2005);
    assert_eq!(kernel.sas[0].1.user_sa_info.lifetime_cur.add_time, 1000);
}

#[test]
fn received_sequence_numbers_survive_restart() {
    let long = with_esn(inbound(400, 1), 0, 0, 64);
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [long, inbound(401, 1)]);
    let ids = added_ids(&events);
    let top = (3 << 32) + 9;
    mirror.report_usage(ids[0], 1, 1, top, 1);
    mirror.report_usage(ids[1], 1, 1, 70, 1);
    kernel.take_requests();
    kernel.run(&mut mirror);
    let XfrmAttrs::ReplayState(short) = last_state(&kernel).nlas[0].clone() else { panic!() };
    assert_eq!((short.oseq, short.seq, short.bitmap), (0, 70, u32::MAX));
    let mut restarted = Mirror::new(CONFIG);
    restarted.request_dump();
    let sequences = kernel.run(&mut restarted).into_iter().filter_map(|event| match event {
        Event::AddSa { sequence, .. } => Some(sequence),
        _ => None,
    });
    let expected = [top, 70].map(|top| SequenceState::Inbound { highest: top, window: 1024 });
    assert_eq!(sequences.collect::<Vec<_>>(), expected);
}

#[test]
fn lifetime_expiry_is_reported_once_and_hard_expiry_deletes_the_sa() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [outbound(300, 1)]);
    let id = added_ids(&events)[0];
    kernel.take_requests();
    mirror.expire(id, false);
    mirror.expire(id, false);
    assert!(kernel.run(&mut mirror).is_empty());
    assert_eq!(kernel.take_requests().len(), 1);
    mirror.expire(id, true);
    mirror.expire(id, true);
    mirror.expire(id, false);
    let events = kernel.run(&mut mirror);
    assert!(matches!(events[..], [Event::RemoveSa { id: of }] if of == id));
    let requests = kernel.take_requests();
    let [ModelRequest::Other(message)] = &requests[..] else { panic!("{requests:?}") };
    let XfrmMessage::Expire(ExpireMessage { expire }) = &**message else { panic!() };
    assert_eq!((expire.hard, expire.state.id.spi, expire.state.family), (1, 300, AF_INET));
    assert!(kernel.sas.is_empty());
}

#[test]
fn renewed_lifetime_can_expire_again() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [outbound(300, 1)]);
    mirror.expire(added_ids(&events)[0], false);
    kernel.run(&mut mirror);
    let mut update = outbound(300, 1);
    update.user_sa_info.lifetime_cfg.soft_byte_limit = 1 << 40;
    kernel.send(XfrmMessage::UpdateSa(update));
    let id = added_ids(&kernel.run(&mut mirror))[0];
    kernel.take_requests();
    mirror.expire(id, false);
    kernel.run(&mut mirror);
    assert_eq!(kernel.requests.len(), 1);
}

#[test]
fn ids_of_removed_sas_are_ignored() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [outbound(300, 1)]);
    let id = added_ids(&events)[0];
    mirror.reserve_sequence(id);
    mirror.report_usage(id, 1, 1, 1, 1);
    mirror.expire(id, true);
    kernel.delete_sa(0);
    mirror.input(&kernel.socket.pop_front().unwrap());
    assert!(matches!(mirror.poll_event(), Some(Event::RemoveSa { .. })));
    // After the removal neither queued nor new requests of the SA are sent.
    mirror.reserve_sequence(id);
    mirror.report_usage(id, 1, 1, 1, 1);
    mirror.expire(id, true);
    assert!(mirror.poll_transmit().is_none());
}
