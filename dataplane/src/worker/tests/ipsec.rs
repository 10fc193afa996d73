//! Streams under IPsec: none of their packets passes in clear, no damaged, replayed or injected byte is placed, and
//! full-sized frames need no fragmentation.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory as _, Stag, StreamId};
use ipsec::crypto::{Algorithm, Keys};
use ipsec::policy::{Action, Policy, Selector, Spd};
use ipsec::sa::{Encapsulation, Fragments, Lifetime, Mode, Parameters, Tunnel};

use super::sctp::{PORT as SCTP_PORT, config as sctp};
use super::test_host::*;
use crate::api::{
    Command, Event, IpsecConfig, IpsecNotice, Protection, ReplayWindows, SaChange, SaConfig,
    SaDirection, SaDirectionConfig, SaId, WorkerId,
};

pub(super) const PORT: u16 = 4791;
const TCP: u8 = 6;
const SCTP: u8 = 132;

/// IPsec parameters of all SAs of the hosts: algorithm, tunnel or transport mode, with or without UDP encapsulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suite {
    pub(super) algorithm: Algorithm,
    pub(super) tunnel: bool,
    pub(super) udp: bool,
}

pub(super) const PLAIN: Suite =
    Suite { algorithm: Algorithm::AesGcm128, tunnel: false, udp: false };

/// Returns the SPI of the `n`th SA of one address family for packets from this host.
pub(super) fn spi(from: u8, v6: bool, n: u32) -> u32 {
    0x1000 * u32::from(from) + if v6 { 0x100 } else { 0 } + n
}

fn address(n: u8, v6: bool) -> IpAddr {
    if v6 { super::test_host::v6(n) } else { v4(n) }
}

fn parameters(suite: Suite, from: u8, to: u8, v6: bool, n: u32) -> Parameters {
    let algorithm = suite.algorithm;
    let keys = Keys::new(vec![n as u8; algorithm.key_len()], vec![from; algorithm.auth_key_len()]);
    let tunnel = Tunnel {
        source: address(from, v6),
        destination: address(to, v6),
        ttl: 64,
        dscp: None,
        ecn: true,
        fragments: Fragments::Copy,
    };
    Parameters {
        spi: spi(from, v6, n),
        algorithm,
        keys,
        mode: if suite.tunnel { Mode::Tunnel(tunnel) } else { Mode::Transport },
        esn: true,
        encapsulation: suite.udp.then_some(Encapsulation { source: 4500, destination: 4500 }),
        soft: Lifetime::default(),
        hard: Lifetime::default(),
    }
}

/// Builds the `n`th pair of SAs (inbound, outbound) of a host with a peer.
pub(super) fn sas(suite: Suite, host: u8, peer: u8, v6: bool, n: u32) -> [SaConfig; 2] {
    let protection = Protection(u16::from(v6));
    let sa = |direction, from, to| SaConfig {
        id: SaId(spi(from, v6, n).into()),
        protection,
        parameters: Arc::new(parameters(suite, from, to, v6, n)),
        direction_config: direction,
    };
    let direction =
        SaDirectionConfig::Out { reserve: None, keepalive: Some(Duration::from_secs(20)) };
    [sa(SaDirectionConfig::In { window: 1024, top: 0 }, peer, host), sa(direction, host, peer)]
}

/// Builds a selector for all packets of an address family.
pub(super) fn selector(v6: bool) -> Selector {
    let net = if v6 { "::/0" } else { "0.0.0.0/0" };
    Selector {
        local: net.parse().unwrap(),
        remote: net.parse().unwrap(),
        protocol: None,
        local_ports: 0..=u16::MAX,
        remote_ports: 0..=u16::MAX,
    }
}

