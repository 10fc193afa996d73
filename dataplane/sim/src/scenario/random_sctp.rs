//! Random scenarios over SCTP; a seed determines each.

use core::time::Duration;
use std::sync::Arc;

use link::Rng;

use super::Scenario;
use super::random::{any_scale, cost, direction, one_in, random_disturbances};
use crate::pair::Config;
use crate::path;
use crate::sctp::SctpConfig;
use crate::transfer::Load;

/// Minimum path MTU in bytes. A session control message of maximum length fits (RFC 5043 §9).
const MIN_MTU: usize = 600;

impl Scenario<SctpConfig> {
    /// Returns the SCTP scenario of `seed`.
    pub fn random_sctp(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5C79);
        let mtu = [MIN_MTU, 1280, 1500, 1500, 4000, 9000, 65_280][rng.next_below(7) as usize];
        let path = |rng: &mut Rng| {
            // Middleboxes do not split SCTP packets.
            let path::Config { link, .. } = direction(rng, mtu);
            path::Config::new(mtu, link)
        };
        let sessions = 1 + any_scale(&mut rng, 0..6) as u16;
        let config = Config {
            client: host(&mut rng, mtu, sessions),
            server: host(&mut rng, mtu, sessions),
            forward: path(&mut rng),
            backward: path(&mut rng),
            icmp: true,
            cost: [cost(&mut rng), cost(&mut rng)],
        };
        let load = |rng: &mut Rng| Load {
            seed: rng.next_u64(),
            bytes: 1 + any_scale(rng, 8..20),
            max_message: 1 << rng.next_below(18),
            untagged_every: rng.next_below(5),
            max_untagged: 1 << rng.next_below(13),
        };
        let (mut forward, backward) = (load(&mut rng), load(&mut rng));
        // Limits the number of messages: many tiny messages take long to simulate and test little.
        forward.bytes = forward.bytes.min(forward.max_message * 2000);
        let backward = Load { bytes: backward.bytes.min(backward.max_message * 500), ..backward };
        let twists = random_disturbances(&mut rng, MIN_MTU, mtu);
        Scenario { seed, config, forward, backward, disturbances: twists }
    }
}

fn host(rng: &mut Rng, mtu: usize, sessions: u16) -> SctpConfig {
    let mut host = SctpConfig {
        mtu,
        sessions,
        private_data: vec![0x5A; rng.next_below(513) as usize],
        ..SctpConfig::default()
    };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    host.key = key;
    let sctp = &mut host.sctp;
    sctp.streams = sessions + rng.next_below(300) as u16;
    // High limits: recovery from a burst of losses takes many retransmission time-outs if little data is in flight.
    sctp.max_retransmits = 30;
    sctp.max_init_retransmits = 30;
    sctp.heartbeat_interval = one_in(rng, 2).then(|| Duration::from_millis(any_scale(rng, 8..16)));
    let receive = Arc::make_mut(&mut sctp.receive);
    receive.window = 1500 << rng.next_below(12);
    receive.packets_per_sack = 1 + rng.next_below(3) as u8;
    receive.sack_delay = Duration::from_millis([0, 1, 40, 200][rng.next_below(4) as usize]);
    receive.max_gaps = [4, 256][rng.next_below(2) as usize];
    let send = Arc::make_mut(&mut sctp.send);
    send.pacing = one_in(rng, 2);
    send.max_burst = 2 + rng.next_below(16) as u32;
    send.tail_loss_probe = one_in(rng, 2);
    send.max_rto = Duration::from_secs(20);
    host.endpoint.session.answer_timeout = Duration::from_secs(700);
    host.endpoint.session.max_pending = 64;
    host.endpoint.session.control_room = [0, 32, 64][rng.next_below(3) as usize];
    host.endpoint.policy.teardown_timeout = Duration::from_secs(700);
    host
}
