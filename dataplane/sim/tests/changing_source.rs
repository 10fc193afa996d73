//! The source of a Write changes while its bytes are in flight. Retransmissions are identical to the first
//! transmission, so every CRC is correct. Each received byte has a value that the source had at some time.

use core::time::Duration;

use ddp::{RegionMemory, VecMemory};
use link::{Loss, Probability, Reorder};
use sim::host::HostConfig;
use sim::pair::{Config, Pair};
use sim::{middlebox, path};

const LEN: usize = 1 << 20;

fn lossy(seed: u64, resegment: bool) -> path::Config {
    let percent = |p| Probability::from_percent(p).expect("a percentage");
    let link = link::Config {
        loss: Loss::Random(percent(3.0)),
        reorder: Reorder { probability: percent(2.0), delay: Duration::from_micros(400) },
        delay: Duration::from_micros(300),
        ..link::Config::seeded(seed)
    };
    let mut config = path::Config::new(1500, link);
    if resegment {
        config.middlebox = middlebox::Config {
            split: percent(30.0),
            min_piece: 1,
            merge: percent(30.0),
            max_payload: 9000,
            hold: Duration::from_micros(50),
        };
    }
    config
}

fn transfer(seed: u64, markers: bool, resegment: bool) {
    let mut host = HostConfig { region: LEN, ..HostConfig::default() };
    host.endpoint.mpa.markers = markers;
    let mut pair = Pair::new(Config {
        client: host.clone(),
        server: host,
        forward: lossy(seed, resegment),
        backward: lossy(!seed, resegment),
        icmp: false,
        cost: Default::default(),
    });
    // All bytes of the source are equal: 1 at first, and one more after each change.
    let source = VecMemory::from_vec(vec![1; LEN]);
    assert!(!source.is_stable());
    for at in (0..LEN as u64).step_by(32 * 1024) {
        pair.client.write(&source, at..at + 32 * 1024, at);
    }
    pair.client.connect(pair.now).expect("empty private data fits");
    let mut change = 1u8;
    let mut steps = 0u32;
    pair.run_until(Duration::from_secs(60), |pair| {
        steps += 1;
        if steps.is_multiple_of(5) && change < u8::MAX {
            change += 1;
            source.write(0, &vec![change; LEN]);
        }
        pair.server.stats().ddp.tagged_delivered == 32 || pair.server.closed().is_some()
    })
    .expect("the transfer ends");
    assert!(change > 20, "the source changed only {change} times");
    assert_eq!(pair.server.closed(), None, "seed {seed}");
    assert!(pair.client.stats().mpa_tx.retransmitted > 0, "nothing was retransmitted");
    let got = pair.server.region();
    assert!(got.iter().all(|&o| 1 <= o && o <= change));
    assert!(got.windows(2).any(|w| w[0] != w[1]), "the changes came too late to be seen");
}

#[test]
fn changed_source_retransmits_identical_bytes() {
    for seed in 0..4 {
        for bits in 0..4u8 {
            transfer(seed, bits & 1 == 1, bits & 2 == 2);
        }
    }
}