/// Builds a host's IPsec configuration for the pair of hosts: ICMP passes in clear, all other packets of both address
/// families are protected.
pub(super) fn config(suite: Suite, host: u8, workers: u16) -> Arc<IpsecConfig> {
    let peer = 3 - host;
    let policy = |v6: bool, protocol, action| {
        let selector = Selector { protocol, ..selector(v6) };
        Policy { direction: None, selector, action }
    };
    let policies = vec![
        policy(false, Some(1), Action::Bypass),
        policy(true, Some(58), Action::Bypass),
        policy(false, None, Action::Protect(Protection(0))),
        policy(true, None, Action::Protect(Protection(1))),
    ];
    let sas = [false, true].map(|v6| sas(suite, host, peer, v6, 1)).concat();
    let owners = vec![WorkerId(0), WorkerId(workers - 1)];
    Arc::new(IpsecConfig {
        policies: Spd::new(policies).unwrap(),
        owners,
        sas,
        sole_sealer: false,
        windows: ReplayWindows::default(),
    })
}

pub(super) fn net(suite: Suite, change: impl Fn(&mut Plan)) -> Net {
    let mut plans = [Plan::new(1), Plan::new(2)];
    plans.iter_mut().for_each(change);
    for plan in &mut plans {
        plan.ipsec = Some(config(suite, plan.number, plan.workers));
    }
    let mut net = Net::new(&plans);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(SCTP_PORT, 100, 100, sctp());
    net.run_until_idle();
    net
}

pub(super) fn open(net: &mut Net, over_sctp: bool, v6: bool) -> StreamId {
    let remote = |port| SocketAddr::new(address(2, v6), port);
    match over_sctp {
        false => net.open(0, 0, 1, remote(PORT)).0,
        true => net.open_as(0, 0, 1, remote(SCTP_PORT), sctp()).0,
    }
}

/// Writes `len` bytes from host 0 to a region of host 1, and compares the content.
pub(super) fn write(net: &mut Net, stream: StreamId, stag: u32, len: usize) {
    let from = net.hosts[0].region(stag, len, Access::NONE);
    let to = net.hosts[1].region(stag + 1, len, Access::REMOTE_WRITE);
    from.write(0, &pattern(len));
    let ticket = net.hosts[0].write(stream, (Stag(stag), &from), Stag(stag + 1), len as u32);
    net.wait_sent(0, ticket);
    net.run_until_idle();
    assert!(read_memory(&to) == pattern(len), "other bytes");
}

/// Returns the offset of a frame's IP packet and its protocol, if the frame is IP.
pub(super) fn protocol(frame: &[u8]) -> Option<(usize, u8)> {
    let at = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    match frame[at - 2..at] {
        [8, 0] => Some((at, frame[at + 9])),
        [0x86, 0xdd] => Some((at, frame[at + 6])),
        _ => None,
    }
}

/// Asserts from now on that no protected packet passes in clear. The returned cell has the length of the longest ESP
/// packet.
pub(super) fn assert_no_clear_packets(
    net: &mut Net,
    udp: bool,
) -> std::rc::Rc<std::cell::Cell<usize>> {
    let longest = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = longest.clone();
    net.is_lost = Box::new(move |_, frame| {
        if let Some((at, protocol)) = protocol(frame) {
            assert!(![TCP, SCTP].contains(&protocol), "in clear");
            if protocol == if udp { 17 } else { 50 } {
                seen.set(seen.get().max(frame.len() - at));
            }
        }
        false
    });
    longest
}

#[test]
fn streams_run_over_every_ipsec_algorithm_and_mode() {
    for algorithm in Algorithm::ALL {
        for (tunnel, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            let suite = Suite { algorithm, tunnel, udp };
            let mut net = net(suite, |_| {});
            let longest = assert_no_clear_packets(&mut net, udp);
            for (stag, (over_sctp, v6)) in
                (10..).step_by(2).zip([(false, false), (false, true), (true, false), (true, true)])
            {
                longest.set(0);
                let stream = open(&mut net, over_sctp, v6);
                write(&mut net, stream, stag, 60_000);
                // The MSS leaves room for exactly the overhead of ESP: another cipher block would not fit into a
                // packet.
                let longest = longest.get();
                assert!(longest <= 1500, "{algorithm:?} {longest}");
                let least = 1500 - algorithm.block() - if over_sctp { 32 } else { 3 };
                assert!(longest > least, "{algorithm:?} {longest}");
            }
            for host in &net.hosts {
                assert!(host.count("ipsec_sealed") > 20 && host.count("ipsec_opened") > 20);
                assert_eq!(host.count("unsent_too_long"), 0);
                assert_eq!(host.count("unsent_no_sa") + host.count("unsent_refused"), 0);
            }
        }
    }
}

