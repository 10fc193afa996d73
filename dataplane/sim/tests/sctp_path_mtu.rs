//! Changes of an association's path MTU during a transfer, with and without reports of routers (RFC 9260 §6.9, §7.3;
//! RFC 8899). All bytes arrive, and the packet size adapts to the path MTU.

use core::time::Duration;

use base::Instant;
use sctp_lite::sctp::Stats;
use sim::end::End;
use sim::pair::{Config, Pair};
use sim::path;
use sim::sctp::SctpConfig;
use sim::transfer::{self, Load, Timeouts};

const IP_HEADER: usize = 20;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Case {
    icmp: bool,
    loss: f64,
    mtu: usize,
    /// Later MTUs of the path from client to server: milliseconds of virtual time, which starts at 1000, and bytes.
    changes: &'static [(u64, usize)],
    raise: Duration,
    probing: bool,
}

const CASE: Case = Case {
    icmp: true,
    loss: 0.0,
    mtu: 1500,
    changes: &[(1100, 1400)],
    raise: Duration::from_secs(600),
    probing: true,
};

/// Returns one direction of a path: 20 Mbit/s and a delay of 2 ms, with the loss and MTU of `case`.
fn direction(seed: u64, case: Case) -> path::Config {
    path::Config::slow(case.mtu, seed, 20_000_000, case.loss)
}

/// Transfers `bytes` from client to server, and 1000 bytes back. Returns the pair after the close.
fn run(seed: u64, case: Case, bytes: u64) -> Pair<SctpConfig> {
    let mut host = SctpConfig { mtu: case.mtu, region: bytes as usize, ..SctpConfig::default() };
    host.sctp.path_mtu_raise = case.raise;
    host.sctp.path_mtu_probing = case.probing;
    let mut forward = direction(seed, case);
    forward.mtu_changes =
        case.changes.iter().map(|&(ms, mtu)| (Instant::from_millis(ms), mtu)).collect();
    let config = Config {
        client: SctpConfig { key: [3; 16], ..host.clone() },
        server: host,
        forward,
        backward: direction(!seed, case),
        icmp: case.icmp,
        cost: Default::default(),
    };
    let load = Load { seed, bytes, ..Load::default() };
    let back = Load { seed, bytes: 1000, ..Load::default() };
    let pair = transfer::run(config, &load, &back, Timeouts::default());
    let pair = pair.unwrap_or_else(|what| panic!("{case:?}, seed {seed}: {what}"));
    assert_eq!(pair.client.fault(), None, "{case:?}");
    pair
}

fn path_state(pair: &Pair<SctpConfig>) -> (usize, Stats) {
    let association = pair.client.endpoint().expect("there").association();
    (association.path_len() + IP_HEADER, *association.stats())
}

// RFC 9260 §7.3, §6.9: a report reduces the path MTU. Packets that were built before are sent as IP fragments.
#[test]
fn sctp_uses_the_reported_mtu() {
    for mtu in [1500, 9000] {
        let (used, stats) = path_state(&run(1, Case { mtu, ..CASE }, 2 << 20));
        assert_eq!((used, stats.path_mtu_reductions, stats.path_mtu_black_holes), (1400, 1, 0));
    }
}

// RFC 8899 §4.3, §5.3: without reports, the sender detects the black hole and finds the MTU by probes.
#[test]
fn sctp_detects_a_black_hole_and_finds_the_mtu() {
    for (seed, changes, mtu, least) in [
        (2, &[(1100, 1400)][..], 1500, 1400),
        (3, &[(100, 1300)][..], 9000, 1280),
        (4, &[(100, 700)][..], 1500, 576),
        (5, &[(100, 4400)][..], 9000, 4352),
        (6, &[(1100, 1400), (6000, 700)][..], 1500, 576),
    ] {
        let case = Case { icmp: false, mtu, changes, ..CASE };
        let (used, stats) = path_state(&run(seed, case, 16 << 20));
        let carries = changes.last().expect("a change").1;
        assert!(used <= carries && used >= least, "{used}: {case:?}");
        assert!(stats.path_mtu_black_holes > 0 && stats.path_mtu_probes > 0, "{stats:?}");
    }
}

// RFC 8899 §5.1.1: probes find an increase after the PMTU_RAISE_TIMER.
#[test]
fn sctp_finds_an_increased_path_mtu() {
    for icmp in [false, true] {
        let raise = Duration::from_millis(400);
        let changes = &[(1100, 1400), (5000, 1500)];
        let (used, stats) = path_state(&run(7, Case { icmp, changes, raise, ..CASE }, 16 << 20));
        assert_eq!(used, 1500, "{stats:?}");
        assert!(stats.path_mtu_raises > 0);
    }
}

// RFC 8899 §4.3, RFC 4821 §7.6.4: random loss is not mistaken for a black hole, nor a randomly lost probe for a probe
// that exceeds the MTU.
#[test]
fn random_loss_does_not_reduce_sctp_path_mtu() {
    for seed in 0..8 {
        let case = Case { icmp: false, loss: 2.0, changes: &[], ..CASE };
        let (used, stats) = path_state(&run(seed, case, 1 << 20));
        assert_eq!((used, stats.path_mtu_black_holes), (1500, 0), "{seed}: {stats:?}");
        let case = Case { changes: &[(1100, 1400)], ..case };
        let (used, stats) = path_state(&run(seed, case, 4 << 20));
        assert!((1280..=1400).contains(&used), "{seed}: {used}, {stats:?}");
    }
}
