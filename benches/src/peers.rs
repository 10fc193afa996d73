//! Peer programs, which users might choose instead of `ddpd`: kernel TCP with iperf3, UCX over TCP, kernel sockets with
//! CRC and copy. Each program runs in its own processes. testpmd measures the capacity of a port.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::kernel;
use crate::rig_config::Link;
use crate::row::Row;

/// A measurement of a peer program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Name of the row, unique in a run.
    pub name: String,
    /// Name of the row's group in the plan.
    pub group: String,
    /// The peer program and its options.
    pub what: PeerKind,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// Cores of the client's or sender's process and of the server's or receiver's process.
    pub cores: [usize; 2],
}

/// A peer program and its measurements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerKind {
    /// Bandwidth of `iperf3` over `lo`.
    Iperf,
    /// Bandwidth of `iperf3` over the veth pair between two namespaces.
    IperfVeth {
        /// True if GSO, TSO and GRO are on at both ends of the pair.
        offload: bool,
    },
    /// Bandwidth of 1 MiB puts: `ucx_perftest -t ucp_put_bw`.
    UcxBandwidth {
        /// True for TCP over `lo`, false for the transport that UCX chooses.
        tcp: bool,
    },
    /// Round trip of 64-byte puts: `ucx_perftest -t ucp_put_lat`.
    UcxLatency {
        /// True for TCP over `lo`, false for the transport that UCX chooses.
        tcp: bool,
    },
    /// Bandwidth of kernel TCP sockets over `lo`. The receiver also computes CRCs and copies into a region.
    SocketBandwidth,
    /// Round trip of a message over kernel TCP sockets on `lo`.
    SocketLatency,
    /// Frames per second between two `dpdk-testpmd` processes.
    Testpmd {
        /// Kind of the port.
        link: Link,
        /// The two Linux interfaces of the link. With memif, both elements are the path of the socket.
        devices: [String; 2],
        /// Length of each IP packet, bytes.
        mtu: u16,
    },
}

impl Peer {
    /// Returns the row of the report, before the measurement: with parameters, without a value.
    pub fn row(&self) -> Row {
        let row = Row::new(&self.group, &self.name, self.unit());
        match &self.what {
            PeerKind::IperfVeth { offload } => row.with("gso", if *offload { "on" } else { "off" }),
            PeerKind::Testpmd { link, mtu, .. } => row.with("link", link.name()).with("mtu", mtu),
            PeerKind::UcxBandwidth { tcp } | PeerKind::UcxLatency { tcp } => {
                row.with("transport", if *tcp { "tcp over lo" } else { "chosen by UCX" })
            }
            _ => row,
        }
    }

    fn unit(&self) -> &'static str {
        match self.what {
            PeerKind::Iperf
            | PeerKind::IperfVeth { .. }
            | PeerKind::UcxBandwidth { .. }
            | PeerKind::SocketBandwidth => "Gbit/s",
            PeerKind::UcxLatency { .. } | PeerKind::SocketLatency => "us",
            PeerKind::Testpmd { .. } => "frames/s",
        }
    }
}

/// Environment variables that hold the names of the two network namespaces. `scripts/bench` creates them as root.
pub const NAMESPACES: [&str; 2] = ["DDP_BENCH_NS_A", "DDP_BENCH_NS_B"];

/// Returns the reason why `scripts/bench` created no network namespaces and veth pairs, as a sentence.
pub fn missing_namespaces_message() -> String {
    let reason = std::env::var("DDP_BENCH_NO_VETH").ok().filter(|why| !why.is_empty());
    reason.unwrap_or_else(|| "there is no veth pair: scripts/bench makes one, as root".to_owned())
}

