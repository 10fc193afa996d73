//! Registration of memory that the program has allocated. Each test runs in its own process, because registrations stop
//! all other threads of the process.

use std::alloc::{Layout, alloc};
use std::os::fd::AsFd;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::world::Appliance;
use super::{ALL, LONG, Side, connect};
use crate::{Error, MemoryAccess, MemoryRegion, Session, Sge, Status, post};

const PAGE: usize = 4096;
/// Time-out of a test's process.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a test in a new process: this executable with the test's name.
fn in_own_process(name: &str, test: impl FnOnce()) {
    const VARIABLE: &str = "DDPD_TEST_OF_OWN_PROCESS";
    if std::env::var_os(VARIABLE).is_some_and(|value| value == name) {
        return test();
    }
    let path = format!("tests::registration::{name}");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([&path, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, name)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("the test has not ended after {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
}

/// Two connected programs. `client` registers memory and performs operations between it and `server`'s region.
struct Programs {
    client: Side,
    server: Side,
    _appliance: Appliance,
}

impl Programs {
    fn new() -> Programs {
        let appliance = Appliance::start();
        let (client, server) =
            (Side::new(appliance.session(), 64), Side::new(appliance.session(), 64));
        connect(&client.pair, &server.pair, &server.session);
        Programs { client, server, _appliance: appliance }
    }

    fn register(
        &self,
        bytes: *const u8,
        len: usize,
        access: MemoryAccess,
    ) -> Result<MemoryRegion, Error> {
        let address = NonNull::new(bytes.cast_mut()).unwrap();
        // SAFETY: the tests register only mapped memory, and access it as atomics or by volatile accesses meanwhile.
        #[allow(unsafe_code)]
        unsafe {
            self.client.domain.register(address, len, access)
        }
    }

    /// Returns the region's bytes as the appliance sees them: the client posts an RDMA Write of these bytes to the
    /// other program's memory.
    fn sent(&self, region: &MemoryRegion, at: usize, len: usize) -> Vec<u8> {
        assert!(len <= self.server.memory.len());
        let sge =
            Sge { address: region.address() + at as u64, len: len as u32, lkey: region.stag() };
        let write = post::write(self.server.memory.remote(0), post::gather(&[sge]).unwrap());
        self.client.pair.post_send(&write).unwrap();
        self.complete();
        let mut bytes = vec![0; len];
        self.server.memory.read(0, &mut bytes);
        bytes
    }

    /// Lets the appliance store `bytes` in the region: the client posts an RDMA Read from the other program's memory.
    fn receive(&self, region: &MemoryRegion, at: usize, bytes: &[u8]) {
        self.server.memory.write(0, bytes);
        let len = bytes.len() as u32;
        let sge = Sge { address: region.address() + at as u64, len, lkey: region.stag() };
        let read = post::read(self.server.memory.remote(0), &[sge]).unwrap();
        self.client.pair.post_send(&read).unwrap();
        self.complete();
    }

    fn complete(&self) {
        let completion = self.client.completions.next(LONG).unwrap().unwrap();
        assert_eq!(completion.status, Status::Success);
    }

    /// Checks that the program and the appliance see the same bytes at the start and the end of the region: by RDMA
    /// Writes from the region, then RDMA Reads into it.
    fn check(&self, region: &MemoryRegion) {
        let len = region.len().min(self.server.memory.len());
        for at in [0, region.len() - len] {
            let mut bytes = vec![0; len];
            region.read(at, &mut bytes);
            assert_eq!(self.sent(region, at, len), bytes);
            bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31).wrapping_add(7));
            self.receive(region, at, &bytes);
            let mut now = vec![0; len];
            region.read(at, &mut now);
            assert_eq!(now, bytes);
        }
    }
}

/// Allocates bytes of the heap, filled with a pattern, that are never freed.
fn heap(len: usize, seed: u8) -> &'static mut [u8] {
    let bytes = Box::leak(vec![0; len].into_boxed_slice());
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at, seed));
    bytes
}

