//! Number of mappings: small memories share a mapping, and memory beyond the bound is refused before anything is
//! mapped.
//!
//! Slabs are locked. If RLIMIT_MEMLOCK leaves no room for the largest slab, the tests that need a slab return early.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use super::super::map::pieces::take_calls;
use super::*;

const PAGE: usize = 4096;

fn prepare(maps: &Maps, backing: Backing, len: u64, lock: bool) -> Result<Memory, MemoryError> {
    Memory::prepare(&MemoryConfig { lock, ..config(backing, len) }, maps, &mut |_| true)
}

/// Returns locked private memory of `len` bytes, and the address of its first byte.
fn small(maps: &Maps, len: u64) -> (Memory, usize) {
    let memory = prepare(maps, Backing::Anonymous, len, true).unwrap();
    let address = memory.0.mapping.address();
    (memory, address)
}

/// Returns true if the largest slab can be locked and the kernel's pages have 4 KiB, as these tests assume.
fn can_use_slabs() -> bool {
    let slab = Mapping::slab((SLOTS * SMALL_MEMORY) as usize).unwrap();
    slab.lock(&mut Vec::new()) && rustix::param::page_size() == PAGE
}

/// Returns true if the page at `address` is present according to /proc/self/pagemap.
fn is_present(address: usize) -> bool {
    let mut entry = [0; 8];
    let file = std::fs::File::open("/proc/self/pagemap").unwrap();
    file.read_exact_at(&mut entry, (address / PAGE * 8) as u64).unwrap();
    u64::from_ne_bytes(entry) >> 63 == 1
}

#[test]
fn small_memory_of_one_size_shares_one_mapping_per_64() {
    if !can_use_slabs() {
        return;
    }
    for len in [1, 4096, 4097, 8192, 8193, SMALL_MEMORY] {
        let maps = Maps::default();
        let mut all: Vec<_> = (0..SLOTS).map(|_| small(&maps, len).0).collect();
        assert_eq!(maps.in_use(), 1, "{len}");
        assert!(all.iter().all(|memory| memory.is_locked() && memory.statements().is_empty()));
        all.push(small(&maps, len).0);
        assert_eq!(maps.in_use(), 2, "{len}");
        let last = all.pop();
        all.clear();
        assert_eq!(maps.in_use(), 1, "{len}");
        drop(last);
        assert_eq!(maps.in_use(), 0, "{len}");
    }
}

#[test]
fn large_shared_and_unlocked_memory_has_separate_mappings() {
    let maps = Maps::default();
    let shared = Backing::Shared { name: "ddpd-maps".to_owned() };
    let kinds = [
        (Backing::Anonymous, SMALL_MEMORY + 1, true, 1),
        (Backing::Anonymous, 4096, false, 1),
        (Backing::Huge, 4096, true, 1),
        (shared, 4096, true, SHARED_MAPS),
    ];
    for (backing, len, lock, number) in kinds {
        let of = |n| (0..n).map(|_| prepare(&maps, backing.clone(), len, lock).unwrap());
        let three: Vec<_> = of(3).collect();
        assert_eq!(maps.in_use(), 3 * number, "{backing:?} {len}");
        drop(three);
        assert_eq!(maps.in_use(), 0, "{backing:?} {len}");
    }
    assert_eq!((Memory::empty().len(), maps.in_use()), (0, 0));
}

#[test]
fn bound_refuses_memory_before_it_is_mapped() {
    let maps = Maps::new(3);
    let (len, shared) = (SMALL_MEMORY + 1, Backing::Shared { name: "ddpd-bound".to_owned() });
    let held = [len; 2].map(|len| prepare(&maps, Backing::Anonymous, len, true).unwrap());
    take_calls();
    let refused = prepare(&maps, shared.clone(), len, true).unwrap_err().to_string();
    let expected = "memory mappings: 2 more needed, and 2 of the 3 that vm.max_map_count leaves to regions and jobs are in \
                    use: remove regions, or raise vm.max_map_count (sysctl -w) and restart";
    assert_eq!(refused, expected);
    assert_eq!(maps.check(len, SHARED_MAPS).unwrap_err().to_string(), expected);
    assert_eq!((take_calls(), maps.in_use()), (vec![], 2));
    let last = prepare(&maps, Backing::Anonymous, len, true).unwrap();
    assert!(maps.check(len, 1).is_err() && prepare(&maps, Backing::Huge, len, true).is_err());
    drop((held, last));
    assert!(maps.check(len, SHARED_MAPS).is_ok() && prepare(&maps, shared, len, true).is_ok());
    assert_eq!(maps.in_use(), 0);
}

#[test]
fn failed_preparation_returns_its_mappings() {
    let maps = Maps::new(1);
    let none = Backing::Staged { path: "/nonexistent".into() };
    assert!(prepare(&maps, none, 4096, true).is_err());
    assert!(prepare(&maps, Backing::Anonymous, 1 << 45, true).is_err());
    for len in [4096, SMALL_MEMORY + 1] {
        let config = MemoryConfig { lock: true, ..config(Backing::Anonymous, len) };
        let cancelled = Memory::prepare(&config, &maps, &mut |_| false);
        assert!(matches!(cancelled, Err(MemoryError::Cancelled)), "{cancelled:?}");
    }
    assert_eq!(maps.in_use(), 0);
}

