//! SAs: succession, sequence numbers, anti-replay windows, owners and strength.

use std::net::IpAddr;
use std::time::Duration;

use ipsec::crypto::{Algorithm, Keys};
use ipsec::esp::Refusal;
use ipsec::guard::{
    Direction, Guard, InboundVerdict, IpsecDrop, Notice, OutboundVerdict, ReplayWindows, SaId,
};
use ipsec::policy::{Action, Flow, Spd};
use ipsec::sa::{Mode, Parameters};
use ipsec::strength::Strength;

use super::hosts::*;

#[test]
fn protected_packet_is_accepted_by_peer() {
    for mode in [transport, tunnel] {
        let (mut a, mut b) = pair(mode);
        for len in [4, 40, 1400] {
            let clear = packet(6, 1, 2, len);
            let sealed = send(&mut a, &clear, NOW).unwrap();
            assert_ne!(sealed, clear);
            assert_eq!(receive(&mut b, &sealed, NOW), Ok(clear));
            let back = packet(6, 2, 1, len);
            let sealed = send(&mut b, &back, NOW).unwrap();
            assert_eq!(receive(&mut a, &sealed, NOW), Ok(back));
        }
        assert_eq!((a.counts().sealed, a.counts().opened), (3, 3));
        assert_eq!(a.counts().sealed_bytes, 3 * 20 + 4 + 40 + 1400);
        assert!(!a.has_notices() && !b.has_notices());
    }
}

#[test]
fn audit_events_are_reported_and_rate_limited() {
    let (mut a, mut b) = pair(transport);
    let sealed = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    receive(&mut b, &sealed, NOW).unwrap();
    for _ in 0..100 {
        assert_eq!(receive(&mut b, &sealed, NOW), Err(Refusal::Duplicate.into()));
    }
    let mut changed = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    changed[60] ^= 1;
    assert_eq!(receive(&mut b, &changed, NOW), Err(Refusal::Integrity.into()));
    changed[60] ^= 1;
    receive(&mut b, &changed, NOW).unwrap();
    changed[23] ^= 1;
    assert_eq!(receive(&mut b, &changed, NOW), Err(IpsecDrop::UnknownSpi));
    let mut notices = Vec::new();
    while let Some(notice) = b.take_notice() {
        notices.push(notice);
    }
    assert_eq!(notices.len(), 16);
    assert!(b.counts().notices_lost >= 86);
    let Notice::Audit { reason: why, spi, flow: Some(flow), sequence } = &notices[0] else {
        panic!()
    };
    assert_eq!((*why, *spi, *sequence), (Refusal::Duplicate.into(), Some(1001), Some(1)));
    assert_eq!((flow.local, flow.remote), (address(2).into(), address(1).into()));
}

#[test]
fn newest_sa_sends_and_older_ones_still_receive() {
    let (mut a, mut b) = pair(transport);
    let old = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    let next = parameters(3001, Mode::Transport);
    b.add_inbound(id(&next), STRONG, &next, 64, 0).unwrap();
    a.add_outbound(id(&next), STRONG, &next, None).unwrap();
    let new = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    assert_eq!(new[20..24], 3001u32.to_be_bytes());
    receive(&mut b, &new, NOW).unwrap();
    receive(&mut b, &old, NOW).unwrap();
    assert_eq!(a.sas().filter(|sa| sa.direction == Direction::Out).count(), 2);
    assert!(a.remove(SaId(1001), Direction::Out) && !a.remove(SaId(1001), Direction::Out));
    assert!(b.remove(SaId(1001), Direction::In));
    assert_eq!(receive(&mut b, &old, NOW), Err(IpsecDrop::UnknownSpi));
    // After the last outbound SA is removed, no packet can be sent.
    assert!(a.remove(SaId(3001), Direction::Out));
    assert_eq!(send(&mut a, &packet(6, 1, 2, 100), NOW), Err(IpsecDrop::NoSa));
}

