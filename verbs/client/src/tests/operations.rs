//! Tests of operations between two programs.

use std::time::Duration;

use super::world::Appliance;
use super::{ALL, LONG, Side, connect, create_pair};
use crate::{
    Carried, Completed, Completion, ConnectOptions, Error, Event, MemoryAccess, NO_COMPLETION,
    Opcode, PairEvent, QueuePairConfig, Remote, Request, SendBatch, SendWork, Sge,
    SharedReceivesEvent, Status, Transport, WindowAccess, WindowKind, post,
};

fn sides() -> (Side, Side) {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 8), Side::new(appliance.session(), 8));
    connect(&client.pair, &server.pair, &server.session);
    (client, server)
}

fn next(side: &Side) -> Completion {
    side.completions.next(LONG).unwrap().expect("a completion")
}

fn contents(side: &Side, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    side.memory.read(at, &mut bytes);
    bytes
}

#[test]
fn sends_fill_receives_with_their_length_and_flags() {
    let (client, server) = sides();
    let buffers = [server.memory.sge(0..3).unwrap(), server.memory.sge(100..200).unwrap()];
    server.pair.post_receive(&post::receive(1, &buffers).unwrap()).unwrap();
    server.pair.post_receive(&post::receive(2, &buffers[..1]).unwrap()).unwrap();
    client.memory.write(10, b"hello peer");
    let sges: [Sge; 2] = [client.memory.sge(10..15).unwrap(), client.memory.sge(15..20).unwrap()];
    let work = SendWork { wr_id: 9, ..post::send(post::gather(&sges).unwrap()) };
    client.pair.post_send(&work).unwrap();
    let sent = next(&client);
    assert_eq!((sent.wr_id, sent.status), (9, Status::Success));
    assert_eq!(
        (sent.completed, sent.qp_number),
        (Completed::Sent(Opcode::Send), client.pair.number())
    );
    let received = next(&server);
    assert_eq!(
        (received.wr_id, received.byte_len, received.qp_number),
        (1, 10, server.pair.number())
    );
    assert_eq!(
        (contents(&server, 0, 3), contents(&server, 100, 7)),
        (b"hel".to_vec(), b"lo peer".to_vec())
    );
    let work = SendWork { signalled: false, ..post::send_solicited(post::inline(b"in").unwrap()) };
    client.pair.post_send(&work).unwrap();
    let received = next(&server);
    let solicited = Completed::Received { solicited: true, carried: Carried::Nothing };
    assert_eq!((received.completed, received.byte_len), (solicited, 2));
    assert!(client.completions.poll_one().unwrap().is_none(), "unsignalled");
}

#[test]
fn writes_reads_atomics_and_immediate_data_use_the_peers_memory() {
    let (client, server) = sides();
    server.pair.post_receive(&post::receive(5, &[]).unwrap()).unwrap();
    client.memory.write(0, b"written");
    let written = post::gather(&[client.memory.sge(0..7).unwrap()]).unwrap();
    client
        .pair
        .post_sends(&[
            post::write(server.memory.remote(64), written),
            post::immediate(*b"note0001"),
        ])
        .unwrap();
    let received = next(&server);
    let carried = Carried::Immediate(*b"note0001");
    assert_eq!(received.completed, Completed::Received { solicited: false, carried });
    assert_eq!(contents(&server, 64, 7), b"written");
    assert_eq!([next(&client).status, next(&client).status], [Status::Success; 2]);

    server.memory.write(128, &7u64.to_le_bytes());
    let remote = server.memory.remote(128);
    client.pair.post_send(&post::fetch_add(remote, 3, &client.memory, 512).unwrap()).unwrap();
    assert_eq!(next(&client).byte_len, 8);
    client
        .pair
        .post_send(&post::compare_swap(remote, 10, 99, &client.memory, 520).unwrap())
        .unwrap();
    assert_eq!(next(&client).completed, Completed::Sent(Opcode::CompareSwap));
    let results = [7u64.to_le_bytes(), 10u64.to_le_bytes()].concat();
    assert_eq!(contents(&client, 512, 16), results);
    let sinks = [client.memory.sge(600..604).unwrap(), client.memory.sge(700..704).unwrap()];
    client.pair.post_send(&post::read(remote, &sinks).unwrap()).unwrap();
    assert_eq!((next(&client).byte_len, contents(&client, 600, 4)), (8, vec![99, 0, 0, 0]));
    assert!(post::fetch_add(remote, 1, &client.memory, usize::MAX).is_err());
    assert!(post::fetch_add(remote, 1, &client.memory, 8185).is_err());
}

