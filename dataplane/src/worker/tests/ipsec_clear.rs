//! A port with IPsec policies that is shared with the host's kernel. Frames that `ddpd` cannot classify pass in neither
//! direction: the kernel might find another packet in them than the policies have checked.

use std::cell::RefCell;
use std::rc::Rc;

use smoltcp::wire::IpProtocol;

use super::accounting::ip_packet;
use super::attacks::floods::arp;
use super::ipsec::*;
use super::test_host::*;
use crate::checksum;

const UDP: [u8; 12] = [0, 7, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
const BROADCAST: [u8; 6] = [0xff; 6];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 9];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn plain_v4() -> Vec<u8> {
    ip_packet(1, IpProtocol::Udp, &UDP).0
}

/// Builds the datagram of [`plain_v4`] in IPv6. The worker does not verify its UDP checksum.
fn plain_v6() -> Vec<u8> {
    let mut frame = plain_v4()[..12].to_vec();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, 64]);
    for host in [1, 2] {
        frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    frame.extend(UDP);
    frame
}

/// Inserts these bytes in front of the EtherType of a frame.
fn insert_headers(headers: &[u8], mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, headers.iter().copied());
    frame
}

fn replace_ether_type(headers: &[u8], mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..14, headers.iter().copied());
    frame
}

/// Returns frames that hide a packet behind VLAN tags that Linux removes, or behind headers that Linux parses if the
/// right modules are loaded.
fn disguised_frames(plain: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let (tag, service) = ([0x81, 0, 0, 0], [0x88, 0xa8, 0, 0]);
    let plain = || plain.to_vec();
    vec![
        ("802.1ad", insert_headers(&service, plain())),
        ("802.1ad, identifier 5", insert_headers(&[0x88, 0xa8, 0, 5], plain())),
        ("802.1Q, 802.1ad", insert_headers(&[tag, service].concat(), plain())),
        ("802.1ad, 802.1Q", insert_headers(&[service, tag].concat(), plain())),
        ("802.1ad twice", insert_headers(&[service, service].concat(), plain())),
        ("0x9100", insert_headers(&[0x91, 0, 0, 0], plain())),
        ("PPPoE", replace_ether_type(&[0x88, 0x64, 0x11, 0, 0, 1, 0, 34, 0, 0x21], plain())),
        ("MPLS", replace_ether_type(&[0x88, 0x47, 0, 0, 0x11, 64], plain())),
        ("MPLS, multicast", replace_ether_type(&[0x88, 0x48, 0, 0, 0x11, 64], plain())),
        ("batman-adv", insert_headers(&[0x43, 5, 0x40, 15, 50, 0], plain())),
        ("HSR", insert_headers(&[0x89, 0x2f, 0, 40, 0, 1], plain())),
        ("PRP", insert_headers(&[0x88, 0xfb, 0, 40, 0, 1], plain())),
        ("MACsec", insert_headers(&[0x88, 0xe5, 0, 0, 0, 0, 0, 1], plain())),
        ("NSH", replace_ether_type(&[0x89, 0x4f, 0x0f, 0xc2, 2, 1, 0, 0, 1, 255], plain())),
        ("bridged Ethernet", replace_ether_type(&[0x65, 0x58], plain())),
        ("SNAP", insert_headers(&[0, 40, 0xaa, 0xaa, 3, 0, 0, 0], plain())),
        ("LLC", replace_ether_type(&[0, 40, 6, 6, 3], plain())),
        ("experimental", replace_ether_type(&[0x88, 0xb5], plain())),
    ]
}

/// Builds ARP, LLDP and EAPOL frames, and an LLDP frame with a priority tag.
fn non_ip_frames() -> Vec<(&'static str, Vec<u8>)> {
    let lldp = || [&[1, 0x80, 0xc2, 0, 0, 14, 2, 0, 0, 0, 0, 9, 0x88, 0xcc][..], &[2; 40]].concat();
    let eapol = [&[1, 0x80, 0xc2, 0, 0, 3, 2, 0, 0, 0, 0, 9, 0x88, 0x8e][..], &[1; 40]].concat();
    vec![
        ("ARP", arp(2, v4(9), [2, 0, 0, 0, 0, 9], v4(2)).0),
        ("LLDP", lldp()),
        ("LLDP with a priority", insert_headers(&[0x81, 0, 0xe0, 0], lldp())),
        ("EAPOL", eapol),
    ]
}