#[test]
fn packet_of_other_workers_sa_is_passed_to_it() {
    let (mut a, _) = pair(transport);
    let mut b = guard(1, [0, 0]);
    let forward = parameters(1001, Mode::Transport);
    b.add_inbound(id(&forward), STRONG, &forward, 64, 0).unwrap();
    let backward = parameters(1002, Mode::Transport);
    b.add_outbound(id(&backward), STRONG, &backward, None).unwrap();
    let sealed = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    assert_eq!(b.inbound_verdict(&sealed, NOW), Ok(InboundVerdict::OtherWorker(0)));
    assert_eq!(b.outbound_verdict(&packet(6, 2, 1, 100), NOW), Ok(OutboundVerdict::OtherWorker(0)));
    assert_eq!(b.sas().count(), 0);
    // The worker that does not own the SA computes the same packet length limit.
    let flow = Flow::parse(&packet(6, 2, 1, 100), false).unwrap();
    assert_eq!(b.max_packet_len(&flow, 1500, 20, NOW), a.max_packet_len(&flow, 1500, 20, NOW));
    assert!(b.max_packet_len(&flow, 1500, 20, NOW).unwrap() < 1500);
}

#[test]
fn only_reserved_sequence_numbers_are_used() {
    let mut a = guard(0, [0, 0]);
    let forward = parameters(1001, Mode::Transport);
    a.add_outbound(id(&forward), STRONG, &forward, Some((101, 10))).unwrap();
    let clear = packet(6, 1, 2, 60);
    let sequence = |sealed: &[u8]| u32::from_be_bytes(sealed[24..28].try_into().unwrap());
    for n in 101..=105 {
        assert_eq!(sequence(&send(&mut a, &clear, NOW).unwrap()), n);
        assert!(!a.has_notices());
    }
    assert_eq!(sequence(&send(&mut a, &clear, NOW).unwrap()), 106);
    assert_eq!(a.take_notice(), Some(Notice::SequencesLow(SaId(1001))));
    for _ in 107..=110 {
        send(&mut a, &clear, NOW).unwrap();
    }
    assert_eq!(send(&mut a, &clear, NOW), Err(Refusal::Unreserved.into()));
    // The SA has not expired, so no expiry is reported.
    assert_eq!(a.take_notice(), None);
    a.reserve(SaId(1001), 120);
    assert_eq!(sequence(&send(&mut a, &clear, NOW).unwrap()), 111);
}

#[test]
fn flow_returns_its_tunnel_peer() {
    let (mut a, _) = pair(tunnel);
    let flow = Flow::parse(&packet(6, 1, 2, 40), false).unwrap();
    assert_eq!(a.tunnel_peer(&flow), Some(IpAddr::from([192, 0, 2, 2])));
    let udp = Flow::parse(&packet(17, 1, 2, 40), false).unwrap();
    assert_eq!(a.tunnel_peer(&udp), None);
    assert_eq!(a.max_packet_len(&udp, 1500, 20, NOW), Some(1500));
}

#[test]
fn resumed_receiver_refuses_replayed_numbers() {
    let (mut a, _) = pair(transport);
    let forward = parameters(1001, Mode::Transport);
    let first: Vec<_> =
        (0..100).map(|_| send(&mut a, &packet(6, 1, 2, 60), NOW).unwrap()).collect();
    let mut b = guard(0, [0, 0]);
    b.add_inbound(id(&forward), STRONG, &forward, 64, 90).unwrap();
    for (n, sealed) in (1..).zip(&first) {
        let taken = receive(&mut b, sealed, NOW);
        // Below the window, a low half is extended to a number 2^32 higher (RFC 4303 appendix A2.2), and the ICV does
        // not match.
        let why = if n <= 26 { Refusal::Integrity } else { Refusal::Duplicate };
        if n <= 90 {
            assert_eq!(taken, Err(why.into()), "{n}");
        } else {
            assert!(taken.is_ok(), "{n}");
        }
    }
}