#[test]
fn ipsec_streams_run_in_a_vlan() {
    let mut net = net(PLAIN, |plan| plan.vlan = Some(7));
    assert_no_clear_packets(&mut net, false);
    let stream = open(&mut net, false, false);
    write(&mut net, stream, 10, 300_000);
    let stream = open(&mut net, false, true);
    write(&mut net, stream, 12, 300_000);
}

#[test]
fn ipsec_streams_recover_from_loss() {
    for over_sctp in [false, true] {
        let mut net = net(PLAIN, |_| {});
        let stream = open(&mut net, over_sctp, false);
        let mut n = 0;
        net.is_lost = Box::new(move |_, _| {
            n += 1;
            n % 13 == 0
        });
        write(&mut net, stream, 10, 400_000);
    }
}

/// SAs belong to one worker, flows to any worker, and frames arrive at any queue.
#[test]
fn sas_of_one_worker_carry_flows_of_others() {
    for rss in [Rss::Device, Rss::None] {
        let mut net = net(PLAIN, |plan| (plan.workers, plan.rss) = (3, rss));
        assert_no_clear_packets(&mut net, false);
        for (stag, worker) in [(10, 0), (20, 1), (30, 2)] {
            for (n, v6) in [(0, false), (2, true)] {
                let remote = SocketAddr::new(address(2, v6), PORT);
                let (stream, _) = net.open(0, worker, 1, remote);
                write(&mut net, stream, stag + n, 100_000);
            }
        }
        let sealed: Vec<u64> =
            net.hosts[0].handles.iter().map(|h| h.counters().ipsec.ipsec_sealed.get()).collect();
        assert!(sealed[0] > 200 && sealed[2] > 200 && sealed[1] == 0, "{sealed:?}");
        assert!(net.hosts[0].count("mesh_seal_out") > 200);
        assert_eq!(net.hosts[0].count("mesh_seal_out"), net.hosts[0].count("mesh_seal_in"));
    }
}

#[test]
fn clear_damaged_replayed_and_unknown_frames_place_nothing() {
    let mut net = net(PLAIN, |_| {});
    let stream = open(&mut net, false, false);
    let kept = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let recorder = kept.clone();
    net.is_lost = Box::new(move |from, frame| {
        if from == 0 && protocol(frame).is_some_and(|(_, protocol)| protocol == 50) {
            recorder.borrow_mut().push(TestFrame::new(frame.to_vec()));
        }
        false
    });
    write(&mut net, stream, 10, 30_000);
    net.is_lost = Box::new(|_, _| false);
    let frames = kept.borrow().clone();
    let segments = net.hosts[1].count("segments");
    let drops = |net: &Net, reason| net.hosts[1].count(reason);
    for frame in &frames {
        net.hosts[1].deliver(frame.clone());
        net.run_until_idle();
    }
    assert_eq!(drops(&net, "esp_replay"), frames.len() as u64);
    // The integrity check of ESP detects every changed bit. Changes of the SPI lead to an unknown SA.
    let long_frame = frames.iter().find(|frame| frame.0.len() > 200).unwrap();
    let before = [drops(&net, "esp_integrity"), drops(&net, "esp_unknown_spi")];
    for byte in (34..long_frame.0.len()).step_by(7) {
        let mut frame = long_frame.clone();
        frame.0[byte] ^= 1 << (byte % 8);
        if (38..42).contains(&byte) {
            // Both branches change the sequence number, so that the frame is not dropped as a replay first.
            frame.0[38] ^= 0x10;
        } else {
            frame.0[40] ^= 0x40;
        }
        net.hosts[1].deliver(frame);
        net.run_until_idle();
    }
    assert!(drops(&net, "esp_integrity") > before[0] + 100);
    assert!(drops(&net, "esp_unknown_spi") > before[1]);
    for len in (15..long_frame.0.len()).step_by(11) {
        let mut frame = long_frame.clone();
        frame.0.truncate(len);
        let queue = &mut net.hosts[1].cores[0].port_mut(0).rx;
        queue.push_back(frame.clone());
        if len > 34 {
            let total = (len as u16 - 14).to_be_bytes();
            frame.0[16..18].copy_from_slice(&total);
            queue.push_back(frame);
        }
        net.run_until_idle();
    }
    let mut clear = super::floods::forged_segment((1, 4000), PORT, tcp_lite::tcp::Flags::SYN);
    net.hosts[1].deliver(clear.clone());
    clear.0[23] = 47;
    net.hosts[1].deliver(clear);
    net.run_until_idle();
    assert!(drops(&net, "ipsec_unprotected") >= 1);
    assert_eq!(net.hosts[1].count("segments"), segments);
    // Audit events report some of the dropped packets, at most 64.
    let mut audits = 0;
    while net.hosts[1]
        .take_event(|event| match event {
            Event::Ipsec(notice) => matches!(**notice, IpsecNotice::Audit { .. }).then_some(()),
            _ => None,
        })
        .is_some()
    {
        audits += 1;
    }
    assert!((1..=64).contains(&audits), "{audits}");
    write(&mut net, stream, 20, 30_000);
}

