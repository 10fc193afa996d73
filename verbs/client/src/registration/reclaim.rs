//! Return of arena pages that the program has unmapped.
//!
//! `/proc/self/maps` shows which pages of the arena the program still has mapped. All other threads are stopped while
//! the list is read: otherwise `mremap` could move a mapping to addresses that the list has passed already.

use super::vma::Vma;
use super::{Failure, Parts, Process, give_back, threads};
use crate::link::Link;
use crate::lock::lock;

/// Frees the ranges of the arena that the program has not mapped and no region uses.
pub(super) fn reclaim(link: &Link, process: &mut Process) -> Result<(), Failure> {
    if lock(&link.replacements).is_empty() {
        return Ok(());
    }
    let arena = link.arena.file();
    let vmas = shared_files(process)?;
    // Mappings of the whole arena are not replaced memory, which is always shorter. The library has one, and so has an
    // appliance in the same process.
    let is_whole = |vma: &Vma| {
        arena.has_mapped(vma.range.start) || vma.range.len() as u64 == link.welcome.arena
    };
    let of_arena = |vma: &&Vma| vma.file == Some(arena.id()) && !is_whole(vma);
    let mapped = vmas.iter().filter(of_arena);
    let mapped: Parts =
        mapped.map(|vma| (vma.offset, vma.offset + vma.range.len() as u64)).collect();
    let free = lock(&link.replacements).reclaim(mapped, crate::page::size() as u64);
    free.into_iter().for_each(|range| give_back(link, range));
    Ok(())
}

/// Lists all shared mappings of files, while all other threads are stopped.
fn shared_files(process: &Process) -> Result<Vec<Vma>, Failure> {
    let failed = |error| Failure::new(error, "the list of mappings cannot be read");
    let mut list = process.maps.prepare_list().map_err(failed)?;
    threads::prepare()?;
    let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let masked = threads::Masked::new();
    let result =
        threads::stop(this).and_then(|_stopped| process.maps.fill(&mut list).map_err(failed));
    drop(masked);
    result?;
    list.into_vmas().map_err(failed)
}