#[test]
fn peer_without_rights_completes_with_an_error() {
    let (client, server) = sides();
    let secret = server.domain.alloc(64, MemoryAccess { remote_write: false, ..ALL }).unwrap();
    let work = post::write(secret.remote(0), post::inline(b"x").unwrap());
    client.pair.post_send(&SendWork { signalled: false, ..work }).unwrap();
    assert_eq!(next(&client).status, Status::RemoteAccess);
}

#[test]
fn messages_of_several_pairs_take_shared_receives_in_order_of_arrival() {
    let appliance = Appliance::start();
    let (one, two) = (Side::new(appliance.session(), 8), Side::new(appliance.session(), 8));
    let server = Side::new(appliance.session(), 8);
    let shared = server.domain.create_shared_receive_queue(4).unwrap();
    let pair = || {
        let config = QueuePairConfig {
            send_completions: &server.completions,
            receive_completions: &server.completions,
            max_sends: 4,
            max_receives: 4,
            copy_sources: false,
            shared_receives: Some(&shared),
        };
        server.domain.create_queue_pair(&config).unwrap()
    };
    let pairs = [pair(), pair()];
    let refused = pairs[0].post_receive(&post::receive(1, &[]).unwrap());
    assert!(matches!(refused, Err(Error::State(_))));
    for (side, pair) in [&one, &two].into_iter().zip(&pairs) {
        connect(&side.pair, pair, &server.session);
    }
    let receives: Vec<_> = (0..4)
        .map(|n| {
            let buffer = server.memory.sge(n * 64..n * 64 + 64).unwrap();
            post::receive(10 + n as u64, &[buffer]).unwrap()
        })
        .collect();
    shared.post_receives(&receives).unwrap();
    shared.set_limit(2).unwrap();
    for (n, side) in [&two, &one, &two].into_iter().enumerate() {
        let payload = post::inline(&[n as u8 + 1; 3]).unwrap();
        side.pair.post_send(&post::send(payload)).unwrap();
        let received = next(&server);
        assert_eq!((received.wr_id, received.byte_len), (10 + n as u64, 3));
        let to = if std::ptr::eq(side, &one) { &pairs[0] } else { &pairs[1] };
        assert_eq!(received.qp_number, to.number());
        assert_eq!(contents(&server, n * 64, 3), [n as u8 + 1; 3]);
    }
    // Fewer receives remain than the limit of 2.
    assert_eq!(shared.next_event(LONG).unwrap(), Some(SharedReceivesEvent::Low));
    assert_eq!(shared.next_event(Some(Duration::ZERO)).unwrap(), None);
    shared.set_limit(2).unwrap();
    shared.set_limit(2).unwrap();
    let event = server.session.next_event(LONG).unwrap();
    assert!(matches!(
        event,
        Some(Event::SharedReceives { queue, event: SharedReceivesEvent::Low })
            if queue == shared.number()
    ));
    // The ring has 8 units and one receive is left, so 7 of the 8 posts fit.
    let more = vec![post::receive(1, &[]).unwrap(); 8];
    let refused = shared.post_receives(&more).unwrap_err();
    assert_eq!((refused.posted, matches!(refused.error, Error::Full)), (7, true));
    let other = appliance.session();
    let foreign = other.create_domain().unwrap().create_shared_receive_queue(4).unwrap();
    let config = QueuePairConfig {
        send_completions: &server.completions,
        receive_completions: &server.completions,
        max_sends: 4,
        max_receives: 4,
        copy_sources: false,
        shared_receives: Some(&foreign),
    };
    assert!(matches!(server.domain.create_queue_pair(&config), Err(Error::Argument(_))));
}

