//! Two processes connected by a memif exchange frames at MTU 1500, 9000 and 65,280. If one process is killed, even
//! during a burst, the other process detects this and serves the next peer. Both roles, server and client, are tested.
//!
//! `DDPD_MEMIF_KILLS`: number of clients killed during bursts (default 8). A quarter as many servers are killed,
//! because a client may wait 5 s after each kill of a server.

mod port_common;

use std::path::Path;

use dataplane::port::{
    MAX_MTU, MemifRole, Port, PortConfig, PortError, PortFactory, PortKind, PortQueue, RxBatch,
};
use port_common::Peer;

const TEST: &str = "memif_processes_exchange_frames";

fn config(socket: &Path, role: MemifRole, mtu: u16) -> PortConfig {
    let secret = Some("untold".to_owned());
    let kind =
        PortKind::Memif { socket: socket.to_owned(), role, id: 3, secret: secret.map(Into::into) };
    port_common::with_fewer_buffers(PortConfig { mtu, ..PortConfig::new("m", kind) })
}

/// Child process: echoes every frame until it is killed.
fn echo(role: &str) -> ! {
    let argument = port_common::argument();
    let (mtu, socket) = argument.split_once(' ').expect("MTU and socket");
    let role = if role == "server" { MemifRole::Server } else { MemifRole::Client };
    let config = config(Path::new(socket), role, mtu.parse().expect("an MTU"));
    let mut port = port_common::ports().open(&config).unwrap();
    let mut queue = port_common::only_queue(&mut port);
    port_common::print_line("open");
    loop {
        let mut batch = RxBatch::new();
        queue.rx_burst(port_common::now(), &mut batch);
        for mut frame in batch {
            frame.data_mut()[0] ^= 0xff;
            queue.tx(frame);
        }
        queue.flush();
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

/// Starts a new peer and waits until it has received the pending frames.
fn wait_connected(port: &Port, queue: &mut PortQueue, role: &str, argument: &str) -> Peer {
    let mut peer = Peer::start(TEST, role, argument);
    peer.wait_for("open");
    port_common::wait_until("the peer is connected", || port.link().up);
    port_common::wait_until("frames flow", || {
        queue.flush();
        queue.pending() == 0
    });
    peer
}

/// Two peers in succession are killed; the port detects each.
fn second_peer_is_served(
    port: &mut Port,
    queue: &mut PortQueue,
    role: &str,
    argument: &str,
    mtu: u16,
) {
    assert!(!port.link().up, "no peer is connected yet");
    for _ in 0..2 {
        let peer = wait_connected(port, queue, role, argument);
        exchange(queue, mtu);
        let free = port.free_buffers();
        for _ in 0..2000 {
            exchange(queue, mtu.min(1000));
        }
        port_common::assert_no_leak(port, free);
        drop(peer);
        port_common::wait_until("the disconnect is detected", || !port.link().up);
        // Frames sent without a peer fill the queue, and are then dropped and counted.
        for _ in 0..1000 {
            port_common::send(queue, &[0; 60]);
        }
        assert!(queue.counters().tx_dropped > 0);
        assert_eq!(queue.rx_burst(port_common::now(), &mut RxBatch::new()), 0);
    }
}

/// Peers are killed while both sides transfer frames. The driver then unmaps the shared memory.
fn killed_peers_do_no_harm(port: &mut Port, queue: &mut PortQueue, role: &str, argument: &str) {
    let clients = std::env::var("DDPD_MEMIF_KILLS").map_or(8, |n| n.parse().expect("a number"));
    let kills = if role == "client" { clients } else { clients / 4 };
    let bytes = port_common::pattern(1000);
    for _ in 0..kills {
        let peer = wait_connected(port, queue, role, argument);
        exchange(queue, 1000);
        let killer = std::thread::spawn(move || drop(peer));
        port_common::wait_until("the disconnect is detected", || {
            for _ in 0..1000 {
                port_common::send(queue, &bytes);
                queue.rx_burst(port_common::now(), &mut RxBatch::new());
            }
            !port.link().up
        });
        killer.join().expect("the peer is killed");
    }
}

#[test]
fn memif_processes_exchange_frames() {
    if let Some(role) = port_common::role() {
        echo(&role);
    }
    let ports: PortFactory = port_common::ports();
    let directory = std::env::temp_dir().join(format!("ddpd-memif-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    for mtu in [1500, 9000, MAX_MTU] {
        for (own, other) in [(MemifRole::Server, "client"), (MemifRole::Client, "server")] {
            let socket = directory.join(format!("{mtu}-{other}"));
            let argument = format!("{mtu} {}", socket.display());
            let mut port = ports.open(&config(&socket, own, mtu)).unwrap();
            let mut queue = port_common::only_queue(&mut port);
            second_peer_is_served(&mut port, &mut queue, other, &argument, mtu);
            if mtu == 1500 {
                killed_peers_do_no_harm(&mut port, &mut queue, other, &argument);
            }
        }
    }
    // Two memif ports of one process may share a socket. Sockets of other processes and other files are not removed.
    let socket = directory.join("shared");
    let first = ports.open(&config(&socket, MemifRole::Server, 1500)).unwrap();
    let mut second = config(&socket, MemifRole::Server, 1500);
    if let PortKind::Memif { id, .. } = &mut second.kind {
        *id = 4;
    }
    drop((ports.open(&second).unwrap(), first));
    let socket = directory.join("taken");
    let mut peer = Peer::start(TEST, "server", &format!("1500 {}", socket.display()));
    peer.wait_for("open");
    let error = ports.open(&config(&socket, MemifRole::Server, 1500)).expect_err("it is taken");
    assert!(error.to_string().contains("is in use; stop the process"), "{error}");
    let file = directory.join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = ports.open(&config(&file, MemifRole::Server, 1500)).expect_err("it is a file");
    assert!(error.to_string().contains("is in use"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");

    let mut many_buffers = config(&directory.join("many"), MemifRole::Client, 1500);
    (many_buffers.queues, many_buffers.tx_descriptors) = (3, 16_384);
    let error = ports.open(&many_buffers).expect_err("the driver counts to 65536");
    assert!(matches!(error, PortError::MemifBuffers { shared: 98_304, .. }), "{error}");
    assert_eq!(error.key(), "tx_descriptors");

    let absent = config(&directory.join("no/socket"), MemifRole::Client, 1500);
    let error = ports.open(&absent).expect_err("the directory is missing");
    assert!(error.to_string().contains("No such file or directory"), "{error}");
    assert_eq!(error.key(), "socket");
    std::fs::remove_dir_all(&directory).unwrap();
}
