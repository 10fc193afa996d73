//! A vhost-user port with a hand-written frontend (crate `vhost`). Tests rings with descriptors that loop, leave the
//! memory or are out of range, and frontends that disconnect during a burst. Frontends also reconnect many times while
//! a worker polls, sends and sleeps. The port survives, leaks no buffers, and serves the next frontend.
//!
//! `DDPD_VHOST_RECONNECTS`: number of reconnects (default 300). Not tested: a frontend that shrinks its memory file,
//! which ends the process (docs/guide.md).

mod port_common;
#[path = "port_common/raw.rs"]
mod raw;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dataplane::port::{Port, PortConfig, PortKind, PortQueue, RxBatch};
use raw::{
    AVAIL, BUFFERS, Desc, FROM_FRONTEND, HEADER, INDIRECT, MEMORY, NEXT, RING_SIZE, Raw,
    TO_FRONTEND, WRITE, ring_at,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A ring state that a hostile guest prepares.
struct HostileChain {
    case: &'static str,
    /// Descriptors of the ring, from 0 on.
    chain: Vec<Desc>,
    /// Descriptors of an indirect table at [`BUFFERS`].
    table: Vec<Desc>,
    /// Heads of the available chains.
    heads: Vec<u16>,
    /// Additional increment of the available ring's index.
    index_jump: u16,
}

fn hostile_chain(what: &'static str, chain: &[Desc]) -> HostileChain {
    HostileChain {
        case: what,
        chain: chain.to_vec(),
        table: Vec::new(),
        heads: vec![0],
        index_jump: 0,
    }
}

fn desc(at: u64, len: u32, flags: u16, next: u16) -> Desc {
    Desc { at, len, flags, next }
}

fn hostile_chains() -> Vec<HostileChain> {
    let loops = desc(BUFFERS, 64, NEXT, 0);
    let plain = desc(BUFFERS, 100, 0, 0);
    let table = |len| desc(BUFFERS, len, INDIRECT, 0);
    let long: Vec<Desc> =
        (1..=RING_SIZE).map(|next| desc(BUFFERS, 64, NEXT, next % RING_SIZE)).collect();
    vec![
        hostile_chain("a chain of itself", &[loops]),
        hostile_chain("a chain of two that loops", &[desc(BUFFERS, 64, NEXT, 1), loops]),
        hostile_chain("a chain of all descriptors that loops", &long),
        hostile_chain("past the end", &[desc(MEMORY - 10, 100, 0, 0)]),
        hostile_chain("outside", &[desc(MEMORY * 16, 100, 0, 0)]),
        hostile_chain("as long as can be", &[desc(BUFFERS, u32::MAX, 0, 0)]),
        hostile_chain("an address that wraps", &[desc(u64::MAX - 10, 100, 0, 0)]),
        hostile_chain("empty", &[desc(BUFFERS, 0, 0, 0)]),
        hostile_chain("shorter than the header", &[desc(BUFFERS, 5, 0, 0)]),
        hostile_chain("only a header", &[desc(BUFFERS, HEADER as u32, 0, 0)]),
        hostile_chain("a next that is out of range", &[desc(BUFFERS, 64, NEXT, RING_SIZE)]),
        hostile_chain("a next that is far out of range", &[desc(BUFFERS, 64, NEXT, u16::MAX)]),
        hostile_chain("written to by the device", &[desc(BUFFERS, 100, WRITE, 0)]),
        hostile_chain("more than fits all buffers", &[desc(0, MEMORY as u32, 0, 0)]),
        hostile_chain("a frame of 64 KiB", &[desc(BUFFERS, 65_536, 0, 0)]),
        HostileChain {
            heads: vec![RING_SIZE, u16::MAX, 7],
            ..hostile_chain("heads out of range", &[plain])
        },
        HostileChain { index_jump: 40_000, ..hostile_chain("an index that jumps", &[plain]) },
        hostile_chain("an indirect table outside", &[desc(MEMORY, 160, INDIRECT, 0)]),
        hostile_chain("an indirect table that is cut", &[table(17)]),
        hostile_chain("an empty indirect table", &[table(0)]),
        HostileChain {
            table: vec![loops],
            ..hostile_chain("an indirect table that loops", &[table(16)])
        },
        HostileChain {
            table: vec![table(16)],
            ..hostile_chain("an indirect table in itself", &[table(16)])
        },
        HostileChain {
            table: vec![desc(BUFFERS + 4096, 64, NEXT, 400)],
            ..hostile_chain("an indirect next out of range", &[table(32)])
        },
    ]
}

/// Returns virtio headers with impossible offload requests.
fn hostile_headers() -> Vec<[u8; HEADER]> {
    let header = |flags: u8, gso: u8, len: u16, size: u16, start: u16, offset: u16| {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&[flags, gso]);
        for (to, value) in bytes[2..10].chunks_exact_mut(2).zip([len, size, start, offset]) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    };
    let mut headers = Vec::new();
    for start in [0, 14, 34, 59, 60, 1000, u16::MAX] {
        for offset in [0, 16, 1000, u16::MAX] {
            // VIRTIO_NET_HDR_F_NEEDS_CSUM alone, with GSO of TCP over IPv4, and with an unknown GSO type.
            headers
                .extend([0, 1, 0x7f].map(|gso| header(1, gso, u16::MAX, u16::MAX, start, offset)));
        }
    }
    headers
}

