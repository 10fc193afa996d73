//! Random scenarios with ESP over TCP or SCTP; a seed determines each.

use ipsec::crypto::Algorithm;
use link::Rng;

use super::random::{any_scale, one_in};
use super::{Disturbance, Scenario};
use crate::end::Setup;
use crate::sctp::SctpConfig;
use crate::{esp, middlebox};

/// Upper bound of the ESP overhead per packet in bytes: IPv6 tunnel, UDP, IV, padding, ICV, and an inner IPv6 header.
const MAX_OVERHEAD: usize = 128;

impl Scenario {
    /// Returns the TCP scenario of `seed`, with ESP in both directions.
    pub fn random_over_esp(seed: u64) -> Self {
        let mut scenario = Scenario::random(seed);
        let mtu = protect(&mut scenario);
        scenario.config.client.mtu = mtu;
        scenario.config.server.mtu = mtu;
        scenario
    }
}

impl Scenario<SctpConfig> {
    /// Returns the SCTP scenario of `seed`, with ESP in both directions. ESP seals a large packet as a whole. IP
    /// then fragments the sealed packet.
    pub fn random_sctp_over_esp(seed: u64) -> Self {
        let mut scenario = Scenario::random_sctp(seed);
        let mtu = protect(&mut scenario);
        scenario.config.client.mtu = mtu;
        scenario.config.server.mtu = mtu;
        scenario
    }
}

/// Adds ESP to both directions and raises the path MTU by [`MAX_OVERHEAD`]. Returns the MTU of the hosts.
fn protect<S: Setup>(scenario: &mut Scenario<S>) -> usize {
    let mut rng = Rng::new(scenario.seed ^ 0xE59);
    let config = &mut scenario.config;
    let v6 = one_in(&mut rng, 2);
    let mut min_mtu = usize::MAX;
    for path in [&mut config.forward, &mut config.backward] {
        // Middleboxes cannot split or merge protected packets.
        path.middlebox = middlebox::Config::transparent();
        path.mtu += MAX_OVERHEAD;
        let esp = random(&mut rng, v6);
        min_mtu = min_mtu.min(esp.inner_mtu(path.mtu));
        path.esp = Some(esp);
    }
    for (_, twist) in &mut scenario.disturbances {
        if let Disturbance::Mtu(_, mtu) = twist {
            *mtu += MAX_OVERHEAD;
        }
    }
    min_mtu
}

fn random(rng: &mut Rng, v6: bool) -> esp::Config {
    let esn = !one_in(rng, 3);
    let sequence = match esn {
        // The low 32 bits wrap within the first 2000 packets.
        true => (1 << 32) - rng.next_below(2000),
        false => rng.next_below(1000),
    };
    esp::Config {
        algorithm: Algorithm::ALL[rng.next_below(Algorithm::ALL.len() as u64) as usize],
        v6,
        tunnel: one_in(rng, 2).then(|| one_in(rng, 2)),
        udp: one_in(rng, 3),
        esn,
        sequence,
        window: [64, 256, 1024, 4096][rng.next_below(4) as usize],
        rekey: (!one_in(rng, 4)).then(|| 10 + any_scale(rng, 4..12)),
    }
}
