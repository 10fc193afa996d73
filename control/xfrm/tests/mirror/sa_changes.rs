//! SAs that are added, replaced and removed, as seen in monitor messages and in dumps.

use ipsec::policy::Direction;
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::state::FlushMessage;
use netlink_packet_xfrm::*;
use xfrm::{Event, SaId, SequenceState};

use crate::kernel::*;
use crate::sas::*;

#[test]
fn sa_is_added_and_removed_with_its_policy() {
    let (mut kernel, mut mirror, events) = synced_mirror([], [outbound(300, 1), inbound(400, 1)]);
    assert!(added_sas(&events).is_empty() && refusals(&events).is_empty());
    tunnel(1, 1).into_iter().for_each(|policy| kernel.set_policy(policy));
    let first = added_sas(&kernel.run(&mut mirror));
    assert_eq!(first.len(), 2);
    kernel.flush_policies();
    let events = kernel.run(&mut mirror);
    let mut removed_ids = removed_ids(&events);
    removed_ids.sort();
    let mut ids: Vec<SaId> = first.iter().map(|added| added.id).collect();
    ids.sort();
    assert_eq!(removed_ids, ids);
    // SAs are removed before the policies change.
    assert!(matches!(events.last(), Some(Event::Policies { .. })));
    // When the policies are added again, the SAs get new identifiers, and no sequence number is used twice.
    tunnel(1, 1).into_iter().for_each(|policy| kernel.set_policy(policy));
    let second = added_sas(&kernel.run(&mut mirror));
    let out = second.iter().find(|added| added.direction == Direction::Out).unwrap();
    assert!(first.iter().all(|added| added.id != out.id));
    assert_eq!(out.sequence, SequenceState::Outbound { first: 1001, numbers: 1000 });
}

// RFC 7296 §2.8: a rekey by strongSwan, and simultaneous rekeys, with one of the SAs deleted.
#[test]
fn sa_is_replaced_after_successor_can_send() {
    let asks_for = |spi| {
        let mut of = template("192.0.2.1", "192.0.2.2", 1, XFRM_MODE_TUNNEL);
        of.id.spi = spi;
        protect(policy(XFRM_POLICY_OUT, "10.1.0.0/16", "10.2.0.0/16"), of)
    };
    let (mut kernel, mut mirror, events) = synced_mirror([asks_for(300)], [outbound(300, 1)]);
    let first = added_sas(&events)[0].id;
    kernel.add_sa(outbound(301, 1));
    assert!(kernel.run(&mut mirror).is_empty(), "not yet");
    kernel.send(XfrmMessage::UpdatePolicy(asks_for(301)));
    let events = kernel.run(&mut mirror);
    let [next] = &added_sas(&events)[..] else { panic!("{events:?}") };
    assert_eq!((next.parameters.spi, removed_ids(&events)), (301, Vec::new()));
    kernel.send(XfrmMessage::UpdatePolicy(asks_for(300)));
    let events = kernel.run(&mut mirror);
    assert!(matches!(&events[..], [Event::SelectSa { id }] if *id == first), "{events:?}");
    // A repeated update causes no event.
    kernel.send(XfrmMessage::UpdatePolicy(asks_for(300)));
    assert!(kernel.run(&mut mirror).is_empty());
    kernel.delete_sa(0);
    assert_eq!(removed_ids(&kernel.run(&mut mirror)), [next.id]);
}

// MOBIKE: the daemon deletes an SA and adds it again with sequence numbers that it has read before.
#[test]
fn readded_sa_continues_sequence_numbers() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [outbound(300, 1)]);
    let SequenceState::Outbound { first, numbers } = added_sas(&events)[0].sequence else {
        panic!()
    };
    kernel.delete_sa(0);
    kernel.run(&mut mirror);
    kernel.add_sa(outbound(300, 1));
    let events = kernel.run(&mut mirror);
    let SequenceState::Outbound { first: next, .. } = added_sas(&events)[0].sequence else {
        panic!()
    };
    assert_eq!(next, first + numbers);
}

