//! Regions whose memory is being created: progress, removal, refusal beyond the bound on mappings, and the appliance's
//! end.

use api::{ErrorKind, RegionInfo};
use config::Backing;
use ddp::RegionMemory as _;

use super::super::loader::{LARGE_REQUEST, Load};
use super::regions::{remove, section};
use super::*;

fn regions(bench: &mut Bench) -> Vec<RegionInfo> {
    match answer(&mut bench.call(Request::Regions(FIRST_PAGE))) {
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
    assert!(
        is_unanswered(&mut added) && is_unanswered(&mut removed),
        "the memory request has not finished"
    );
    finish(&mut bench, &load);
    let error = answer(&mut added).unwrap_err();
    assert_eq!(error.error, ErrorKind::Conflict);
    assert!(error.message.contains("`late` was removed while its memory was prepared"), "{error}");
    assert!(answer(&mut removed).is_ok());
    assert_eq!(bench.budget.info().regions, 2 * 65536, "the two configured regions");
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

// Small regions of one size share a mapping until it is full. A larger or shared region always needs a new mapping.
#[test]
fn regions_beyond_the_bound_of_mappings_are_refused() {
    let mut bench = bench_with_maps(BASIC, Maps::new(4));
    bench.acknowledge();
    let add = |bench: &mut Bench, section: RegionSection| {
        let mut pending = bench.call(Request::AddRegion(section));
        bench.load_all();
        bench.acknowledge();
        answer(&mut pending).map(drop).map_err(|error| (error.error, error.message))
    };
    let shared = |name: &str| RegionSection {
        backing: Backing::SharedMemory { object: format!("ddpd-{name}") },
        ..section(name, 4096)
    };
    // The two configured regions use two of the four mappings.
    assert_eq!(bench.budget.maps().in_use(), 2);
    add(&mut bench, shared("a")).unwrap();
    for refused in [shared("b"), section("b", 64 << 10)] {
        let number = config::region_maps(&refused);
        let sentence = format!(
            "region `b`: memory mappings: {number} more needed, and 4 of the 4 that vm.max_map_count leaves to regions and jobs \
             are in use: remove regions, or raise vm.max_map_count (sysctl -w) and restart"
        );
        let mut pending = bench.call(Request::AddRegion(refused));
        let error = answer(&mut pending).unwrap_err();
        assert_eq!((error.error, error.message), (ErrorKind::Unavailable, sentence));
        assert!(bench.core.poll_load().is_none(), "nothing is mapped");
    }
    assert_eq!(bench.budget.maps().in_use(), 4);
    let mut removed = bench.call(remove("a", false));
    bench.acknowledge();
    assert!(answer(&mut removed).is_ok());
    assert_eq!(bench.budget.maps().in_use(), 2);
    for number in 0..config::REGIONS_PER_MAP {
        add(&mut bench, section(&format!("small{number}"), 4096)).unwrap();
    }
    let in_use = bench.budget.maps().in_use();
    assert_eq!(in_use, 3, "the limit of locked memory leaves no room for a slab");
}

/// Each region fits alone, but not all of them together.
#[test]
fn reload_beyond_the_bound_of_mappings_changes_nothing() {
    let mut bench = bench_with_maps(BASIC, Maps::new(4));
    bench.acknowledge();
    let region =
        |name| format!("[[region]]\nname = \"{name}\"\nsize = \"64 KiB\"\naccess = \"r\"\n");
    let two = format!("{BASIC}{}{}", region("a"), region("b"));
    let error = bench.reload(&format!("{two}{}", region("c"))).unwrap_err();
    assert!(error.message.contains("4 of the 4 that vm.max_map_count"), "{error}");
    assert_eq!((regions(&mut bench).len(), bench.budget.maps().in_use()), (2, 2));
    bench.reload(&two).unwrap();
    assert_eq!((regions(&mut bench).len(), bench.budget.maps().in_use()), (4, 4));
}

// A region is cleared for its next peer even if no mapping is left.
#[test]
fn tasks_without_memory_take_no_mapping() {
    let bench = bench_with_maps(BASIC, Maps::new(2));
    let files = std::sync::Arc::new(bench.core.env().context.config.directories());
    let load = |task| loader::load(&task, &bench.budget, &files, &Watch::default());
    assert!(load(LoadTask::Scratch(1 << 20)).is_err());
    assert_eq!(load(LoadTask::Clear(Vec::new())).unwrap().memory.len(), 0);
}

// The reload and the client both pass the checks before either region exists.
#[test]
fn of_two_regions_with_one_name_the_second_is_refused() {
    let mut bench = bench();
    let extra = super::reload::EXTRA_SECTIONS;
    std::fs::write(&bench.file, format!("{BASIC}{extra}")).unwrap();
    let mut reloaded = bench.call(Request::Reload);
    let mut added = bench.call(Request::AddRegion(section("extra", 8192)));
    let memory = bench.core.regions().memory();
    bench.load_all();
    bench.acknowledge();
    assert!(matches!(answer(&mut reloaded), Ok(Reply::Reload(_))));
    assert_eq!(answer(&mut added).unwrap_err().error, ErrorKind::Conflict);
    assert_eq!(bench.core.regions().memory(), memory + 4096);
}