// RFC 4301 §8.2.1: a router's report on ESP packets reduces the maximum length of inner packets.
#[test]
fn path_mtu_report_needs_recent_quoted_packet() {
    let (mut a, _) = pair(transport);
    let flow = Flow::parse(&packet(6, 1, 2, 40), false).unwrap();
    let whole = a.max_packet_len(&flow, 1500, 20, NOW).unwrap();
    // Before the first packet, no report can be genuine.
    assert!(!a.handle_too_big(1001, 1, 1400, NOW));
    (0..3).for_each(|_| drop(send(&mut a, &packet(6, 1, 2, 40), NOW)));
    for (spi, sequence) in [(1002, 2), (1001, 0), (1001, 4), (1001, u32::MAX)] {
        assert!(!a.handle_too_big(spi, sequence, 1400, NOW), "{spi} {sequence}");
    }
    assert!(a.handle_too_big(1001, 2, 1400, NOW));
    // A later report of a larger MTU has no effect.
    assert!(a.handle_too_big(1001, 3, 1450, NOW));
    assert_eq!(a.max_packet_len(&flow, 1500, 20, NOW), Some(whole - 100));
    let Ok(OutboundVerdict::Protect { path_mtu, .. }) =
        a.outbound_verdict(&packet(6, 1, 2, 40), NOW)
    else {
        panic!()
    };
    assert_eq!(path_mtu, Some(1400));
    let later = NOW + Duration::from_secs(600);
    let Ok(OutboundVerdict::Protect { path_mtu, .. }) =
        a.outbound_verdict(&packet(6, 1, 2, 40), later)
    else {
        panic!()
    };
    assert_eq!(path_mtu, None);
    assert_eq!(a.max_packet_len(&flow, 1500, 20, later), Some(whole));
}

#[test]
fn flow_strength_is_that_of_weakest_sa() {
    let mut a = guard(0, [0, 0]);
    let flow = Flow::parse(&packet(6, 1, 2, 40), false).unwrap();
    let parameters_of = |spi, algorithm: Algorithm| Parameters {
        algorithm,
        keys: Keys::new(vec![7; algorithm.key_len()], vec![7; algorithm.auth_key_len()]),
        ..parameters(spi, Mode::Transport)
    };
    assert_eq!(a.strength(&flow), None);
    let strong = parameters_of(1001, Algorithm::AesGcm256);
    a.add_outbound(id(&strong), STRONG, &strong, None).unwrap();
    assert_eq!(a.strength(&flow), None);
    a.add_inbound(id(&strong), STRONG, &strong, 64, 0).unwrap();
    assert_eq!(a.strength(&flow), Some(Strength::from_bits(256)));
    for (spi, algorithm, bits) in
        [(1002, Algorithm::AesGcm128, 128), (1003, Algorithm::NullHmacSha256, 0)]
    {
        let weaker = parameters_of(spi, algorithm);
        a.add_inbound(id(&weaker), STRONG, &weaker, 64, 0).unwrap();
        assert_eq!(a.strength(&flow), Some(Strength::from_bits(bits)));
    }
    let udp = Flow::parse(&packet(17, 1, 2, 40), false).unwrap();
    assert_eq!(a.strength(&udp), None);
}

// RFC 4303 §3.3.3: a successor is requested before the sequence numbers are exhausted.
#[test]
fn sa_without_esn_is_renewed_before_exhaustion() {
    let mut a = guard(0, [0, 0]);
    let short = Parameters { esn: false, ..parameters(1001, Mode::Transport) };
    let last = u64::from(u32::MAX);
    let near = last / 16 * 15;
    a.add_outbound(id(&short), STRONG, &short, Some((near, 10))).unwrap();
    send(&mut a, &packet(6, 1, 2, 40), NOW).unwrap();
    assert_eq!(a.take_notice(), None);
    send(&mut a, &packet(6, 1, 2, 40), NOW).unwrap();
    assert_eq!(a.take_notice(), Some(Notice::SoftExpired(SaId(1001))));
    send(&mut a, &packet(6, 1, 2, 40), NOW).unwrap();
    assert_eq!(a.take_notice(), None, "the expiry is reported once");
}

