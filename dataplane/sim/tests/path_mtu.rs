//! Changes of the path MTU during a transfer, with and without reports of routers (RFC 1191, RFC 4821). All bytes
//! arrive, and after the change segments begin with an FPDU again.

use core::time::Duration;
use std::sync::Arc;

use base::Instant;
use ddp::VecMemory;
use link::Rng;
use sim::host::HostConfig;
use sim::pair::{Config, Pair};
use sim::path;
use tcp_lite::endpoint::EndpointStats;
use tcp_lite::tcp;

const LEN: usize = 8 << 20;

/// Returns one direction of a path: 200 Mbit/s, a delay of 2 ms, and `loss` % random loss.
fn direction(seed: u64, mtu: usize, loss: f64) -> path::Config {
    path::Config::slow(mtu, seed, 200_000_000, loss)
}

/// Parameters of a run.
#[derive(Clone, Copy)]
struct Case {
    markers: bool,
    icmp: bool,
    loss: f64,
    /// MTU of the interfaces and initial MTU of the path, bytes.
    mtu: usize,
    /// Later MTUs of the path from client to server: milliseconds of virtual time, which starts at 1000, and bytes.
    changes: &'static [(u64, usize)],
    /// Time after a reduction of the path MTU before larger packets are probed again.
    raise: Duration,
    probing: bool,
}

const CASE: Case = Case {
    markers: true,
    icmp: true,
    loss: 0.0,
    mtu: 1500,
    changes: &[(1100, 1400)],
    raise: Duration::from_secs(600),
    probing: true,
};

/// Counters of client (sender) and server, the client's EMSS, and the duration.
struct Result {
    client: EndpointStats,
    server: EndpointStats,
    emss: usize,
    duration: Duration,
}

fn run(seed: u64, case: Case) -> Result {
    let mut host = HostConfig { region: LEN, mtu: case.mtu, ..HostConfig::default() };
    host.endpoint.mpa.markers = case.markers;
    host.endpoint.tcp = Arc::new(tcp::Config {
        path_mtu: tcp::PathMtuConfig {
            raise: case.raise,
            probing: case.probing,
            ..tcp::PathMtuConfig::default()
        },
        ..tcp::Config::default()
    });
    let mut forward = direction(seed, case.mtu, case.loss);
    forward.mtu_changes =
        case.changes.iter().map(|&(ms, mtu)| (Instant::from_millis(ms), mtu)).collect();
    let mut pair = Pair::new(Config {
        client: host.clone(),
        server: host,
        forward,
        backward: direction(!seed, case.mtu, case.loss),
        icmp: case.icmp,
        cost: Default::default(),
    });
    let mut rng = Rng::new(seed);
    let bytes: Vec<u8> = (0..LEN).map(|_| rng.next_u64() as u8).collect();
    // Half of the messages are sent from memory that may change. Copies of their FPDUs are kept for retransmission.
    // FPDUs of the other messages are built again from the source.
    let changing = VecMemory::from_vec(bytes.clone());
    let stable = VecMemory::from_vec(bytes.clone()).into_stable();
    for (n, at) in (0..LEN as u64).step_by(64 * 1024).enumerate() {
        let source = if n % 2 == 0 { &stable } else { &changing };
        pair.client.write(source, at..at + 64 * 1024, at);
    }
    let begin = pair.now;
    pair.client.connect(pair.now).expect("empty private data fits");
    let done = pair.run_until(Duration::from_secs(100), |pair| {
        pair.server.stats().ddp.tagged_delivered == (LEN / (64 * 1024)) as u64
    });
    assert_eq!(done, Ok(()), "{:?}\n{}", pair.client.stats(), pair.last_segments());
    assert!(pair.server.region() == bytes, "the region differs from the sent bytes");
    Result {
        client: pair.client.stats(),
        server: pair.server.stats(),
        emss: pair.client.endpoint().expect("there").connection().emss(),
        duration: pair.now - begin,
    }
}