/// Returns true if a frame reaches the second host's kernel, whole or in part.
fn reaches_kernel(net: &mut Net, frame: &[u8]) -> bool {
    let end = net.hosts[1].kernel.as_mut().unwrap();
    while end.pop().is_some() {}
    net.hosts[1].deliver(TestFrame::new(frame.to_vec()));
    net.run_until_idle();
    let end = net.hosts[1].kernel.as_mut().unwrap();
    std::iter::from_fn(|| end.pop()).count() > 0
}

/// Passes a frame of the second host's kernel to its worker. Returns the frames that the host then sends.
fn frames_sent_for(net: &mut Net, frame: &[u8]) -> Vec<Vec<u8>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let recorder = seen.clone();
    net.is_lost = Box::new(move |from, frame| {
        if from == 1 {
            recorder.borrow_mut().push(frame.to_vec());
        }
        false
    });
    net.hosts[1].kernel.as_mut().unwrap().push(frame);
    net.run_until_idle();
    net.is_lost = Box::new(|_, _| false);
    seen.take()
}

fn share_second_port(plan: &mut Plan) {
    plan.shared = plan.number == 2;
}

/// Linux removes one or two priority tags (802.1Q, 802.1ad) and accepts the packet behind them.
#[test]
fn clear_packets_behind_unread_headers_do_not_reach_the_host() {
    for (plain, destination) in [
        (plain_v4(), HOST_MAC),
        (plain_v6(), HOST_MAC),
        (plain_v4(), BROADCAST),
        (plain_v4(), GROUP),
        (plain_v6(), [0x33, 0x33, 0, 0, 0, 1]),
    ] {
        let mut net = net(PLAIN, share_second_port);
        for (name, mut frame) in disguised_frames(&plain) {
            frame[..6].copy_from_slice(&destination);
            let before = net.hosts[1].count("ipsec_unclassified");
            assert!(!reaches_kernel(&mut net, &frame), "{name} to {destination:x?}");
            assert_eq!(net.hosts[1].count("ipsec_unclassified"), before + 1, "{name}");
        }
        // Frames that `ddpd` can classify are dropped for other reasons.
        let before = net.hosts[1].count("ipsec_unclassified");
        for (name, headers, reason) in [
            ("no tag", &[][..], "ipsec_unprotected"),
            ("802.1Q", &[0x81, 0, 0, 0], "ipsec_unprotected"),
            ("802.1Q twice", &[0x81, 0, 0, 0, 0x81, 0, 0, 0], "vlan"),
            ("another VLAN", &[0x81, 0, 0, 5], "vlan"),
        ] {
            let mut frame = insert_headers(headers, plain.clone());
            frame[..6].copy_from_slice(&destination);
            let count = net.hosts[1].count(reason);
            assert!(!reaches_kernel(&mut net, &frame), "{name} to {destination:x?}");
            assert_eq!(net.hosts[1].count(reason), count + 1, "{name}");
        }
        assert_eq!(net.hosts[1].count("ipsec_unclassified"), before);
    }
}

#[test]
fn double_tagged_clear_packets_do_not_reach_a_vlan_host() {
    let mut net = net(PLAIN, |plan| {
        share_second_port(plan);
        plan.vlan = Some(5);
    });
    for (name, frame) in disguised_frames(&plain_v4()) {
        let frame = insert_headers(&[0x81, 0, 0, 5], frame);
        assert!(!reaches_kernel(&mut net, &frame), "{name}");
    }
    let lldp = insert_headers(&[0x81, 0, 0, 5], non_ip_frames().remove(1).1);
    assert!(reaches_kernel(&mut net, &lldp));
    // The worker adds its VLAN tag to each frame of the kernel. A tag from the kernel would be a second tag on the
    // wire.
    for (name, frame) in disguised_frames(&plain_v4()) {
        let before = net.hosts[1].count("unsent_unclassified");
        assert!(frames_sent_for(&mut net, &frame).is_empty(), "{name}");
        assert_eq!(net.hosts[1].count("unsent_unclassified"), before + 1, "{name}");
    }
    assert!(frames_sent_for(&mut net, &insert_headers(&[0x81, 0, 0, 0], plain_v4())).is_empty());
}

