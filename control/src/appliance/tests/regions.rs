//! Regions: registration, exclusive use, deregistration.

use api::ErrorKind;
use config::{Backing, RegionSection};
use dataplane::memory::ring::{Consumer, Kind};
use dataplane::{CommandError, SourceRemoval};
use ddp::{Access, RegionMemory as _, Stag, StagError, TaggedOffset};

use super::super::pending::NO_STREAM;
use super::*;

pub(super) fn section(name: &str, size: u64) -> RegionSection {
    RegionSection {
        name: name.into(),
        size: Some(size),
        backing: Backing::Anonymous,
        base_to: 0,
        remote_write: true,
        remote_read: false,
        remote_atomic: false,
        clear_between_peers: false,
        shared: true,
    }
}

pub(super) fn remove(name: &str, force: bool) -> Request {
    Request::RemoveRegion { name: name.into(), force }
}

#[test]
fn workers_share_stags_and_exclusive_regions_start_unbound() {
    let mut bench = fresh_bench(BASIC);
    let (first, second) = (bench.commands(0), bench.commands(1));
    let (a, b) = (added_entries(&first), added_entries(&second));
    assert_eq!((a.len(), b.len()), (2, 2));
    for (a, b) in a.iter().zip(&b) {
        assert_eq!((a.stag, a.pd, a.stream), (b.stag, b.pd, b.stream));
    }
    assert_ne!(a[0].stag, a[1].stag);
    assert_eq!(a[0].pd, a[1].pd, "one listener, one protection domain");
    assert_eq!((a[0].stream, a[1].stream), (Some(NO_STREAM), None));
    assert!(a[0].access.remote_write() && !a[0].access.remote_read());
    assert!(a[1].access.remote_write() && a[1].access.remote_read());
}

// When the core reports readiness, no worker may refuse a peer because it does not listen yet.
#[test]
fn core_is_set_up_after_the_last_workers_acknowledgement() {
    let mut bench = fresh_bench(BASIC);
    let commands = bench.all_commands();
    assert!(commands.iter().any(|command| matches!(command, Command::AddListener { .. })));
    let tickets: Vec<Ticket> = commands.iter().filter_map(ticket).collect();
    for ticket in tickets {
        assert!(!bench.core.is_set_up());
        bench.acknowledge_ticket(ticket);
    }
    assert!(bench.core.is_set_up());
}

#[test]
fn region_addition_completes_with_the_last_worker() {
    let mut bench = bench();
    let mut pending = bench.call(Request::AddRegion(section("new", 4096)));
    bench.load_all();
    let (first, second) = (bench.commands(0), bench.commands(1));
    bench.acknowledge_ticket(ticket(&first[0]).unwrap());
    assert!(is_unanswered(&mut pending));
    assert!(
        !bench.is_logged(|k| matches!(k, EventKind::RegionAdded { region } if region == "new"))
    );
    bench.acknowledge_ticket(ticket(&second[0]).unwrap());
    let Ok(Reply::Region(info)) = answer(&mut pending) else { panic!("no region") };
    assert_eq!((info.name.as_str(), info.size, info.configured), ("new", 4096, false));
    assert!(bench.is_logged(|k| matches!(k, EventKind::RegionAdded { region } if region == "new")));
}

#[test]
fn region_removal_completes_only_with_the_last_worker() {
    let mut bench = bench();
    let stag = bench.core.regions()["own"].stag();
    let memory = bench.core.regions()["own"].memory().clone();
    let mut pending = bench.call(remove("own", false));
    let (first, second) = (bench.commands(0), bench.commands(1));
    let removes = |c: &Command| matches!(c, Command::RemoveStag { stag: s, removal: SourceRemoval::Wait, .. } if *s == stag);
    assert!(removes(&first[0]) && removes(&second[0]));
    bench.acknowledge_ticket(ticket(&first[0]).unwrap());
    assert!(is_unanswered(&mut pending));
    assert!(bench.core.regions().contains_key("own"), "the memory is not freed yet");
    bench.acknowledge_ticket(ticket(&second[0]).unwrap());
    assert_eq!(answer(&mut pending), Ok(Reply::EMPTY));
    assert!(!bench.core.regions().contains_key("own"));
    assert!(
        bench.is_logged(|k| matches!(k, EventKind::RegionRemoved { region } if region == "own"))
    );
    drop((first, second, memory));
}

