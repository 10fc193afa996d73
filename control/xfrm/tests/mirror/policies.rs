//! Policies: presence, order and translation in the data plane's list.

use ipsec::policy::{Action, Direction, Policy, Unmatched};
use netlink_packet_core::NLM_F_DUMP_INTR;
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::policy::{DefaultMessage, FlushMessage, ModifyMessage};
use netlink_packet_xfrm::*;
use xfrm::{Event, RefusedKind};

use crate::kernel::*;

/// Mirrors one policy. Returns its entry in the data plane's list, and the reasons of refusals.
fn mirror_one(message: ModifyMessage) -> (Option<Policy<ipsec::guard::Protection>>, Vec<String>) {
    let (_, _, events) = synced_mirror([message], []);
    let mut list = list(&events).0;
    assert!(list.len() <= 1);
    (list.pop(), refusals(&events))
}

/// Asserts that a policy is refused, that the reason contains `words`, and that its packets are dropped.
fn assert_dropped(message: ModifyMessage, words: &str) -> Policy<ipsec::guard::Protection> {
    let (policy, reasons) = mirror_one(message);
    let policy = policy.expect("in the list");
    assert_eq!(policy.action, Action::Discard);
    assert!(reasons.len() == 1 && reasons[0].contains(words), "{reasons:?}");
    policy
}

/// Asserts that a policy is omitted from the list, and that the reason contains `words`.
fn assert_skipped(message: ModifyMessage, words: &str) {
    let (policy, reasons) = mirror_one(message);
    assert_eq!(policy, None);
    assert!(reasons.len() == 1 && reasons[0].contains(words), "{reasons:?}");
}

fn outbound_policy() -> ModifyMessage {
    policy(XFRM_POLICY_OUT, "10.1.0.0/16", "10.2.0.0/16")
}

fn tunnel_template() -> UserTemplate {
    template("192.0.2.1", "192.0.2.2", 7, XFRM_MODE_TUNNEL)
}

fn with_ports(mut message: ModifyMessage, proto: u8, sport: u16, dport: u16) -> ModifyMessage {
    let selector = &mut message.user_policy_info.selector;
    selector.proto = proto;
    (selector.sport, selector.sport_mask) = (sport, u16::MAX);
    (selector.dport, selector.dport_mask) = (dport, u16::MAX);
    message
}

#[test]
fn no_event_before_first_dump_is_complete() {
    let mut kernel = ModelKernel::new();
    kernel.chunk = 1;
    tunnel(1, 1).into_iter().for_each(|policy| kernel.set_policy(policy));
    kernel.add_sa(inbound(256, 1));
    let mut mirror = xfrm::Mirror::new(CONFIG);
    mirror.request_dump();
    // Messages of the monitor arrive before and during the dump.
    while !mirror.is_synced() {
        assert!(mirror.poll_event().is_none());
        while let Some(request) = mirror.poll_transmit() {
            kernel.handle_request(&request);
        }
        match kernel.socket.pop_front() {
            Some(datagram) => mirror.input(&datagram),
            None => kernel.list_entries(),
        }
    }
    assert!(matches!(mirror.poll_event(), Some(Event::Policies { .. })));
    assert_eq!(
        kernel.requests,
        [ModelRequest::Defaults, ModelRequest::DumpPolicies, ModelRequest::DumpSas]
    );
}

#[test]
fn empty_kernel_bypasses_all() {
    let (_, _, events) = synced_mirror([], []);
    assert_eq!(list(&events), (vec![], Unmatched::PASS, vec![]));
    assert_eq!(events.len(), 1);
}

