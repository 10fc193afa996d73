//! Ring ports with the same link name are connected. Frames pass whole, in order and without a copy. An impaired end
//! loses, corrupts, duplicates and delays received frames, reproducibly. Configuration errors are reported.

mod port_common;

use std::num::NonZeroU64;
use std::time::Duration;

use base::Instant;
use dataplane::port::{
    BURST, ChecksumMode, ChecksumSite, FRAME_OVERHEAD, MAX_MTU, PortConfig, PortError, PortFactory,
    PortKind, PortQueue, RxBatch,
};

fn config(name: &str, link: &str) -> PortConfig {
    let kind = PortKind::Ring { link: link.to_owned() };
    PortConfig { tx_descriptors: 256, rx_descriptors: 256, ..PortConfig::new(name, kind) }
}

#[test]
fn joined_ring_ports_exchange_frames() {
    let ports = port_common::ports();
    frames_reach_other_end(&ports);
    largest_frames_pass(&ports);
    sender_wakes_armed_receiver(&ports);
    full_ring_drops_are_counted(&ports);
    impaired_end_loses_frames(&ports);
    delay_sets_poll_timeout(&ports);
    corruption_and_duplicates_are_counted(&ports);
    invalid_configurations_are_refused(&ports);
    let eal = ports.eal().clone();
    drop(ports);
    eal.sweep();
    assert_eq!(eal.retired_pools(), 0, "all buffers have returned");
}

fn frames_reach_other_end(ports: &PortFactory) {
    let jumbo = |name| PortConfig { mtu: 9000, queues: 2, ..config(name, "plain") };
    let mut a = ports.open(&PortConfig { checksum: ChecksumMode::Trusted, ..jumbo("a") }).unwrap();
    assert!(!a.link().up);
    assert_eq!(ports.unjoined_links(), ["plain"]);
    let mut b = ports.open(&PortConfig { mac: Some([2, 0, 0, 0, 0, 9]), ..jumbo("b") }).unwrap();
    assert!(a.link().up && b.link().up);
    assert!(ports.unjoined_links().is_empty());
    assert_eq!(b.info().mac, [2, 0, 0, 0, 0, 9]);
    assert_eq!(a.info().mac[0] & 3, 2, "local, not a group: {:?}", a.info().mac);
    assert_eq!(a.info().checksums.tx_tcp, ChecksumSite::Skipped);
    assert_eq!(b.info().checksums.rx_tcp, ChecksumSite::Software);
    assert!(!a.info().rss.in_device);
    let (mut from, mut to) = (a.take_queues(), b.take_queues());
    for q in 0..2 {
        for len in [60, 1514, 9018] {
            let bytes = port_common::pattern(len + q);
            let bytes = &bytes[q..];
            port_common::send(&mut from[q], bytes);
            assert_eq!(port_common::receive(&mut to[q], |_| true).data(), bytes);
            port_common::send(&mut to[q], bytes);
            assert_eq!(port_common::receive(&mut from[q], |_| true).data(), bytes);
        }
        assert_eq!(from[q].index(), q as u16);
        let counters = *from[q].counters();
        assert_eq!((counters.tx_frames, counters.tx_bytes), (3, 60 + 1514 + 9018));
        assert_eq!((counters.rx_frames, counters.rx_bytes), (3, 60 + 1514 + 9018));
    }
    drop((b, to));
    assert!(!a.link().up);
}

fn largest_frames_pass(ports: &PortFactory) {
    let large = |name| {
        port_common::with_fewer_buffers(PortConfig { mtu: MAX_MTU, ..config(name, "large") })
    };
    let (mut a, mut b) = (ports.open(&large("a")).unwrap(), ports.open(&large("b")).unwrap());
    let (mut from, mut to) = (port_common::only_queue(&mut a), port_common::only_queue(&mut b));
    // The longest frame: MTU, Ethernet header and VLAN tag.
    let bytes = port_common::pattern(usize::from(MAX_MTU) + FRAME_OVERHEAD);
    port_common::send(&mut from, &bytes);
    let got = port_common::receive(&mut to, |_| true);
    assert_eq!((got.data(), got.segments()), (&bytes[..], 1));
}

