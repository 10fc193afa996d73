//! Tests an AF_XDP port. Frames pass to and from a kernel socket, the port's descriptor wakes a worker, and an MTU
//! above AF_XDP's limit is refused, for the port and for the interface.

mod port_common;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use dataplane::port::{PortConfig, PortKind};
use port_common::{Exchange, Netns, Peer};

fn config(device: &str, mtu: u16) -> PortConfig {
    let kind = PortKind::AfXdp { device: device.to_owned(), first_queue: 0, force_copy: false };
    PortConfig { mtu, ..PortConfig::new("x", kind) }
}

#[test]
fn af_xdp_frames_reach_kernel_socket() {
    if let Some(device) = port_common::role() {
        let _port = port_common::ports().open(&config(&device, 1500)).unwrap();
        port_common::print_line("open");
        loop {
            std::thread::park();
        }
    }
    if !port_common::has_privileges("port_af_xdp") {
        return;
    }
    let netns = Netns::enter("afx");
    let ports = port_common::ports();
    for (i, mtu) in [1500u16, 3498].into_iter().enumerate() {
        let name = format!("x{mtu}");
        let (kernel, own) = (Ipv4Addr::new(10, 78, i as u8, 1), Ipv4Addr::new(10, 78, i as u8, 2));
        netns.veth(&name, mtu, kernel);
        let mut port = ports.open(&config(&name, mtu)).unwrap();
        port_common::wait_until("the link is up", || port.link().up);
        let mut queue = port_common::only_queue(&mut port);
        let exchange = Exchange::new(&format!("{name}k"), kernel, own, port.info().mac);
        for len in [100, mtu as usize - 28] {
            exchange.assert_round_trip(&mut queue, &port_common::pattern(len));
        }
        // More frames than descriptors and buffers, so that each is reused.
        for i in 0..6000u16 {
            exchange.assert_round_trip(&mut queue, &i.to_be_bytes());
        }
        port_common::drain(&mut queue);
        assert!(!port_common::readable(&queue, Duration::ZERO));
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        socket.send_to(b"wake", (own, 7)).unwrap();
        assert!(port_common::readable(&queue, Duration::from_secs(10)));
        port_common::drain(&mut queue);
        assert!(!port_common::readable(&queue, Duration::ZERO));
        assert_eq!(queue.counters().tx_dropped, 0);
    }

    // Closing the port removes the driver's XDP program. A program left by a killed process does not prevent opening.
    netns.veth("xkill", 1500, Ipv4Addr::new(10, 78, 8, 1));
    drop(ports.open(&config("xkill", 1500)).unwrap());
    drop(ports.open(&config("xkill", 1500)).unwrap());
    let mut peer = Peer::start("af_xdp_frames_reach_kernel_socket", "xkill", "");
    peer.wait_for("open");
    let text = ports.open(&config("xkill", 1500)).expect_err("it is taken").to_string();
    assert!(text.contains("another socket or XDP program holds its queues"), "{text}");
    drop(peer);
    let mut port = ports.open(&config("xkill", 1500)).unwrap();
    let mut queue = port_common::only_queue(&mut port);
    let (kernel, own) = (Ipv4Addr::new(10, 78, 8, 1), Ipv4Addr::new(10, 78, 8, 2));
    Exchange::new("xkillk", kernel, own, port.info().mac)
        .assert_round_trip(&mut queue, b"after a kill");

    netns.veth("xbig", 9000, Ipv4Addr::new(10, 78, 9, 1));
    let refused = |config: PortConfig| {
        let error = ports.open(&config).expect_err("it is wrong");
        assert_eq!(error.key(), "mtu");
        error.to_string()
    };
    let text = refused(config("xbig", 1500));
    assert!(
        text.contains("interface xbig has MTU 9000, and AF_XDP carries at most 3498"),
        "{text}"
    );
    let text = refused(config("xbig", 9000));
    assert!(text.contains("af_xdp carries 576 to 3498"), "{text}");
}
