//! Tests an `af_packet` port. Frames pass to and from a kernel socket at MTU 1500 and 9000, the port's descriptors wake
//! a worker, and faults of the host are reported in one sentence.

mod port_common;

use std::net::{Ipv4Addr, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use dataplane::port::{ChecksumSite, DeviceFault, PortConfig, PortError, PortFactory, PortKind};
use port_common::{Exchange, Netns};

fn config(device: &str, mtu: u16) -> PortConfig {
    let kind = PortKind::AfPacket { device: device.to_owned() };
    PortConfig { mtu, rx_descriptors: 256, tx_descriptors: 256, ..PortConfig::new("p", kind) }
}

#[test]
fn af_packet_frames_reach_kernel_socket() {
    if !port_common::has_privileges("port_af_packet") {
        return;
    }
    let netns = Netns::enter("afp");
    let ports = port_common::ports();
    for (i, mtu) in [1500u16, 2000, 4000, 9000].into_iter().enumerate() {
        let name = format!("a{mtu}");
        let (kernel, own) = (Ipv4Addr::new(10, 77, i as u8, 1), Ipv4Addr::new(10, 77, i as u8, 2));
        netns.veth(&name, mtu, kernel);
        let mut port = ports.open(&config(&name, mtu)).unwrap();
        assert_eq!(port.info().mac, dpdk::interface(&name).unwrap().mac);
        assert_eq!(port.info().checksums.tx_tcp, ChecksumSite::Software);
        port_common::wait_until("the link is up", || port.link().up);
        let mut queue = port_common::only_queue(&mut port);
        let exchange = Exchange::new(&format!("{name}k"), kernel, own, port.info().mac);
        for len in [1, 100, mtu as usize - 28] {
            exchange.assert_round_trip(&mut queue, &port_common::pattern(len));
        }
        assert_eq!(queue.counters().tx_frames, 3);
        assert!(queue.counters().rx_frames >= 3);

        // Without frames the descriptor is not readable. A frame makes it readable until the frame is received.
        port_common::drain(&mut queue);
        assert!(!port_common::readable(&queue, Duration::ZERO));
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        socket.send_to(b"wake", (own, 7)).unwrap();
        assert!(port_common::readable(&queue, Duration::from_secs(10)));
        port_common::drain(&mut queue);
        assert!(!port_common::readable(&queue, Duration::ZERO));
    }
    vlan_tag_is_kept(&netns, &ports);
    frames_use_all_queues(&netns, &ports);
    frames_pass_after_link_down(&netns, &ports);
    recreated_interface_is_bound_again(&netns, &ports);
    invalid_configurations_are_refused(&netns, &ports);
    second_claim_is_refused(&netns, &ports);
}

/// A received frame contains its VLAN tag, which the kernel delivers separately.
fn vlan_tag_is_kept(netns: &Netns, ports: &PortFactory) {
    netns.veth("av", 9000, Ipv4Addr::new(10, 77, 9, 1));
    let mut tagged_port = ports.open(&config("av", 9000)).unwrap();
    let mut other = ports.open(&config("avk", 9000)).unwrap();
    let (mut one, mut other) =
        (port_common::only_queue(&mut tagged_port), port_common::only_queue(&mut other));
    let mut bytes = port_common::pattern(9018);
    bytes[..6].copy_from_slice(&other.info().mac);
    bytes[6..12].copy_from_slice(&one.info().mac);
    bytes[12..16].copy_from_slice(&[0x81, 0x00, 0x60, 0x05]);
    bytes[16..18].copy_from_slice(&[0x88, 0xb5]);
    for len in [60, 1000, 9018] {
        port_common::send(&mut one, &bytes[..len]);
        let frame = port_common::receive(&mut other, |got| got[12..14] == [0x81, 0x00]);
        assert_eq!(frame.data(), &bytes[..len]);
    }
}

/// The kernel distributes flows by its own hash: any queue may receive a frame, and all can send.
fn frames_use_all_queues(netns: &Netns, ports: &PortFactory) {
    let (kernel, own) = (Ipv4Addr::new(10, 77, 10, 1), Ipv4Addr::new(10, 77, 10, 2));
    netns.veth("aq", 1500, kernel);
    let mut port = ports.open(&PortConfig { queues: 2, ..config("aq", 1500) }).unwrap();
    assert!(!port.info().rss.in_device);
    assert_eq!(port.info().rss.queues.len(), 128);
    let mut queues = port.take_queues();
    assert_eq!(queues.len(), 2);
    assert!(port.take_queues().is_empty());
    let exchange = Exchange::new("aqk", kernel, own, port.info().mac);
    let socket = UdpSocket::bind((kernel, 0)).unwrap();
    for flow in 1..=64 {
        socket.send_to(b"flow", (own, flow)).unwrap();
    }
    let mut got = [0, 0];
    port_common::wait_until("all flows have arrived", || {
        for (queue, got) in queues.iter_mut().zip(&mut got) {
            *got += port_common::take(queue, |bytes| bytes.ends_with(b"flow"));
        }
        got[0] + got[1] == 64
    });
    assert!(got[0] > 0 && got[1] > 0, "{got:?}");
    for queue in &mut queues {
        exchange.assert_reaches_kernel(queue, b"from each");
        assert!(queue.fd().is_some());
    }
}

/// Queues and descriptors from before the replacement work on the new interface, with one and with two queues. Every
/// change is reported.
fn recreated_interface_is_bound_again(netns: &Netns, ports: &PortFactory) {
    for queues in [1, 2] {
        let (kernel, own) = (Ipv4Addr::new(10, 77, 12, 1), Ipv4Addr::new(10, 77, 12, 2));
        netns.veth("again", 1500, kernel);
        let mut port = ports.open(&PortConfig { queues, ..config("again", 1500) }).unwrap();
        let mut queues = port.take_queues();
        port_common::wait_until("the link is up", || port.link().up);
        let fault = || port.view().fault;
        assert_eq!(fault(), None);

        port_common::run(&["ip", "link", "set", "again", "mtu", "1400"]);
        assert_eq!(fault(), Some(DeviceFault::Mtu(1400)));
        port_common::run(&["ip", "link", "set", "again", "mtu", "1500"]);
        let mac = [2, 0, 0, 0, 0, 0x77];
        port_common::run(&["ip", "link", "set", "again", "address", "02:00:00:00:00:77"]);
        assert_eq!(port.view().mac, mac);
        assert_ne!(port.mac(), mac, "the caller notifies workers first");
        port_common::run(&["ip", "link", "set", "again", "down"]);
        assert_eq!(fault(), Some(DeviceFault::Down));
        port_common::run(&["ip", "link", "set", "again", "name", "other"]);
        assert_eq!(fault(), Some(DeviceFault::Renamed("other".into())));

        port_common::run(&["ip", "link", "del", "other"]);
        assert_eq!(fault(), Some(DeviceFault::Missing));
        assert!(port.rebind().is_err() && !port.link().up);
        netns.veth("again", 1500, kernel);
        assert_eq!(fault(), Some(DeviceFault::Replaced));
        assert!(!port.link().up);
        port.rebind().unwrap();
        port_common::wait_until("the link is up", || port.link().up);
        assert_eq!(fault(), None);
        assert_eq!(port.view().mac, dpdk::interface("again").unwrap().mac);
        let exchange = Exchange::new("againk", kernel, own, port.view().mac);
        for queue in &mut queues {
            exchange.assert_reaches_kernel(queue, b"from each");
            assert!(queue.fd().is_some());
        }
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        queues.iter_mut().for_each(port_common::drain);
        socket.send_to(b"wake", (own, 7)).unwrap();
        port_common::wait_until("a descriptor wakes", || {
            queues.iter().any(|queue| port_common::readable(queue, Duration::from_millis(10)))
        });
        drop((queues, port));
        port_common::run(&["ip", "link", "del", "again"]);
    }
}

/// Sending neither blocks nor fails while the interface is down. Frames pass again afterwards.
fn frames_pass_after_link_down(netns: &Netns, ports: &PortFactory) {
    let (kernel, own) = (Ipv4Addr::new(10, 77, 11, 1), Ipv4Addr::new(10, 77, 11, 2));
    netns.veth("afdown", 1500, kernel);
    let mut port = ports.open(&config("afdown", 1500)).unwrap();
    let mut queue = port_common::only_queue(&mut port);
    port_common::run(&["ip", "link", "set", "afdown", "down"]);
    port_common::wait_until("the link is down", || !port.link().up);
    for _ in 0..2000 {
        if let Some(mut frame) = queue.alloc() {
            frame.append(60).expect("it fits").fill(0);
            queue.tx(frame);
        }
        queue.flush();
    }
    port_common::run(&["ip", "link", "set", "afdown", "up"]);
    port_common::wait_until("the link is up", || port.link().up);
    let exchange = Exchange::new("afdownk", kernel, own, port.info().mac);
    port_common::wait_until("the device accepts frames again", || {
        queue.flush();
        queue.pending() == 0
    });
    port_common::wait_until("frames pass again", || exchange.reaches_kernel(&mut queue));
    exchange.assert_round_trip(&mut queue, b"after");
}

fn invalid_configurations_are_refused(netns: &Netns, ports: &PortFactory) {
    let refused = |config: PortConfig| {
        let error = ports.open(&config).expect_err("it is wrong");
        (error.to_string(), error.key())
    };
    let (text, key) = refused(config("absent0", 1500));
    assert!(text.contains("no network interface absent0"), "{text}");
    assert_eq!(key, "device");
    netns.veth("afs", 1500, Ipv4Addr::new(10, 77, 12, 1));
    let (text, key) = refused(config("afs", 9000));
    assert!(text.contains("MTU 9000 is more than the 1500 of interface afs"), "{text}");
    assert_eq!(key, "mtu");
    let (text, key) = refused(config("afs", 9001));
    assert!(text.contains("carries 576 to 9000"), "{text}");
    assert_eq!(key, "mtu");
    let (text, key) = refused(config("afs,qpairs=3", 1500));
    assert!(text.contains("commas"), "{text}");
    assert_eq!(key, "device");
    let (text, key) = refused(PortConfig { queues: 17, ..config("afs", 1500) });
    assert!(text.contains("1 to 16"), "{text}");
    assert_eq!(key, "workers");
    let (text, key) = refused(PortConfig { rx_descriptors: 100, ..config("afs", 1500) });
    assert!(text.contains("power of two"), "{text}");
    assert_eq!(key, "rx_descriptors");
    let (text, key) =
        refused(PortConfig { impair: Some(link::Config::default()), ..config("afs", 1500) });
    assert!(text.contains("only a port of kind \"ring\""), "{text}");
    assert_eq!(key, "impair");
    let error = ports.open(&PortConfig { buffers: Some(1 << 20), ..config("afs", 1500) });
    assert!(matches!(error, Err(PortError::NoMemory { .. })), "{error:?}");
    // A refused port leaves no resources allocated.
    drop(ports.open(&config("afs", 1500)).unwrap());
    drop(ports.open(&config("afs", 1500)).unwrap());
}

/// An interface has one port, unless a further port has `shares_interface`. An unprivileged user cannot block an
/// interface by claiming its name first.
fn second_claim_is_refused(netns: &Netns, ports: &PortFactory) {
    let address = Ipv4Addr::new(10, 77, 13, 1);
    netns.veth("afc", 1500, address);
    // Abstract socket name by which earlier versions claimed the interface.
    let name = SocketAddr::from_abstract_name("ddpd/interface/afc").unwrap();
    let _squatter = UnixListener::bind_addr(&name).unwrap();
    let first = ports.open(&config("afc", 1500)).unwrap();
    let error = ports.open(&config("afc", 1500)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "port \"p\": interface afc is used by another port of this process; stop it or choose another interface"
    );
    assert_eq!(error.key(), "device");
    let beside = PortConfig { shares_interface: true, ..config("afc", 1500) };
    drop(ports.open(&beside).unwrap());
    let other = ports.open(&config("afck", 1500)).unwrap();
    // Another namespace has a different interface of that name.
    std::thread::scope(|scope| {
        let elsewhere = || {
            let netns = Netns::enter("afpc");
            netns.veth("afc", 1500, address);
            drop(ports.open(&config("afc", 1500)).unwrap());
        };
        scope.spawn(elsewhere).join().unwrap();
    });
    drop((first, other));
    drop(ports.open(&config("afc", 1500)).unwrap());
}
