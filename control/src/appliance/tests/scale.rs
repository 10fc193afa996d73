//! The work of an operation does not grow with the number of objects. The work is measured as the number of entries of
//! object tables (regions, listeners, streams, notes) that the operation visits, not time.

use dataplane::memory::Memory;

use super::super::loader::LoadedMemory;
use super::super::objects::visits;
use super::regions::{remove, section};
use super::*;

/// Numbers of objects for which the work is compared. An operation that scans a table fails at the second number,
/// before the slow third number.
const NUMBERS: [usize; 3] = [100, 1_000, 100_000];
const MANY: usize = NUMBERS[2];

/// Configuration with limits for [`MANY`] objects and one listener, `in`.
const LARGE: &str = concat!(
    host!(),
    r#"
[limits]
regions = 200000
streams = 200000
[[region]]
name = "common"
size = 64
access = "rw"
shared = true
[[listener]]
name = "in"
interface = "i"
port = 7471
regions = ["common"]
[listener.limits]
streams = 200000
streams_per_peer = 200000
"#
);

/// Returns the number of entries that `operation` visits.
fn visited(operation: impl FnOnce()) -> u64 {
    let before = visits();
    operation();
    visits() - before
}

/// Checks that `operation` visits, at each later number of [`NUMBERS`], at most twice as many entries as at the first.
/// `grow` adds objects.
fn check_work(grow: impl Fn(&mut Bench, std::ops::Range<usize>), operation: impl Fn(&mut Bench)) {
    let mut bench = bench_with(LARGE);
    let (mut present, mut few) = (0, None);
    for number in NUMBERS {
        grow(&mut bench, present..number);
        present = number;
        let entries = visited(|| operation(&mut bench));
        let few = *few.get_or_insert(entries);
        assert!(entries <= 2 * few.max(1), "{few} entries first, {entries} at {number} objects");
    }
}

/// Registers regions that all share one page of memory.
fn add_regions(bench: &mut Bench, numbers: std::ops::Range<usize>) {
    let (memory, _) = loader::load(
        &LoadTask::Region(section("template", 64)),
        &bench.budget,
        &bench.core.env().files,
        &Watch::default(),
    )
    .map(|loaded| (loaded.memory, loaded.len))
    .unwrap();
    for number in numbers {
        add_region(bench, &format!("r{number}"), &memory);
    }
}

fn add_region(bench: &mut Bench, name: &str, memory: &Memory) {
    let mut pending = bench.call(Request::AddRegion(section(name, 64)));
    let load = bench.core.poll_load().expect("a request for memory");
    let loaded = LoadedMemory { memory: memory.clone(), len: 64, file: None, source: None };
    bench.core.handle_loaded(LoadResult { id: load.id, result: Ok(loaded) }, bench.now);
    bench.acknowledge();
    answer(&mut pending).unwrap();
}

fn accept_streams(bench: &mut Bench, numbers: std::ops::Range<usize>) {
    for number in numbers {
        bench.accept_stream(number as u64 + 1, "10.0.0.2");
    }
}

#[test]
fn work_of_a_registration_does_not_depend_on_the_number_of_regions() {
    check_work(add_regions, |bench| {
        let memory = bench.core.regions()["common"].memory().clone();
        add_region(bench, "one-more", &memory);
        let mut pending = bench.call(remove("one-more", false));
        bench.acknowledge();
        answer(&mut pending).unwrap();
        bench.advance(Duration::from_millis(1));
    });
}

#[test]
fn status_does_not_visit_regions_and_streams() {
    let grow = |bench: &mut Bench, numbers: std::ops::Range<usize>| {
        add_regions(bench, numbers.clone());
        accept_streams(bench, numbers);
    };
    check_work(grow, |bench| {
        let status = bench.core.status(bench.now);
        assert_eq!(status.streams + 1, status.regions);
    });
}

#[test]
fn work_of_a_stream_does_not_depend_on_the_number_of_streams() {
    check_work(accept_streams, |bench| {
        let id = MANY as u64 + 1;
        bench.accept_stream(id, "10.0.0.3");
        bench.advance(Duration::from_millis(1));
        bench.close_stream(id, CloseReason::LocalShutdown);
        bench.acknowledge();
    });
}

/// Adds listeners with one region each.
fn add_listeners(bench: &mut Bench, numbers: std::ops::Range<usize>) {
    add_regions(bench, numbers.clone());
    for number in numbers {
        add_listener(bench, number);
    }
}