#[test]
fn window_is_bound_used_and_invalidated_by_posts() {
    let (client, server) = sides();
    let access = WindowAccess { remote_write: true, remote_read: true, ..WindowAccess::default() };
    let window = server.domain.allocate_window(WindowKind::Two).unwrap();
    assert_eq!((window.stag(0) & 0xff, window.stag(7) & 0xff), (0, 7));
    let bound = WindowAccess { zero_based: true, ..access };
    let memory = server.domain.alloc(128, ALL).unwrap();
    let work = window.bind(7, &memory, 64..128, bound).unwrap();
    server.pair.post_send(&SendWork { wr_id: 3, ..work }).unwrap();
    let completion = next(&server);
    assert_eq!((completion.wr_id, completion.completed), (3, Completed::Sent(Opcode::BindWindow)));
    let remote = |to| Remote { stag: window.stag(7), to };
    client.pair.post_send(&post::write(remote(60), post::inline(b"last").unwrap())).unwrap();
    assert_eq!(next(&client).status, Status::Success);
    let mut bytes = [0; 4];
    memory.read(124, &mut bytes);
    assert_eq!(&bytes, b"last");
    let mut memory = memory;
    assert!(matches!(memory.try_deregister(), Err(Error::Refused(_))), "a window is bound");
    client.pair.post_send(&post::write(remote(61), post::inline(b"last").unwrap())).unwrap();
    assert_eq!(next(&client).status, Status::RemoteAccess);
    server.pair.post_send(&post::local_invalidate(window.stag(7))).unwrap();
    assert_eq!(next(&server).completed, Completed::Sent(Opcode::LocalInvalidate));
    client.pair.post_send(&post::write(remote(0), post::inline(b"x").unwrap())).unwrap();
    assert_eq!(next(&client).status, Status::RemoteAccess);
    assert!(window.unbind().is_err(), "type 2");
    memory.try_deregister().unwrap();
    let address = memory.address();
    assert!(memory.deregister().is_ok(), "the region is deregistered already");
    assert_eq!(server.domain.alloc(128, ALL).unwrap().address(), address, "the memory is free");
}

#[test]
fn window_of_type_1_is_rebound_and_unbound() {
    let (client, server) = sides();
    let window = server.domain.allocate_window(WindowKind::One).unwrap();
    let access = WindowAccess { remote_write: true, ..WindowAccess::default() };
    let write = |key, expected| {
        let remote = Remote { stag: window.stag(key), to: server.memory.address() };
        client.pair.post_send(&post::write(remote, post::inline(b"x").unwrap())).unwrap();
        assert_eq!(next(&client).status, expected);
    };
    for key in [1, 2] {
        let work = window.bind(key, &server.memory, 0..8, access).unwrap();
        server.pair.post_send(&work).unwrap();
        assert_eq!(next(&server).status, Status::Success);
        write(key, Status::Success);
    }
    write(1, Status::RemoteAccess);
    server.pair.post_send(&window.unbind().unwrap()).unwrap();
    assert_eq!(next(&server).status, Status::Success);
    write(2, Status::RemoteAccess);
    let other = server.session.create_domain().unwrap();
    let foreign = other.alloc(64, ALL).unwrap();
    for (region, range) in [(&foreign, 0..8), (&server.memory, 0..8193), (&server.memory, 8..8)] {
        let refused = window.bind(3, region, range, access);
        assert!(matches!(refused, Err(Error::Argument(_))));
    }
}

#[test]
fn posts_before_the_connection_are_carried_out_after_it() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 8), Side::new(appliance.session(), 8));
    for wr_id in 0..5 {
        let buffer = [server.memory.sge(0..8).unwrap()];
        server.pair.post_receive(&post::receive(wr_id, &buffer).unwrap()).unwrap();
        let work = post::send(post::inline(&[wr_id as u8]).unwrap());
        client.pair.post_send(&SendWork { wr_id, ..work }).unwrap();
    }
    connect(&client.pair, &server.pair, &server.session);
    for side in [&client, &server] {
        let order: Vec<u64> = (0..5).map(|_| next(side).wr_id).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}

#[test]
fn full_ring_refuses_posts_and_reports_how_many_it_accepted() {
    let appliance = Appliance::start();
    let side = Side::new(appliance.session(), 4);
    // The test appliance makes a send queue of 4 * 3 units, rounded up to 16. This Send has 1 unit.
    let work = post::send(post::inline(b"x").unwrap());
    let error = side.pair.post_sends(&vec![work.clone(); 20]).unwrap_err();
    assert!(matches!(error.error, Error::Full));
    assert_eq!(error.posted, 16);
    assert!(matches!(side.pair.post_send(&work), Err(Error::Full)));
    let receives = vec![post::receive(0, &[]).unwrap(); 9];
    assert_eq!(side.pair.post_receives(&receives).unwrap_err().posted, 8);
}

#[test]
fn end_of_a_connection_flushes_posts_in_order() {
    let (client, server) = sides();
    for wr_id in 0..3 {
        client.pair.post_receive(&post::receive(wr_id, &[]).unwrap()).unwrap();
    }
    drop(server.pair);
    for wr_id in 0..3 {
        let flushed = next(&client);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
    }
}