// The kernel may also seal with an SA that this data plane uses: both senders would use the same sequence numbers.
#[test]
fn packet_sealed_by_host_with_our_sa_is_dropped() {
    let (mut a, mut other) = pair(transport);
    let forward = parameters(1001, Mode::Transport);
    other.add_outbound(SaId(9), STRONG, &forward, None).unwrap();
    let sealed = send(&mut other, &packet(6, 1, 2, 60), NOW).unwrap();
    assert_eq!(a.outbound_verdict(&sealed, NOW), Err(IpsecDrop::AlreadySealed));
    let mut in_udp = packet(17, 1, 2, 60);
    in_udp[20..24].copy_from_slice(&[0x11, 0x94, 0x12, 0x34]);
    in_udp[28..32].copy_from_slice(&1001u32.to_be_bytes());
    assert_eq!(a.outbound_verdict(&in_udp, NOW), Err(IpsecDrop::AlreadySealed));
    // IKE passes. ESP of other SAs passes, too, and is not sealed again.
    in_udp[28..32].fill(0);
    assert_eq!(a.outbound_verdict(&in_udp, NOW), Ok(OutboundVerdict::Clear));
    let foreign = parameters(7001, Mode::Transport);
    other.add_outbound(id(&foreign), STRONG, &foreign, None).unwrap();
    let sealed = send(&mut other, &packet(6, 1, 2, 60), NOW).unwrap();
    assert_eq!(a.outbound_verdict(&sealed, NOW), Ok(OutboundVerdict::Clear));
    // As the sole sealer, the guard also drops ESP of an SA of which it has no record.
    a.set_sole_sealer();
    assert_eq!(a.outbound_verdict(&sealed, NOW), Err(IpsecDrop::AlreadySealed));
    a.remove(SaId(1001), Direction::Out);
    assert_eq!(a.outbound_verdict(&packet(6, 1, 2, 60), NOW), Ok(OutboundVerdict::AwaitSa(STRONG)));
}

#[test]
fn selected_older_sa_sends_again() {
    let (mut a, _) = pair(transport);
    let next = parameters(3001, Mode::Transport);
    a.add_outbound(id(&next), STRONG, &next, None).unwrap();
    let spi = |a: &mut Guard| send(a, &packet(6, 1, 2, 60), NOW).unwrap()[20..24].to_vec();
    assert_eq!(spi(&mut a), 3001u32.to_be_bytes());
    a.select(SaId(1001));
    assert_eq!(spi(&mut a), 1001u32.to_be_bytes());
    a.remove(SaId(1001), Direction::Out);
    assert_eq!(spi(&mut a), 3001u32.to_be_bytes());
}

