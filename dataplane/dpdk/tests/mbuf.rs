//! Packet buffers: room, growth and shrinkage at both ends, copies, bulk allocation, exhaustion, and freeing on other
//! threads.

mod common;

use std::sync::mpsc;

use arrayvec::ArrayVec;
use dpdk::{Eal, EalConfig, EalError, HEADROOM, Mbuf, RxChecksum, TxChecksums, TxL4};

#[test]
fn mbuf_keeps_written_bytes_and_lengths() {
    let eal = common::eal();
    assert!(matches!(Eal::start(&EalConfig::default()), Err(EalError::AlreadyStarted)));
    let pool = common::pool(&eal, 127, 1000);

    let mut frame = pool.alloc().unwrap();
    assert_eq!((frame.len(), frame.headroom(), frame.tailroom()), (0, HEADROOM, 1000));
    assert!(frame.is_empty());
    frame.append(4).unwrap().copy_from_slice(b"data");
    frame.prepend(5).unwrap().copy_from_slice(b"head ");
    assert_eq!((frame.data(), frame.len(), frame.segments()), (&b"head data"[..], 9, 1));
    assert_eq!((frame.headroom(), frame.tailroom()), (HEADROOM - 5, 996));
    assert!(frame.append(997).is_none() && frame.prepend(HEADROOM).is_none());
    assert!(!frame.trim_front(10));
    assert!(frame.trim_front(2));
    frame.truncate(100);
    frame.truncate(4);
    assert_eq!(frame.data(), b"ad d");
    assert!(frame.linearize());
    assert_eq!(frame.rss_hash(), None);
    let mut copy = frame.copy().unwrap();
    copy.data_mut()[0] = b'A';
    assert_eq!((frame.data(), copy.data()), (&b"ad d"[..], &b"Ad d"[..]));
    drop((frame, copy));
    checks_checksum_flags_of_one_protocol(common::frame(&pool, b"x"));

    // A bulk allocation returns all requested buffers or none.
    let mut all = ArrayVec::<Mbuf, 127>::new();
    assert!(pool.alloc_bulk(&mut all));
    assert_eq!((all.len(), pool.available()), (127, 0));
    assert!(pool.alloc().is_none());
    let mut more = ArrayVec::<Mbuf, 2>::new();
    assert!(!pool.alloc_bulk(&mut more) && more.is_empty());
    all.truncate(126);
    assert!(!pool.alloc_bulk(&mut more) && more.is_empty());
    drop(all);
    assert_eq!(pool.available(), 127);

    // Any thread may free a buffer, registered with DPDK or not.
    let (send, receive) = mpsc::channel::<Mbuf>();
    let worker = std::thread::spawn({
        let eal = eal.clone();
        move || {
            let registration = eal.register_thread().unwrap();
            assert!(registration.lcore() > 0, "lcore 0 is the environment's own");
            receive.into_iter().count()
        }
    });
    send.send(common::frame(&pool, b"x")).unwrap();
    send.send(common::frame(&pool, b"y")).unwrap();
    drop(send);
    assert_eq!(worker.join().unwrap(), 2);
    assert_eq!(pool.available(), 127);
}

/// A buffer requests the checksum of one protocol: the flags for TCP and SCTP share two bits, which mean UDP if both
/// are set. A copy has neither requests nor verdicts.
fn checks_checksum_flags_of_one_protocol(mut frame: Mbuf) {
    assert_eq!(frame.tx_l4(), TxL4::None);
    for l4 in [TxL4::Sctp, TxL4::Tcp, TxL4::Sctp, TxL4::None] {
        for ipv6 in [false, true] {
            frame.set_tx_checksums(TxChecksums { ipv6, ip: true, l4, l2_len: 14, l3_len: 20 });
            assert_eq!(frame.tx_l4(), l4);
        }
    }
    for verdict in [RxChecksum::Bad, RxChecksum::Good, RxChecksum::Unknown] {
        frame.set_rx_l4_checksum(verdict);
        assert_eq!(frame.rx_l4_checksum(), verdict);
    }
    frame.set_tx_checksums(TxChecksums {
        ipv6: false,
        ip: false,
        l4: TxL4::Sctp,
        l2_len: 18,
        l3_len: 20,
    });
    frame.set_rx_l4_checksum(RxChecksum::Bad);
    let copy = frame.copy().expect("there are buffers");
    assert_eq!((copy.tx_l4(), copy.rx_l4_checksum()), (TxL4::None, RxChecksum::Unknown));
}