/// Runs the peer program and returns its row.
pub fn measure(peer: &Peer) -> anyhow::Result<Row> {
    let time = Duration::from_secs_f64(peer.seconds);
    let mut row = peer.row();
    match &peer.what {
        PeerKind::Iperf => measure_iperf(peer, [None, None], "127.0.0.1", &mut row)?,
        PeerKind::IperfVeth { .. } => {
            let space = |name| std::env::var(name).ok();
            let spaces = NAMESPACES.map(space);
            anyhow::ensure!(spaces.iter().all(Option::is_some), "{}", missing_namespaces_message());
            measure_iperf(peer, spaces, "10.99.0.2", &mut row)?;
        }
        PeerKind::UcxBandwidth { tcp } => measure_ucx(peer, "ucp_put_bw", 1 << 20, *tcp, &mut row)?,
        PeerKind::UcxLatency { tcp } => measure_ucx(peer, "ucp_put_lat", 64, *tcp, &mut row)?,
        PeerKind::SocketBandwidth => {
            row.set(kernel::measure_bandwidth(peer.cores, 16 << 20, time)? * 8e-9);
        }
        PeerKind::SocketLatency => row.set(kernel::measure_latency(peer.cores, time)?),
        PeerKind::Testpmd { link, devices, mtu } => {
            measure_testpmd(peer, *link, devices, *mtu, &mut row)?;
        }
    }
    Ok(row)
}

/// A child process, which is killed and reaped on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn require_program(name: &str, package: &str) -> anyhow::Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    anyhow::ensure!(found, "{name} is not installed (Debian: {package}; scripts/setup --bench)");
    Ok(name.to_owned())
}

/// Returns a command that runs pinned to `core`, in the namespace `space` if given.
fn pinned_command(space: Option<&str>, core: usize, words: &[&str]) -> Command {
    let core = core.to_string();
    let mut all: Vec<&str> = Vec::new();
    if let Some(space) = space {
        all.extend(["ip", "netns", "exec", space]);
    }
    all.extend(["taskset", "-c", &core]);
    all.extend(words);
    let mut command = Command::new(all[0]);
    command.args(&all[1..]);
    command
}

fn run_to_end(mut command: Command) -> anyhow::Result<Output> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no words");
        anyhow::bail!("it failed: {last}");
    }
    Ok(output)
}