// MOBIKE: strongSwan removes the policies before the SA, then adds the SA again with the peer's new address.
#[test]
fn outbound_sa_moved_between_policies_reuses_no_sequence_number() {
    for peer in ["192.0.2.2", "192.0.2.3"] {
        let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [outbound(300, 1)]);
        let SequenceState::Outbound { first, numbers } = added_sas(&events)[0].sequence else {
            panic!()
        };
        kernel.flush_policies();
        assert_eq!(removed_ids(&kernel.run(&mut mirror)).len(), 1);
        kernel.delete_sa(0);
        kernel.run(&mut mirror);
        kernel.add_sa(sa("192.0.2.1", peer, 300, 1));
        let there = template("192.0.2.1", peer, 1, XFRM_MODE_TUNNEL);
        let policy = policy(XFRM_POLICY_OUT, "10.1.0.0/16", "10.200.0.0/16");
        kernel.set_policy(protect(policy, there));
        let events = kernel.run(&mut mirror);
        let SequenceState::Outbound { first: next, .. } = added_sas(&events)[0].sequence else {
            panic!()
        };
        assert_eq!(next, first + numbers, "{peer}");
    }
}

#[test]
fn inbound_spi_is_unique() {
    let other = sa("192.0.2.2", "192.0.2.9", 400, 2);
    let mut back = template("192.0.2.2", "192.0.2.9", 2, XFRM_MODE_TUNNEL);
    back.id.spi = 0;
    let second = protect(policy(XFRM_POLICY_IN, "10.7.0.0/16", "10.8.0.0/16"), back);
    let policies = tunnel(1, 1).into_iter().chain([second]);
    let (mut kernel, mut mirror, events) = synced_mirror(policies, [inbound(400, 1), other]);
    assert_eq!(added_sas(&events).len(), 1);
    assert!(refusals(&events)[0].contains("another inbound SA has its SPI"));
    // When the first SA is deleted, the second SA is added.
    kernel.delete_sa(1);
    let events = kernel.run(&mut mirror);
    assert_eq!((removed_ids(&events).len(), added_sas(&events).len()), (1, 1));
    // Outbound SPIs are chosen by the peer: an equal inbound SPI is not a conflict.
    let (_, _, events) = synced_mirror(tunnel(1, 1), [inbound(400, 1), outbound(400, 1)]);
    assert_eq!(added_sas(&events).len(), 2);
}

#[test]
fn serving_sa_keeps_its_spi_against_older_sa() {
    let older = sa("192.0.2.2", "192.0.2.9", 400, 2);
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [older, inbound(400, 1)]);
    assert_eq!(added_sas(&events).len(), 1);
    let back = template("192.0.2.2", "192.0.2.9", 2, XFRM_MODE_TUNNEL);
    kernel.set_policy(protect(policy(XFRM_POLICY_IN, "10.7.0.0/16", "10.8.0.0/16"), back));
    let events = kernel.run(&mut mirror);
    assert!(added_sas(&events).is_empty() && removed_ids(&events).is_empty());
    assert_eq!(refusals(&events).len(), 1);
}

#[test]
fn unchanged_sa_gives_no_event() {
    let (mut kernel, mut mirror, _) =
        synced_mirror(tunnel(1, 1), [outbound(300, 1), inbound(400, 1)]);
    kernel.send(XfrmMessage::AddSa(inbound(400, 1)));
    kernel.send(XfrmMessage::UpdateSa(inbound(400, 1)));
    kernel.send(XfrmMessage::UpdateSa(outbound(300, 1)));
    mirror.request_dump();
    assert!(kernel.run(&mut mirror).is_empty());
    // A repeated refusal is not reported again.
    let refused = sa_with_keys([encryption("cbc(aes)", 16)]);
    kernel.add_sa(refused.clone());
    assert_eq!(refusals(&kernel.run(&mut mirror)).len(), 1);
    kernel.send(XfrmMessage::UpdateSa(refused));
    mirror.request_dump();
    assert!(kernel.run(&mut mirror).is_empty());
}

