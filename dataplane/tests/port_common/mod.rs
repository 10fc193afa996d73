//! Helpers of the port tests: EAL, network namespaces, frames.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::print_stderr, reason = "shown with a test that fails")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use dataplane::port::{Mbuf, Port, PortConfig, PortFactory, PortQueue, RxBatch};
use dpdk::{Eal, EalConfig, Hugepages, LogLevel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Starts the EAL in ordinary memory, without privileges. Returns a port factory.
pub(crate) fn ports() -> PortFactory {
    let config = EalConfig {
        hugepages: Hugepages::Never,
        memory_mib: 256,
        log_level: LogLevel::Warning,
        log: |level, line| eprintln!("dpdk {level:?}: {line}"),
        ..EalConfig::default()
    };
    PortFactory::new(Eal::start(&config).expect("the environment starts without privileges"))
}

/// Reduces the buffers of a port with a large MTU, so that they fit into the tests' memory.
pub(crate) fn with_fewer_buffers(config: PortConfig) -> PortConfig {
    if config.mtu <= 9000 {
        return config;
    }
    PortConfig { buffers: Some(1024), rx_descriptors: 128, tx_descriptors: 128, ..config }
}

/// Asserts that no packet buffer leaked: `free` buffers are free again, except for the buffers that queues and rings
/// hold (at most 2048, and at most half of `free`).
pub(crate) fn assert_no_leak(port: &Port, free: u32) {
    let held = 2048.min(free / 2);
    assert!(port.free_buffers() + held >= free, "{} of {free}", port.free_buffers());
}

/// Returns true for root. For another user, panics, or returns false and prints that the test is skipped if
/// `DDPD_TEST_UNPRIVILEGED` is set.
pub(crate) fn has_privileges(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(
        std::env::var_os("DDPD_TEST_UNPRIVILEGED").is_some(),
        "{test} makes network namespaces and needs root; set DDPD_TEST_UNPRIVILEGED=1 to leave such tests out"
    );
    eprintln!("{test}: left out, it needs root");
    false
}

/// A network namespace of this thread and the threads that it creates. Removed on drop.
pub(crate) struct Netns(String);

impl Netns {
    pub(crate) fn enter(test: &str) -> Netns {
        let name = format!("ddpd-{test}-{}", std::process::id());
        run(&["ip", "netns", "add", &name]);
        let netns = Netns(name);
        let file = std::fs::File::open(format!("/run/netns/{}", netns.0)).unwrap();
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&file),
            Some(LinkNameSpaceType::Network),
        )
        .expect("root may enter a network namespace");
        run(&["ip", "link", "set", "lo", "up"]);
        netns
    }

    /// Creates a veth pair without offloads: `name` for a port, and `NAMEk` with address `kernel` for the kernel.
    pub(crate) fn veth(&self, name: &str, mtu: u16, kernel: Ipv4Addr) {
        let peer = format!("{name}k");
        run(&["ip", "link", "add", name, "type", "veth", "peer", "name", &peer]);
        for end in [name, &peer] {
            run(&["ip", "link", "set", end, "mtu", &mtu.to_string(), "up"]);
            run(&["sysctl", "-qw", &format!("net.ipv6.conf.{end}.disable_ipv6=1")]);
            let offloads = ["tx", "rx", "gso", "tso", "gro"].map(|o| [o, "off"]);
            let mut args = vec!["ethtool", "-K", end];
            args.extend(offloads.as_flattened());
            run(&args);
        }
        run(&["ip", "addr", "add", &format!("{kernel}/24"), "dev", &peer]);
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        run(&["ip", "netns", "del", &self.0]);
    }
}

pub(crate) fn run(args: &[&str]) {
    let output = Command::new(args[0]).args(&args[1..]).output().expect(args[0]);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the monotonic time since the first call.
pub(crate) fn now() -> base::Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(Instant::now);
    base::Instant::from_nanos(start.elapsed().as_nanos() as u64)
}

/// Polls until a frame arrives for which `predicate` returns true. Panics after ten seconds.
pub(crate) fn receive(queue: &mut PortQueue, mut predicate: impl FnMut(&[u8]) -> bool) -> Mbuf {
    let start = Instant::now();
    loop {
        let mut batch = RxBatch::new();
        queue.flush();
        queue.rx_burst(now(), &mut batch);
        if let Some(frame) = batch.into_iter().find(|frame| predicate(frame.data())) {
            return frame;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "no such frame in ten seconds: {queue:?}"
        );
        std::thread::yield_now();
    }
}

/// Polls until `done` returns true. Panics after 30 seconds.
pub(crate) fn wait_until(condition: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "30 seconds are over before {condition}"
        );
        std::thread::yield_now();
    }
}

/// Sends a frame with these bytes. Panics if no buffer is free.
pub(crate) fn send(queue: &mut PortQueue, bytes: &[u8]) {
    let mut frame = queue.alloc().expect("a free buffer");
    frame.append(bytes.len()).expect("it fits").copy_from_slice(bytes);
    queue.tx(frame);
    queue.flush();
}

/// Returns true if the queue's descriptor becomes readable within `wait`.
pub(crate) fn readable(queue: &PortQueue, wait: Duration) -> bool {
    let fd = queue.fd().expect("this kind has a descriptor");
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let wait = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ };
    poll(&mut fds, Some(&wait)).expect("poll") == 1 && fds[0].revents().contains(PollFlags::IN)
}