/// Adds listener `l<number>` for region `r<number>`. Ports below 10,000 remain free.
fn add_listener(bench: &mut Bench, number: usize) {
    let template = bench.core.listeners().section_of("in").unwrap();
    let (transport, offset) = match number < 50_000 {
        true => (config::Transport::Tcp, number),
        false => (config::Transport::Sctp, number - 50_000),
    };
    let mut pending = bench.call(Request::AddListener(config::ListenerSection {
        name: format!("l{number}"),
        port: 10_000 + offset as u16,
        transport,
        regions: vec![format!("r{number}")],
        ..template
    }));
    bench.acknowledge();
    answer(&mut pending).unwrap();
}

#[test]
fn work_of_a_listener_does_not_depend_on_the_number_of_listeners() {
    check_work(add_listeners, |bench| {
        let memory = bench.core.regions()["common"].memory().clone();
        add_region(bench, &format!("r{MANY}"), &memory);
        add_listener(bench, MANY);
        let mut access = bench.call(Request::SetAccess {
            name: format!("r{MANY}"),
            access: ddp::Access::REMOTE_WRITE,
        });
        bench.acknowledge();
        answer(&mut access).unwrap();
        bench.accept_stream(1, "10.0.0.2");
        bench.advance(Duration::from_millis(1));
        bench.close_stream(1, CloseReason::LocalShutdown);
        let name = format!("l{MANY}");
        let mut pending = bench.call(Request::RemoveListener { name });
        bench.acknowledge();
        answer(&mut pending).unwrap();
        let mut pending = bench.call(remove(&format!("r{MANY}"), false));
        bench.acknowledge();
        answer(&mut pending).unwrap();
    });
}

fn after(name: &str, limit: usize) -> NamePage {
    NamePage { after: Some(name.into()), limit }
}

/// Requests a page of streams. Returns their numbers.
fn list_streams(bench: &mut Bench, after: u64, limit: usize) -> Vec<u64> {
    let after = Some(api::StreamId(after));
    let mut pending = bench.call(Request::Streams { after, limit });
    for (ticket, which) in bench.take_lists() {
        let StreamSelection::Streams(ids) = which else { panic!("{which:?}") };
        assert!(ids.len() <= limit, "the workers list only the page");
        bench.report_list(ticket, vec![], true);
    }
    let Ok(Reply::Streams(streams)) = answer(&mut pending) else { panic!() };
    streams.into_iter().map(|stream| stream.id.0).collect()
}

#[test]
fn work_of_a_page_does_not_depend_on_the_length_of_the_list() {
    let grow = |bench: &mut Bench, numbers: std::ops::Range<usize>| {
        add_listeners(bench, numbers.clone());
        accept_streams(bench, numbers);
    };
    check_work(grow, |bench| {
        let mut pending = bench.call(Request::Regions(after("r10", 2)));
        let Ok(Reply::Regions(regions)) = answer(&mut pending) else { panic!() };
        assert_eq!(regions.len(), 2);
        assert!(regions.iter().all(|region| region.name.as_str() > "r10"));
        let mut pending = bench.call(Request::Listeners(after("in", 3)));
        let Ok(Reply::Listeners(listeners)) = answer(&mut pending) else { panic!() };
        let names: Vec<&str> = listeners.iter().map(|listener| &*listener.name).collect();
        assert_eq!(names, ["l0", "l1", "l10"]);
        assert_eq!(list_streams(bench, 3, 2), [4, 5]);
        assert_eq!(list_streams(bench, MANY as u64 + 5, 2), [0u64; 0]);
    });
}

#[test]
fn regions_being_prepared_are_on_the_page_of_their_names() {
    let mut bench = bench();
    for name in ["b", "d", "p"] {
        bench.call(Request::AddRegion(section(name, 4096)));
    }
    let mut page = |page| {
        let Ok(Reply::Regions(regions)) = answer(&mut bench.call(Request::Regions(page))) else {
            panic!()
        };
        regions.into_iter().map(|region| region.name).collect::<Vec<_>>()
    };
    assert_eq!(page(FIRST_PAGE), ["b", "common", "d", "own", "p"]);
    assert_eq!(page(NamePage { after: None, limit: 2 }), ["b", "common"]);
    assert_eq!(page(after("common", 2)), ["d", "own"]);
    assert_eq!(page(after("own", 2)), ["p"]);
}