#[test]
fn unmatched_packets_follow_kernel_defaults() {
    let mut kernel = ModelKernel::new();
    kernel.defaults = UserPolicyDefault {
        input: XFRM_USERPOLICY_BLOCK,
        forward: XFRM_USERPOLICY_BLOCK,
        output: XFRM_USERPOLICY_ACCEPT,
    };
    let mut mirror = xfrm::Mirror::new(CONFIG);
    mirror.request_dump();
    let events = kernel.run(&mut mirror);
    assert_eq!(list(&events).1, Unmatched { inbound: false, outbound: true });
    // The monitor sends new default policies.
    let user_policy = UserPolicyDefault { input: 2, forward: 2, output: 1 };
    kernel.send(XfrmMessage::GetPolicyDefault(DefaultMessage { user_policy }));
    let events = kernel.run(&mut mirror);
    assert_eq!(list(&events).1, Unmatched { inbound: true, outbound: false });
}

#[test]
fn kernel_without_defaults_bypasses_unmatched_packets() {
    let mut kernel = ModelKernel { old: true, ..ModelKernel::new() };
    let mut mirror = xfrm::Mirror::new(CONFIG);
    mirror.request_dump();
    let events = kernel.run(&mut mirror);
    assert!(mirror.is_synced());
    assert_eq!(list(&events).1, Unmatched::PASS);
}

#[test]
fn actions_and_selectors_match_kernel_policies() {
    let mut block = policy(XFRM_POLICY_IN, "10.3.0.0/16", "10.4.0.1/32");
    block.user_policy_info.action = XFRM_POLICY_BLOCK;
    let block = with_ports(block, IPPROTO_TCP, 1000, 2000);
    let (_, _, events) = synced_mirror(
        [block, outbound_policy(), protect(outbound_policy_v6(), tunnel_template())],
        [],
    );
    let (list, _, protections) = list(&events);
    let [block, bypass, protect] = &list[..] else { panic!("{list:?}") };
    assert_eq!(block.direction, Some(Direction::In));
    assert_eq!(block.action, Action::Discard);
    // For an inbound policy the source is the peer.
    assert_eq!(block.selector.remote, "10.3.0.0/16".parse().unwrap());
    assert_eq!(block.selector.local, "10.4.0.1/32".parse().unwrap());
    assert_eq!(block.selector.protocol, Some(6));
    assert_eq!(
        (&block.selector.remote_ports, &block.selector.local_ports),
        (&(1000..=1000), &(2000..=2000))
    );
    assert_eq!(bypass.direction, Some(Direction::Out));
    assert_eq!(bypass.action, Action::Bypass);
    assert_eq!(bypass.selector.local, "10.1.0.0/16".parse().unwrap());
    assert_eq!(bypass.selector.remote, "10.2.0.0/16".parse().unwrap());
    assert_eq!(bypass.selector.protocol, None);
    assert_eq!(bypass.selector.local_ports, 0..=65535);
    // IPv6 packets are protected by a tunnel over IPv4.
    assert_eq!(protect.action, Action::Protect(protections[0].protection));
    assert_eq!((protections[0].local, protections[0].remote), (ip("192.0.2.1"), ip("192.0.2.2")));
    assert_eq!(protections[0].to_string(), "tunnel 192.0.2.1 - 192.0.2.2, reqid 7");
}

fn outbound_policy_v6() -> ModifyMessage {
    policy(XFRM_POLICY_OUT, "2001:db8:1::/48", "2001:db8:2::/48")
}