#[test]
fn queue_merges_workers_and_keeps_the_order_of_each_pair() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 64), Side::new(appliance.session(), 64));
    // The QPs are spread over the two workers: the test appliance derives the worker from the QP's number.
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let ends =
                [&client, &server].map(|side| create_pair(&side.domain, &side.completions, 8));
            connect(&ends[0], &ends[1], &server.session);
            ends
        })
        .collect();
    for round in 0..6 {
        for ends in &pairs {
            ends[1].post_receive(&post::receive(round, &[]).unwrap()).unwrap();
            let work = SendWork { wr_id: round, ..post::send(post::inline(b"").unwrap()) };
            ends[0].post_send(&work).unwrap();
        }
    }
    for side in [&client, &server] {
        let mut next_of = std::collections::HashMap::new();
        let mut seen = 0;
        while seen < 24 {
            let mut taken = [NO_COMPLETION; 5];
            let count = side.completions.poll(&mut taken).unwrap();
            for completion in &taken[..count] {
                let expected = next_of.entry(completion.qp_number).or_insert(0);
                assert_eq!(completion.wr_id, *expected);
                *expected += 1;
            }
            seen += count;
            if count == 0 {
                seen += side.completions.next(LONG).unwrap().map_or(0, |completion| {
                    *next_of.entry(completion.qp_number).or_insert(0) += 1;
                    1
                });
            }
        }
        assert_eq!(next_of.len(), 4);
        assert!(next_of.values().all(|count| *count == 6));
    }
}

#[test]
fn notified_queue_is_found_once_per_request() {
    let (client, server) = sides();
    let other = server.session.create_completion_queue(8, Some(&server.channel)).unwrap();
    other.arm(Request::Next).unwrap();
    server.completions.arm(Request::Next).unwrap();
    assert!(!server.completions.take_notified(), "no completion yet");
    server.pair.post_receive(&post::receive(1, &[]).unwrap()).unwrap();
    client.pair.post_send(&post::send(post::inline(b"").unwrap())).unwrap();
    assert!(server.channel.wait(LONG).unwrap());
    assert!(server.completions.take_notified());
    assert!(!server.completions.take_notified(), "once per request");
    assert!(!other.take_notified());
}

#[test]
fn batch_is_posted_all_or_none() {
    let (client, server) = sides();
    let mut batch = SendBatch::default();
    let work = post::send(post::inline(b"x").unwrap());
    for wr_id in 0..1000 {
        batch.push(&SendWork { wr_id, ..work.clone() });
    }
    let post =
        |batch: &SendBatch| client.pair.post_sends_with(|writer| writer.push_batch(batch)).unwrap();
    assert!(matches!(post(&batch), Err(Error::Full)));
    batch.clear();
    assert!(batch.is_empty());
    for wr_id in 1..3 {
        batch.push(&SendWork { wr_id, ..work.clone() });
    }
    for wr_id in 0..2 {
        let sge = server.memory.sge(0..1).unwrap();
        server.pair.post_receive(&post::receive(wr_id, &[sge]).unwrap()).unwrap();
    }
    post(&batch).unwrap();
    assert_eq!([next(&client).wr_id, next(&client).wr_id], [1, 2]);
    assert!(client.completions.poll_one().unwrap().is_none());
}

#[test]
fn writers_post_with_one_call_and_keep_pairs_together() {
    let (client, server) = sides();
    let written = server.pair.post_receives_with(|writer| {
        let receives = [7, 8].map(|wr_id| post::receive(wr_id, &[]).unwrap());
        receives.iter().try_for_each(|work| writer.push(work))
    });
    written.unwrap().unwrap();
    let write = post::write(server.memory.remote(0), post::inline(b"data").unwrap());
    let write = SendWork { signalled: false, ..write };
    let written = client.pair.post_sends_with(|writer| {
        writer.push_both(&write, &post::immediate(*b"12345678"))?;
        writer.push(&post::send(post::inline(b"").unwrap()))
    });
    written.unwrap().unwrap();
    assert_eq!([next(&server).wr_id, next(&server).wr_id], [7, 8]);
    assert_eq!(contents(&server, 0, 4), b"data");
    assert_eq!(next(&client).completed, Completed::Sent(Opcode::Immediate));
    assert_eq!(next(&client).completed, Completed::Sent(Opcode::Send));
}

#[test]
fn posts_after_the_end_are_flushed_on_request() {
    let (client, server) = sides();
    client.pair.flush_after_end();
    client.pair.disconnect(LONG.unwrap()).unwrap();
    let work = SendWork { wr_id: 3, ..post::send(post::inline(b"x").unwrap()) };
    client.pair.post_send(&work).unwrap();
    let flushed = next(&client);
    assert_eq!((flushed.wr_id, flushed.status), (3, Status::Flushed));
    client.pair.post_receive(&post::receive(4, &[]).unwrap()).unwrap();
    let flushed = next(&client);
    assert_eq!((flushed.wr_id, flushed.status), (4, Status::Flushed));
    let event = server.pair.next_event(LONG).unwrap();
    assert!(matches!(event, Some(PairEvent::Disconnected { .. })), "{event:?}");
    let refused = server.pair.post_send(&work);
    assert!(matches!(refused, Err(Error::Ended(_))), "not requested: {refused:?}");
}

