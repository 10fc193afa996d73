//! Micro-benchmarks of single steps of packet processing, without ports, threads or clocks.
//!
//! Run by `scripts/bench --micro [FILTER]`. Criterion writes its reports to `target/criterion`.
#![allow(missing_docs)]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use base::Instant;
use benches::endpoint_pair::EndpointPair;
use crc_fast::{CrcAlgorithm, Digest};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dataplane::flow::{FlowKey, FlowTable};
use dataplane::timer::TimerWheel;
use ddp::{Access, PdId, Stag, StagEntry, StagTable, TaggedOffset, VecMemory};
use wire::crc32c;

/// Compares CRC32c implementations at lengths of 16 to 8948 bytes. `ours` is `wire::crc32c`, which should be as fast as
/// the faster of the two crates at each length.
fn crc(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for len in [16, 64, 128, 256, 384, 512, 1024, 1448, 4096, 8948] {
        let bytes = vec![0x5au8; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::new("crc32c-hw", len), &bytes, |b, bytes| {
            b.iter(|| crc32c_hw::update(0, black_box(bytes)));
        });
        group.bench_with_input(BenchmarkId::new("crc-fast", len), &bytes, |b, bytes| {
            b.iter(|| {
                let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
                digest.update(black_box(bytes));
                digest.finalize()
            });
        });
        group.bench_with_input(BenchmarkId::new("ours", len), &bytes, |b, bytes| {
            b.iter(|| crc32c::update(0, black_box(bytes)));
        });
    }
    group.finish();
}

const BURST: u32 = 16;

/// Measures bursts of 16 full-sized segments through TCP, MPA and DDP with CRC: output (framing), input (deframing) and
/// the acknowledgement.
fn segments(c: &mut Criterion) {
    let mut group = c.benchmark_group("segments");
    group.throughput(Throughput::Elements(BURST.into()));
    for (mss, markers) in [(1448, false), (1448, true), (8948, false), (8948, true)] {
        let name = format!("{mss}{}", if markers { "-markers" } else { "" });
        let posted = move || {
            let mut pairing = EndpointPair::new(mss, markers);
            pairing.write(u32::from(mss) * BURST);
            pairing
        };
        let sent = move || {
            let mut pairing = posted();
            pairing.send_burst();
            pairing
        };
        let taken = move || {
            let mut pairing = sent();
            pairing.deliver_burst();
            pairing
        };
        group.bench_function(BenchmarkId::new("output", &name), |b| {
            b.iter_batched_ref(posted, EndpointPair::send_burst, BatchSize::LargeInput);
        });
        group.bench_function(BenchmarkId::new("input", &name), |b| {
            b.iter_batched_ref(sent, EndpointPair::deliver_burst, BatchSize::LargeInput);
        });
        group.bench_function(BenchmarkId::new("acknowledge", &name), |b| {
            b.iter_batched_ref(taken, EndpointPair::exchange_reply, BatchSize::LargeInput);
        });
    }
    group.finish();
}

fn flow_key(n: u32) -> FlowKey {
    FlowKey {
        interface: 0,
        local: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 4791),
        remote: SocketAddr::new(Ipv4Addr::from(0x0a01_0000 + n / 100).into(), (n % 100) as u16 + 1),
    }
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("look-up");
    for flows in [1u32, 100, 10_000, 1_000_000] {
        let mut table = FlowTable::new([7; 16]);
        (0..flows).for_each(|n| table.insert(&flow_key(n), n));
        let mut n = 0u32;
        group.bench_function(BenchmarkId::new("flow", flows), |b| {
            b.iter(|| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                table.candidate(table.hash(&flow_key(n % flows)))
            });
        });
    }
    for regions in [1u32, 100, 10_000] {
        let mut table = StagTable::new();
        let memory = VecMemory::new(4096);
        for n in 0..regions {
            let entry = StagEntry {
                stag: Stag(n << 8),
                pd: PdId(1),
                stream: None,
                base_to: TaggedOffset(0),
                len: 4096,
                access: Access::REMOTE_WRITE,
                memory: memory.clone(),
                memory_offset: 0,
            };
            table.insert(entry).expect("a region");
        }
        let mut n = 0u32;
        group.bench_function(BenchmarkId::new("stag", regions), |b| {
            b.iter(|| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                table.get(Stag((n % regions) << 8)).map(|entry| entry.len)
            });
        });
    }
    group.finish();
}

fn timers(c: &mut Criterion) {
    let mut group = c.benchmark_group("timer-wheel");
    for timers in [100u32, 10_000] {
        group.throughput(Throughput::Elements(timers.into()));
        group.bench_function(BenchmarkId::new("set-and-fire", timers), |b| {
            let mut now = Instant::from_millis(1000);
            let mut wheel = TimerWheel::new(now);
            b.iter(|| {
                for token in 0..timers {
                    wheel.set(token, now + Duration::from_micros(100 + u64::from(token % 1000)));
                }
                now += Duration::from_millis(2);
                let mut fired = 0;
                while let Some(token) = wheel.pop(now) {
                    fired += black_box(token).min(1);
                }
                fired
            });
        });
        group.bench_function(BenchmarkId::new("set-again", timers), |b| {
            let mut now = Instant::from_millis(1000);
            let mut wheel = TimerWheel::new(now);
            b.iter(|| {
                now += Duration::from_micros(50);
                for token in 0..timers {
                    wheel.set(token, now + Duration::from_millis(200));
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = all;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = crc, segments, lookups, timers
}
criterion_main!(all);