#[test]
fn policies_are_ordered_by_priority_then_age() {
    let numbered = |n: u8, priority| {
        let mut message = policy(XFRM_POLICY_OUT, &format!("10.{n}.0.0/16"), "10.200.0.0/16");
        message.user_policy_info.priority = priority;
        message
    };
    let nets = |events: &[Event]| -> Vec<u8> {
        let second = |policy: &Policy<_>| match policy.selector.local.addr() {
            std::net::IpAddr::V4(address) => address.octets()[1],
            std::net::IpAddr::V6(_) => panic!(),
        };
        list(events).0.iter().map(second).collect()
    };
    let all = [numbered(1, 5), numbered(2, 5), numbered(3, 4), numbered(4, 5)];
    let (mut kernel, mut mirror, events) = synced_mirror(all, []);
    assert_eq!(nets(&events), [3, 1, 2, 4]);
    // A replaced policy becomes the newest, although it keeps its index.
    let mut again = numbered(1, 5);
    again.user_policy_info.action = XFRM_POLICY_BLOCK;
    kernel.set_policy(again);
    kernel.set_policy(numbered(5, 5));
    assert_eq!(nets(&kernel.run(&mut mirror)), [3, 2, 4, 1, 5]);
    // A repeated dump causes no event, and a new mirror has the same order.
    mirror.request_dump();
    assert!(kernel.run(&mut mirror).is_empty());
    let mut fresh = xfrm::Mirror::new(CONFIG);
    fresh.request_dump();
    assert_eq!(nets(&kernel.run(&mut fresh)), [3, 2, 4, 1, 5]);
}

#[test]
fn policy_changes_give_events_and_repeats_do_not() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.set_policy(outbound_policy());
    assert_eq!(list(&kernel.run(&mut mirror)).0.len(), 3);
    // A deletion message contains either the whole policy or only its index.
    kernel.delete_policy(0);
    assert_eq!(list(&kernel.run(&mut mirror)).0.len(), 2);
    let index = kernel.policies[0].1.user_policy_info.index;
    let mut by_index = netlink_packet_xfrm::policy::DelGetMessage::default();
    by_index.user_policy_id.index = index;
    kernel.send(XfrmMessage::DeletePolicy(by_index));
    assert_eq!(list(&kernel.run(&mut mirror)).0.len(), 1);
    // The model's kernel still has the policy, so the next dump lists it again.
    mirror.request_dump();
    assert_eq!(list(&kernel.run(&mut mirror)).0.len(), 2);
    // A soft expiry has no effect; a hard expiry removes the policy.
    let pol = kernel.policies[0].1.user_policy_info;
    kernel.send(XfrmMessage::PolicyExpire(expired(pol, 0)));
    assert!(kernel.run(&mut mirror).is_empty());
    kernel.send(XfrmMessage::PolicyExpire(expired(pol, 1)));
    assert_eq!(list(&kernel.run(&mut mirror)).0.len(), 1);
    // A flush of policies of another type has no effect.
    let nlas = vec![XfrmAttrs::PolicyType(UserPolicyType { ptype: 1, ..Default::default() })];
    kernel.send(XfrmMessage::FlushPolicy(FlushMessage { nlas }));
    assert!(kernel.run(&mut mirror).is_empty());
    kernel.flush_policies();
    assert!(list(&kernel.run(&mut mirror)).0.is_empty());
}

fn expired(pol: UserPolicyInfo, hard: u8) -> PolicyExpireMessage {
    PolicyExpireMessage { expire: UserPolicyExpire { pol, hard }, ..Default::default() }
}

#[test]
fn one_datagram_causes_one_policy_list() {
    let (mut kernel, mut mirror, _) = synced_mirror([], []);
    tunnel(1, 1).into_iter().chain(tunnel(2, 1)).for_each(|policy| kernel.set_policy(policy));
    let all: Vec<u8> = kernel.socket.drain(..).flatten().collect();
    kernel.socket.push_back(all);
    let events = kernel.run(&mut mirror);
    assert_eq!(events.len(), 1);
    assert_eq!(list(&events).0.len(), 4);
}

#[test]
fn forward_socket_and_sub_policies_are_ignored() {
    let mut forward = outbound_policy();
    forward.user_policy_info.direction = XFRM_POLICY_FWD;
    assert_eq!(mirror_one(forward), (None, vec![]));
    let mut of_socket = outbound_policy();
    of_socket.user_policy_info.index = 8 + 3 + 1;
    assert_eq!(mirror_one(of_socket), (None, vec![]));
    let mut sub = outbound_policy();
    let ptype = XFRM_POLICY_TYPE_SUB;
    sub.nlas.push(XfrmAttrs::PolicyType(UserPolicyType { ptype, ..Default::default() }));
    assert_eq!(mirror_one(sub), (None, vec![]));
}