#[test]
fn qp_that_ends_without_a_connection_flushes_earlier_and_later_posts() {
    let appliance = Appliance::start();
    let missing = "127.0.0.1:9".parse().unwrap();
    let listener = appliance.session();
    let listener = listener.listen("127.0.0.1:0".parse().unwrap(), Transport::Tcp, 4).unwrap();
    for how in ["ended", "refused", "rejected"] {
        let side = Side::new(appliance.session(), 4);
        side.pair.flush_after_end();
        let send = SendWork { wr_id: 1, ..post::send(post::inline(b"x").unwrap()) };
        side.pair.post_send(&send).unwrap();
        side.pair.post_receive(&post::receive(2, &[]).unwrap()).unwrap();
        match how {
            "ended" => assert!(!side.pair.end().unwrap()),
            "refused" => {
                side.pair.connect(missing, &ConnectOptions::default()).unwrap_err();
            }
            _ => {
                side.pair.start_connect(listener.local(), &ConnectOptions::default()).unwrap();
                listener.next_request(LONG).unwrap().unwrap().reject(b"no").unwrap();
                let event = side.pair.next_event(LONG).unwrap();
                assert!(matches!(event, Some(PairEvent::Rejected { .. })), "{event:?}");
            }
        }
        let flushed = |expected| {
            let flushed = next(&side);
            assert_eq!((flushed.wr_id, flushed.status), (expected, Status::Flushed), "{how}");
        };
        flushed(1);
        flushed(2);
        side.pair.post_receive(&post::receive(3, &[]).unwrap()).unwrap();
        flushed(3);
        side.pair.post_send(&SendWork { wr_id: 4, ..send }).unwrap();
        flushed(4);
        side.pair.end().unwrap();
    }
}

#[test]
fn discarded_completions_leave_the_order_of_the_others_and_later_ones() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 64), Side::new(appliance.session(), 64));
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let ends =
                [&client, &server].map(|side| create_pair(&side.domain, &side.completions, 8));
            connect(&ends[0], &ends[1], &server.session);
            ends
        })
        .collect();
    let send = |round: u64| {
        for ends in &pairs {
            ends[1].post_receive(&post::receive(round, &[]).unwrap()).unwrap();
            let work = SendWork { wr_id: round, ..post::send(post::inline(b"").unwrap()) };
            ends[0].post_send(&work).unwrap();
        }
        (0..pairs.len()).for_each(|_| assert_eq!(next(&server).wr_id, round));
        // The worker completes the receives and the client's sends under this lock: the client's completions are now in
        // its CQ.
        appliance.with(|_| ());
    };
    (0..3).for_each(send);
    let removed = [pairs[0][0].number(), pairs[3][0].number()];
    removed.iter().for_each(|number| client.completions.discard(*number));
    send(3);
    let mut of_pair = std::collections::HashMap::<u32, Vec<u64>>::new();
    // The last poll takes completions before and after the discarded ones.
    for (most, expected) in [(1, 1), (1, 1), (20, 8), (1, 0)] {
        let taken = client.completions.poll_each(most, |found| {
            of_pair.entry(found.qp_number).or_default().push(found.wr_id);
        });
        assert_eq!(taken.unwrap(), expected);
    }
    for ends in &pairs {
        let number = ends[0].number();
        let expected = if removed.contains(&number) { vec![3] } else { vec![0, 1, 2, 3] };
        assert_eq!(of_pair[&number], expected);
    }
}

#[test]
fn poll_continues_after_completions_that_do_not_count() {
    let (client, server) = sides();
    for wr_id in 0..4 {
        server.pair.post_receive(&post::receive(wr_id, &[]).unwrap()).unwrap();
        client.pair.post_send(&post::send(post::inline(b"").unwrap())).unwrap();
        assert_eq!(next(&client).completed, Completed::Sent(Opcode::Send));
    }
    let mut seen = Vec::new();
    let counted = server.completions.poll_counted(1, |completion| {
        seen.push(completion.wr_id);
        completion.wr_id == 2
    });
    assert_eq!((counted.unwrap(), seen), (1, vec![0, 1, 2]));
    assert_eq!(next(&server).wr_id, 3);
}