fn set_access(name: &str, access: Access) -> Request {
    Request::SetAccess { name: name.to_owned(), access }
}

/// RFC 5041 §8.3.1 (5): the answer follows when the last worker has applied the access. Only then is the access
/// advertised. Access never exceeds that of the registration.
#[test]
fn access_change_completes_with_the_last_worker() {
    let mut bench = bench();
    let stag = bench.core.regions()["own"].stag();
    for (access, word) in [(Access::NONE, "-"), (Access::REMOTE_WRITE, "w")] {
        let mut pending = bench.call(set_access("own", access));
        let (first, second) = (bench.commands(0), bench.commands(1));
        for commands in [&first, &second] {
            assert!(matches!(
                commands[..],
                [Command::SetAccess { stag: s, access: a, .. }] if (s, a) == (stag, access)
            ));
        }
        bench.acknowledge_ticket(ticket(&first[0]).unwrap());
        assert!(is_unanswered(&mut pending));
        assert!(
            !bench.is_logged(
                |k| matches!(k, EventKind::RegionAccess { access, .. } if access == word)
            )
        );
        bench.acknowledge_ticket(ticket(&second[0]).unwrap());
        let Ok(Reply::Region(info)) = answer(&mut pending) else { panic!("not changed") };
        assert_eq!((info.name.as_str(), info.access.as_str()), ("own", word));
        assert!(
            bench.is_logged(
                |k| matches!(k, EventKind::RegionAccess { access, .. } if access == word)
            )
        );
        assert_eq!(bench.core.regions()["own"].known_access(), access);
        let advertised = bench.core.regions().advertised(&["own".to_owned()]);
        assert_eq!(advertised[0].remote_write, access.remote_write());
        assert!(!advertised[0].remote_read && !advertised[0].remote_atomic);
        // The region stays exclusive, as registered.
        assert!(bench.core.regions()["own"].serves_one_stream());
    }
    let mut more = bench.call(set_access("own", Access::REMOTE_READ));
    assert_eq!(answer(&mut more).unwrap_err().error, ErrorKind::Conflict);
    let mut unknown = bench.call(set_access("nowhere", Access::NONE));
    assert_eq!(answer(&mut unknown).unwrap_err().error, ErrorKind::NotFound);
    let _going = bench.call(remove("own", false));
    let mut late = bench.call(set_access("own", Access::NONE));
    assert_eq!(answer(&mut late).unwrap_err().error, ErrorKind::NotFound);
}

#[test]
fn region_being_removed_cannot_be_added_or_removed() {
    let mut bench = bench();
    let _going = bench.call(remove("own", false));
    let mut again = bench.call(remove("own", false));
    assert_eq!(answer(&mut again).unwrap_err().error, ErrorKind::Conflict);
    let mut added = bench.call(Request::AddRegion(section("own", 4096)));
    assert_eq!(answer(&mut added).unwrap_err().error, ErrorKind::Conflict);
    bench.acknowledge();
    let mut added = bench.call(Request::AddRegion(section("own", 4096)));
    bench.load_all();
    bench.acknowledge();
    assert!(matches!(answer(&mut added), Ok(Reply::Region(_))));
}

#[test]
fn region_added_again_has_a_new_stag() {
    let mut bench = bench();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        let mut pending = bench.call(Request::AddRegion(section("again", 64)));
        bench.load_all();
        bench.acknowledge();
        assert!(answer(&mut pending).is_ok());
        assert!(seen.insert(bench.core.regions()["again"].stag()));
        let mut pending = bench.call(remove("again", false));
        bench.acknowledge();
        assert!(answer(&mut pending).is_ok());
    }
}

