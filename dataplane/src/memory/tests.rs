//! Memory of every backing: written bytes are read back, bounds are enforced, and invalid names and limits give
//! readable errors.

use std::io::Write;
use std::os::fd::AsRawFd;

use proptest::prelude::*;
use rustix::io::Errno;

use wire::crc32c::{Digest, Inserts};

use super::*;

mod maps;
mod pieces;

fn config(backing: Backing, len: u64) -> MemoryConfig {
    MemoryConfig { backing, len, remote_write: false, lock: false }
}

fn anonymous(len: u64) -> Memory {
    Memory::new(&config(Backing::Anonymous, len)).unwrap()
}

fn read_all(memory: &Memory) -> Vec<u8> {
    let mut out = vec![0xee; memory.len() as usize];
    memory.read(0, &mut out);
    out
}

#[test]
fn fresh_memory_is_zero_and_keeps_what_is_written() {
    for backing in
        [Backing::Anonymous, Backing::Huge, Backing::Shared { name: "ddpd-test".to_owned() }]
    {
        let memory = Memory::new(&config(backing.clone(), 10_001)).unwrap();
        assert_eq!(memory.len(), 10_001, "{backing:?}");
        assert_eq!(read_all(&memory), vec![0; 10_001]);
        memory.write(10_000, &[7]);
        memory.clone().write(0, b"start");
        memory.write(10_001, &[]);
        let mut out = [0; 5];
        memory.read(0, &mut out);
        assert_eq!(&out, b"start");
        memory.read(10_000, &mut out[..1]);
        assert_eq!(out[0], 7);
    }
}