/// A worker drops a damaged packet to a group that the appliance has not joined. Under IPsec policies, the worker
/// checks the packet itself and does not leave the checks to the kernel.
#[test]
fn damaged_packets_do_not_reach_the_host_under_policies() {
    let mut net = net(PLAIN, share_second_port);
    let with = |at: usize, byte: u8, repair: bool| {
        let mut frame = plain_v4();
        frame[..6].copy_from_slice(&GROUP);
        frame[at] = byte;
        if repair {
            frame[24..26].fill(0);
            let sum = !checksum::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    let mut routed = with(14, 0x46, false);
    routed.splice(34..34, [131, 3, 4, 0]);
    routed[17] += 4;
    routed[24..26].fill(0);
    let sum = !checksum::sum(&routed[14..38]);
    routed[24..26].copy_from_slice(&sum.to_be_bytes());
    for (name, frame) in [
        ("a wrong checksum", with(24, 0x77, false)),
        ("a length beyond the frame", with(16, 0x40, true)),
        ("version 5", with(14, 0x55, true)),
        ("a short header", with(14, 0x44, false)),
        ("a cut header", with(14, 0x45, false)[..30].to_vec()),
        ("a source route", routed),
    ] {
        assert!(!reaches_kernel(&mut net, &frame), "{name}");
    }
    assert_eq!(net.hosts[1].count("ipsec_unclassified"), 6);
}

#[test]
fn arp_lldp_and_eapol_pass_policies_in_both_directions() {
    let mut net = net(PLAIN, share_second_port);
    for (name, frame) in non_ip_frames() {
        assert!(reaches_kernel(&mut net, &frame), "{name}");
        assert_eq!(frames_sent_for(&mut net, &frame), [frame], "{name}");
    }
    assert_eq!(net.hosts[1].count("unsent_unclassified"), 0);
    assert_eq!(net.hosts[1].count("ipsec_unclassified"), 0);
}

#[test]
fn unclassified_host_frames_are_not_sent() {
    let mut net = net(PLAIN, share_second_port);
    let mut group_source = plain_v4();
    group_source[6] |= 1;
    let twice = insert_headers(&[0x81, 0, 0, 0, 0x81, 0, 0, 0], plain_v4());
    let more = [("a group's source address", group_source), ("802.1Q twice", twice)];
    for (name, frame) in
        [disguised_frames(&plain_v4()), disguised_frames(&plain_v6()), more.into()].concat()
    {
        let before = net.hosts[1].count("unsent_unclassified");
        assert!(frames_sent_for(&mut net, &frame).is_empty(), "{name}");
        assert_eq!(net.hosts[1].count("unsent_unclassified"), before + 1, "{name}");
    }
    // Behind a single 802.1Q tag the worker finds the packet and seals it.
    let mut tagged = insert_headers(&[0x81, 0, 0, 0], plain_v4());
    tagged[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    tagged[6..12].copy_from_slice(&HOST_MAC);
    tagged[30..38].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
    let [sealed] = &frames_sent_for(&mut net, &tagged)[..] else { panic!("one frame") };
    assert_eq!(protocol(sealed), Some((18, 50)));
}

#[test]
fn unclassified_frames_pass_without_policies() {
    let mut plans = [Plan::new(1), Plan::new(2)];
    plans.iter_mut().for_each(share_second_port);
    let mut net = Net::new(&plans);
    net.run_until_idle();
    for (name, frame) in [disguised_frames(&plain_v4()), non_ip_frames()].concat() {
        assert!(reaches_kernel(&mut net, &frame), "{name}");
        assert_eq!(frames_sent_for(&mut net, &frame), [frame], "{name}");
    }
}

/// RFC 3948 §2.2: any user of the host may bind UDP port 4500, so its payload must look like IKE to pass in clear.
#[test]
fn host_data_from_port_4500_are_sealed() {
    for v6 in [false, true] {
        for (payload, clear) in
            [(&[1, 2, 3, 4][..], false), (&[1], false), (&[0; 4], true), (&[0xff], true)]
        {
            let mut net = net(PLAIN, share_second_port);
            let mut frame = if v6 { plain_v6() } else { plain_v4() };
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
            frame[6..12].copy_from_slice(&HOST_MAC);
            let udp = if v6 { 54 } else { 34 };
            let (at, len) = if v6 { (22, 16) } else { (26, 4) };
            let (from, to) = frame[at..at + 2 * len].split_at_mut(len);
            from.swap_with_slice(to);
            frame.truncate(udp + 8);
            frame[udp..udp + 4].copy_from_slice(&[0x11, 0x94, 0x11, 0x94]);
            frame[udp + 5] = 8 + payload.len() as u8;
            frame.extend(payload);
            if v6 {
                frame[19] = frame.len() as u8 - 54;
            } else {
                frame[17] = frame.len() as u8 - 14;
                frame[24..26].fill(0);
                let sum = !checksum::sum(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            let sent = frames_sent_for(&mut net, &frame);
            let protocols: Vec<_> = sent.iter().filter_map(|frame| protocol(frame)).collect();
            let expected = if clear { 17 } else { 50 };
            assert_eq!(protocols, [(14, expected)], "{payload:?}, IPv6: {v6}");
        }
    }
}