fn pattern(at: usize, seed: u8) -> u8 {
    (at as u8).wrapping_mul(7).wrapping_add((at >> 8) as u8).wrapping_add(seed)
}

/// Maps private anonymous memory, filled with a pattern.
fn map(len: usize, seed: u8) -> &'static mut [u8] {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is requested, so no existing mapping is replaced. The memory is new.
    #[allow(unsafe_code)]
    let bytes = unsafe {
        let start =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE);
        std::slice::from_raw_parts_mut(start.unwrap().cast::<u8>(), len)
    };
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at, seed));
    bytes
}

fn unmap(bytes: &'static mut [u8]) {
    // SAFETY: the caller no longer uses the memory, which `map` has mapped.
    #[allow(unsafe_code)]
    unsafe { rustix::mm::munmap(bytes.as_mut_ptr().cast(), bytes.len()) }.unwrap();
}

/// Returns the number of bytes that are allocated in the arena's file.
fn allocated(programs: &Programs) -> usize {
    let link = programs.client.session.link();
    rustix::fs::fstat(link.arena.as_fd()).unwrap().st_blocks as usize * 512
}

#[test]
fn pages_that_were_unmapped_are_taken_again_and_others_keep_their_bytes() {
    let name = "pages_that_were_unmapped_are_taken_again_and_others_keep_their_bytes";
    in_own_process(name, || {
        const MIB: usize = 1 << 20;
        let programs = Programs::new();
        let mapped = map(4 * MIB, 1);
        drop(programs.register(mapped.as_ptr(), mapped.len(), ALL).unwrap());
        let held = map(4 * MIB, 2);
        let region = programs.register(held.as_ptr(), held.len(), ALL).unwrap();
        let expected = held.to_vec();
        for round in 0..100 {
            let seed = round as u8;
            let bytes = map(MIB, seed);
            let region = programs.register(bytes.as_ptr(), MIB, ALL).unwrap();
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(at, seed)));
            assert_eq!(programs.sent(&region, MIB - 64, 64), bytes[MIB - 64..]);
            drop(region);
            unmap(bytes);
            let allocated = allocated(&programs);
            assert!(allocated < 32 * MIB, "round {round}: {allocated} bytes");
        }
        assert_eq!(held, expected);
        assert!(mapped.iter().enumerate().all(|(at, byte)| *byte == pattern(at, 1)));
        programs.check(&region);
    });
}