/// Asserts that a new frontend can send and receive a frame.
fn assert_serves(port: &Port, queue: &mut PortQueue, socket: &Path) {
    let mut raw = Raw::connect(socket);
    raw.offer(64);
    raw.settle();
    port_common::wait_until("the frontend is connected", || port.link().up);
    queue.flush();
    for (first, len) in [(0, 60), (1, 1514)] {
        let bytes = port_common::pattern(len);
        raw.send(first, &[&bytes]);
        let got = port_common::receive(queue, |got| *got == *bytes);
        assert_eq!(got.segments(), 1);
        let before = raw.used(TO_FRONTEND);
        port_common::send(queue, &bytes);
        port_common::wait_until("the frame is sent", || raw.used(TO_FRONTEND) != before);
        let at = BUFFERS + 0x40_0000 + u64::from(before) * 0x1000 + HEADER as u64;
        let mut sent = vec![0; len];
        raw.memory.read_exact_at(&mut sent, at).unwrap();
        assert_eq!(sent, bytes);
    }
    disconnect(port, raw);
}

fn disconnect(port: &Port, raw: Raw) {
    drop(raw);
    port_common::wait_until("the frontend is disconnected", || !port.link().up);
}

/// Polls often enough to process all descriptors.
fn poll_all(queue: &mut PortQueue) {
    for _ in 0..1000 {
        let mut batch = RxBatch::new();
        queue.rx_burst(port_common::now(), &mut batch);
        assert!(batch.iter().all(|frame| frame.segments() == 1));
    }
}

fn assert_survives(port: &Port, queue: &mut PortQueue, socket: &Path) {
    let free = port.free_buffers();
    for evil in hostile_chains() {
        for ring in [FROM_FRONTEND, TO_FRONTEND] {
            let mut raw = Raw::connect(socket);
            let device_writes = if ring == TO_FRONTEND { WRITE } else { 0 };
            for (index, desc) in (0..).zip(&evil.chain) {
                let flags = desc.flags ^ device_writes;
                raw.describe(ring_at(ring), index, Desc { flags, ..*desc });
            }
            for (index, desc) in (0..).zip(&evil.table) {
                raw.describe(BUFFERS, index, *desc);
            }
            raw.avail[ring as usize] = 0;
            raw.publish(ring, &evil.heads);
            if evil.index_jump > 0 {
                let index = raw.avail[ring as usize].wrapping_add(evil.index_jump).to_le_bytes();
                raw.memory.write_all_at(&index, ring_at(ring) + AVAIL + 2).unwrap();
            }
            raw.settle();
            port_common::wait_until("the frontend is connected", || port.link().up);
            poll_all(queue);
            for _ in 0..64 {
                port_common::send(queue, &port_common::pattern(1000));
            }
            poll_all(queue);
            disconnect(port, raw);
            queue.flush();
            assert_eq!(queue.pending(), 0, "{}", evil.case);
            assert!(port.free_buffers() + 1024 >= free, "{}: {}", evil.case, port.free_buffers());
        }
    }
    assert_serves(port, queue, socket);
    let mut raw = Raw::connect(socket);
    raw.settle();
    port_common::wait_until("the frontend is connected", || port.link().up);
    // The test frames: TCP over IPv4, the same frame cut to 20 bytes, and an empty frame.
    let mut tcp = port_common::pattern(60);
    tcp[12..14].copy_from_slice(&[8, 0]);
    tcp[14..34]
        .copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    for header in hostile_headers() {
        for frame in [&tcp[..], &tcp[..20], &[]] {
            let at = BUFFERS;
            raw.memory.write_all_at(&header, at).unwrap();
            raw.memory.write_all_at(frame, at + HEADER as u64).unwrap();
            let len = (HEADER + frame.len()) as u32;
            raw.describe(ring_at(FROM_FRONTEND), 0, desc(at, len, 0, 0));
            raw.publish(FROM_FRONTEND, &[0]);
            // The port leaves a refused frame in the ring or discards it.
            queue.rx_burst(port_common::now(), &mut RxBatch::new());
        }
    }
    disconnect(port, raw);
    assert_serves(port, queue, socket);
}