/// An SA is updated: removed and added again, at the same or another worker. The sequence number reported with the SA
/// is older than the last received one.
#[test]
fn readded_sa_with_same_keys_refuses_replays() {
    // `late`: the new owner adds the SA before the old one removes it.
    for (owner, late) in [(0, false), (1, false), (1, true)] {
        let windows = ReplayWindows::default();
        let mut sender = pair(transport).0;
        let mut workers = [0, 1].map(|worker| guard(worker, [0, owner]));
        workers.iter_mut().for_each(|worker| worker.share_windows(windows.clone()));
        let forward = parameters(1001, Mode::Transport);
        for worker in &mut workers {
            worker.add_inbound(SaId(1), STRONG, &forward, 64, 0).unwrap();
        }
        let clear = packet(6, 1, 2, 100);
        let mut sealed = || send(&mut sender, &clear, NOW).unwrap();
        let first: Vec<_> = (0..20).map(|_| sealed()).collect();
        let missing = sealed();
        let last = sealed();
        for packet in first.iter().chain([&last]) {
            receive(&mut workers[0], packet, NOW).unwrap();
        }
        // Changed policies assign the flow to another protection.
        let list = vec![policy("10.0.0.0/28", None, Action::Protect(OTHER))];
        for worker in &mut workers {
            worker.set_policies(Spd::new(list.clone()).unwrap(), [0, owner]);
        }
        let add = |worker: &mut Guard| {
            worker.add_inbound(SaId(2), OTHER, &forward, 1024, 7).unwrap();
        };
        if late {
            add(&mut workers[1]);
            assert_eq!(receive(&mut workers[1], &sealed(), NOW), Err(IpsecDrop::UnknownSpi));
        }
        assert!(workers[0].remove(SaId(1), Direction::In));
        add(&mut workers[0]);
        if !late {
            workers[1].remove(SaId(1), Direction::In);
            add(&mut workers[1]);
        }
        let worker = &mut workers[usize::from(owner)];
        for packet in first.iter().chain([&last]) {
            assert_eq!(
                receive(worker, packet, NOW),
                Err(Refusal::Duplicate.into()),
                "{owner} {late}"
            );
        }
        // A missing sequence number is still accepted, and so are later numbers.
        assert_eq!(receive(worker, &missing, NOW).as_ref(), Ok(&clear));
        assert_eq!(receive(worker, &sealed(), NOW).as_ref(), Ok(&clear));
        // An SA with other keys is a different SA, with a new window.
        worker.remove(SaId(2), Direction::In);
        let keys = Keys::new(vec![8; 20], Vec::new());
        let renewed = Parameters { keys, ..parameters(1001, Mode::Transport) };
        worker.add_inbound(SaId(3), OTHER, &renewed, 64, 0).unwrap();
        let mut sender = guard(0, [0, 0]);
        sender.add_outbound(SaId(3), STRONG, &renewed, None).unwrap();
        let sealed = send(&mut sender, &clear, NOW).unwrap();
        assert_eq!(receive(worker, &sealed, NOW).as_ref(), Ok(&clear));
    }
}

#[test]
fn flow_guarantee_holds_unless_policy_or_sa_is_weaker() {
    // Worker 0 owns the SAs; worker 1 does not.
    for worker in [0, 1] {
        let mut a = guard(worker, [0, 0]);
        let flow = Flow::parse(&packet(6, 1, 2, 40), false).unwrap();
        let parameters_of = |spi, algorithm: Algorithm| Parameters {
            algorithm,
            keys: Keys::new(vec![7; algorithm.key_len()], vec![7; algorithm.auth_key_len()]),
            ..parameters(spi, Mode::Transport)
        };
        let (strong, weak) =
            (parameters_of(1001, Algorithm::AesGcm256), parameters_of(1002, Algorithm::AesGcm128));
        let least = Strength::from_bits(256);
        // Without an SA no packet passes, so the guarantee holds.
        assert!(a.guarantees(&flow, least));
        a.add_outbound(id(&strong), STRONG, &strong, None).unwrap();
        a.add_inbound(id(&strong), STRONG, &strong, 64, 0).unwrap();
        assert!(a.guarantees(&flow, least));
        a.add_inbound(id(&weak), STRONG, &weak, 64, 0).unwrap();
        assert!(!a.guarantees(&flow, least) && a.guarantees(&flow, Strength::from_bits(128)));
        a.remove(id(&weak), Direction::In);
        a.add_outbound(id(&weak), STRONG, &weak, None).unwrap();
        assert!(!a.guarantees(&flow, least));
        a.select(id(&strong));
        assert!(a.guarantees(&flow, least));
        a.remove(id(&strong), Direction::Out);
        assert!(!a.guarantees(&flow, least));
        a.remove(id(&weak), Direction::Out);
        assert!(a.guarantees(&flow, least));
        let clear = Flow::parse(&packet(17, 1, 2, 40), false).unwrap();
        assert!(!a.guarantees(&clear, Strength::from_bits(0)));
    }
}