#[test]
fn memory_that_is_unmapped_while_it_is_registered_stays_with_its_region() {
    let name = "memory_that_is_unmapped_while_it_is_registered_stays_with_its_region";
    in_own_process(name, || {
        let programs = Programs::new();
        let bytes = map(16 << 20, 5);
        let expected = bytes[..64].to_vec();
        let region = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap();
        unmap(bytes);
        // The arena has no room for 50 MiB in addition to the region's 16 MiB.
        programs.client.session.allocate(50 << 20).unwrap_err();
        assert_eq!(programs.sent(&region, 0, 64), expected);
        drop(region);
        let buffer = programs.client.session.allocate(50 << 20).unwrap();
        let region = programs.client.domain.register_buffer(&buffer, 0..50 << 20, ALL).unwrap();
        assert!(region.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
    });
}

#[test]
fn registered_memory_that_shrinks_and_grows_does_not_extend_into_other_memory() {
    let name = "registered_memory_that_shrinks_and_grows_does_not_extend_into_other_memory";
    in_own_process(name, || {
        const MIB: usize = 1 << 20;
        let programs = Programs::new();
        // SAFETY: the memory has the accessed length, and nothing else uses it.
        #[allow(unsafe_code)]
        let (start, other) = unsafe {
            let start = libc::malloc(MIB).cast::<u8>();
            start.write_bytes(1, MIB);
            drop(programs.register(start, MIB, ALL).unwrap());
            let start = libc::realloc(start.cast(), MIB / 2);
            let other = map(4 * MIB, 7);
            let region = programs.register(other.as_ptr(), other.len(), ALL).unwrap();
            let start = libc::realloc(start, 8 * MIB).cast::<u8>();
            start.add(MIB / 2).write_bytes(2, 8 * MIB - MIB / 2);
            programs.receive(&region, 0, &[9; 64]);
            (std::slice::from_raw_parts(start, 8 * MIB), other)
        };
        assert!(start[..MIB / 2].iter().all(|byte| *byte == 1));
        assert!(start[MIB / 2..].iter().all(|byte| *byte == 2));
        assert!((64..other.len()).all(|at| other[at] == pattern(at, 7)));
    });
}

#[test]
fn registered_page_that_grows_by_a_page_does_not_extend_into_other_memory() {
    let name = "registered_page_that_grows_by_a_page_does_not_extend_into_other_memory";
    in_own_process(name, || {
        let programs = Programs::new();
        let (page, other) = (map(PAGE, 1), map(PAGE, 2));
        drop(programs.register(page.as_ptr(), PAGE, ALL).unwrap());
        let region = programs.register(other.as_ptr(), PAGE, ALL).unwrap();
        // SAFETY: the memory belongs to `page`, which is not used any more.
        #[allow(unsafe_code)]
        unsafe {
            let start = page.as_mut_ptr().cast();
            let flags = rustix::mm::MremapFlags::MAYMOVE;
            let start = rustix::mm::mremap(start, PAGE, 2 * PAGE, flags).unwrap();
            start.cast::<u8>().write_bytes(3, 2 * PAGE);
        }
        assert!((0..PAGE).all(|at| other[at] == pattern(at, 2)));
        programs.check(&region);
    });
}

#[test]
fn private_huge_pages_are_registered() {
    in_own_process("private_huge_pages_are_registered", || {
        const HUGE: usize = 2 << 20;
        let programs = Programs::new();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE;
        // SAFETY: no address is requested, so no existing mapping is replaced. The memory is new.
        #[allow(unsafe_code)]
        let bytes = unsafe {
            let start = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 3 * HUGE, rights, flags);
            let Ok(start) = start else {
                // The host has no free huge pages.
                return;
            };
            std::slice::from_raw_parts_mut(start.cast::<u8>(), 3 * HUGE)
        };
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at, 3));
        let part = programs.register(bytes[HUGE / 2..].as_ptr(), 100, ALL).unwrap();
        let region = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(at, 3)));
        programs.check(&part);
        programs.check(&region);
    });
}

#[test]
fn program_that_blocks_all_signals_before_it_opens_a_session_registers_memory() {
    let name = "program_that_blocks_all_signals_before_it_opens_a_session_registers_memory";
    in_own_process(name, || {
        let appliance = Appliance::start();
        let socket = appliance.socket();
        // SAFETY: the set is initialised by `sigfillset`.
        #[allow(unsafe_code)]
        unsafe {
            let mut all = std::mem::MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        }
        let side = Side::new(Session::from_socket(socket).unwrap(), 4);
        let bytes = map(PAGE, 1);
        let address = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the memory stays mapped, and nothing else uses it.
        #[allow(unsafe_code)]
        let region = unsafe { side.domain.register(address, PAGE, ALL) }.unwrap();
        assert!((0..PAGE).all(|at| bytes[at] == pattern(at, 1)));
        drop(region);
    });
}

#[test]
fn registration_beyond_the_limit_of_file_sizes_is_an_error() {
    in_own_process("registration_beyond_the_limit_of_file_sizes_is_an_error", || {
        let programs = Programs::new();
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        limit.current = Some(1 << 20);
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
        let bytes = map(2 << 20, 1);
        let error = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap_err();
        assert!(matches!(error, Error::Memory { error: Errno::FBIG, .. }), "{error}");
        let region = programs.register(bytes.as_ptr(), PAGE, ALL).unwrap();
        programs.check(&region);
    });
}

