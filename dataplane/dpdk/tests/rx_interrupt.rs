//! A device with receive interrupts wakes the thread that waits on its queue's descriptor, each time the queue is
//! armed. The device is a virtio port connected to a vhost-user port of this process. A device without receive
//! interrupts, one end of a ring pair, also starts, but cannot wake a thread.

mod common;

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use dpdk::{Device, DeviceConfig, IdleFd, Mbuf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[test]
fn rx_interrupt_wakes_armed_queue() {
    let eal = common::eal();
    let socket = std::env::temp_dir().join(format!("ddpd-interrupt-{}", std::process::id()));
    let vhost =
        Device::virtual_device(&eal, "net_vhost0", &format!("iface={},queues=1", socket.display()));
    let config = DeviceConfig { private_files: true, ..common::device_config(1) };
    let config = DeviceConfig { idle: IdleFd::VhostKick, ..config };
    let pool = common::pool_config(1023, 2048);
    let (vhost, mut vhost_rx, mut vhost_tx) = vhost.unwrap().start(&config, pool.clone()).unwrap();

    let arguments = format!("path={},queues=1", socket.display());
    let virtio = Device::virtual_device(&eal, "net_virtio_user0", &arguments).unwrap();
    let config = DeviceConfig { idle: IdleFd::RxInterrupt, ..common::device_config(1) };
    let (virtio, mut rx, tx) = virtio.start(&config, pool.clone()).unwrap();
    common::wait_until("the frontend is connected", || vhost.link().up);
    let rx = &mut rx[0];
    assert!(rx.has_interrupt() && rx.can_wake());

    let mut send = |byte: u8| {
        let mut out = ArrayVec::<Mbuf, 1>::new();
        out.push(common::frame(vhost.pool(), &[byte; 60]));
        common::wait_until("the ring has room", || vhost_tx[0].burst(&mut out) == 1);
    };
    for round in 0..5 {
        assert!(rx.fd().is_none(), "the interrupt is off while the queue is polled");
        rx.arm();
        let fd = rx.fd().expect("on");
        assert!(!readable(fd, 0), "no frame has arrived in round {round}");
        send(round);
        assert!(readable(fd, 10), "woken in round {round}");
        rx.disarm();
        assert_eq!(common::receive(rx).data(), [round; 60]);
    }
    drop((virtio, tx));

    // The ring driver has no interrupts.
    let (left, right) = dpdk::ring_pair(&eal, 1, 64).unwrap();
    let (_left, mut rx, _) = left.start(&config, pool).unwrap();
    assert!(!rx[0].has_interrupt() && !rx[0].can_wake());
    rx[0].arm();
    assert!(rx[0].fd().is_none());
    rx[0].disarm();
    drop((right, vhost_rx.pop()));
}

fn readable(fd: BorrowedFd<'_>, seconds: i64) -> bool {
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
}