#[test]
fn removal_of_region_in_use_requires_force_and_aborts_streams() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let mut pending = bench.call(remove("own", false));
    let error = answer(&mut pending).unwrap_err();
    assert_eq!(error.error, ErrorKind::Conflict);
    assert!(error.message.contains("used by 1 streams"), "{}", error.message);
    let mut pending = bench.call(remove("own", true));
    let commands = bench.commands(0);
    assert!(matches!(commands[0], Command::Close { stream: StreamId(1), abort: true }));
    assert!(matches!(commands[1], Command::RemoveStag { removal: SourceRemoval::Abort, .. }));
    let ticket = ticket(&commands[1]).unwrap();
    bench.acknowledge();
    bench.acknowledge_ticket(ticket);
    assert_eq!(answer(&mut pending), Ok(Reply::EMPTY));
    bench.close_stream(1, CloseReason::LocalAbort);
    assert!(bench.all_commands().is_empty(), "no missing region is bound");
}

#[test]
fn registration_refused_by_one_worker_is_reverted_on_all() {
    let mut bench = bench();
    let mut pending = bench.call(Request::AddRegion(section("new", 4096)));
    bench.load_all();
    let (first, second) = (bench.commands(0), bench.commands(1));
    bench.acknowledge_ticket(ticket(&first[0]).unwrap());
    let refused = ticket(&second[0]).unwrap();
    bench.event(Event::Done {
        ticket: refused,
        result: Err(CommandError::Stag(StagError::InUse(Stag(1)))),
    });
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Internal);
    assert!(matches!(bench.commands(0)[0], Command::RemoveStag { .. }));
}

#[test]
fn invalid_region_is_refused_before_allocation() {
    let text = format!("{BASIC}\n[limits]\nregions = 3\nregion_memory = \"200 KiB\"\n");
    let mut bench = bench_with(&text);
    for (section, kind) in [
        (section("../evil", 64), ErrorKind::BadRequest),
        (section("own", 64), ErrorKind::Conflict),
        (section("big", 100 << 10), ErrorKind::Unavailable),
    ] {
        let mut pending = bench.call(Request::AddRegion(section));
        assert_eq!(answer(&mut pending).unwrap_err().error, kind);
        assert!(bench.core.poll_load().is_none());
    }
    let mut pending = bench.call(Request::AddRegion(section("small", 64)));
    bench.load_all();
    bench.acknowledge();
    assert!(answer(&mut pending).is_ok());
    let mut pending = bench.call(Request::AddRegion(section("fourth", 64)));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Unavailable);
}

// RFC 5042 §6.3.6: bytes must not be writable through two STags, even while the first region's memory is being created.
#[test]
fn object_or_file_of_another_region_is_refused() {
    let mut bench = bench();
    let path = bench.dir.path().join("f");
    let fsync = config::Fsync::Never;
    let file = Backing::File { path: path.clone(), fsync };
    let object = Backing::SharedMemory { object: "o".into() };
    for (n, backing) in [file, object].into_iter().enumerate() {
        let region =
            |name: String| RegionSection { backing: backing.clone(), ..section(&name, 64) };
        let mut first = bench.call(Request::AddRegion(region(format!("first{n}"))));
        let refused = |bench: &mut Bench| {
            let mut pending = bench.call(Request::AddRegion(region("second".into())));
            let error = answer(&mut pending).unwrap_err();
            assert_eq!(error.error, ErrorKind::Conflict);
            assert!(error.message.ends_with(&format!("belongs to region `first{n}`")));
        };
        refused(&mut bench);
        bench.load_all();
        bench.acknowledge();
        assert!(answer(&mut first).is_ok());
        refused(&mut bench);
    }
}