#[test]
fn sessions_that_have_ended_keep_no_descriptors() {
    in_own_process("sessions_that_have_ended_keep_no_descriptors", || {
        const SESSIONS: usize = 20;
        let appliance = Appliance::start();
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        for _ in 0..SESSIONS {
            let side = Side::new(appliance.session(), 4);
            let bytes = heap(PAGE, 1);
            let address = NonNull::new(bytes.as_mut_ptr()).unwrap();
            // SAFETY: the memory stays mapped, and nothing else uses it.
            #[allow(unsafe_code)]
            drop(unsafe { side.domain.register(address, PAGE, ALL) }.unwrap());
        }
        // The appliance, in this process, keeps one descriptor of each arena. It closes its other descriptors of the
        // arena a little later.
        let start = Instant::now();
        while descriptors() > before + SESSIONS + SESSIONS / 2 {
            assert!(start.elapsed() < TIMEOUT / 4, "{} of {before}", descriptors());
            std::thread::yield_now();
        }
    });
}

#[test]
fn failed_registration_gives_back_its_arena_pages() {
    in_own_process("failed_registration_gives_back_its_arena_pages", || {
        const MIB: usize = 1 << 20;
        let programs = Programs::new();
        let first = map(MIB, 4);
        let before = allocated(&programs);
        // The file ends before the mapping: the last page cannot be read.
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 40 * MIB as u64 - PAGE as u64).unwrap();
        // SAFETY: `MAP_FIXED` replaces only a mapping that was just created, and nothing else uses it.
        #[allow(unsafe_code)]
        let start = unsafe {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let none = std::ptr::null_mut();
            let start = rustix::mm::mmap_anonymous(none, 40 * MIB, rights, MapFlags::PRIVATE);
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            rustix::mm::mmap(start.unwrap(), 40 * MIB, rights, flags, &file, 0).unwrap()
        };
        for _ in 0..3 {
            let error = programs.register(start.cast(), 40 * MIB, ALL).unwrap_err();
            assert!(matches!(error, Error::Memory { error: Errno::FAULT, .. }), "{error}");
            assert!(programs.client.session.link().replacements.lock().unwrap().is_empty());
            assert_eq!(allocated(&programs), before);
        }
        let region = programs.register(first.as_ptr(), MIB, ALL).unwrap();
        programs.check(&region);
    });
}

#[test]
fn small_heap_block_is_registered_and_its_neighbours_are_unchanged() {
    in_own_process("small_heap_block_is_registered_and_its_neighbours_are_unchanged", || {
        let programs = Programs::new();
        let blocks: Vec<_> = (0..64).map(|n| heap(1000, n)).collect();
        let region = programs.register(blocks[30].as_ptr(), 1000, ALL).unwrap();
        assert_eq!(programs.sent(&region, 0, 1000), blocks[30]);
        programs.check(&region);
        for (seed, block) in blocks.iter().enumerate().filter(|(n, _)| *n != 30) {
            assert!(block.iter().enumerate().all(|(at, byte)| *byte == pattern(at, seed as u8)));
        }
    });
}

#[test]
fn overlapping_and_repeated_registrations_share_pages() {
    in_own_process("overlapping_and_repeated_registrations_share_pages", || {
        let programs = Programs::new();
        let bytes = heap(16 * PAGE, 3);
        let middle = programs.register(bytes[5 * PAGE..].as_ptr(), 3 * PAGE, ALL).unwrap();
        let whole = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap();
        let again = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap();
        assert_ne!(whole.stag(), again.stag());
        programs.receive(&middle, 0, &[1; 100]);
        let at = middle.address() - whole.address();
        assert_eq!(programs.sent(&again, at as usize, 100), [1; 100]);
        drop((middle, whole));
        programs.check(&again);
        drop(again);
        let later = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap();
        programs.check(&later);
    });
}