#[test]
fn marked_interface_and_offload_policies_are_skipped_with_reason() {
    let mut marked = protect(outbound_policy(), tunnel_template());
    marked.nlas.push(XfrmAttrs::Mark(Mark { value: 1, mask: 0xff }));
    assert_skipped(marked, "mark 0x1/0xff");
    let mut of_interface = protect(outbound_policy(), tunnel_template());
    of_interface.nlas.push(XfrmAttrs::IfId(9));
    assert_skipped(of_interface, "XFRM interface 9");
    let mut of_device = outbound_policy();
    of_device.user_policy_info.selector.ifindex = 3;
    assert_skipped(of_device.clone(), "device 3");
    // The device may be the appliance's TAP, so a policy that protects is applied as if it were for all devices.
    let of_device = protect(of_device, tunnel_template());
    assert!(matches!(mirror_one(of_device).0.unwrap().action, Action::Protect(_)));
    // Mark 0 selects packets without a mark. The appliance's packets have none, so the policy must be mirrored.
    let mut unmarked = protect(outbound_policy(), tunnel_template());
    unmarked.nlas.push(XfrmAttrs::Mark(Mark { value: 0, mask: 0xff }));
    assert!(matches!(mirror_one(unmarked).0.unwrap().action, Action::Protect(_)));
}

#[test]
fn policies_are_distinguished_by_mark() {
    let mut marked = outbound_policy();
    marked.nlas.push(XfrmAttrs::Mark(Mark { value: 1, mask: 0xff }));
    let (mut kernel, mut mirror, _) = synced_mirror([outbound_policy()], []);
    kernel.send(XfrmMessage::AddPolicy(marked));
    let events = kernel.run(&mut mirror);
    assert!(matches!(&events[..], [Event::Refused { .. }]));
    assert_eq!(mirror.policies().count(), 2);
    // The interface is also part of a policy's identity.
    let mut of_interface = outbound_policy();
    of_interface.nlas.push(XfrmAttrs::IfId(9));
    kernel.send(XfrmMessage::AddPolicy(of_interface));
    kernel.run(&mut mirror);
    assert_eq!(mirror.policies().count(), 3);
}

#[test]
fn unsupported_protection_discards_with_reason() {
    let change = |change: fn(&mut UserTemplate)| {
        let mut template = tunnel_template();
        change(&mut template);
        protect(outbound_policy(), template)
    };
    assert_dropped(change(|template| template.id.proto = IPPROTO_AH), "AH");
    assert_dropped(change(|template| template.id.proto = IPPROTO_COMP), "IPComp");
    assert_dropped(change(|template| template.id.proto = IPPROTO_ROUTING), "protocol 43");
    assert_dropped(change(|template| template.mode = XFRM_MODE_BEET), "BEET");
    assert_dropped(change(|template| template.mode = 5), "mode 5");
    assert_dropped(change(|template| template.optional = 1), "optional");
    assert_dropped(change(|template| template.id.daddr = Address::default()), "without an address");
    assert_dropped(change(|template| template.saddr = Address::default()), "without an address");
    assert_dropped(change(|template| template.family = 99), "neither of IPv4 nor of IPv6");
    let mut two = outbound_policy();
    two.nlas.push(XfrmAttrs::Template(vec![tunnel_template(), tunnel_template()]));
    assert_dropped(two, "more than one template");
    let mut labelled = protect(outbound_policy(), tunnel_template());
    let label =
        SecurityCtx { len: 9, exttype: 8, ctx_alg: 1, ctx_doi: 1, ctx_len: 1, ctx_str: vec![b'x'] };
    labelled.nlas.push(XfrmAttrs::SecurityContext(label));
    assert_dropped(labelled, "label");
    let mut unknown = outbound_policy();
    unknown.user_policy_info.action = 9;
    assert_dropped(unknown, "action 9");
}

