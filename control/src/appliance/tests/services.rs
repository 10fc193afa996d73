//! Listeners with `ulp = "rdmap"`: slots, exchanges of services, invalidation, Terminates.

use dataplane::{PostFailure, Service};
use ddp::rdmap::{self, Outcome, Terminate, WorkRequest};
use ddp::{Access, RegionMemory as _, Source, Stag, TaggedOffset};

use super::rdmap::{closes, posts, removed_stags, send_bytes, serving_bench};
use super::*;

const FIRST_STREAM: StreamId = StreamId(1);
const RPING: &str = "service = \"rping\"\nregions = [\"scratch\"]";

/// Returns an rping message that advertises a buffer.
fn buffer(to: u64, stag: u32, len: u32) -> Vec<u8> {
    [&to.to_be_bytes()[..], &stag.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Establishes a stream of the listener. Returns the STag entry of its slot, if it has one.
fn accept_stream(bench: &mut Bench, id: u64) -> Option<StagEntry<Memory>> {
    bench.request_stream(id, "10.0.0.2");
    let commands = bench.acknowledge_all();
    let entries = added_entries(&commands);
    assert!(matches!(entries.len(), 0 | WORKERS), "every worker receives the entry: {commands:?}");
    let entry = entries.first().map(|&entry| entry.clone());
    assert_eq!(offered_names(&commands), Some(vec![]), "slots are not advertised");
    bench.establish_stream(id, "10.0.0.2", None, &[]);
    entry
}

fn queue(deliver_to: &str) -> String {
    format!("\n[[listener.queue]]\nqn = 0\ndeliver_to = \"{deliver_to}\"")
}

fn reposts_buffer(commands: &[Command]) -> bool {
    let back = |c: &Command| matches!(c, Command::PostBuffers { qn, buffers: 1, .. } if qn.0 == 0);
    commands.iter().any(back)
}

fn errors(bench: &Bench) -> Vec<(String, String, String)> {
    let errors = bench.logged_events(|kind| matches!(kind, EventKind::StreamError { .. }));
    let parts = |kind| match kind {
        EventKind::StreamError { layer, code, reason, .. } => Some((layer, code, reason)),
        _ => None,
    };
    errors.into_iter().filter_map(parts).collect()
}

#[test]
fn each_stream_has_its_own_cleared_slot() {
    let mut bench = serving_bench(RPING);
    let first = accept_stream(&mut bench, 1).unwrap();
    let second = accept_stream(&mut bench, 2).unwrap();
    assert_eq!((first.memory_offset, second.memory_offset), (0, 16 << 10));
    assert_eq!((first.base_to, second.base_to), (TaggedOffset(0), TaggedOffset(16 << 10)));
    assert_eq!((first.stream, second.stream), (Some(FIRST_STREAM), Some(StreamId(2))));
    assert_eq!(
        (first.len, first.access),
        (16 << 10, Access::NONE),
        "only the stream's own Reads may write there"
    );
    assert_ne!(first.stag, second.stag);
    first.memory.write(0, &[7; 16 << 10]);
    second.memory.write(16 << 10, &[8; 4]);

    bench.close_stream(1, CloseReason::PeerShutdown);
    let commands = bench.all_commands();
    assert_eq!(removed_stags(&commands), [first.stag; WORKERS]);
    let mut bytes = vec![1; (16 << 10) + 4];
    let last = commands.iter().filter_map(ticket).collect::<Vec<_>>();
    bench.acknowledge_ticket(last[0]);
    first.memory.read(0, &mut bytes);
    assert_eq!(bytes[0], 7, "a worker may still be placing bytes there");
    bench.acknowledge_ticket(last[1]);
    bench.load_all();
    first.memory.read(0, &mut bytes);
    assert!(bytes[..16 << 10].iter().all(|&byte| byte == 0));
    assert_eq!(bytes[16 << 10..], [8; 4], "the neighbouring slot");
    assert_eq!(accept_stream(&mut bench, 3).unwrap().memory_offset, 0, "used again");
}

#[test]
fn perftest_slots_are_accessible_to_their_stream() {
    let mut bench = serving_bench("service = \"perftest\"\nregions = [\"scratch\"]");
    let entry = accept_stream(&mut bench, 1).unwrap();
    assert_eq!(entry.access, Access::REMOTE_READ | Access::REMOTE_WRITE);
    assert_eq!(entry.stream, Some(FIRST_STREAM));
}

#[test]
fn stream_without_free_slot_is_refused() {
    let mut bench = serving_bench(RPING);
    (1..=4).for_each(|id| drop(accept_stream(&mut bench, id)));
    bench.close_stream(1, CloseReason::PeerShutdown);
    let freeing = bench.all_commands();
    bench.request_stream(5, "10.0.0.2");
    let commands = bench.acknowledge();
    assert!(commands.iter().any(|c| matches!(c, Command::Reject { stream: StreamId(5), .. })));
    assert!(
        bench.is_logged(|kind| matches!(kind, EventKind::HandshakeFailed { reason, detail, .. }
        if reason == "region_taken" && detail == "the listener has no memory for another stream"))
    );
    bench.close_stream(5, CloseReason::RejectedHere);
    freeing.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
    bench.load_all();
    assert!(accept_stream(&mut bench, 6).is_some());
    let Ok(Reply::Listeners(all)) = answer(&mut bench.call(Request::Listeners(FIRST_PAGE))) else {
        panic!()
    };
    assert_eq!((all[0].streams, all[0].accepted, all[0].refused), (4, 5, 1));
}

/// The listener is removed, but the slot of its last stream is not cleared yet. Until the slot is cleared, no other
/// listener may get the region.
#[test]
fn region_is_divided_again_after_last_old_stream_is_cleared() {
    let mut bench = serving_bench("service = \"perftest\"\nregions = [\"scratch\"]");
    let entry = accept_stream(&mut bench, 1).unwrap();
    let mut again = bench.core.listeners()["in"].section().clone();
    (again.name, again.port) = ("again".into(), 7472);
    let listen = |bench: &mut Bench| {
        let mut pending = bench.call(Request::AddListener(again.clone()));
        bench.acknowledge();
        answer(&mut pending).map(drop).map_err(|error| error.message)
    };
    let shared = "listeners `again` and `in` name the same region: the slots of a service's streams \
                  need one of their own";
    assert_eq!(listen(&mut bench), Err(shared.into()));
    let _pending = bench.call(Request::RemoveListener { name: "in".into() });
    bench.acknowledge();
    let used =
        "listener `again`: region `scratch` is in use by streams that share it: close them first";
    assert_eq!(listen(&mut bench), Err(used.into()));
    entry.memory.write(0, &[7; 64]);
    bench.close_stream(1, CloseReason::PeerShutdown);
    bench.acknowledge();
    assert_eq!(bench.core.listeners().retired(), 0);
    assert_eq!(listen(&mut bench), Err(used.into()), "the slot is not cleared yet");
    bench.load_all();
    let mut bytes = [1; 64];
    entry.memory.read(0, &mut bytes);
    assert_eq!(bytes, [0; 64]);
    assert_eq!(listen(&mut bench), Ok(()));
}

#[test]
fn accept_command_names_the_worker_service() {
    for (keys, expected) in [
        ("service = \"echo\"", Service::Echo),
        ("service = \"sink\"", Service::Sink),
        ("service = \"region\"", Service::Region),
        (RPING, Service::Control),
        ("service = \"perftest\"\nregions = [\"scratch\"]", Service::Region),
    ] {
        let mut bench = serving_bench(keys);
        bench.request_stream(1, "10.0.0.2");
        let commands = bench.acknowledge();
        let accept = commands.iter().find_map(|command| match command {
            Command::Accept { service, ulp, .. } => Some((*service, ulp.clone())),
            _ => None,
        });
        let (service, ulp) = accept.unwrap();
        assert_eq!(service, expected, "{keys}");
        assert!(matches!(ulp, tcp_lite::endpoint::UlpConfig::Rdmap(_)), "{keys}");
    }
}

#[test]
fn rping_round_is_read_and_written_back() {
    let mut bench = serving_bench(RPING);
    let slot = accept_stream(&mut bench, 1).unwrap();
    bench.receive_send(FIRST_STREAM, &buffer(1000, 9, 64));
    let commands = bench.all_commands();
    let [Command::PostRdmap { request: WorkRequest::Read { .. }, region, ticket, .. }] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(*region, Some(slot.stag), "its removal waits for the Read");
    let WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len, .. } =
        posts(&commands)[0].0
    else {
        panic!()
    };
    assert_eq!((*sink_stag, *sink_to, *len), (slot.stag, TaggedOffset(0), 64));
    assert_eq!((*source_stag, *source_to), (Stag(9), TaggedOffset(1000)));

    bench.complete_post(FIRST_STREAM, *ticket, Outcome::Read { len: 64 });
    let commands = bench.all_commands();
    let go_on = posts(&commands);
    assert_eq!((go_on.len(), send_bytes(go_on[0].0)), (1, &[0; 16][..]));
    assert!(!reposts_buffer(&commands), "when the answer has arrived");
    bench.complete_post(FIRST_STREAM, go_on[0].1, Outcome::Sent);
    assert!(reposts_buffer(&bench.all_commands()));

    bench.receive_send(FIRST_STREAM, &buffer(2000, 10, 64));
    let commands = bench.all_commands();
    let posted = posts(&commands);
    let WorkRequest::Write { stag: Stag(10), to: TaggedOffset(2000), source, .. } = posted[0].0
    else {
        panic!("{posted:?}")
    };
    assert!(matches!(source, Source::Region { offset: 0, len: 64, .. }), "{source:?}");
    assert_eq!(
        send_bytes(posted[1].0),
        [0; 16],
        "after the Write, so that the client finds the bytes"
    );
}

#[test]
fn non_rping_message_ends_the_stream_once() {
    let mut bench = serving_bench(RPING);
    accept_stream(&mut bench, 1);
    bench.receive_send(FIRST_STREAM, &[0; 15]);
    bench.receive_send(FIRST_STREAM, &[0; 15]);
    assert_eq!(closes(&bench.all_commands(), FIRST_STREAM), [false]);
    let [(layer, code, reason)] = &errors(&bench)[..] else { panic!() };
    assert_eq!((layer.as_str(), code.as_str()), ("service", ""));
    assert_eq!(reason, "rping: a Send of 15 bytes, 16 are expected");
}

#[test]
fn refused_operation_ends_stream_and_flushed_operation_awaits_the_cause() {
    let mut bench = serving_bench(RPING);
    accept_stream(&mut bench, 1);
    accept_stream(&mut bench, 2);
    let posted = |bench: &mut Bench, id| {
        bench.receive_send(id, &buffer(0, 1, 8));
        posts(&bench.all_commands())[0].1
    };
    let (first, second) = (posted(&mut bench, FIRST_STREAM), posted(&mut bench, StreamId(2)));
    let reason = PostFailure::Flushed;
    bench.event(Event::PostFailed { stream: StreamId(2), ticket: second, reason });
    assert!(bench.all_commands().is_empty(), "the end of the stream is pending");
    bench.close_stream(2, CloseReason::Lower(TcpReason::PeerReset));
    assert!(errors(&bench).is_empty());
    bench.event(Event::PostFailed {
        stream: FIRST_STREAM,
        ticket: first,
        reason: PostFailure::NoRegion,
    });
    assert_eq!(closes(&bench.acknowledge(), FIRST_STREAM), [false]);
    assert_eq!(errors(&bench)[0].2, "no such region");
}

#[test]
fn sends_to_region_listener_follow_deliver_to() {
    let mut bench = serving_bench(&format!("regions = [\"scratch\"]{}", queue("events")));
    bench.accept_stream(1, "10.0.0.2");
    bench.receive_send(FIRST_STREAM, b"news");
    bench.event(Event::Immediate { stream: FIRST_STREAM, data: *b"12345678", solicited: true });
    let messages = bench.logged_events(|kind| matches!(kind, EventKind::Message { .. }));
    let messages: Vec<_> = messages
        .into_iter()
        .filter_map(|kind| match kind {
            EventKind::Message { msn, data, .. } => Some((msn, data)),
            _ => None,
        })
        .collect();
    assert_eq!(messages, [(1, b"news".to_vec()), (2, b"12345678".to_vec())]);
    assert!(reposts_buffer(&bench.all_commands()));

    let mut bench = serving_bench(&format!("regions = [\"scratch\"]{}", queue("echo")));
    bench.accept_stream(1, "10.0.0.2");
    bench.receive_send(FIRST_STREAM, b"hello");
    let commands = bench.all_commands();
    let (request, ticket) = posts(&commands)[0];
    assert_eq!(send_bytes(request), b"hello");
    assert!(!reposts_buffer(&commands));
    bench.complete_post(FIRST_STREAM, ticket, Outcome::Sent);
    assert!(reposts_buffer(&bench.all_commands()));
}

// RFC 5040 §5.3: the STag is invalid once the Send is delivered. The region gets a new STag.
#[test]
fn invalidated_region_gets_new_stag_and_loses_its_users() {
    for with_send in [true, false] {
        let mut bench = serving_bench(&format!("regions = [\"own\"]{}", queue("discard")));
        bench.accept_stream(1, "10.0.0.2");
        let stag = bench.core.regions()["own"].stag();
        bench.event(if with_send {
            let (data, invalidated) = (b"done".to_vec(), Some(stag));
            Event::Received { stream: FIRST_STREAM, data, solicited: false, invalidated }
        } else {
            Event::Invalidated { stream: FIRST_STREAM, stag }
        });
        let commands = bench.all_commands();
        assert_eq!(removed_stags(&commands), [stag; WORKERS]);
        let fresh = bench.core.regions()["own"].stag();
        assert_ne!(fresh, stag);
        for entry in added_entries(&commands) {
            assert_eq!((entry.stag, entry.stream), (fresh, Some(super::super::pending::NO_STREAM)));
        }
        assert_eq!(added_entries(&commands).len(), WORKERS);
        assert!(bench.is_logged(
            |kind| matches!(kind, EventKind::StagInvalidated { region } if region == "own")
        ));
        assert_eq!(bench.core.regions().name_of(fresh), Some("own"));
        assert!(bench.core.regions().name_of(stag).is_none());
    }
}

#[test]
fn invalidation_of_unknown_stag_is_ignored() {
    let mut bench = serving_bench("regions = [\"own\"]");
    bench.accept_stream(1, "10.0.0.2");
    bench.event(Event::Invalidated { stream: FIRST_STREAM, stag: Stag(1) });
    assert!(bench.all_commands().is_empty());
    assert!(!bench.is_logged(|kind| matches!(kind, EventKind::StagInvalidated { .. })));
}

// RFC 5040 §4.8: layer, error type and error code.
#[test]
fn errors_and_terminates_are_logged_with_their_codes() {
    let mut bench = serving_bench("service = \"echo\"");
    bench.accept_stream(1, "10.0.0.2");
    let error = rdmap::Error::Llp { error_type: 0, code: 2 };
    bench.event(Event::RdmapError { stream: FIRST_STREAM, error });
    bench.event(Event::RdmapError {
        stream: FIRST_STREAM,
        error: rdmap::Error::InvalidTerminate { len: 3 },
    });
    let found: Vec<_> = errors(&bench).into_iter().map(|(layer, code, _)| (layer, code)).collect();
    let expected = [("mpa", "0/02"), ("rdmap", "0/00")];
    assert_eq!(found, expected.map(|(layer, code)| (layer.to_owned(), code.to_owned())));
    assert_eq!(bench.core.env().tally.stream_errors, 2);
    let terminate = Terminate::new(0, 1, 9);
    bench.event(Event::Terminated { stream: FIRST_STREAM, by_peer: false, terminate });
    let terminated = bench.logged_events(|kind| matches!(kind, EventKind::Terminated { .. }));
    assert!(
        matches!(&terminated[..], [EventKind::Terminated { by_peer: false, code, .. }]
            if code == "0/1/09"),
        "{terminated:?}"
    );
}