// RFC 5041 §8.2: an STag may be restricted to one stream.
#[test]
fn an_exclusive_region_is_bound_on_all_workers_before_the_stream_is_accepted() {
    let mut bench = bench();
    let stag = bench.core.regions()["own"].stag();
    bench.request_stream(1, "10.0.0.2");
    let (first, second) = (bench.commands(0), bench.commands(1));
    let bind = |commands: &[Command]| {
        commands.iter().find_map(|c| match c {
            Command::BindStag { stag: s, stream, ticket } if *s == stag => Some((*stream, *ticket)),
            _ => None,
        })
    };
    let (stream, one) = bind(&first).unwrap();
    assert_eq!(stream, Some(StreamId(1)));
    let (_, two) = bind(&second).unwrap();
    bench.acknowledge_ticket(one);
    assert!(bench.all_commands().is_empty(), "one worker has not applied the binding yet");
    bench.acknowledge_ticket(two);
    assert_eq!(offered_names(&bench.commands(0)), Some(vec!["own".into(), "common".into()]));
}

#[test]
fn an_exclusive_region_serves_one_stream_at_a_time() {
    let mut bench = bench();
    assert_eq!(offered_names(&bench.accept_stream(1, "10.0.0.2")).unwrap(), ["own", "common"]);
    assert_eq!(offered_names(&bench.accept_stream(2, "10.0.0.3")).unwrap(), ["common"]);
    bench.close_stream(1, CloseReason::PeerShutdown);
    let commands = bench.all_commands();
    let unbound =
        |c: &&Command| matches!(c, Command::BindStag { stream: Some(s), .. } if *s == NO_STREAM);
    assert_eq!(commands.iter().filter(unbound).count(), WORKERS);
    assert_eq!(offered_names(&bench.accept_stream(3, "10.0.0.4")).unwrap(), ["own", "common"]);
}

#[test]
fn delivered_bytes_are_counted_and_published() {
    let text = BASIC
        .replace("name = \"own\"", "name = \"own\"\nbacking = \"shared-memory\"\nobject = \"mem\"");
    let mut bench = bench_with(&text);
    bench.accept_stream(1, "10.0.0.2");
    let stag = bench.core.regions()["own"].stag();
    let fd = bench.core.env().shm.ring_of("mem").unwrap().try_clone_to_owned().unwrap();
    let mut ring = Consumer::open(std::os::fd::AsFd::as_fd(&fd)).unwrap();
    bench.event(Event::TaggedDelivered {
        stream: StreamId(1),
        stag,
        to: TaggedOffset(100),
        len: 50,
        rsvd_ulp: 9,
    });
    bench.close_stream(1, CloseReason::PeerShutdown);
    let mut seen = std::iter::from_fn(|| ring.poll()).map(|(_, record)| record);
    assert_eq!(seen.next().unwrap().kind, Kind::Opened);
    let data = seen.next().unwrap();
    assert_eq!((data.kind, data.offset, data.len, data.rsvd_ulp), (Kind::Data, 100, 50, 9));
    assert_eq!((data.stag, data.stream), (stag.0, 1));
    assert_eq!(seen.next().unwrap().kind, Kind::Closed);
    let mut pending = bench.call(Request::Regions(FIRST_PAGE));
    let Ok(Reply::Regions(regions)) = answer(&mut pending) else { panic!("no regions") };
    let own = regions.iter().find(|region| region.name == "own").unwrap();
    assert_eq!((own.placed, own.messages, own.bound_to), (50, 1, None));
}

#[test]
fn empty_message_with_unknown_stag_is_ignored() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let (stag, to) = (Stag(1), TaggedOffset(u64::MAX));
    bench.event(Event::TaggedDelivered { stream: StreamId(1), stag, to, len: 0, rsvd_ulp: 0 });
    assert_eq!(bench.core.env().tally.tagged_messages, 1);
}