#[test]
fn transport_mode_requires_host_selectors() {
    let hosts = || policy(XFRM_POLICY_IN, "192.0.2.2/32", "192.0.2.1/32");
    let none = || template("0.0.0.0", "0.0.0.0", 7, XFRM_MODE_TRANSPORT);
    for template in [none(), template("192.0.2.2", "192.0.2.1", 7, XFRM_MODE_TRANSPORT)] {
        let (_, _, events) = synced_mirror([protect(hosts(), template)], []);
        let protections = list(&events).2;
        assert_eq!(
            (protections[0].local, protections[0].remote),
            (ip("192.0.2.1"), ip("192.0.2.2"))
        );
        assert!(!protections[0].tunnel);
    }
    let other = template("192.0.2.9", "192.0.2.1", 7, XFRM_MODE_TRANSPORT);
    assert_dropped(protect(hosts(), other), "address 192.0.2.9");
    let many = policy(XFRM_POLICY_OUT, "192.0.2.1/32", "192.0.2.0/24");
    assert_dropped(protect(many, none()), "the peer's network 192.0.2.0/24");
    let ours = policy(XFRM_POLICY_OUT, "192.0.2.0/24", "192.0.2.2/32");
    assert_dropped(protect(ours, none()), "our network 192.0.2.0/24");
    let two_families = policy(XFRM_POLICY_OUT, "2001:db8::1/128", "2001:db8::2/128");
    assert_dropped(
        protect(two_families, template("192.0.2.1", "192.0.2.2", 7, 0)),
        "address 192.0.2.1",
    );
}

#[test]
fn port_masks_are_exact_or_any() {
    let (policy, _) = mirror_one(with_ports(outbound_policy(), IPPROTO_UDP, 1000, 2000));
    let selector = policy.unwrap().selector;
    assert_eq!((selector.local_ports, selector.remote_ports), (1000..=1000, 2000..=2000));
    // With a port mask, a policy that protects drops packets of all ports; a policy that lets packets pass is omitted.
    let mut masked = with_ports(outbound_policy(), IPPROTO_UDP, 1000, 2000);
    masked.user_policy_info.selector.sport_mask = 0xff00;
    let dropped = assert_dropped(protect(masked.clone(), tunnel_template()), "masks of ports");
    assert_eq!(dropped.selector.local_ports, 0..=65535);
    assert_eq!(dropped.selector.protocol, Some(17));
    assert_skipped(masked, "masks of ports");
    assert_skipped(with_ports(outbound_policy(), 136, 1, 2), "protocol 136");
}

#[test]
fn neighbour_discovery_passes_and_other_icmp_types_are_refused() {
    let of_type = |kind, proto| {
        let mut message = with_ports(outbound_policy_v6(), proto, kind, 0);
        message.user_policy_info.selector.dport_mask = 0;
        message
    };
    for kind in 133..=137 {
        assert_eq!(mirror_one(of_type(kind, IPPROTO_ICMPV6)), (None, vec![]));
    }
    assert_skipped(of_type(128, IPPROTO_ICMPV6), "types of ICMP");
    assert_skipped(of_type(135, IPPROTO_ICMP), "types of ICMP");
    assert_dropped(protect(of_type(128, IPPROTO_ICMPV6), tunnel_template()), "types of ICMP");
    // A policy for all ICMPv6 types needs no ports and is supported.
    let mut all = outbound_policy_v6();
    all.user_policy_info.selector.proto = IPPROTO_ICMPV6;
    assert_eq!(mirror_one(all).0.unwrap().selector.protocol, Some(58));
}

