//! Two devices connected by rings: frames arrive unchanged and in order, in both directions, on every queue. Frames
//! that find the ring full stay with the sender. Pools and rings are freed after their last user, in any order of
//! drops.

mod common;

use arrayvec::ArrayVec;
use dpdk::Mbuf;

#[test]
fn frames_pass_between_joined_devices() {
    let eal = common::eal();
    assert!(!eal.has_hugepages());
    assert!(eal.statement().contains("ordinary memory"), "{}", eal.statement());
    let pool = common::pool_config(511, 2048);
    let (left, right) = dpdk::ring_pair(&eal, 2, 64).unwrap();
    assert_eq!(left.info().unwrap().max_rx_queues, 2);
    let config = common::device_config(2);
    let (left, mut left_rx, mut left_tx) = left.start(&config, pool.clone()).unwrap();
    let (right, mut right_rx, mut right_tx) = right.start(&config, pool).unwrap();
    let pool = left.pool().clone();
    assert!(left.link().up);

    for q in 0..2 {
        let mut out = ArrayVec::<Mbuf, 4>::new();
        out.push(common::frame(&pool, &[1, q as u8]));
        out.push(common::frame(&pool, &[2, q as u8]));
        assert_eq!(left_tx[q].burst(&mut out), 2);
        assert_eq!(common::receive(&mut right_rx[q]).data(), [1, q as u8]);
        assert_eq!(common::receive(&mut right_rx[q]).data(), [2, q as u8]);
        out.push(common::frame(&pool, &[3, q as u8]));
        assert_eq!(right_tx[q].burst(&mut out), 1);
        assert_eq!(common::receive(&mut left_rx[q]).data(), [3, q as u8]);
    }

    // A ring of 64 slots holds 63 frames. The other frames stay with the sender, in order.
    let mut out = ArrayVec::<Mbuf, 70>::new();
    for i in 0..70u8 {
        out.push(common::frame(&pool, &[i]));
    }
    assert_eq!(left_tx[0].burst(&mut out), 63);
    assert_eq!(out.iter().map(|f| f.data()[0]).collect::<Vec<_>>(), (63..70).collect::<Vec<_>>());
    assert_eq!(left_tx[0].burst(&mut out), 0);
    drop(out);
    for i in 0..30u8 {
        assert_eq!(common::receive(&mut right_rx[0]).data(), [i]);
    }
    assert_eq!(pool.available(), 511 - 33);
    let stats = left.stats().unwrap();
    assert_eq!((stats.tx_frames, stats.rx_frames), (4 + 63, 2));

    // A received frame, and frames in the ring, outlive the pool's last owner.
    let kept = common::receive(&mut right_rx[0]);
    drop((left, left_rx, left_tx, pool));
    assert_eq!(eal.retired_pools(), 1, "the ring and this test have buffers of the pool");
    drop((right, right_rx, right_tx));
    assert_eq!(eal.retired_pools(), 1, "this test has a buffer of the pool");
    assert_eq!(kept.data(), [30]);
    drop(kept);
    eal.sweep();
    assert_eq!(eal.retired_pools(), 0);
}