#[test]
fn empty_message_for_other_streams_region_is_not_published() {
    let text = BASIC
        .replace("name = \"own\"", "name = \"own\"\nbacking = \"shared-memory\"\nobject = \"mem\"");
    let mut bench = bench_with(&text);
    bench.accept_stream(1, "10.0.0.2");
    bench.accept_stream(2, "10.0.0.3");
    let stag = bench.core.regions()["own"].stag();
    let fd = bench.core.env().shm.ring_of("mem").unwrap().try_clone_to_owned().unwrap();
    let mut ring = Consumer::open(std::os::fd::AsFd::as_fd(&fd)).unwrap();
    for (stream, rsvd_ulp) in [(2, 66), (1, 9)] {
        let (stream, to) = (StreamId(stream), TaggedOffset(0));
        bench.event(Event::TaggedDelivered { stream, stag, to, len: 0, rsvd_ulp });
    }
    bench.close_stream(1, CloseReason::PeerShutdown);
    let records: Vec<_> = std::iter::from_fn(|| ring.poll()).map(|(_, r)| r).collect();
    let data: Vec<_> = records.iter().filter(|r| r.kind == Kind::Data).collect();
    assert_eq!(data.len(), 1, "{records:?}");
    assert_eq!((data[0].stream, data[0].rsvd_ulp), (1, 9));
    assert_eq!(bench.core.regions()["own"].messages(), 1);
}

#[test]
fn file_region_is_flushed_before_removal_completes() {
    let text = BASIC.replace("name = \"own\"", "name = \"own\"\npath = \"DIR/region\"");
    let mut bench = bench_with(&text);
    bench.accept_stream(1, "10.0.0.2");
    let region = &bench.core.regions()["own"];
    let (stag, memory) = (region.stag(), region.memory().clone());
    ddp::RegionMemory::write(&memory, 10, b"sample");
    let to = TaggedOffset(10);
    bench.event(Event::TaggedDelivered { stream: StreamId(1), stag, to, len: 6, rsvd_ulp: 0 });
    bench.close_stream(1, CloseReason::PeerShutdown);
    bench.acknowledge();
    let mut pending = bench.call(remove("own", false));
    bench.acknowledge();
    while is_unanswered(&mut pending) {
        bench.core.handle_reports();
        std::thread::yield_now();
    }
    assert!(!bench.core.regions().contains_key("own"));
    let bytes = std::fs::read(bench.dir.path().join("region")).unwrap();
    assert_eq!(bytes, b"\0\0\0\0\0\0\0\0\0\0sample");
}

// RFC 5041 §8.2: while a stream is being opened, no other stream can access its region.
#[test]
fn exclusive_region_is_unbound_until_active_open_completes() {
    let mut bench = bench();
    let stag = bench.core.regions()["own"].stag();
    let spec = api::ConnectSpec {
        regions: vec!["own".into(), "common".into()],
        ..api::ConnectSpec::to_remote(remote("10.0.0.9"))
    };
    let _pending = bench.call(Request::Connect(spec));
    let binds = bench.all_commands();
    assert_eq!(binds.len(), WORKERS);
    for command in binds {
        let Command::BindStag { stag: s, stream, ticket } = command else { panic!("{command:?}") };
        assert_eq!((s, stream), (stag, Some(NO_STREAM)));
        bench.acknowledge_ticket(ticket);
    }
    let commands = bench.all_commands();
    let bound: Vec<_> = commands
        .iter()
        .filter_map(|c| match c {
            Command::Connect(connect) => Some((connect.ticket, connect.stags.clone())),
            _ => None,
        })
        .collect();
    let [(ticket, stags)] = &bound[..] else { panic!("{commands:?}") };
    assert_eq!(*stags, [stag], "the worker of the stream binds it");
    bench.establish_stream(1, "10.0.0.9", Some(*ticket), &[]);
    for command in bench.all_commands() {
        let Command::BindStag { stream, .. } = command else { continue };
        assert_eq!(stream, Some(StreamId(1)));
    }
    assert_eq!(bench.core.regions()["own"].bound(), Some(StreamId(1)));
}

