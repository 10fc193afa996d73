//! A vhost-user port with the frontend of DPDK's `net_virtio_user` in a second process. Frames pass in both directions
//! on two queues. The port detects a killed frontend and serves the next one. `port_vhost_user_raw.rs` tests hostile
//! frontends.

mod port_common;

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use dataplane::port::{MAX_MTU, Port, PortConfig, PortKind, PortQueue};
use dpdk::{DataRoom, Device, DeviceConfig, IdleFd, Mbuf, MempoolConfig, RxOffloads, TxOffloads};
use port_common::Peer;

const TEST: &str = "vhost_user_port_survives_frontend_changes";

fn config(socket: &Path, mtu: u16, queues: u16) -> PortConfig {
    let kind = PortKind::VhostUser { socket: socket.to_owned() };
    port_common::with_fewer_buffers(PortConfig { mtu, queues, ..PortConfig::new("v", kind) })
}

/// Child process: echoes every frame on its queue until it is killed.
fn echo() -> ! {
    let argument = port_common::argument();
    let [mtu, queues, socket] = *argument.splitn(3, ' ').collect::<Vec<_>>() else {
        panic!("MTU, queues and socket")
    };
    let ports = port_common::ports();
    let args = format!("path={socket},queues={queues},cq=1,queue_size=256,server=0");
    let device = Device::virtual_device(ports.eal(), "net_virtio_user0", &args).unwrap();
    let mtu: u16 = mtu.parse().unwrap();
    let config = DeviceConfig {
        queues: queues.parse().unwrap(),
        rx_descriptors: 256,
        tx_descriptors: 256,
        // The driver refuses a larger MTU, but transfers longer frames.
        mtu: mtu.min(9698),
        set_mtu: true,
        rx: RxOffloads::default(),
        tx: TxOffloads::default(),
        rss: None,
        promiscuous: true,
        all_multicast: true,
        idle: IdleFd::None,
        reconnect: false,
        private_files: false,
    };
    let (buffers, room) =
        if mtu > 9000 { (1024, port_kind::data_room(mtu)) } else { (4096, 10_240) };
    let pool = MempoolConfig { buffers, data_room: DataRoom::Bytes(room), numa: None };
    let (_device, rx, tx) = device.start(&config, pool).unwrap();
    let mut pairs: Vec<_> = rx.into_iter().zip(tx).collect();
    port_common::print_line("open");
    loop {
        for (rx, tx) in &mut pairs {
            let mut frames = arrayvec::ArrayVec::<Mbuf, 32>::new();
            rx.burst(&mut frames);
            for frame in &mut frames {
                frame.data_mut()[0] ^= 0xff;
            }
            while !frames.is_empty() {
                tx.burst(&mut frames);
            }
        }
        std::thread::yield_now();
    }
}

fn exchange(queue: &mut PortQueue, mtu: u16) {
    for len in [60, 1000, usize::from(mtu) + 14] {
        let bytes = port_common::pattern(len);
        port_common::send(queue, &bytes);
        let frame =
            port_common::receive(queue, |got| got[0] == bytes[0] ^ 0xff && got[1..] == bytes[1..]);
        assert_eq!(frame.segments(), 1);
    }
}

/// Two frontends in succession are killed; the port detects each.
fn second_frontend_is_served(port: &mut Port, queues: &mut [PortQueue], mtu: u16, argument: &str) {
    assert!(!port.link().up, "no frontend is connected yet");
    for _ in 0..2 {
        let mut peer = Peer::start(TEST, "frontend", argument);
        peer.wait_for("open");
        port_common::wait_until("the frontend is connected", || port.link().up);
        for queue in &mut *queues {
            port_common::wait_until("the queue accepts frames", || {
                port_common::send(queue, &[0; 60]);
                queue.counters().tx_frames > 0 && queue.pending() == 0
            });
            exchange(queue, mtu);
        }
        let free = port.free_buffers();
        for _ in 0..2000 {
            queues.iter_mut().for_each(|queue| exchange(queue, mtu.min(1000)));
        }
        port_common::assert_no_leak(port, free);
        queues.iter_mut().for_each(kick_wakes_idle_worker);
        drop(peer);
        port_common::wait_until("the disconnect is detected", || !port.link().up);
        for queue in &mut *queues {
            // Frames sent without a frontend are dropped and counted.
            let before = queue.counters().tx_dropped;
            for _ in 0..1000 {
                port_common::send(queue, &[0; 60]);
            }
            assert_eq!((queue.counters().tx_dropped, queue.pending()), (before + 1000, 0));
            port_common::drain(queue);
            assert!(!port_common::readable(queue, Duration::from_millis(5)), "no frontend kicks");
            queue.disarm();
        }
    }
}

/// A frontend's kick makes the descriptor of an idle worker readable. The descriptor is not readable before.
fn kick_wakes_idle_worker(queue: &mut PortQueue) {
    port_common::drain(queue);
    assert!(!port_common::readable(queue, Duration::from_millis(5)), "nothing was sent");
    let fd = queue.fd().expect("nothing waits").try_clone_to_owned().unwrap();
    port_common::send(queue, &port_common::pattern(60));
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let wait = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&wait)), Ok(1), "the frontend kicks");
    assert!(queue.fd().is_none(), "no descriptor while a frame waits");
    queue.disarm();
    let _: Mbuf = port_common::receive(queue, |_| true);
}

#[test]
fn vhost_user_port_survives_frontend_changes() {
    if port_common::role().is_some() {
        echo();
    }
    let ports = port_common::ports();
    let directory = std::env::temp_dir().join(format!("ddpd-vhost-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    for (mtu, count) in [(1500, 1), (9000, 2), (MAX_MTU, 1)] {
        let socket = directory.join(format!("{mtu}"));
        let argument = format!("{mtu} {count} {}", socket.display());
        let mut port = ports.open(&config(&socket, mtu, count)).unwrap();
        let mut queues = port.take_queues();
        assert_eq!(queues.len(), usize::from(count));
        let meta = std::fs::symlink_metadata(&socket).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        second_frontend_is_served(&mut port, &mut queues, mtu, &argument);
        drop((port, queues));
        assert!(std::fs::symlink_metadata(&socket).is_err(), "the socket is removed with the port");
    }
    // The umask of the process is unchanged.
    let file = directory.join("file");
    std::fs::write(&file, "precious").unwrap();
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o666 & !mask.bits()
    );
    used_sockets_are_refused(&ports, &directory, &file);
    std::fs::remove_dir_all(&directory).unwrap();
}

fn used_sockets_are_refused(ports: &dataplane::port::PortFactory, directory: &Path, file: &Path) {
    // A socket left by a killed process is removed. A served socket and any other file are not.
    let socket = directory.join("left");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let port = ports.open(&config(&socket, 1500, 1)).unwrap();
    for occupied in [&*socket, file] {
        let error = ports.open(&config(occupied, 1500, 1)).expect_err("it is taken");
        assert!(error.to_string().contains("is in use; stop the process"), "{error}");
    }
    drop(port);
    assert_eq!(std::fs::read(file).unwrap(), b"precious");
    let error =
        ports.open(&config(&directory.join("no/socket"), 1500, 1)).expect_err("no directory");
    assert_eq!(error.key(), "socket");
    let error = ports.open(&config(&directory.join("a,b"), 1500, 1)).expect_err("a comma");
    assert_eq!(error.key(), "socket");
}