proptest! {
    #[test]
    fn writes_land_at_their_offset(writes in prop::collection::vec((0u64..5000, prop::collection::vec(any::<u8>(), 0..600)), 1..20)) {
        let memory = anonymous(5600);
        let mut model = vec![0; 5600];
        for (offset, bytes) in &writes {
            memory.write(*offset, bytes);
            model[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        prop_assert_eq!(read_all(&memory), model);
    }

    /// Pieces of any number and length are written consecutively. The announced length may select any copy path.
    #[test]
    fn pieces_are_written_consecutively(
        offset in 0u64..500,
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..40),
        wanted in prop::option::of(0usize..20_000),
    ) {
        let memory = anonymous(25_000);
        let bytes = pieces.concat();
        let len = wanted.unwrap_or(bytes.len());
        memory.write_pieces(offset, len, pieces.iter().map(Vec::as_slice));
        let mut expected = vec![0; 25_000];
        expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        prop_assert!(read_all(&memory) == expected);
    }

    #[test]
    fn contains_is_true_only_within_region(len in 1u64..100_000, offset: u64, n in 0u64..200_000) {
        let memory = anonymous(len);
        prop_assert_eq!(memory.contains(offset, n), u128::from(offset) + u128::from(n) <= u128::from(len));
        prop_assert_eq!(memory.contains(offset % len, len - offset % len), true);
        prop_assert_eq!(memory.contains(offset % len, len - offset % len + 1), false);
    }
}

/// A large region, written by non-temporal stores, has the same content as a small one after the same writes, at every
/// alignment, below and above [`MIN_STREAMED_LEN`].
#[test]
fn large_region_behaves_like_small_one() {
    let (large, small) = (anonymous(8 << 20), anonymous(20_000));
    let bytes: Vec<u8> = (0..9000u32).map(|i| ((i * 7) >> 2) as u8).collect();
    let same = |at: usize, len: usize| {
        let (mut a, mut b) = (vec![0; 20_000], vec![0; 20_000]);
        large.read(0, &mut a);
        small.read(0, &mut b);
        assert!(a == b, "{at} {len}");
    };
    for (at, len) in (0..64).map(|at| (100 + at, 4000 + 17 * at)).chain([(64, 4096), (1, 9000)]) {
        for memory in [&large, &small] {
            memory.write(0, &[0; 20_000]);
            memory.write(at as u64, &bytes[..len]);
        }
        same(at, len);
        for memory in [&large, &small] {
            memory.write_pieces(at as u64, len, bytes[..len].chunks(508));
        }
        same(at, len);
    }
    // Near the end of the region. The 7 bytes after the written bytes are unchanged.
    large.write(large.len() - 9007, &bytes);
    let mut end = vec![0; 9007];
    large.read(large.len() - 9007, &mut end);
    assert!(end[..9000] == bytes && end[9000..] == [0; 7]);
}

/// Pieces that pass the end of the region panic, even if the announced length lies inside the region.
#[test]
#[should_panic(expected = "outside a region")]
fn pieces_across_the_end_of_a_large_region_panic() {
    let large = anonymous((8 << 20) + 1);
    let bytes = [1; 5000];
    large.write_pieces(large.len() - 4999, 4999, bytes.chunks(508));
}

#[test]
#[should_panic(expected = "copy of 2 bytes at 9 outside a region of 10 bytes")]
fn a_write_across_the_end_panics() {
    anonymous(10).write(9, &[1, 2]);
}

#[test]
#[should_panic(expected = "outside a region")]
fn read_at_offset_overflow_panics() {
    anonymous(10).read(u64::MAX, &mut [0; 2]);
}

#[test]
#[should_panic(expected = "outside a region")]
fn rest_of_last_page_is_outside_region() {
    anonymous(10).read(10, &mut [0]);
}

/// A read with a digest returns the written bytes and the digest of these bytes.
#[test]
fn digested_read_matches_bytes_and_digest() {
    let memory = anonymous(3000);
    let bytes: Vec<u8> = (0..3000u32).map(|i| ((i * i) >> 3) as u8).collect();
    memory.write(0, &bytes);
    for (at, len) in [(0, 3000), (1, 2999), (7, 1448), (2990, 10), (100, 200), (3000, 0)] {
        for summed in [false, true] {
            let mut out = vec![0xee; len];
            let mut target = Target::new(&mut out, Digest::new(summed));
            memory.read_digested(at as u64, &mut target);
            let digest = target.into_digest();
            let mut expected = Digest::new(summed);
            expected.add(&bytes[at..at + len]);
            assert_eq!((&out[..], digest), (&bytes[at..at + len], expected), "{at} {len}");
        }
    }
}

/// A read that inserts words (such as MPA markers) into the copy may end exactly at the end of the region.
#[test]
fn read_with_inserts_matches_reference() {
    let memory = anonymous(3000);
    let bytes: Vec<u8> = (0..3000u32).map(|i| ((i * i) >> 3) as u8).collect();
    memory.write(0, &bytes);
    let inserts = Inserts::new(1000, 0x0102);
    let mut out = vec![0xee; 1416];
    let mut target = Target::with_inserts(&mut out, inserts, Digest::new(true));
    memory.read_digested(3000 - 1412, &mut target);
    let mut expected = Digest::new(true);
    let whole = [&bytes[1588..2588], &[0, 0, 1, 2], &bytes[2588..]].concat();
    expected.add(&whole);
    assert_eq!((target.into_digest(), out), (expected, whole));
}

#[test]
#[should_panic(expected = "outside a region")]
fn read_with_inserts_across_end_panics() {
    let inserts = Inserts::new(1000, 0);
    let mut out = [0; 1416];
    let mut target = Target::with_inserts(&mut out, inserts, Digest::new(true));
    anonymous(3000).read_digested(3000 - 1411, &mut target);
}

#[test]
#[should_panic(expected = "outside a region")]
fn digested_read_across_end_panics() {
    anonymous(3000).read_digested(2999, &mut Target::new(&mut [0; 2], Digest::new(true)));
}

#[test]
fn memory_is_populated_before_use() {
    for backing in [Backing::Anonymous, Backing::Shared { name: "ddpd-fault".to_owned() }] {
        let memory = Memory::new(&config(backing, 32 << 20)).unwrap();
        let before = minor_faults();
        for page in 0..8192 {
            memory.write(page * 4096, &[1]);
        }
        // Reading the counter may cause a few faults; the 8192 pages caused none.
        assert!(minor_faults() < before + 100, "{before}, then {}", minor_faults());
    }
}

/// Returns the number of minor page faults of this thread so far.
fn minor_faults() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The fields after the name in brackets are state, ppid, pgrp, session, tty, tpgid, flags, minflt.
    let (_, fields) = text.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn only_private_memory_that_peers_cannot_write_is_stable() {
    let stable = |backing, remote_write| {
        Memory::new(&MemoryConfig { remote_write, ..config(backing, 100) }).unwrap().is_stable()
    };
    assert!(stable(Backing::Anonymous, false));
    assert!(!stable(Backing::Anonymous, true));
    assert!(!stable(Backing::Shared { name: "x".to_owned() }, false));
}

#[test]
fn shared_region_is_one_file_of_sealed_size() {
    let name = "ddpd-seal".to_owned();
    let memory = Memory::new(&config(Backing::Shared { name }, 5000)).unwrap();
    let fd = memory.shared_fd().unwrap();
    // A local program that opens or receives the descriptor reads the same bytes.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .unwrap();
    memory.write(4998, b"by");
    let mut seen = [0; 2];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 4998).unwrap();
    assert_eq!(&seen, b"by");
    std::os::unix::fs::FileExt::write_all_at(&file, b"me", 4998).unwrap();
    memory.read(4998, &mut seen);
    assert_eq!(&seen, b"me");
    for len in [0, 4999, 5001] {
        assert_eq!(rustix::fs::ftruncate(&file, len), Err(Errno::PERM));
    }
    let more = rustix::fs::fcntl_add_seals(fd, rustix::fs::SealFlags::WRITE);
    assert_eq!(more, Err(Errno::PERM));
    assert!(anonymous(1).shared_fd().is_none());
}