#[test]
fn stream_continues_across_rekeys_and_waits_without_an_sa() {
    let mut net = net(PLAIN, |plan| plan.workers = 2);
    let (stream, _) = net.open(0, 1, 1, (v4(2), PORT).into());
    write(&mut net, stream, 10, 50_000);
    // As in IKE, both ends can receive with the new SAs before either end sends with them.
    let change = |net: &mut Net, host: usize, change: SaChange| {
        net.hosts[host].command_all(|ticket| Command::Sa { change: change.clone(), ticket });
        net.run_until_idle();
    };
    let pairs = |host: u8, n| sas(PLAIN, host, 3 - host, false, n);
    for n in 2..6 {
        for direction in 0..2 {
            for host in 0..2 {
                let sa = pairs(host as u8 + 1, n)[direction].clone();
                change(&mut net, host, SaChange::Add(sa));
            }
        }
        write(&mut net, stream, 10 * n, 50_000);
        for host in 0..2_u8 {
            let (own, peer) = (spi(host + 1, false, n - 1), spi(2 - host, false, n - 1));
            change(&mut net, host.into(), SaChange::Remove(SaId(u64::from(own)), SaDirection::Out));
            change(&mut net, host.into(), SaChange::Remove(SaId(u64::from(peer)), SaDirection::In));
        }
        write(&mut net, stream, 10 * n + 2, 50_000);
    }
    assert_eq!(net.hosts[0].count("unsent_no_sa") + net.hosts[1].count("esp_unknown_spi"), 0);
    // Without an outbound SA the stream waits, and the worker requests an SA.
    change(&mut net, 0, SaChange::Remove(SaId(u64::from(spi(1, false, 5))), SaDirection::Out));
    let from = net.hosts[0].region(100, 5000, Access::NONE);
    let to = net.hosts[1].region(101, 5000, Access::REMOTE_WRITE);
    from.write(0, &pattern(5000));
    let ticket = net.hosts[0].write(stream, (Stag(100), &from), Stag(101), 5000);
    net.advance(Duration::from_secs(3));
    let wanted = net.hosts[0].take_event(|event| match event {
        Event::Ipsec(notice) => match **notice {
            IpsecNotice::Acquire { protection, flow } => Some((protection, flow)),
            _ => None,
        },
        _ => None,
    });
    let (protection, flow) = wanted.expect("an SA is requested");
    assert_eq!((protection, flow.remote), (Protection(0), v4(2)));
    assert!(net.hosts[0].count("unsent_no_sa") > 0);
    let [inbound, _] = pairs(2, 6);
    change(&mut net, 1, SaChange::Add(inbound));
    let [_, outbound] = pairs(1, 6);
    change(&mut net, 0, SaChange::Add(outbound));
    net.wait_sent(0, ticket);
    assert!(read_memory(&to) == pattern(5000));
}

