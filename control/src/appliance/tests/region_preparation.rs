//! Regions whose memory is being created: progress, removal, and the end of the appliance.

use api::{ErrorKind, RegionInfo};

use super::super::loader::{LARGE_REQUEST, Load};
use super::regions::{remove, section};
use super::*;

fn regions(bench: &mut Bench) -> Vec<RegionInfo> {
    match answer(&mut bench.call(Request::Regions)) {
        Ok(Reply::Regions(regions)) => regions,
        other => panic!("{other:?}"),
    }
}

/// Returns the progress of region `late`, if its memory is being created.
fn preparation_progress(bench: &mut Bench) -> Option<u8> {
    regions(bench).into_iter().find(|region| region.name == "late")?.preparing
}

/// Requests region `late`. The memory request is returned, not performed.
fn request_region(bench: &mut Bench, size: u64) -> (Pending, Load) {
    let pending = bench.call(Request::AddRegion(section("late", size)));
    let load = bench.core.poll_load().expect("a request for memory");
    (pending, load)
}

fn finish(bench: &mut Bench, load: &Load) {
    let files = &load.files;
    let result = loader::load(&load.task, &bench.budget, files, &load.watch);
    bench.core.handle_loaded(LoadResult { id: load.id, result }, bench.now);
}

#[test]
fn a_region_is_listed_with_its_progress_until_its_memory_is_ready() {
    let mut bench = bench();
    let (mut added, load) = request_region(&mut bench, 4096);
    let listed = regions(&mut bench);
    let late = listed.iter().find(|region| region.name == "late").unwrap();
    assert_eq!((late.preparing, late.stag.as_str(), late.size), (Some(0), "-", 4096));
    assert!(listed.is_sorted_by_key(|region| region.name.clone()));
    finish(&mut bench, &load);
    bench.acknowledge();
    assert!(matches!(answer(&mut added), Ok(Reply::Region(region)) if region.preparing.is_none()));
    assert_eq!(preparation_progress(&mut bench), None);
}

#[test]
fn removal_during_preparation_cancels_and_answers_both_clients() {
    let mut bench = bench();
    let (mut added, load) = request_region(&mut bench, 4096);
    let mut removed = bench.call(remove("late", false));
    let again = answer(&mut bench.call(remove("late", false))).unwrap_err();
    assert_eq!(again.error, ErrorKind::Conflict);
    assert!(is_unanswered(&mut added) && is_unanswered(&mut removed), "its memory is still there");
    finish(&mut bench, &load);
    let error = answer(&mut added).unwrap_err();
    assert_eq!(error.error, ErrorKind::Conflict);
    assert!(error.message.contains("`late` was removed while its memory was prepared"), "{error}");
    assert!(answer(&mut removed).is_ok());
    assert_eq!(bench.budget.info().regions, 2 * 65536, "the two of the configuration");
    // The name can be used again.
    let (_, load) = request_region(&mut bench, 4096);
    finish(&mut bench, &load);
}

#[test]
fn shutdown_cancels_region_preparation() {
    for abort in [false, true] {
        let mut bench = bench();
        let (mut added, load) = request_region(&mut bench, 4096);
        if abort {
            bench.core.stop()
        } else {
            bench.core.drain(bench.now)
        }
        finish(&mut bench, &load);
        let error = answer(&mut added).unwrap_err();
        assert_eq!((error.error, added.try_recv().is_err()), (ErrorKind::Unavailable, true));
    }
}

#[test]
fn region_removal_is_answered_after_memory_is_freed() {
    let mut bench = bench();
    let (_added, load) = request_region(&mut bench, LARGE_REQUEST);
    finish(&mut bench, &load);
    drop(load);
    bench.acknowledge();
    let mut removed = bench.call(remove("late", false));
    bench.acknowledge();
    assert!(is_unanswered(&mut removed));
    let load = bench.core.poll_load().expect("a request to free it");
    let LoadTask::Free(memory) = load.task else { panic!("{load:?}") };
    memory.free();
    assert_eq!(bench.budget.info().regions, 2 * 65536);
    let loaded = loader::load(&LoadTask::Scratch(1), &bench.budget, &load.files, &load.watch);
    bench.core.handle_loaded(LoadResult { id: load.id, result: loaded }, bench.now);
    assert!(answer(&mut removed).is_ok());
}