fn measure_iperf(
    peer: &Peer,
    spaces: [Option<String>; 2],
    to: &str,
    row: &mut Row,
) -> anyhow::Result<()> {
    let iperf = require_program("iperf3", "iperf3")?;
    let [from, at] = [spaces[0].as_deref(), spaces[1].as_deref()];
    if let PeerKind::IperfVeth { offload } = peer.what {
        let state = if offload { "on" } else { "off" };
        let ethtool = require_program("ethtool", "ethtool")?;
        for (space, device) in [(from, "bench-k0"), (at, "bench-k1")] {
            let words = [&*ethtool, "-K", device, "gso", state, "tso", state, "gro", state];
            run_to_end(pinned_command(space, 0, &words))?;
        }
    }
    let port = "5209";
    let mut server = pinned_command(at, peer.cores[1], &[&iperf, "-s", "-1", "-p", port]);
    let _server = KillOnDrop(server.stdout(Stdio::null()).spawn()?);
    let time = (peer.seconds.ceil() as u64).max(1).to_string();
    let words = [&*iperf, "-c", to, "-p", port, "-t", &time, "-J"];
    let begin = Instant::now();
    // The server needs a moment to start, so a failed run is retried for 5 s.
    let answer = loop {
        let answer =
            run_to_end(pinned_command(from, peer.cores[0], &words)).and_then(|o| parse_iperf(&o));
        if answer.is_ok() || begin.elapsed() > Duration::from_secs(5) {
            break answer?;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let (rate, end) = answer;
    row.set(rate * 1e-9);
    let cpu = &end["cpu_utilization_percent"];
    for (key, name) in [
        ("host_user", "sender_user_cpu_percent"),
        ("host_system", "sender_system_cpu_percent"),
        ("remote_user", "receiver_user_cpu_percent"),
        ("remote_system", "receiver_system_cpu_percent"),
    ] {
        if let Some(percent) = cpu[key].as_f64() {
            row.extra.insert(name.into(), percent);
        }
    }
    Ok(())
}

/// Returns the received bits per second and the `end` section of iperf3's report.
fn parse_iperf(output: &Output) -> anyhow::Result<(f64, serde_json::Value)> {
    let mut json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    if let Some(error) = json["error"].as_str() {
        anyhow::bail!("{error}");
    }
    let end = json["end"].take();
    let rate = end["sum_received"]["bits_per_second"].as_f64();
    Ok((rate.context("no rate in its answer")?, end))
}

fn measure_ucx(peer: &Peer, test: &str, len: u32, tcp: bool, row: &mut Row) -> anyhow::Result<()> {
    let ucx = require_program("ucx_perftest", "ucx-utils")?;
    let over_tcp = [("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")];
    let mut environment = vec![("UCX_LOG_LEVEL", "error")];
    environment.extend(over_tcp.into_iter().filter(|_| tcp));
    let port = "13399";
    let mut server = pinned_command(None, peer.cores[1], &[&ucx, "-p", port]);
    server
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null());
    let _server = KillOnDrop(server.spawn()?);
    let len = len.to_string();
    // ucx_perftest runs for a number of messages, which is chosen here in proportion to `peer.seconds`.
    let count = match test {
        "ucp_put_bw" => (peer.seconds * 2_000.0).max(100.0),
        _ => (peer.seconds * 40_000.0).max(1000.0),
    };
    let count = (count as u64).to_string();
    let words = [&*ucx, "127.0.0.1", "-p", port, "-t", test, "-s", &len, "-n", &count, "-f"];
    let begin = Instant::now();
    let answer = loop {
        let mut client = pinned_command(None, peer.cores[0], &words);
        client.envs(environment.iter().copied());
        let answer = run_to_end(client);
        if answer.is_ok() || begin.elapsed() > Duration::from_secs(5) {
            break answer?;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let numbers = final_numbers(&text).context("no final line in its answer")?;
    // Columns: iterations, percentile, average and overall latency (us), average and overall MB/s, ...
    let at = |n: usize| numbers.get(n).copied().context("too few numbers in its answer");
    match test {
        // UCX's MB are 2^20 bytes.
        "ucp_put_bw" => row.set(at(5)? * f64::from(1 << 20) * 8e-9),
        // UCX reports half a round trip as latency; the rows contain whole round trips.
        _ => row.set(at(3)? * 2.0),
    }
    Ok(())
}

/// Returns the numbers of ucx_perftest's final line: the last line with at least six numbers. `None` if there is no
/// such line.
fn final_numbers(text: &str) -> Option<Vec<f64>> {
    text.lines()
        .rev()
        .map(|line| {
            let words = line.split(|c: char| c.is_whitespace() || c == '|');
            words.filter_map(|word| word.parse::<f64>().ok()).collect::<Vec<_>>()
        })
        .find(|numbers| numbers.len() >= 6)
}

/// Measures frames per second. One testpmd sends at one end of the link, another counts the frames at the other end.
fn measure_testpmd(
    peer: &Peer,
    link: Link,
    devices: &[String; 2],
    mtu: u16,
    row: &mut Row,
) -> anyhow::Result<()> {
    require_program("dpdk-testpmd", "dpdk-dev")?;
    let device = |side: usize| match link {
        Link::AfPacket | Link::AfXdp => Ok(format!("net_{}0,iface={}", link.name(), devices[side])),
        Link::Memif => {
            let (role, socket) = (["client", "server"][side], &devices[side]);
            Ok(format!("net_memif0,role={role},socket={socket},socket-abstract=no"))
        }
        Link::Ring => anyhow::bail!("a ring does not leave its process; the hand-off is its limit"),
    };
    let mut receiver = Testpmd::start(&device(1)?, peer.cores[1], mtu)?;
    let mut sender = Testpmd::start(&device(0)?, peer.cores[0], mtu)?;
    std::thread::sleep(Duration::from_secs(1));
    receiver.send("set fwd rxonly");
    receiver.send("start");
    if let Ok(mac) = std::fs::read_to_string(format!("/sys/class/net/{}/address", devices[1])) {
        // The destination is the receiving interface's address, as in the appliance's frames. The kernel spends more
        // time on such frames than on frames to other hosts.
        sender.send(&format!("set eth-peer 0 {}", mac.trim()));
    }
    sender.send("set fwd txonly");
    sender.send(&format!("set txpkts {}", u32::from(mtu) + 14));
    sender.send("start");
    std::thread::sleep(Duration::from_millis(300));
    // testpmd's rate covers the time since the previous `show`.
    receiver.send("show port stats 0");
    std::thread::sleep(Duration::from_secs_f64(peer.seconds));
    receiver.send("show port stats 0");
    let sent = sender.quit()?;
    let output = receiver.quit()?;
    let rate = last_rate(&output).unwrap_or(0.0);
    anyhow::ensure!(rate > 0.0, "nothing arrived: {}", first_error_line(&(sent + &output)));
    row.set(rate);
    Ok(())
}

/// A running testpmd with one port. testpmd quits at the end of its input.
struct Testpmd {
    child: KillOnDrop,
    input: Option<std::process::ChildStdin>,
}

impl Testpmd {
    fn start(device: &str, core: usize, mtu: u16) -> anyhow::Result<Testpmd> {
        let mut words = vec!["--no-huge", "-m", "256", "--no-pci", "--no-telemetry"];
        let lcores = format!("0@{core},1@{core}");
        let vdev = format!("--vdev={device}");
        words.extend(["--no-shconf", "--iova-mode=va", "--lcores", &lcores, &vdev, "--"]);
        words.extend(["-i", "--nb-cores=1", "--total-num-mbufs=8192", "--no-flush-rx"]);
        if mtu > 1500 {
            words.extend(["--mbuf-size=10240", "--max-pkt-len=9018"]);
        }
        let mut child = Command::new("dpdk-testpmd")
            .args(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        Ok(Testpmd { child: KillOnDrop(child), input })
    }

    fn send(&mut self, words: &str) {
        use std::io::Write as _;
        if let Some(input) = &mut self.input {
            // If testpmd has ended, it has printed the reason, which `quit` returns.
            let _ = writeln!(input, "{words}").and_then(|()| input.flush());
        }
    }

    /// Ends testpmd and returns its complete output.
    fn quit(mut self) -> anyhow::Result<String> {
        use std::io::Read as _;
        self.send("stop");
        self.send("quit");
        drop(self.input.take());
        let mut text = String::new();
        let child = &mut self.child.0;
        child.stdout.take().context("no pipe")?.read_to_string(&mut text)?;
        child.stderr.take().context("no pipe")?.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Returns the last `Rx-pps` value of testpmd's output, frames per second. `None` if there is none.
fn last_rate(text: &str) -> Option<f64> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("Rx-pps:"));
    lines.filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).next_back()
}

fn first_error_line(text: &str) -> String {
    let line = text.lines().find(|line| {
        let line = line.to_lowercase();
        ["error", "fail", "cannot", "could not"].iter().any(|word| line.contains(word))
    });
    line.unwrap_or("no reason given").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_result_is_taken_from_last_line() {
        let text = "[thread 0]  100  0.5 0.6 0.7 8.0 9.0 10 11\n\
                    Final:      200  0.500   1.600   2.700   3.80   4.90  5  6\n";
        let numbers = final_numbers(text).unwrap();
        assert_eq!(numbers[..6], [200.0, 0.5, 1.6, 2.7, 3.8, 4.9]);
        assert_eq!(final_numbers("nothing here\n"), None);
    }

    #[test]
    fn testpmd_rate_is_taken_from_last_sample() {
        let look = |rate: u32| format!("  Rx-pps: {rate}   Rx-bps: 1\n  Tx-pps: 9 Tx-bps: 2\n");
        assert_eq!(last_rate(&(look(1) + &look(40))), Some(40.0));
        assert_eq!(last_rate("EAL: error\n"), None);
    }
}
