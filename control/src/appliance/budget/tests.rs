//! Tests of memory budgets on machines of different sizes.

use config::Document;

use super::*;

fn limits(text: &str) -> Limits {
    const HOST: &str = "[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n[[interface]]\nname = \"i\"\nport = \"p\"\n\
                        addresses = [\"10.0.0.1/24\"]\n";
    let text = format!("{HOST}[limits]\n{text}");
    Document::parse(std::path::Path::new("t.toml"), &text).unwrap().config.limits
}

fn host_memory(gib: u64) -> Option<HostMemory> {
    let machine = MachineMemory { bytes: gib << 30, source: "RAM".into() };
    Some(HostMemory { machine, pools: 0, appliances: 1 })
}

/// Memory reserved for one worker: `buffers_per_worker`, `held_per_worker` and `kept_per_worker`, 64 MiB each, and
/// 4096 streams of 4 KiB.
const WORKER: u64 = (3 * 64 + 16) << 20;

#[test]
fn ceiling_above_machine_memory_is_refused_with_numbers() {
    let budget = Budget::new(host_memory(4), &limits(""), 1);
    let kept = budget.charge(ChargeKind::Region, "region `a`", 1 << 30).unwrap();
    let refused = budget.charge(ChargeKind::Region, "region `big`", 12 << 30).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "region `big`: 12 GiB asked for, 1232 MiB of 3 GiB in use (regions 1 GiB, jobs 0 bytes, buffers and \
         streams 208 MiB); the ceiling is 75 % of RAM (4 GiB): make it smaller, free some, or raise limits.memory"
    );
    assert_eq!(budget.info().in_use, WORKER + (1 << 30), "refused bytes are not charged");
    drop(kept);
    assert_eq!(budget.info().in_use, WORKER);
}

#[test]
fn configured_ceiling_applies_if_the_machine_has_enough() {
    let of = |key: &str| {
        let info = Budget::new(host_memory(4), &limits(key), 0).info();
        (info.ceiling, info.source)
    };
    assert_eq!(of("memory = \"1 GiB\""), (1 << 30, "limits.memory".into()));
    assert_eq!(of("memory = \"4 GiB\""), (4 << 30, "limits.memory".into()));
    assert_eq!(of("memory = \"5 GiB\""), (3 << 30, "75 % of RAM (4 GiB)".into()));
}

#[test]
fn ceiling_excludes_packet_pools_and_other_appliances() {
    let room = HostMemory { pools: 1 << 30, appliances: 2, ..host_memory(5).unwrap() };
    let info = Budget::new(Some(room), &limits(""), 0).info();
    assert_eq!(info.ceiling, 1536 << 20);
    assert_eq!(
        info.source,
        "75 % of RAM (5 GiB) less 1 GiB of packet pools, for one of 2 appliances"
    );
}

#[test]
fn charge_up_to_the_ceiling_fits_and_beyond_is_refused() {
    let budget = Budget::new(host_memory(4), &limits("memory = \"1 GiB\""), 1);
    let free = (1 << 30) - WORKER;
    assert!(budget.check("it", free, None).is_ok());
    assert!(budget.check("it", free + 1, None).is_err());
    let all = budget.charge(ChargeKind::Job, "it", free).unwrap();
    assert!(budget.charge(ChargeKind::Job, "it", 1).is_err());
    assert_eq!((budget.info().jobs, budget.info().regions), (free, 0));
    drop(all);
    assert!(budget.charge(ChargeKind::Job, "it", u64::MAX).is_err(), "the sum does not wrap");
    assert_eq!(budget.info().jobs, 0);
}

#[test]
fn worker_buffers_scale_with_the_ceiling() {
    let limits = limits("memory = \"384 MiB\"\nkept_per_worker = \"32 MiB\"");
    let budget = Budget::new(host_memory(4), &limits, 4);
    let (buffers, note) = budget.buffers(&limits, 4);
    // 4 * 160 MiB = 640 MiB configured; allowed: 192 MiB minus 4 * 16 MiB for streams = 128 MiB.
    assert_eq!(buffers.buffers, (64 << 20) * 128 / 640 / PAGE * PAGE);
    assert_eq!(buffers.kept, (32 << 20) * 128 / 640 / PAGE * PAGE);
    assert!(budget.info().workers <= 192 << 20);
    let note = note.expect("a note");
    assert!(note.contains("and not 640 MiB as limits.buffers_per_worker"), "{note}");
    let (_, note) = Budget::new(host_memory(4), &limits, 1).buffers(&limits, 1);
    assert_eq!(note, None, "160 MiB and 16 MiB are less than half");
}

#[test]
fn reload_changes_ceiling_and_keeps_charges() {
    let budget = Budget::new(host_memory(4), &limits("memory = \"1 GiB\""), 0);
    let charge = budget.charge(ChargeKind::Region, "r", 512 << 20).unwrap();
    let smaller = limits("memory = \"256 MiB\"");
    assert!(budget.check("reload", 0, Some(&smaller)).is_err());
    budget.set_limits(&smaller);
    assert_eq!((budget.info().ceiling, budget.info().regions), (256 << 20, 512 << 20));
    assert!(budget.charge(ChargeKind::Region, "r", 1).is_err());
    drop(charge);
    assert!(budget.charge(ChargeKind::Region, "r", 1).is_ok());
}

/// A million streams of 4 KiB need 4000000 KiB, regardless of buffers: the check must refuse them.
#[test]
fn configured_streams_are_reserved_in_advance() {
    let few = limits("memory = \"3 GiB\"");
    let many = limits("memory = \"3 GiB\"\nstreams = 1000000");
    let budget = Budget::new(host_memory(4), &few, 1);
    assert_eq!(budget.info().workers, WORKER);
    let refused = budget.check("the file's 0 new regions", 0, Some(&many)).unwrap_err();
    assert!(refused.to_string().contains("buffers and streams 4196608 KiB"), "{refused}");
    budget.set_limits(&limits("memory = \"3 GiB\"\nstreams = 8192"));
    assert_eq!(budget.info().workers, WORKER + (16 << 20));
    let budget = Budget::new(host_memory(4), &many, 1);
    let (buffers, note) = budget.buffers(&many, 1);
    assert_eq!(
        (buffers.total(1), note),
        (192 << 20, None),
        "less than a quarter of half the ceiling"
    );
    let refused = budget.charge(ChargeKind::Region, "region `a`", 1).unwrap_err();
    assert!(refused.to_string().contains("buffers and streams 4196608 KiB"), "{refused}");
    let (buffers, note) = budget.buffers(&many, 8);
    assert_eq!(buffers.buffers, (3 << 30) / 8 / 24);
    assert!(note.expect("a note").contains("limits.streams streams take 31250 MiB"));
}