fn sender_wakes_armed_receiver(ports: &PortFactory) {
    let two = |name| PortConfig { queues: 2, ..config(name, "bells") };
    let (mut a, mut b) = (ports.open(&two("a")).unwrap(), ports.open(&two("b")).unwrap());
    let (mut from, mut to) = (a.take_queues(), b.take_queues());
    let is_rung = |queue: &PortQueue| port_common::readable(queue, Duration::ZERO);
    for q in 0..2 {
        assert!(to[q].can_wake());
        port_common::send(&mut from[q], &[1; 60]);
        assert!(!is_rung(&to[q]), "a polling receiver is not woken");
        to[q].arm();
        assert!(!is_rung(&to[q]));
        port_common::send(&mut from[q], &[2; 60]);
        assert!(is_rung(&to[q]));
        to[q].disarm();
        assert!(!is_rung(&to[q]));
        assert!(!is_rung(&to[1 - q]) && !is_rung(&from[q]));
    }
    from[1].arm();
    port_common::send(&mut to[1], &[3; 60]);
    assert!(is_rung(&from[1]));
}

fn full_ring_drops_are_counted(ports: &PortFactory) {
    let mut a = ports.open(&config("a", "full")).unwrap();
    let mut b = ports.open(&config("b", "full")).unwrap();
    let (mut from, mut to) = (port_common::only_queue(&mut a), port_common::only_queue(&mut b));
    let all = 255 + PortQueue::PENDING + 10;
    for i in 0..all {
        port_common::send(&mut from, &(i as u32).to_be_bytes());
    }
    assert_eq!((from.pending(), from.free_tx_slots()), (PortQueue::PENDING, 0));
    assert_eq!((from.counters().tx_frames, from.counters().tx_dropped), (255, 10));
    let mut got = 0;
    port_common::wait_until("all have arrived", || {
        let mut batch = RxBatch::new();
        to.rx_burst(port_common::now(), &mut batch);
        for frame in &batch {
            assert_eq!(frame.data(), (got as u32).to_be_bytes());
            got += 1;
        }
        from.flush();
        got == all - 10
    });
    assert_eq!(from.pending(), 0);

    // An allocation from an exhausted pool is counted, and succeeds again once buffers are freed.
    let mut hoard = Vec::new();
    while let Some(buffer) = from.alloc() {
        hoard.push(buffer);
    }
    assert_eq!(from.counters().no_buffer, 1);
    assert_eq!(hoard.len() as u32, a.info().buffers);
    drop(hoard);
    assert!(from.alloc().is_some());
}

/// Sends frames numbered from 0 to `count - 1` to an impaired end. Returns the numbers of the arriving frames, in order
/// of arrival.
fn arrivals(ports: &PortFactory, name: &str, impair: link::Config, count: u32) -> Vec<u32> {
    let mut a = ports.open(&config("a", name)).unwrap();
    let mut b = ports.open(&PortConfig { impair: Some(impair), ..config("b", name) }).unwrap();
    let (mut from, mut to) = (port_common::only_queue(&mut a), port_common::only_queue(&mut b));
    let mut got = Vec::new();
    let mut now = Instant::ZERO;
    for i in 0..count + 100 {
        if i < count {
            port_common::send(&mut from, &i.to_be_bytes());
        }
        now += Duration::from_millis(1);
        let mut batch = RxBatch::new();
        to.rx_burst(now, &mut batch);
        got.extend(batch.iter().map(|f| u32::from_be_bytes(f.data().try_into().expect("4 bytes"))));
    }
    let counters = to.link_counters().expect("it is impaired");
    assert_eq!(counters.offered, u64::from(count));
    assert_eq!(counters.delivered, got.len() as u64);
    assert!(from.link_counters().is_none());
    got
}