/// Receives and drops all waiting frames.
pub(crate) fn drain(queue: &mut PortQueue) {
    while queue.rx_burst(now(), &mut RxBatch::new()) > 0 {}
}

/// Receives one burst and counts the frames for which `predicate` returns true.
pub(crate) fn take(queue: &mut PortQueue, predicate: impl Fn(&[u8]) -> bool) -> usize {
    let mut batch = RxBatch::new();
    queue.rx_burst(now(), &mut batch);
    batch.iter().filter(|frame| predicate(frame.data())).count()
}

/// Returns the queue of a port that has exactly one.
pub(crate) fn only_queue(port: &mut Port) -> PortQueue {
    let mut queues = port.take_queues();
    assert_eq!(queues.len(), 1);
    queues.pop().expect("one queue")
}

/// Addresses of a UDP exchange between a port and the kernel at the port's other end.
pub(crate) struct Exchange {
    pub(crate) kernel_mac: [u8; 6],
    pub(crate) port_mac: [u8; 6],
    pub(crate) kernel: Ipv4Addr,
    pub(crate) port: Ipv4Addr,
}

impl Exchange {
    /// Adds the port's address to the kernel's neighbour table of `interface`.
    pub(crate) fn new(
        interface: &str,
        kernel: Ipv4Addr,
        port: Ipv4Addr,
        port_mac: [u8; 6],
    ) -> Exchange {
        let kernel_mac = dpdk::interface(interface).expect("the kernel's end").mac;
        let mac = port_mac.map(|byte| format!("{byte:02x}")).join(":");
        run(&["ip", "neigh", "replace", &port.to_string(), "lladdr", &mac, "dev", interface]);
        Exchange { kernel_mac, port_mac, kernel, port }
    }

    /// Sends `payload` from the port to a socket of the kernel and back. Asserts that both arrive unchanged.
    pub(crate) fn assert_round_trip(&self, queue: &mut PortQueue, payload: &[u8]) {
        let socket = self.assert_reaches_kernel(queue, payload);
        socket.send_to(payload, (self.port, 7)).unwrap();
        let frame = receive(queue, |bytes| bytes[12..14] == [8, 0] && bytes[23] == 17);
        assert_eq!(frame.data()[..6], self.port_mac);
        assert_eq!(&frame.data()[42..], payload);
    }

    /// Returns true if a frame from the port reaches a socket of the kernel within 200 ms. Used for interfaces that
    /// have just come up, because the kernel may still drop the first frames.
    #[allow(dead_code)]
    pub(crate) fn reaches_kernel(&self, queue: &mut PortQueue) -> bool {
        let socket = UdpSocket::bind((self.kernel, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        send(queue, &self.frame(socket.local_addr().unwrap().port(), b"probe"));
        socket.recv_from(&mut [0; 64]).is_ok()
    }

    /// Sends `payload` from the port to a socket of the kernel. Asserts that it arrives unchanged.
    pub(crate) fn assert_reaches_kernel(&self, queue: &mut PortQueue, payload: &[u8]) -> UdpSocket {
        let socket = UdpSocket::bind((self.kernel, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let kernel_port = socket.local_addr().unwrap().port();
        send(queue, &self.frame(kernel_port, payload));
        let mut got = vec![0; 65_536];
        let (len, from) = socket.recv_from(&mut got).expect("the kernel receives it");
        assert_eq!((&got[..len], from), (payload, (self.port, 7).into()));
        socket
    }

    /// Returns an Ethernet frame with UDP over IPv4 from port 7, without UDP checksum.
    fn frame(&self, to: u16, payload: &[u8]) -> Vec<u8> {
        let udp_len = (8 + payload.len()) as u16;
        let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
        ip[12..16].copy_from_slice(&self.port.octets());
        ip[16..20].copy_from_slice(&self.kernel.octets());
        let sum: u32 =
            ip.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let ports = [7u16.to_be_bytes(), to.to_be_bytes(), udp_len.to_be_bytes(), [0, 0]];
        let link = [&self.kernel_mac[..], &self.port_mac, &[8, 0]].concat();
        [&link[..], &ip, ports.as_flattened(), payload].concat()
    }
}

/// Returns bytes that differ by position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Returns the role of this process, if it is the child of a test.
pub(crate) fn role() -> Option<String> {
    std::env::var("DDPD_TEST_ROLE").ok()
}

/// Another process that runs the same test in another role. Killed with SIGKILL on drop.
pub(crate) struct Peer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    pub(crate) fn start(test: &str, role: &str, argument: &str) -> Peer {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args([test, "--exact", "--nocapture"])
            .env("DDPD_TEST_ROLE", role)
            .env("DDPD_TEST_ARGUMENT", argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test runs again");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Peer { process, lines }
    }

    /// Waits for a line from the other process that contains `what`.
    pub(crate) fn wait_for(&mut self, what: &str) {
        let found = self.lines.any(|line| line.expect("text").contains(what));
        assert!(found, "the other process ended before it printed {what:?}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }
}

/// Returns the argument that the parent passed to this child process.
pub(crate) fn argument() -> String {
    std::env::var("DDPD_TEST_ARGUMENT").expect("a child has one")
}

/// Prints a line for the parent and flushes it.
pub(crate) fn print_line(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).expect("the parent listens");
}