/// The new SA has more overhead per packet than the MSS of the stream allows for.
#[test]
fn sa_with_more_overhead_shortens_segments() {
    for v6 in [false, true] {
        // The SAs of IPv6 belong to the last worker, the stream to the first.
        let mut net = net(PLAIN, |plan| plan.workers = 2);
        let stream = open(&mut net, false, v6);
        write(&mut net, stream, 10, 50_000);
        let longer = Suite { algorithm: Algorithm::AesCbc256HmacSha256, tunnel: true, udp: true };
        for (host, direction) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let sa = sas(longer, host as u8 + 1, 2 - host as u8, v6, 2)[direction].clone();
            let change = SaChange::Add(sa);
            net.hosts[host].command_all(|ticket| Command::Sa { change: change.clone(), ticket });
            net.run_until_idle();
        }
        let longest = assert_no_clear_packets(&mut net, true);
        write(&mut net, stream, 20, 200_000);
        assert!((1400..=1500).contains(&longest.get()), "{}", longest.get());
        let reported = net.hosts[0].count("unsent_too_long");
        assert!((1..100).contains(&reported), "{reported}");
    }
}

#[test]
fn sa_listing_has_usage_and_no_keys() {
    let mut net = net(PLAIN, |plan| plan.workers = 2);
    let stream = open(&mut net, false, false);
    write(&mut net, stream, 10, 20_000);
    let mut all = Vec::new();
    for worker in 0..2 {
        let ticket = net.hosts[0].command(worker, |ticket| Command::ListSas { ticket });
        let sas = net.run_until("the SAs", |net| {
            net.hosts[0].take_event(|event| match event {
                Event::Sas { ticket: t, sas } if *t == ticket => Some(sas.clone()),
                _ => None,
            })
        });
        assert_eq!(sas.len(), 2, "worker {worker}");
        all.extend(sas);
    }
    let used = all.iter().find(|sa| sa.spi == spi(1, false, 1)).unwrap();
    assert_eq!((used.direction, used.algorithm), (SaDirection::Out, Algorithm::AesGcm128));
    assert!(used.sequence == used.used.packets && used.used.bytes > 20_000);
}

/// A router fragments ESP, which has no ports. One worker reassembles the packet, and the SA's owner opens it.
#[test]
fn fragmented_esp_is_reassembled_and_opened() {
    let mut net = net(PLAIN, |plan| plan.workers = 2);
    let (stream, _) = net.open(0, 1, 1, (v4(2), PORT).into());
    let cut = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = cut.clone();
    net.is_lost = Box::new(move |from, frame| {
        let long = from == 0 && frame.len() > 1000 && protocol(frame) == Some((14, 50));
        if long {
            seen.borrow_mut().push(TestFrame::new(frame.to_vec()));
        }
        long
    });
    let from = net.hosts[0].region(10, 5000, Access::NONE);
    let to = net.hosts[1].region(11, 5000, Access::REMOTE_WRITE);
    from.write(0, &pattern(5000));
    let ticket = net.hosts[0].write(stream, (Stag(10), &from), Stag(11), 5000);
    for _ in 0..1000 {
        net.turn();
        for (id, frame) in (1..).zip(cut.borrow_mut().drain(..)) {
            let whole = frame.0.len() - 34;
            let pieces = [(0, 512), (512, 1024), (1024, whole)];
            for (first, last) in pieces.into_iter().filter(|(first, _)| *first < whole) {
                let piece =
                    super::paths::fragment(&frame.0, id, first..last.min(whole), last < whole);
                net.hosts[1].deliver(piece);
            }
        }
    }
    net.wait_sent(0, ticket);
    assert!(read_memory(&to) == pattern(5000));
    let whole = net.hosts[1].count("reassembled");
    assert!(whole >= 3, "{whole}");
    assert!(net.hosts[1].count("esp_malformed") == 0);
}
