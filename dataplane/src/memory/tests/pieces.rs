//! Kernel calls that populate, lock and unmap memory, as recorded on the test's thread.

use std::sync::mpsc::{Sender, channel};

use super::super::map::pieces::{KernelCall, PIECE, take_calls};
use super::*;

const LEN: u64 = 2 * PIECE as u64 + 5000;

/// A value that reports the name of the thread that drops it.
struct Charge(Sender<String>);

impl Drop for Charge {
    fn drop(&mut self) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.send(name).unwrap();
    }
}

/// A file of [`PIECE`] + 1 bytes, removed on drop.
struct Content(PathBuf);

impl Content {
    fn new(test: &str) -> Content {
        let path = std::env::temp_dir().join(format!("ddpd-{test}-{}", std::process::id()));
        std::fs::write(&path, vec![7; PIECE + 1]).unwrap();
        Content(path)
    }

    fn backings(&self) -> [Backing; 4] {
        let (name, path) = ("ddpd-pieces".to_owned(), self.0.clone());
        [Backing::Anonymous, Backing::Huge, Backing::Shared { name }, Backing::Staged { path }]
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn bytes_of_calls(calls: &[(KernelCall, usize)], kind: KernelCall) -> usize {
    calls.iter().filter(|(call, _)| *call == kind).map(|(_, len)| len).sum()
}

#[test]
fn every_backing_is_mapped_and_unmapped_in_pieces() {
    let content = Content::new("pieces");
    for backing in content.backings() {
        let lock = MemoryConfig { lock: true, ..config(backing.clone(), LEN) };
        take_calls();
        let memory = Memory::new(&lock).unwrap();
        let made = take_calls();
        drop(memory);
        let freed = take_calls();
        let longest = made.iter().chain(&freed).filter(|(call, _)| *call != KernelCall::Lock);
        assert!(
            longest.map(|(_, len)| *len).max() <= Some(PIECE),
            "{backing:?}: {made:?} {freed:?}"
        );
        assert!(
            bytes_of_calls(&made, KernelCall::Populate) >= LEN as usize,
            "{backing:?}: {made:?}"
        );
        assert!(
            bytes_of_calls(&freed, KernelCall::Unmap) >= LEN as usize,
            "{backing:?}: {freed:?}"
        );
        // Pages are locked before they are populated: a lock of present pages would visit them all in one call.
        if backing != Backing::Huge {
            assert_eq!(made[0], (KernelCall::Lock, LEN as usize), "{backing:?}");
        }
    }
}

#[test]
fn cancelled_preparation_stops_after_piece_and_frees_memory() {
    let content = Content::new("cancelled");
    for backing in content.backings() {
        take_calls();
        let error = Memory::prepare(&config(backing.clone(), LEN), &Maps::default(), &mut |at| {
            at.done == 0
        });
        assert!(matches!(error, Err(MemoryError::Cancelled)), "{backing:?}: {error:?}");
        let calls = take_calls();
        assert!(bytes_of_calls(&calls, KernelCall::Populate) <= PIECE, "{backing:?}: {calls:?}");
        assert!(
            bytes_of_calls(&calls, KernelCall::Unmap) >= LEN as usize,
            "{backing:?}: {calls:?}"
        );
    }
}

#[test]
fn progress_reaches_total_including_file_bytes() {
    let content = Content::new("progress");
    let mut seen = Vec::new();
    let [_, _, _, staged] = content.backings();
    let memory = Memory::prepare(&config(staged, LEN), &Maps::default(), &mut |at| {
        seen.push(at);
        true
    });
    let total = LEN + PIECE as u64 + 1;
    assert!(memory.is_ok() && seen.iter().all(|at| at.total == total), "{seen:?}");
    assert!(seen.is_sorted_by_key(|at| at.done), "{seen:?}");
    assert_eq!(seen.last().map(|at| at.done), Some(total));
}

#[test]
fn large_memory_is_freed_on_thread_before_its_charge() {
    let (dropped, drops) = channel();
    let name = "ddpd-large".to_owned();
    let config = config(Backing::Shared { name }, free_thread::MIN_DEFERRED_BYTES as u64);
    let memory = Memory::new(&config).unwrap().with_charge(Charge(dropped));
    take_calls();
    drop(memory);
    assert_eq!(bytes_of_calls(&take_calls(), KernelCall::Unmap), 0);
    assert_eq!(drops.recv().unwrap(), "free");
}

#[test]
fn explicitly_freed_large_memory_is_free_at_once() {
    let (dropped, drops) = channel();
    let config = config(Backing::Anonymous, free_thread::MIN_DEFERRED_BYTES as u64);
    let memory = Memory::new(&config).unwrap().with_charge(Charge(dropped));
    let other = memory.clone();
    take_calls();
    memory.free();
    assert_eq!(bytes_of_calls(&take_calls(), KernelCall::Unmap), 0, "there is another handle");
    other.free();
    assert_eq!(bytes_of_calls(&take_calls(), KernelCall::Unmap), free_thread::MIN_DEFERRED_BYTES);
    assert!(drops.try_recv().is_ok());
}

#[test]
fn program_memory_of_any_size_is_freed_on_free_thread() {
    let (dropped, drops) = channel();
    let page = rustix::param::page_size() as u64;
    let arena = Arena::create("arena", page).unwrap();
    let options = ViewConfig { writable: true, lock: false };
    let whole = 0..page;
    let view = arena.view(std::slice::from_ref(&whole), options, &Maps::default(), &mut |_| true);
    let view = view.unwrap().with_charge(Charge(dropped));
    let (area, _) = QueueArea::create("area", 2 * page, &Maps::default()).unwrap();
    let doorbells = area.doorbells(128).unwrap();
    take_calls();
    drop((view, area));
    assert_eq!(drops.recv().unwrap(), "free");
    drop(doorbells);
    assert_eq!(bytes_of_calls(&take_calls(), KernelCall::Unmap), 0, "unmapped on this thread");
    wait_for_frees();
}