/// A peer must not read another peer's data, whichever side opens the streams.
#[test]
fn exclusive_region_is_cleared_before_active_open() {
    let mut bench = bench();
    let section = RegionSection {
        remote_read: true,
        clear_between_peers: true,
        shared: false,
        ..section("both", 64)
    };
    let mut pending = bench.call(Request::AddRegion(section));
    bench.load_all();
    bench.acknowledge();
    assert!(matches!(answer(&mut pending), Ok(Reply::Region(_))));
    let memory = bench.core.regions()["both"].memory().clone();
    let is_clear = || {
        let mut bytes = [0; 64];
        memory.read(0, &mut bytes);
        bytes == [0; 64]
    };
    for (round, id) in (1..=3).enumerate() {
        let spec = api::ConnectSpec {
            regions: vec!["both".into()],
            ulp: api::UlpChoice::Rdmap,
            ..api::ConnectSpec::to_remote(remote("10.0.0.9"))
        };
        let _pending = bench.call(Request::Connect(spec));
        if round > 0 {
            assert!(bench.acknowledge().is_empty(), "the region is cleared first");
            assert!(!is_clear());
        }
        bench.load_all();
        let commands = bench.acknowledge();
        assert!(is_clear());
        let ticket = commands.iter().find_map(|c| match c {
            Command::Connect(connect) => Some(connect.ticket),
            _ => None,
        });
        bench.establish_stream(id, "10.0.0.9", ticket, &[]);
        assert_eq!(bench.core.regions()["both"].bound(), Some(StreamId(id)));
        bench.all_commands();
        memory.write(10, b"of this peer");
        bench.close_stream(id, CloseReason::PeerShutdown);
        bench.acknowledge();
    }
}

/// A region is removed while it is cleared for a stream. The stream must not wait for the region forever.
#[test]
fn region_removal_during_clearing_aborts_the_stream() {
    let mut bench = super::rdmap::serving_bench("regions = [\"own\"]");
    bench.accept_stream(1, "10.0.0.2");
    bench.close_stream(1, CloseReason::PeerShutdown);
    bench.acknowledge();
    bench.request_stream(2, "10.0.0.2");
    let accepts = |c: &Command| matches!(c, Command::Accept { .. } | Command::BindStag { .. });
    assert!(!bench.acknowledge().iter().any(accepts), "the region is cleared first");
    let mut pending = bench.call(remove("own", true));
    bench.acknowledge();
    assert!(answer(&mut pending).is_ok());
    bench.load_all();
    let commands = bench.all_commands();
    assert!(
        matches!(&commands[..], [Command::Close { stream: StreamId(2), abort: true }]),
        "{commands:?}"
    );
}

// The simulated host has 4 GiB.
#[test]
fn region_above_memory_ceiling_is_refused_with_numbers() {
    let mut bench = bench();
    let mut pending = bench.call(Request::AddRegion(section("big", 12 << 30)));
    let error = answer(&mut pending).unwrap_err();
    assert_eq!(error.error, ErrorKind::Unavailable);
    assert!(
        error.message.starts_with("region `big`: 12 GiB asked for, ")
            && error.message.contains(" of 3 GiB in use (regions 128 KiB, jobs 0 bytes,")
            && error.message.contains("the ceiling is 75 % of RAM (4 GiB)"),
        "{error}"
    );
    assert!(bench.core.poll_load().is_none());
}

#[test]
fn region_memory_is_freed_after_the_last_workers_release() {
    let mut bench = bench();
    let before = bench.budget.info();
    let _pending = bench.call(Request::AddRegion(section("new", 1 << 20)));
    bench.load_all();
    drop(bench.acknowledge());
    assert_eq!(bench.budget.info().in_use, before.in_use + (1 << 20));
    let _pending = bench.call(remove("new", false));
    drop(bench.acknowledge());
    assert_eq!(bench.budget.info(), before);
}