#[test]
fn directions_and_selectors_share_one_protection() {
    let all: Vec<_> = tunnel(1, 1).into_iter().chain(tunnel(2, 1)).chain(tunnel(3, 2)).collect();
    let (mut kernel, mut mirror, events) = synced_mirror(all, []);
    let (first, _, protections) = list(&events);
    assert_eq!(protections.len(), 2);
    let ids: Vec<_> = first.iter().map(|policy| policy.action.clone()).collect();
    assert_eq!(ids[..4], vec![ids[0].clone(); 4]);
    assert_ne!(ids[4], ids[0]);
    assert_eq!(ids[4], ids[5]);
    // A remaining protection keeps its number when another ends. A new protection does not get the freed number at
    // once.
    let freed = protections[0].protection;
    (0..4).for_each(|_| kernel.delete_policy(2));
    tunnel(4, 3).into_iter().for_each(|policy| kernel.set_policy(policy));
    let all: Vec<u8> = kernel.socket.drain(..).flatten().collect();
    kernel.socket.push_back(all);
    let (second, _, now) = list(&kernel.run(&mut mirror));
    assert_eq!(second.len(), 4);
    assert!(now.contains(&protections[1]));
    assert!(now.iter().all(|info| info.protection != freed), "{now:?}");
    // A later protection gets the freed number.
    tunnel(5, 4).into_iter().for_each(|policy| kernel.set_policy(policy));
    let (_, _, later) = list(&kernel.run(&mut mirror));
    assert!(later.iter().any(|info| info.protection == freed && info.reqid == 4), "{later:?}");
}

/// A daemon updates the policies of one CHILD_SA in sequence, so at times they require the old and the new SPI.
#[test]
fn one_protection_may_require_two_spis() {
    let with_spi = |net, spi| {
        let mut template = tunnel_template();
        template.id.spi = spi;
        protect(policy(XFRM_POLICY_OUT, net, "10.2.0.0/16"), template)
    };
    let nets = [("10.1.0.0/16", 300), ("10.3.0.0/16", 301), ("10.4.0.0/16", 301)];
    let (_, _, events) = synced_mirror(nets.map(|(net, spi)| with_spi(net, spi)), []);
    let list = list(&events).0;
    assert!(list.iter().all(|policy| policy.action == list[0].action), "{list:?}");
    assert!(matches!(list[0].action, Action::Protect(_)));
    assert!(refusals(&events).is_empty());
}

#[test]
fn refusals_are_reported_once() {
    let mut template = tunnel_template();
    template.id.proto = IPPROTO_AH;
    let (mut kernel, mut mirror, events) =
        synced_mirror([protect(outbound_policy(), template)], []);
    let refused = |event: &&Event| matches!(event, Event::Refused { .. });
    let Some(Event::Refused { kind: what, name, .. }) = events.iter().find(refused) else {
        panic!()
    };
    assert_eq!((*what, &name[..]), (RefusedKind::Policy, "out 10.1.0.0/16 - 10.2.0.0/16"));
    mirror.request_dump();
    kernel.set_policy(protect(outbound_policy(), template));
    assert!(kernel.run(&mut mirror).is_empty());
    let info = mirror.policies().next().unwrap();
    assert_eq!(info.action, Some(Action::Discard));
    assert!(info.refused.unwrap().contains("AH"));
    assert_eq!(info.templates, "ah tunnel 192.0.2.1 - 192.0.2.2 reqid 7");
    assert_eq!((info.reqid, info.priority), (Some(7), 100));
}

#[test]
fn too_many_policies_discard_unmatched_packets() {
    let numbered = |n: usize| {
        policy(XFRM_POLICY_OUT, &format!("10.{}.{}.0/24", n / 256, n % 256), "10.200.0.0/16")
    };
    let (mut kernel, mut mirror, events) = synced_mirror((0..1026).map(numbered), []);
    let (all, unselected, _) = list(&events);
    assert_eq!((all.len(), unselected), (1024, Unmatched::DROP));
    assert_eq!(mirror.counters().policies_left_out, 2);
    let warnings = events.iter().filter(|event| matches!(event, Event::Warning(_))).count();
    assert_eq!(warnings, 1);
    // When deletions free entries of the mirror, a new dump adds the policies that the bound left out.
    (0..2).for_each(|_| kernel.delete_policy(0));
    let (all, unselected, _) = list(&kernel.run(&mut mirror));
    assert_eq!((all.len(), unselected), (1024, Unmatched::PASS));
    assert_eq!(mirror.counters().policies_left_out, 0);
}

