//! Tests a TAP port. Frames pass to and from a kernel socket behind its interface, and its descriptor wakes a worker.
//! The interface is removed with the port.

mod port_common;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use dataplane::port::{PortConfig, PortKind};
use port_common::{Exchange, Netns};

fn config(device: &str, mtu: u16) -> PortConfig {
    let kind = PortKind::Tap { device: device.to_owned() };
    PortConfig { mtu, ..PortConfig::new("t", kind) }
}

#[test]
fn tap_frames_reach_kernel_socket() {
    if !port_common::has_privileges("port_tap") {
        return;
    }
    let _netns = Netns::enter("tap");
    let ports = port_common::ports();
    let (name, mtu) = ("tap", 1500);
    let (kernel, own) = (Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2));
    let mut port = ports.open(&config(name, mtu)).unwrap();
    let text = ports.open(&config(name, mtu)).expect_err("it is there").to_string();
    assert!(text.contains(&format!("there is an interface {name} already")), "{text}");
    let interface = dpdk::interface(name).expect("the interface is made");
    assert_eq!(interface.mtu, u32::from(mtu));
    assert_ne!(interface.mac, port.info().mac, "kernel and port are two hosts on one wire");
    port_common::run(&["ip", "addr", "add", &format!("{kernel}/24"), "dev", name]);
    port_common::wait_until("the link is up", || port.link().up);
    let mut queue = port_common::only_queue(&mut port);
    let exchange = Exchange::new(name, kernel, own, port.info().mac);
    for len in [1, 100, mtu as usize - 28] {
        exchange.assert_round_trip(&mut queue, &port_common::pattern(len));
    }
    for i in 0..3000u16 {
        exchange.assert_round_trip(&mut queue, &i.to_be_bytes());
    }
    port_common::drain(&mut queue);
    assert!(!port_common::readable(&queue, Duration::ZERO));
    let socket = UdpSocket::bind((kernel, 0)).unwrap();
    socket.send_to(b"wake", (own, 7)).unwrap();
    assert!(port_common::readable(&queue, Duration::from_secs(10)));
    port_common::receive(&mut queue, |bytes| bytes.ends_with(b"wake"));
    assert!(!port_common::readable(&queue, Duration::ZERO));
    drop((queue, port));
    assert_eq!(dpdk::interface(name), None, "the interface is removed with the port");

    // Jumbo frames: the port refuses an MTU that the driver would refuse. Drivers of later DPDK releases support this
    // MTU.
    match ports.open(&config("tap9", 9000)) {
        Err(error) => {
            assert!(error.to_string().contains("carries 576 to 1500"), "{error}");
            assert_eq!(error.key(), "mtu");
        }
        Ok(port) => {
            let version = dpdk::version();
            assert!(!version.starts_with("DPDK 22."), "{version}'s tap has no jumbo frames");
            assert_eq!(dpdk::interface("tap9").map(|interface| interface.mtu), Some(9000));
            drop(port);
        }
    }
    assert_eq!(dpdk::interface("tap9"), None);
}