#[test]
fn changed_encapsulation_replaces_sa_and_continues_numbers() {
    let udp = |dport| {
        XfrmAttrs::EncapsulationTemplate(EncapTmpl {
            encap_type: UDP_ENCAP_ESPINUDP,
            encap_sport: 4500,
            encap_dport: dport,
            encap_oa: Address::default(),
        })
    };
    let (mut kernel, mut mirror, events) =
        synced_mirror(tunnel(1, 1), [with(outbound(300, 1), udp(1))]);
    let before = &added_sas(&events)[0];
    // An update contains the sequence numbers of the daemon's request, not the kernel's.
    let update = with(outbound(300, 1), udp(2));
    kernel.send(XfrmMessage::UpdateSa(update));
    let events = kernel.run(&mut mirror);
    assert_eq!(removed_ids(&events), [before.id]);
    let [after] = &added_sas(&events)[..] else { panic!("{events:?}") };
    assert_eq!(after.parameters.encapsulation.unwrap().destination, 2);
    assert_eq!(after.sequence, SequenceState::Outbound { first: 1001, numbers: 1000 });
    assert_eq!(kernel.oseq(300), 2000);
}

#[test]
fn replaced_inbound_sa_keeps_highest_received_sequence() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [inbound(400, 1)]);
    mirror.report_usage(added_sas(&events)[0].id, 5, 500, 77, 2000);
    let mut update = inbound(400, 1);
    update.user_sa_info.flags |= XFRM_STATE_NOECN;
    kernel.send(XfrmMessage::UpdateSa(update));
    let events = kernel.run(&mut mirror);
    assert_eq!(
        added_sas(&events)[0].sequence,
        SequenceState::Inbound { highest: 77, window: 1024 }
    );
}

#[test]
fn new_keys_replace_sa_on_add_but_not_on_update() {
    let keyed = |byte| {
        let mut message = bare_sa("192.0.2.2", "192.0.2.1", 400, 1);
        message.nlas.push(aead("rfc4106(gcm(aes))", vec![byte; 20], 128));
        message.nlas.push(XfrmAttrs::ReplayState(Replay { oseq: 0, seq: 5, bitmap: 0 }));
        message
    };
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [keyed(1)]);
    let first = added_sas(&events)[0].id;
    mirror.report_usage(first, 9, 900, 90, 2000);
    kernel.run(&mut mirror);
    kernel.send(XfrmMessage::UpdateSa(keyed(2)));
    assert!(kernel.run(&mut mirror).is_empty());
    // The deletion message is lost, so the addition replaces the SA. The sequence numbers restart with the new keys.
    kernel.send(XfrmMessage::AddSa(keyed(2)));
    let events = kernel.run(&mut mirror);
    assert_eq!(removed_ids(&events), [first]);
    assert_eq!(added_sas(&events)[0].sequence, SequenceState::Inbound { highest: 5, window: 1024 });
}

#[test]
fn deletion_flush_and_hard_expiry_remove_sas() {
    let sas = [inbound(400, 1), inbound(401, 1), inbound(402, 1), inbound(403, 1)];
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), sas);
    let ids: Vec<SaId> = added_sas(&events).iter().map(|added| added.id).collect();
    kernel.delete_sa(3);
    assert_eq!(removed_ids(&kernel.run(&mut mirror)), [ids[0]]);
    let state = inbound(401, 1).user_sa_info;
    let expire = |hard| XfrmMessage::Expire(ExpireMessage { expire: UserExpire { state, hard } });
    kernel.send(expire(0));
    assert!(kernel.run(&mut mirror).is_empty());
    kernel.send(expire(1));
    assert_eq!(removed_ids(&kernel.run(&mut mirror)), [ids[1]]);
    kernel.send(XfrmMessage::FlushSa(FlushMessage { protocol: IPPROTO_AH }));
    assert!(kernel.run(&mut mirror).is_empty());
    kernel.flush_sas();
    assert_eq!(removed_ids(&kernel.run(&mut mirror)).len(), 2);
}