#[test]
fn free_slots_are_allocated_at_the_bound() {
    if !can_use_slabs() {
        return;
    }
    let maps = Maps::new(1);
    let mut all: Vec<_> = (0..SLOTS).map(|_| small(&maps, 100).0).collect();
    assert!(maps.check(100, 1).is_err() && prepare(&maps, Backing::Anonymous, 100, true).is_err());
    all.swap_remove(17);
    assert!(maps.check(100, 1).is_ok());
    assert!(maps.check(5000, 1).is_err(), "another size needs another slab");
    all.push(small(&maps, 100).0);
    assert_eq!(maps.in_use(), 1);
}

#[test]
fn freed_slot_has_no_pages_and_next_memory_is_zero() {
    if !can_use_slabs() {
        return;
    }
    let maps = Maps::default();
    let (_kept, _) = small(&maps, 8192);
    let (first, address) = small(&maps, 8192);
    assert!(is_present(address) && is_present(address + PAGE) && !is_present(address + 2 * PAGE));
    first.write(0, &[7; 8192]);
    drop(first);
    assert!(!is_present(address) && !is_present(address + PAGE));
    let (second, again) = small(&maps, 5000);
    assert_eq!((again, read_all(&second)), (address, vec![0; 5000]));
    // Kernels before Linux 5.18 do not free locked pages; on such kernels the bytes are zeroed.
    second.write(0, &[7; 5000]);
    second.0.mapping.zero();
    assert_eq!(read_all(&second), vec![0; 5000]);
}

#[test]
fn small_staged_memory_starts_with_file_content() {
    let path = std::env::temp_dir().join(format!("ddpd-slot-{}", std::process::id()));
    std::fs::write(&path, b"content").unwrap();
    let maps = Maps::default();
    let staged = Backing::Staged { path: path.clone() };
    let memory = prepare(&maps, staged, 10, true).unwrap();
    assert_eq!(read_all(&memory), b"content\0\0\0");
    std::fs::remove_file(&path).unwrap();
}

/// Bounds are checked against the length of the memory, not the length of its slot or slab.
#[test]
#[should_panic(expected = "copy of 1 bytes at 100 outside a region of 100 bytes")]
fn write_behind_small_memory_panics() {
    small(&Maps::default(), 100).0.write(100, &[1]);
}

#[test]
fn charge_of_small_memory_is_dropped_with_last_handle() {
    let (dropped, drops) = std::sync::mpsc::channel::<()>();
    let maps = Maps::default();
    let (_kept, _) = small(&maps, 100);
    let memory = small(&maps, 100).0.with_charge(dropped);
    let other = memory.clone();
    drop(memory);
    assert_eq!(drops.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
    drop(other);
    assert_eq!(drops.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
}

proptest! {
    /// In any order of allocations and frees, no byte belongs to two memories, and each new memory is zero.
    #[test]
    fn live_memory_never_overlaps(steps in prop::collection::vec((1u64..20_000, any::<prop::sample::Index>(), any::<bool>()), 1..150)) {
        let maps = Maps::default();
        let mut live: BTreeMap<usize, Memory> = BTreeMap::new();
        for (len, at, removes) in steps {
            if removes && !live.is_empty() {
                let address = *live.keys().nth(at.index(live.len())).unwrap();
                let memory = live.remove(&address).unwrap();
                prop_assert!(read_all(&memory).iter().all(|byte| *byte == 7));
                continue;
            }
            let (memory, address) = small(&maps, len);
            prop_assert_eq!(read_all(&memory), vec![0; len as usize]);
            memory.write(0, &vec![7; len as usize]);
            let before = live.range(..address).next_back().map_or(0, |(at, m)| at + m.len() as usize);
            let after = live.range(address..).next().map_or(usize::MAX, |(&at, _)| at);
            prop_assert!(before <= address && address + len as usize <= after);
            prop_assert_eq!(address % PAGE, 0);
            live.insert(address, memory);
        }
        drop(live);
        prop_assert_eq!(maps.in_use(), 0);
    }
}

/// Several threads allocate and free slots concurrently, as workers and the loader of regions do.
#[test]
fn slots_are_taken_and_freed_by_several_threads() {
    let maps = Maps::default();
    std::thread::scope(|scope| {
        for n in 1..=3u64 {
            let maps = maps.clone();
            scope.spawn(move || {
                let mut all = Vec::new();
                for turn in 0..1000u64 {
                    let (memory, _) = small(&maps, n * 3000);
                    assert!(read_all(&memory).iter().all(|byte| *byte == 0));
                    memory.write(0, &vec![n as u8; (n * 3000) as usize]);
                    all.push(memory);
                    if turn % 3 != 0 {
                        let memory: Memory =
                            all.swap_remove((turn * 7 % all.len() as u64) as usize);
                        assert!(read_all(&memory).iter().all(|&byte| u64::from(byte) == n));
                    }
                }
            });
        }
    });
    assert_eq!(maps.in_use(), 0);
}