/// Returns the regions that the first `Accept` advertises as busy.
fn busy_regions(commands: &[Command]) -> Vec<Advertised> {
    let accept = commands.iter().find_map(|command| match command {
        Command::Accept { private_data, .. } => Some(advert::decode(private_data).unwrap()),
        _ => None,
    });
    accept.expect("an Accept").into_iter().filter(|region| region.busy).collect()
}

#[test]
fn busy_region_is_advertised_as_such_and_holder_is_named() {
    let mut bench = bench();
    assert_eq!(busy_regions(&bench.accept_stream(1, "10.0.0.2")), []);
    let stag = bench.core.regions()["own"].stag();
    bench.advance(Duration::from_secs(40));
    let tagged = Event::TaggedDelivered {
        stream: StreamId(1),
        stag,
        to: TaggedOffset(0),
        len: 9,
        rsvd_ulp: 0,
    };
    bench.event(tagged);
    bench.advance(Duration::from_secs(5));
    let own = busy_regions(&bench.accept_stream(2, "10.0.0.3"));
    let [Advertised { name, stag: 0, len: 65536, remote_write: false, .. }] = &own[..] else {
        panic!("{own:?}")
    };
    assert_eq!(name, "own");
    let holder = Some(api::StreamId(1));
    assert_eq!(
        bench.logged_events(|kind| matches!(kind, EventKind::RegionBusy { .. })),
        [EventKind::RegionBusy {
            region: "own".into(),
            holder,
            idle_for: 5,
            remote: "10.0.0.3:5000".into()
        }]
    );
    let Ok(Reply::Regions(regions)) = answer(&mut bench.call(Request::Regions(FIRST_PAGE))) else {
        panic!()
    };
    let own = regions.iter().find(|region| region.name == "own").unwrap();
    assert_eq!((own.bound_to, own.held_for, own.idle_for), (holder, Some(45.0), Some(5.0)));
    let common = regions.iter().find(|region| region.name == "common").unwrap();
    assert_eq!((common.bound_to, common.held_for), (None, None));
    let spec = api::ConnectSpec {
        regions: vec!["own".into()],
        ..api::ConnectSpec::to_remote(remote("10.0.0.9"))
    };
    let error = answer(&mut bench.call(Request::Connect(spec))).unwrap_err();
    assert_eq!(
        (error.error, error.message.as_str()),
        (
            ErrorKind::Conflict,
            "region_busy: region `own` is taken by stream 0000000000000001, idle for 5 s: wait for its end, or \
             ddpctl streams close 0000000000000001"
        )
    );
}

// The first stream's peer never responds.
#[test]
fn closing_a_stream_frees_its_region_at_once() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let id = api::StreamId(1);
    let mut pending = bench.call(Request::CloseStream { id, abort: false });
    assert!(is_unanswered(&mut pending), "the stream has not ended yet");
    let commands = bench.all_commands();
    let unbound: Vec<Ticket> = commands
        .iter()
        .filter_map(|command| match command {
            Command::BindStag { stream: Some(NO_STREAM), ticket, .. } => Some(*ticket),
            _ => None,
        })
        .collect();
    assert_eq!(unbound.len(), WORKERS, "the peer can no longer write");
    // Until all workers have unbound the region, the old peer could write to it after it was cleared for the next
    // stream.
    bench.acknowledge_ticket(unbound[0]);
    assert_eq!(busy_regions(&bench.accept_stream(9, "10.0.0.9")).len(), 1);
    bench.acknowledge_ticket(unbound[1]);
    let commands = bench.accept_stream(2, "10.0.0.3");
    assert_eq!(offered_names(&commands).unwrap(), ["own", "common"]);
    assert_eq!(bench.core.regions()["own"].bound(), Some(StreamId(2)));
    bench.close_stream(1, CloseReason::LocalShutdown);
    assert_eq!(
        bench.core.regions()["own"].bound(),
        Some(StreamId(2)),
        "the next stream keeps the region"
    );
}