#[test]
fn dump_removes_unlisted_policies() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.delete_policy(0);
    // The message of the monitor is lost.
    kernel.socket.clear();
    mirror.request_dump();
    assert_eq!(list(&kernel.run(&mut mirror)).0.len(), 1);
    mirror.request_dump();
    assert!(kernel.run(&mut mirror).is_empty());
}

#[test]
fn messages_older_than_dump_do_not_keep_unlisted_policies() {
    let (mut kernel, mut mirror, _) = synced_mirror([], []);
    kernel.set_policy(outbound_policy());
    kernel.add_sa(inbound(256, 1));
    // Both entries are deleted, and the deletion messages are lost. The socket reports ENOBUFS before it returns the
    // datagrams that wait in it, which are then out of date.
    kernel.policies.clear();
    kernel.sas.clear();
    mirror.request_dump();
    kernel.run(&mut mirror);
    assert_eq!((mirror.policies().count(), mirror.sas().count()), (0, 0));
}

#[test]
fn dump_requested_during_dump_runs_afterwards() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.take_requests();
    mirror.request_dump();
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    mirror.input(&kernel.socket.pop_front().unwrap());
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    // A dump of policies is in progress.
    mirror.request_dump();
    assert!(mirror.poll_transmit().is_none());
    kernel.run(&mut mirror);
    use ModelRequest::*;
    assert_eq!(kernel.requests, [Defaults, DumpPolicies, Defaults, DumpPolicies, DumpSas]);
}

#[test]
fn interrupted_dump_is_repeated() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.take_requests();
    mirror.request_dump();
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    mirror.input(&kernel.socket.pop_front().unwrap());
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    let mut answer = kernel.socket.pop_front().unwrap();
    answer[6] |= NLM_F_DUMP_INTR as u8;
    kernel.socket.push_front(answer);
    kernel.run(&mut mirror);
    use ModelRequest::*;
    assert_eq!(kernel.requests, [Defaults, DumpPolicies, Defaults, DumpPolicies, DumpSas]);
}

#[test]
fn lost_defaults_reply_is_requested_again() {
    let mut kernel = ModelKernel::new();
    let mut mirror = xfrm::Mirror::new(CONFIG);
    mirror.request_dump();
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    kernel.socket.clear();
    mirror.request_dump();
    kernel.run(&mut mirror);
    assert!(mirror.is_synced());
}

#[test]
fn a_migration_causes_a_dump() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    kernel.take_requests();
    kernel.send(XfrmMessage::Migrate(Default::default()));
    kernel.run(&mut mirror);
    assert_eq!(
        kernel.requests,
        [ModelRequest::Defaults, ModelRequest::DumpPolicies, ModelRequest::DumpSas]
    );
}

#[test]
fn refused_dump_warns_without_loop() {
    let mut mirror = xfrm::Mirror::new(CONFIG);
    let mut kernel = ModelKernel::new();
    mirror.request_dump();
    kernel.handle_request(&mirror.poll_transmit().unwrap());
    mirror.input(&kernel.socket.pop_front().unwrap());
    let request = mirror.poll_transmit().unwrap();
    let sequence = u32::from_ne_bytes(request[8..12].try_into().unwrap());
    mirror.input(&numeric_message(2, 0, sequence, -1));
    assert!(matches!(mirror.poll_event(), Some(Event::Warning(_))));
    assert!(mirror.poll_transmit().is_none());
    assert!(!mirror.is_synced());
}
