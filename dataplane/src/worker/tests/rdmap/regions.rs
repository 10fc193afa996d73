//! Regions that are removed, invalidated, bound to a stream, or lose an access right while streams use them.

use super::*;

#[test]
fn send_with_invalidate_ends_a_bound_region() {
    for service in [Service::Control, Service::Echo] {
        let mut b = bench();
        let (here, there) = b.open(service);
        b.net.hosts[1].command_all(|ticket| Command::BindStag {
            stag: REGION,
            stream: Some(there),
            ticket,
        });
        b.net.run_until_idle();
        let (source, invalidate) = (Source::Bytes(b"bye"[..].into()), Some(REGION));
        b.post(
            here,
            WorkRequest::Send { source, solicited: false, invalidate, cookie: Cookie::user(0) },
        );
        let ended = b.net.run_until("the end of the region", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Received { invalidated, .. } => *invalidated,
                Event::Invalidated { stag, .. } => Some(*stag),
                _ => None,
            })
        });
        assert_eq!(ended, REGION);
        let removal = b.net.hosts[1].command(0, |ticket| Command::RemoveStag {
            stag: REGION,
            removal: SourceRemoval::Wait,
            ticket,
        });
        assert_eq!(b.net.wait_done(1, removal), Ok(()));
        let source = Source::Bytes([1; 4].into());
        let to = TaggedOffset(0);
        b.post(here, WorkRequest::Write { stag: REGION, to, source, cookie: Cookie::user(0) });
        assert_eq!(b.wait_end(0).numbers(), Some(ErrorNumbers::new(1, 1, 0)));
        assert_eq!(read_memory(&b.remote)[..4], [0; 4]);
    }
}