/// Returns the EMSS for an IPv4 path of this MTU, with timestamps, bytes.
fn emss(mtu: usize) -> usize {
    mtu - 40 - 12
}

// RFC 1191 §6.3, §6.4; RFC 5927 §7.2: an ICMP report takes effect after a loss, and then persists.
#[test]
fn tcp_uses_the_reported_mtu() {
    for markers in [false, true] {
        let result = run(1, Case { markers, ..CASE });
        assert_eq!(result.emss, emss(1400));
        assert_eq!(result.client.tcp.path_mtu.reductions, 1);
        assert_eq!(result.client.tcp.path_mtu.black_holes, 0);
        assert!(result.duration < Duration::from_secs(2), "{:?}", result.duration);
    }
}

// RFC 4821 §7.7, §7.3: without reports, the sender detects the black hole and finds the MTU by probes.
#[test]
fn tcp_detects_a_black_hole_and_finds_the_mtu() {
    for (mtu, changes, found) in [
        (1500, &[(1100, 1400)], 1400),
        (1500, &[(1100, 1300)], 1280),
        (9000, &[(1100, 1500)], 1500),
        (1500, &[(1100, 1000)], 576),
    ] {
        for markers in [false, true] {
            let case = Case { markers, icmp: false, mtu, changes, ..CASE };
            let result = run(2, case);
            assert!(result.client.tcp.path_mtu.black_holes > 0, "{mtu} {changes:?}");
            let carried = emss(changes[0].1);
            // FPDUs are multiples of four bytes, so a probe may be up to three bytes shorter than the path MTU allows.
            let range = emss(found) - 3..=carried;
            assert!(range.contains(&result.emss), "{} of {carried}", result.emss);
        }
    }
}

// RFC 4821 §7.6.1: after `raise`, a larger probe succeeds and raises the path MTU.
#[test]
fn tcp_finds_an_increased_path_mtu() {
    for icmp in [false, true] {
        let raise = Duration::from_millis(150);
        // Without ICMP reports, the sender needs several time-outs to detect the black hole, so the increase comes
        // later.
        let changes: &[_] =
            if icmp { &[(1050, 1300), (1200, 1500)] } else { &[(1050, 1300), (4500, 1500)] };
        let result = run(3, Case { icmp, changes, raise, ..CASE });
        if icmp {
            assert_eq!(result.emss, emss(1500));
            assert!(result.client.tcp.path_mtu.raises > 0);
        }
        assert!(result.client.tcp.path_mtu.probes > 0);
    }
}

// RFC 5044 §4.5: FPDUs already framed are split at the new segment size, and later segments begin with an FPDU.
#[test]
fn mtu_reduction_regains_fpdu_alignment() {
    let result = run(4, CASE);
    let (cut, segments) = (result.server.mpa_rx.alignment_lost, result.server.tcp.segments_in);
    // Each FPDU in flight is split into two segments, of which the second does not begin with an FPDU.
    assert!(cut > 0 && cut <= 300, "{cut} of {segments} segments");
    // Probes keep the alignment, because each contains whole FPDUs.
    let raise = Duration::from_millis(100);
    let probed = run(4, Case { raise, ..CASE });
    let client = probed.client.tcp;
    assert!(client.path_mtu.probes_lost > 0, "{client:?}");
    assert_eq!(probed.server.mpa_rx.alignment_lost, cut, "lost probes were cut between FPDUs");
}

#[test]
fn random_loss_does_not_reduce_tcp_path_mtu() {
    for seed in 0..4 {
        for icmp in [false, true] {
            for loss in [0.1, 1.0] {
                let result = run(seed, Case { icmp, loss, ..CASE });
                assert!(result.emss <= emss(1400) && result.emss >= emss(1280) - 3);
            }
        }
    }
}

// Without probing, the sender relies on ICMP reports to find the path MTU.
#[test]
fn disabled_probing_uses_reports_only() {
    let result = run(5, Case { probing: false, ..CASE });
    assert_eq!((result.emss, result.client.tcp.path_mtu.probes), (emss(1400), 0));
}