#[test]
fn no_write_of_another_thread_is_lost() {
    in_own_process("no_write_of_another_thread_is_lost", || {
        const THREADS: usize = 3;
        const SLOTS: usize = 16 << 10;
        let programs = Programs::new();
        for _ in 0..20 {
            let layout = Layout::array::<AtomicU64>(SLOTS).unwrap();
            // SAFETY: the layout is not empty. All bytes are written before they are read as counters.
            #[allow(unsafe_code)]
            let counters = unsafe {
                let start = alloc(layout);
                start.write_bytes(0, layout.size());
                std::slice::from_raw_parts(start.cast::<AtomicU64>(), SLOTS)
            };
            let stop = AtomicBool::new(false);
            let started = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let (stop, started) = (&stop, &started);
                        scope.spawn(move || {
                            let mut written = vec![0u64; SLOTS / THREADS];
                            started.fetch_add(1, Ordering::Relaxed);
                            let mut state = thread as u64 + 1;
                            while !stop.load(Ordering::Relaxed) {
                                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                                let slot = (state >> 33) as usize % written.len();
                                written[slot] += 1;
                                // Only this thread writes the counter, so a store suffices instead of an atomic
                                // addition.
                                counters[slot * THREADS + thread]
                                    .store(written[slot], Ordering::Relaxed);
                            }
                            written
                        })
                    })
                    .collect();
                while started.load(Ordering::Relaxed) < THREADS as u64 {
                    std::thread::yield_now();
                }
                let region =
                    programs.register(counters.as_ptr().cast(), layout.size(), ALL).unwrap();
                stop.store(true, Ordering::Relaxed);
                for (thread, writer) in writers.into_iter().enumerate() {
                    for (slot, count) in writer.join().unwrap().into_iter().enumerate() {
                        let at = slot * THREADS + thread;
                        assert_eq!(counters[at].load(Ordering::Relaxed), count, "slot {at}");
                    }
                }
                programs.check(&region);
            });
        }
    });
}

#[test]
fn buffer_on_the_own_stack_is_registered() {
    in_own_process("buffer_on_the_own_stack_is_registered", || {
        let programs = Programs::new();
        let mut bytes = [0u8; 3000];
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at, 9));
        let region = programs.register(bytes.as_mut_ptr(), bytes.len(), ALL).unwrap();
        let expected: Vec<u8> = (0..3000).map(|at| pattern(at, 9)).collect();
        assert_eq!(programs.sent(&region, 0, 3000), expected);
        programs.check(&region);
    });
}

#[test]
fn forked_child_has_private_memory_with_the_bytes_of_the_fork() {
    in_own_process("forked_child_has_private_memory_with_the_bytes_of_the_fork", || {
        let programs = Programs::new();
        let bytes = heap(5 * PAGE, 3);
        let before = bytes.to_vec();
        let region = programs.register(bytes.as_ptr(), bytes.len(), ALL).unwrap();
        let (mut reading, writing) = std::io::pipe().unwrap();
        // SAFETY: the child calls only functions that are safe after a fork of a program with several threads.
        #[allow(unsafe_code)]
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same = *bytes == before[..];
            bytes.fill(0xee);
            // The parent closes the pipe after it has changed its bytes.
            drop(writing);
            let _ = std::io::Read::read(&mut reading, &mut [0]);
            let own = bytes.iter().all(|byte| *byte == 0xee);
            // SAFETY: ends the process without destructors.
            #[allow(unsafe_code)]
            unsafe {
                libc::_exit(if same && own { 0 } else { 1 });
            }
        }
        assert!(child > 0);
        assert_eq!(programs.sent(&region, 0, 64), before[..64]);
        bytes.fill(0x11);
        drop(writing);
        let mut status = 0;
        // SAFETY: `status` is valid.
        #[allow(unsafe_code)]
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert!(bytes.iter().all(|byte| *byte == 0x11), "the child writes to its own memory");
        programs.check(&region);
    });
}