#[test]
fn region_removal_terminates_reads_from_it() {
    let mut b = bench();
    let (here, there) = b.open(Service::Control);
    let ticket = b.post(here, read_request(LEN as u32));
    b.net.run_until("the Read to begin", |net| {
        net.turn();
        (net.hosts[1].count("tx_bytes") > 100_000).then_some(())
    });
    let removal = b.net.hosts[1].command(there.worker().into(), |ticket| Command::RemoveStag {
        stag: REGION,
        removal: SourceRemoval::Wait,
        ticket,
    });
    assert_eq!(b.net.wait_done(1, removal), Ok(()));
    assert_eq!(b.wait_end(0).numbers(), Some(ErrorNumbers::new(0, 1, 0)));
    let flushed = b.net.hosts[0].take_event(|e| match e {
        Event::PostFailed { ticket: t, reason, .. } if *t == ticket => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(flushed, Some(PostFailure::Flushed));
}

/// RFC 5041 §8.3.1 (5), (6): an RDMA Read in progress is terminated when the right to read is revoked. Changes of other
/// rights do not affect it.
#[test]
fn revoked_read_access_terminates_reads_in_progress() {
    for access in [Access::REMOTE_READ, Access::REMOTE_WRITE] {
        let mut b = bench();
        let (here, there) = b.open(Service::Control);
        let ticket = b.post(here, read_request(LEN as u32));
        b.net.run_until("the Read to begin", |net| {
            net.turn();
            (net.hosts[1].count("tx_bytes") > 100_000).then_some(())
        });
        let done = b.net.hosts[1].command(there.worker().into(), |ticket| Command::SetAccess {
            stag: REGION,
            access,
            ticket,
        });
        assert_eq!(b.net.wait_done(1, done), Ok(()));
        if access.remote_read() {
            b.wait_outcome(ticket);
        } else {
            assert_eq!(b.wait_end(0).numbers(), Some(ErrorNumbers::new(0, 1, 0)));
            let flushed = b.net.hosts[0].take_event(|e| match e {
                Event::PostFailed { ticket: t, reason, .. } if *t == ticket => Some(reason.clone()),
                _ => None,
            });
            assert_eq!(flushed, Some(PostFailure::Flushed));
        }
    }
}

/// Binding a region to another stream terminates RDMA Reads in progress. Otherwise the Reads would return data that the
/// other stream's peer writes.
#[test]
fn rebinding_a_region_terminates_reads_from_it() {
    let unused_id = StreamId(u64::MAX);
    for first in [false, true] {
        let mut b = bench();
        let (here, there) = b.open(Service::Control);
        let (other, theirs) = b.open(Service::Control);
        let bind =
            |b: &mut Bench, stream| {
                let done = b.net.hosts[1].command(there.worker().into(), |ticket| {
                    Command::BindStag { stag: REGION, stream: Some(stream), ticket }
                });
                assert_eq!(b.net.wait_done(1, done), Ok(()));
            };
        if first {
            bind(&mut b, there);
        }
        let ticket = b.post(here, read_request(LEN as u32));
        b.net.run_until("the Read to begin", |net| {
            net.turn();
            (net.hosts[1].count("tx_bytes") > 100_000).then_some(())
        });
        bind(&mut b, if first { unused_id } else { theirs });
        assert_eq!(b.wait_end(0).numbers(), Some(ErrorNumbers::new(0, 1, 0)));
        let flushed = b.net.hosts[0].take_event(|e| match e {
            Event::PostFailed { ticket: t, reason, .. } if *t == ticket => Some(reason.clone()),
            _ => None,
        });
        assert_eq!(flushed, Some(PostFailure::Flushed));
        bind(&mut b, theirs);
        let ticket = b.post(other, read_request(LEN as u32));
        b.wait_outcome(ticket);
    }
}

// RFC 5041 §8.2: while a stream is being opened, no stream can access the regions that its connect names. Afterwards
// only the opened stream can.
#[test]
fn region_bound_at_connect_is_accessible_to_that_stream_only() {
    let mut b = bench();
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let lent = b.net.hosts[0].region(0x4300, LEN, rights);
    b.net.hosts[0].command_all(|ticket| Command::BindStag {
        stag: Stag(0x4300),
        stream: Some(StreamId(u64::MAX)),
        ticket,
    });
    let (first, other) = b.open(Service::Control);
    // An STag without a region (0x4400) is skipped.
    b.stags = vec![Stag(0x4400), Stag(0x4300)];
    let (second, own) = b.open(Service::Control);
    // The accepting end may send only after the initiator has sent.
    for stream in [first, second] {
        b.post(stream, send_request(b"begin"));
        b.wait_received(1);
    }
    let write = |b: &mut Bench, stream: StreamId, byte| {
        let source = Source::Bytes([byte; 4].into());
        let (stag, to) = (Stag(0x4300), TaggedOffset(0));
        let request = WorkRequest::Write { stag, to, source, cookie: Cookie::user(0) };
        let region = None;
        b.net.hosts[1].command(stream.worker().into(), |ticket| Command::PostRdmap {
            stream,
            request,
            region,
            ticket,
        });
    };
    write(&mut b, own, 7);
    b.net.run_until("the Write", |_| (read_memory(&lent)[..4] == [7; 4]).then_some(()));
    write(&mut b, other, 9);
    assert_eq!(b.wait_end(1).numbers(), Some(ErrorNumbers::new(1, 1, 2)));
    assert_eq!(read_memory(&lent)[..4], [7; 4]);
}

#[test]
fn sink_removal_waits_for_the_read_to_be_flushed() {
    let mut b = bench();
    let (here, _) = b.open(Service::Control);
    let ticket = b.post(here, read_request(LEN as u32));
    b.net.run_until("the Read to begin", |net| {
        net.turn();
        (net.hosts[0].count("rx_bytes") > 100_000).then_some(())
    });
    let removal = b.net.hosts[0].command(here.worker().into(), |ticket| Command::RemoveStag {
        stag: LOCAL,
        removal: SourceRemoval::Abort,
        ticket,
    });
    assert_eq!(b.net.wait_done(0, removal), Ok(()));
    let flushed = b.net.run_until("the flush", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::PostFailed { ticket: t, reason, .. } if *t == ticket => Some(reason.clone()),
            _ => None,
        })
    });
    assert_eq!(flushed, PostFailure::Flushed);
}

/// A command about a region of one stream, or about a listener without handshakes, visits no other stream.
#[test]
fn removals_visit_only_the_streams_concerned() {
    let mut b = bench();
    let (_, bound) = b.open(Service::Control);
    let others: Vec<StreamId> = (0..20).map(|_| b.open(Service::Control).1).collect();
    let bind = |stream| move |ticket| Command::BindStag { stag: REGION, stream, ticket };
    let first = b.net.hosts[1].command(0, bind(Some(bound)));
    assert_eq!(b.net.wait_done(1, first), Ok(()));
    let before = crate::flow::visits();
    let rebound = b.net.hosts[1].command(0, bind(Some(others[7])));
    let access = b.net.hosts[1].command(0, |ticket| Command::SetAccess {
        stag: REGION,
        access: Access::REMOTE_WRITE,
        ticket,
    });
    let removed = b.net.hosts[1].command(0, |ticket| Command::RemoveStag {
        stag: REGION,
        removal: SourceRemoval::Abort,
        ticket,
    });
    let listener = crate::api::ListenerId(PORT.into());
    let closed = b.net.hosts[1].command(0, |ticket| Command::RemoveListener { listener, ticket });
    for ticket in [rebound, access, removed, closed] {
        assert_eq!(b.net.wait_done(1, ticket), Ok(()));
    }
    assert_eq!(crate::flow::visits(), before);
}