#[test]
fn a_file_that_ends_before_its_length_is_refused() {
    let path = std::env::temp_dir().join(format!("ddpd-shrunk-{}", std::process::id()));
    std::fs::write(&path, b"12345").unwrap();
    let file = std::fs::File::open(&path).unwrap();
    // The stated length is 4096, the content 5 bytes, as for a file of /sys or a file truncated during the read.
    let staged = StagedFile { path: &path, file, len: 4096 };
    let mapping = Mapping::anonymous(4096).unwrap();
    let error = staged.read_into(&mapping, &mut |_| Ok(())).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let sentence = "ended after 5 of its 4096 bytes: it became shorter, or its stated length is wrong, as in /proc and /sys; \
                    copy it first";
    assert!(error.ends_with(sentence), "{error}");
}

#[test]
fn staged_region_starts_with_file_content() {
    let path = std::env::temp_dir().join(format!("ddpd-staged-{}", std::process::id()));
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i * 31) as u8).collect();
    std::fs::File::create(&path).unwrap().write_all(&content).unwrap();
    let staged = |len| Memory::new(&config(Backing::Staged { path: path.clone() }, len));
    let memory = staged(3_000_100).unwrap();
    let bytes = read_all(&memory);
    assert_eq!(bytes[..3_000_000], content);
    assert_eq!(bytes[3_000_000..], [0; 100]);
    memory.write(0, b"changed");
    assert_eq!(std::fs::read(&path).unwrap(), content, "only the caller writes the region back");
    let error = staged(2_999_999).expect_err("the file is longer than the region").to_string();
    assert!(error.contains("has 3000000 bytes, more than the region's 2999999"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = staged(100).expect_err("the file was removed").to_string();
    assert!(error.contains("cannot be read: No such file"), "{error}");
}

#[test]
fn impossible_memory_is_refused_with_reason() {
    let error =
        |backing, len| Memory::new(&config(backing, len)).expect_err("impossible").to_string();
    assert!(error(Backing::Anonymous, 0).contains("0 bytes"));
    assert!(error(Backing::Anonymous, u64::MAX).contains("larger than this machine can address"));
    // The address space suffices, the memory does not: the request fails before the OOM killer ends a process.
    let text = error(Backing::Anonymous, 1 << 45);
    assert!(text.contains("bytes of memory are not available"), "{text}");
    let text = error(Backing::Shared { name: "big".to_owned() }, 1 << 45);
    assert!(text.contains("bytes of memory are not available"), "{text}");
    let text = error(Backing::Shared { name: "n".repeat(300) }, 1);
    assert!(text.contains("too long"), "{text}");
    let text = error(Backing::Shared { name: "a\0b".to_owned() }, 1);
    assert!(text.contains("NUL"), "{text}");
}

#[test]
fn missing_hugepages_are_reported() {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.map_or(0, |text| text.trim().parse().unwrap());
    let memory = Memory::new(&config(Backing::Huge, 64 << 20)).unwrap();
    match memory.statements() {
        [] => assert!(free >= 32, "{free} were free"),
        [text] => assert!(text.starts_with("32 hugepages of 2 MiB are not free"), "{text}"),
        more => panic!("{more:?}"),
    }
}

#[test]
fn locking_succeeds_or_is_reported() {
    let lock = MemoryConfig { lock: true, ..config(Backing::Anonymous, 1 << 20) };
    let memory = Memory::new(&lock).unwrap();
    match memory.statements() {
        [] => {
            let flags = flags_at(memory.0.mapping.address());
            assert!(flags.split_whitespace().any(|flag| flag == "lo"), "{flags}");
        }
        [text] => assert!(text.contains("RLIMIT_MEMLOCK is"), "{text}"),
        more => panic!("{more:?}"),
    }
}

// RFC 7306 §5.3: operations are atomic across cores, so each is applied exactly once.
#[test]
fn concurrent_atomics_lose_no_update() {
    let memory = anonymous(64);
    let add = |times| {
        let memory = memory.clone();
        move || (0..times).all(|_| memory.fetch_update_u64(8, |v| v.wrapping_add(3)).is_ok())
    };
    std::thread::scope(|scope| {
        scope.spawn(add(20_000));
        scope.spawn(add(20_000));
        assert!(add(20_000)());
    });
    assert_eq!(memory.fetch_update_u64(8, |v| v), Ok(180_000));
    let mut out = [0; 8];
    memory.read(8, &mut out);
    assert_eq!(u64::from_ne_bytes(out), 180_000);
}

#[test]
fn misaligned_or_outside_atomic_is_refused() {
    let memory = anonymous(20);
    memory.write(0, &[9; 20]);
    for offset in [1, 4, 7, 9] {
        assert_eq!(memory.fetch_update_u64(offset, |_| 0), Err(AtomicError::Unaligned));
    }
    for offset in [13, 16, 20, u64::MAX - 3, u64::MAX - 7] {
        assert_eq!(memory.fetch_update_u64(offset, |_| 0), Err(AtomicError::OutOfBounds));
    }
    assert_eq!(read_all(&memory), [9; 20]);
    assert_eq!(memory.fetch_update_u64(8, |v| !v), Ok(u64::from_ne_bytes([9; 8])));
    assert_eq!(read_all(&memory)[8..16], [!9; 8]);
}

/// Returns the kernel's flags of the mapping that contains `address` (VmFlags in /proc/self/smaps).
fn flags_at(address: usize) -> String {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let parsed = range.and_then(|(from, to)| {
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some(number(from)?..number(to)?)
        });
        if let Some(range) = parsed {
            inside = range.contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return flags.to_owned();
        }
    }
    panic!("nothing is mapped at {address:x}");
}

#[test]
fn regions_are_left_out_of_core_dumps() {
    let path = std::env::temp_dir().join(format!("ddpd-dump-{}", std::process::id()));
    std::fs::write(&path, b"x").unwrap();
    for backing in [
        Backing::Anonymous,
        Backing::Huge,
        Backing::Shared { name: "dump".into() },
        Backing::Staged { path: path.clone() },
    ] {
        let memory = Memory::new(&config(backing.clone(), 3 << 20)).unwrap();
        let start = memory.0.mapping.address();
        for at in [start, start + (3 << 20) - 1] {
            let flags = flags_at(at);
            assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{backing:?}: {flags}");
        }
    }
    std::fs::remove_file(&path).unwrap();
}