fn impaired_end_loses_frames(ports: &PortFactory) {
    let every_tenth = link::Config {
        loss: link::Loss::EveryNth(NonZeroU64::new(10).unwrap()),
        ..link::Config::seeded(1)
    };
    let got = arrivals(ports, "tenth", every_tenth, 100);
    assert_eq!(got, (0..100).filter(|i| i % 10 != 9).collect::<Vec<_>>());

    let bad = |seed| link::Config {
        loss: link::Loss::Random(link::Probability::new(0.1).unwrap()),
        reorder: link::Reorder {
            probability: link::Probability::new(0.2).unwrap(),
            delay: Duration::from_millis(3),
        },
        ..link::Config::seeded(seed)
    };
    let got = arrivals(ports, "bad1", bad(7), 500);
    assert!(got.len() < 480 && got.len() > 400, "{}", got.len());
    assert!(!got.is_sorted());
    assert_eq!(got, arrivals(ports, "bad2", bad(7), 500));
    assert_ne!(got, arrivals(ports, "bad3", bad(8), 500));
}

fn delay_sets_poll_timeout(ports: &PortFactory) {
    let mut a = ports.open(&config("a", "slow")).unwrap();
    let impair = link::Config { delay: Duration::from_millis(20), ..link::Config::seeded(1) };
    let mut b = ports.open(&PortConfig { impair: Some(impair), ..config("b", "slow") }).unwrap();
    let (mut from, mut to) = (port_common::only_queue(&mut a), port_common::only_queue(&mut b));
    assert_eq!(to.poll_timeout(), None);
    port_common::send(&mut from, b"late");
    let mut batch = RxBatch::new();
    assert_eq!(to.rx_burst(Instant::from_millis(5), &mut batch), 0);
    assert_eq!(to.poll_timeout(), Some(Instant::from_millis(25)));
    assert_eq!(to.rx_burst(Instant::from_millis(24), &mut batch), 0);
    assert_eq!(to.rx_burst(Instant::from_millis(25), &mut batch), 1);
    assert_eq!(batch[0].data(), b"late");
    assert_eq!(to.poll_timeout(), None);
}

fn corruption_and_duplicates_are_counted(ports: &PortFactory) {
    let mut a = ports.open(&config("a", "damage")).unwrap();
    let always = link::Probability::new(1.0).unwrap();
    let impair = link::Config { corrupt: always, duplicate: always, ..link::Config::seeded(1) };
    let mut b = ports.open(&PortConfig { impair: Some(impair), ..config("b", "damage") }).unwrap();
    let (mut from, mut to) = (port_common::only_queue(&mut a), port_common::only_queue(&mut b));
    port_common::send(&mut from, &[0; 100]);
    let mut batch = RxBatch::new();
    assert_eq!(to.rx_burst(Instant::ZERO, &mut batch), 2);
    for frame in &batch {
        assert_eq!(frame.data().iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }
    assert_eq!(batch[0].data(), batch[1].data());
    assert_ne!(batch[0].data().as_ptr(), batch[1].data().as_ptr());

    // A full batch is left unchanged, and no frame is lost.
    for _ in 0..BURST {
        port_common::send(&mut from, &[0; 10]);
    }
    let mut got = 0;
    while got < 2 * BURST {
        let mut batch = RxBatch::new();
        got += to.rx_burst(Instant::ZERO, &mut batch);
        let full = batch.len();
        assert_eq!(
            to.rx_burst(Instant::ZERO, &mut batch),
            if full == BURST { 0 } else { batch.len() - full }
        );
        got += batch.len() - full;
    }
    assert_eq!(got, 2 * BURST);
}

fn invalid_configurations_are_refused(ports: &PortFactory) {
    let _a = ports.open(&PortConfig { queues: 2, ..config("a", "uneven") }).unwrap();
    let error = ports.open(&config("b", "uneven")).expect_err("it is wrong");
    let text = error.to_string();
    assert!(text.contains("the other end of link \"uneven\" has 2"), "{text}");
    assert_eq!(error.key(), "workers");
    // The open end still accepts a matching port.
    drop(ports.open(&PortConfig { queues: 2, ..config("b", "uneven") }).unwrap());
    for mtu in [575, MAX_MTU + 1, 0, 65_535] {
        let error = ports.open(&PortConfig { mtu, ..config("c", "mtu") });
        assert!(matches!(error, Err(PortError::Mtu { .. })), "{error:?}");
    }
    let error = ports.open(&PortConfig { queues: 0, ..config("c", "none") }).expect_err("no queue");
    assert_eq!(error.key(), "workers");
}