/// Runs a worker that polls, sends frames back, and sleeps until the frontend kicks, at most 50 µs.
fn run_worker(queue: &mut PortQueue, stop: &AtomicBool, seen: &AtomicU64) {
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let mut batch = RxBatch::new();
        queue.rx_burst(port_common::now(), &mut batch);
        seen.fetch_add(batch.len() as u64, Ordering::Relaxed);
        for frame in batch {
            queue.tx(frame);
        }
        queue.flush();
        round += 1;
        if round.is_multiple_of(8) {
            if let Some(fd) = queue.fd() {
                let wait = Timespec { tv_sec: 0, tv_nsec: 50_000 };
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap();
            }
            queue.disarm();
        }
    }
}

/// Guard that ends the worker on drop, also after a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Frontends disconnect at different points: before or after start-up, with and without buffers, during a burst.
fn reconnect_randomly(port: &Port, queue: &mut PortQueue, socket: &Path, times: u32) {
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let free = port.free_buffers();
    std::thread::scope(|scope| {
        scope.spawn(|| run_worker(queue, &stop, &seen));
        let _stop = StopOnDrop(&stop);
        let frame = port_common::pattern(1000);
        for time in 0..times {
            let mut raw = Raw::connect(socket);
            if time % 4 != 0 {
                raw.settle();
            }
            if time % 2 == 0 {
                raw.offer(RING_SIZE - 1);
            }
            for burst in 0..time % 3 {
                raw.send(burst as u16 * 64, &[&frame[..]; 64]);
            }
            if time % 16 == 1 && time % 3 != 0 {
                port_common::wait_until("the worker is in the burst", || {
                    raw.used(FROM_FRONTEND) > 0 && port.link().up
                });
            }
            drop(raw);
        }
    });
    assert!(seen.into_inner() > 0);
    port_common::wait_until("the last frontend is disconnected", || !port.link().up);
    queue.flush();
    assert!(port.free_buffers() + 1024 >= free, "{} of {free}", port.free_buffers());
}

#[test]
fn hostile_frontend_does_not_stop_port() {
    let times =
        std::env::var("DDPD_VHOST_RECONNECTS").map_or(300, |n| n.parse().expect("a number"));
    let ports = port_common::ports();
    let directory = std::env::temp_dir().join(format!("ddpd-vhost-raw-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let socket = directory.join("socket");
    let kind = PortKind::VhostUser { socket: socket.clone() };
    let mut port = ports.open(&PortConfig::new("v", kind)).unwrap();
    let mut queue = port_common::only_queue(&mut port);
    assert_serves(&port, &mut queue, &socket);
    assert_survives(&port, &mut queue, &socket);
    reconnect_randomly(&port, &mut queue, &socket, times);
    assert_serves(&port, &mut queue, &socket);
    drop((port, queue));
    std::fs::remove_dir_all(&directory).unwrap();
}