#[test]
fn dump_adds_missed_and_removes_deleted_sas() {
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), [inbound(400, 1)]);
    kernel.delete_sa(0);
    kernel.add_sa(inbound(401, 1));
    kernel.socket.clear();
    mirror.request_dump();
    let now = kernel.run(&mut mirror);
    assert_eq!(removed_ids(&now), [added_sas(&events)[0].id]);
    assert_eq!(added_sas(&now)[0].parameters.spi, 401);
}

#[test]
fn sa_readded_during_dump_is_kept() {
    let (mut kernel, mut mirror, _) =
        synced_mirror(tunnel(1, 1), [inbound(400, 1), inbound(401, 1)]);
    kernel.chunk = 1;
    mirror.request_dump();
    kernel.take_requests();
    while kernel.requests.last() != Some(&ModelRequest::DumpSas) {
        match mirror.poll_transmit() {
            Some(request) => kernel.handle_request(&request),
            None => match kernel.socket.pop_front() {
                Some(datagram) => mirror.input(&datagram),
                None => kernel.list_entries(),
            },
        }
    }
    // The deletion message is lost. The SA is deleted before the dump reaches it, and added again, so the dump does not
    // list it.
    mirror.input(&kernel.socket.pop_front().unwrap());
    kernel.delete_sa(1);
    kernel.socket.clear();
    kernel.add_sa(inbound(400, 1));
    assert!(kernel.run(&mut mirror).is_empty());
    assert_eq!(mirror.sas().filter(|info| info.id.is_some()).count(), 2);
}

#[test]
fn monitor_message_with_dump_sequence_is_not_part_of_dump() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    mirror.request_dump();
    kernel.take_requests();
    let mut last = 0;
    while kernel.requests.last() != Some(&ModelRequest::DumpSas) {
        match mirror.poll_transmit() {
            Some(request) => {
                last = u32::from_ne_bytes(request[8..12].try_into().unwrap());
                kernel.handle_request(&request);
            }
            None => mirror.input(&kernel.socket.pop_front().unwrap()),
        }
    }
    // The message was sent before the dump, which does not list the SA.
    let stale = datagram(XfrmMessage::AddSa(inbound(400, 1)), 0, last);
    kernel.socket.push_front(stale);
    kernel.run(&mut mirror);
    assert_eq!(mirror.sas().count(), 0);
}

#[test]
fn the_newest_sa_is_added_last() {
    let sas = [outbound(300, 1), outbound(301, 1), outbound(302, 1)];
    let (_, _, events) = synced_mirror(tunnel(1, 1), sas);
    let spis: Vec<u32> = added_sas(&events).iter().map(|added| added.parameters.spi).collect();
    assert_eq!(spis, [300, 301, 302]);
}

#[test]
fn outbound_sa_seen_in_update_needs_dump_before_use() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    // The SA has sent 5000 packets before. The update message does not contain this number.
    kernel.add_sa(with_replay(outbound(300, 1), 5000, 0));
    kernel.socket.clear();
    kernel.send(XfrmMessage::UpdateSa(outbound(300, 1)));
    kernel.send(XfrmMessage::UpdateSa(outbound(300, 1)));
    let events = kernel.run(&mut mirror);
    let sequence = added_sas(&events)[0].sequence;
    assert_eq!(sequence, SequenceState::Outbound { first: 5001, numbers: 1000 });
    // An inbound SA is used at once.
    kernel.take_requests();
    kernel.send(XfrmMessage::UpdateSa(inbound(400, 1)));
    assert_eq!(added_sas(&kernel.run(&mut mirror)).len(), 1);
    assert_eq!(kernel.requests, []);
}

#[test]
fn sas_beyond_limit_are_omitted_and_counted() {
    let sas = (0..4098).map(|n| inbound(1000 + n, 1));
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), sas);
    assert_eq!((added_sas(&events).len(), warning_count(&events)), (4096, 1));
    assert_eq!(mirror.counters().sas_left_out, 2);
    kernel.delete_sa(0);
    kernel.delete_sa(0);
    kernel.run(&mut mirror);
    assert_eq!((mirror.sas().count(), mirror.counters().sas_left_out), (4096, 0));
}
