//! Whole streams between two workers, from start to end and from ARP to placed bytes, over IPv4, IPv6, VLANs and
//! several MTUs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ddp::{Access, EndpointPolicy, RegionMemory, Stag, TaggedOffset};
use tcp_lite::endpoint::{CloseReason, EndpointConfig};

use super::sctp::list_stream_parts;
use super::test_host::*;
use crate::api::{
    self, Command, CommandError, ConnectError, Event, Limits, LocalPorts, PostFailure, SctpConfig,
    SourceRemoval, SynCookieMode,
};

const PORT: u16 = 4791;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);

fn pair() -> Net {
    Net::new(&[Plan::new(1), Plan::new(2)])
}

fn write_and_verify(mut net: Net, remote: std::net::IpAddr, len: usize) -> Net {
    net.hosts[1].listen(PORT);
    let sink = net.hosts[1].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    let (here, there) = net.open(0, 0, 1, (remote, PORT).into());
    let ticket = net.hosts[0].write(here, (SOURCE, &source), SINK, len as u32);
    let delivered = net.run_until("delivery", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::TaggedDelivered { stream, stag, to, len, .. } => {
                Some((*stream, *stag, *to, *len))
            }
            Event::Error { error, .. } => panic!("{error:?}"),
            _ => None,
        })
    });
    assert_eq!(delivered, (there, SINK, TaggedOffset(0), len as u64));
    net.wait_sent(0, ticket);
    assert!(read_memory(&sink) == pattern(len));
    net
}

#[test]
fn tagged_write_over_ipv4_is_placed() {
    write_and_verify(pair(), v4(2), 1 << 20);
}

#[test]
fn tagged_write_over_ipv6_is_placed() {
    write_and_verify(pair(), v6(2), 300_000);
}

#[test]
fn tagged_write_in_a_vlan_is_placed() {
    let plan = |n| Plan { vlan: Some(100), ..Plan::new(n) };
    write_and_verify(Net::new(&[plan(1), plan(2)]), v4(2), 300_000);
}

#[test]
fn idle_streams_free_memory_and_resume() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let sink = net.hosts[1].region(SINK.0, 4096, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, 4096, Access::NONE);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    for round in 0..3u8 {
        source.write(0, &[round; 4096]);
        let ticket = net.hosts[0].write(here, (SOURCE, &source), SINK, 4096);
        net.wait_sent(0, ticket);
        assert!(read_memory(&sink) == [round; 4096]);
        let at_rest = |net: &Net, host: usize| {
            let mut streams = net.hosts[host].cores[0].streams();
            streams.next().expect("the stream").connection().is_shrunk()
        };
        assert!(!at_rest(&net, 0), "the stream has just sent");
        for _ in 0..30 {
            net.advance(Duration::from_millis(100));
        }
        assert!(at_rest(&net, 0) && at_rest(&net, 1));
    }
}

#[test]
fn tagged_write_uses_jumbo_frames() {
    let plan = |n| Plan { mtu: 9000, ..Plan::new(n) };
    let net = write_and_verify(Net::new(&[plan(1), plan(2)]), v6(2), 1 << 20);
    let frames = net.hosts[0].count("tx_frames");
    assert!(frames < 200, "{frames} frames for 1 MiB");
}

#[test]
fn tagged_write_uses_maximum_mtu_frames() {
    for to in [v4(2), v6(2)] {
        for syn_cookies in [SynCookieMode::Never, SynCookieMode::Always] {
            let limits = Limits { syn_cookies, ..Limits::default() };
            let plan = |n| Plan { mtu: crate::port::MAX_MTU, limits, ..Plan::new(n) };
            let net = write_and_verify(Net::new(&[plan(1), plan(2)]), to, 1 << 20);
            let frames = net.hosts[0].count("tx_frames");
            assert!(frames < 40, "{frames} frames for 1 MiB");
        }
    }
}

#[test]
fn tagged_write_over_a_lossy_wire_is_placed() {
    let mut net = pair();
    let mut n = 0u32;
    net.is_lost = Box::new(move |_, _| {
        n += 1;
        n % 61 == 17
    });
    write_and_verify(net, v4(2), 1 << 20);
}

#[test]
fn burst_is_acknowledged_once_per_stream() {
    let net = write_and_verify(pair(), v4(2), 1 << 20);
    let (data, acks) = (net.hosts[0].count("tx_frames"), net.hosts[1].count("tx_frames"));
    assert!(acks * 4 < data, "{acks} frames back for {data}");
}

#[test]
fn progress_of_a_stream_keeps_its_neighbour_reachable() {
    // RFC 4861 §7.3.1: forward progress confirms reachability, without further solicitations.
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    let solicitations = net.hosts[0].count("neighbour_solicitations");
    for _ in 0..60 {
        let ticket = net.hosts[0].send(here, &[1; 10]);
        net.wait_sent(0, ticket);
        net.advance(Duration::from_secs(2));
    }
    assert_eq!(net.hosts[0].count("neighbour_solicitations"), solicitations);
}

#[test]
fn an_idle_neighbour_is_probed_when_it_is_used_again() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.advance(Duration::from_secs(60));
    let solicitations = net.hosts[0].count("neighbour_solicitations");
    net.is_lost = Box::new(|_, frame| frame[12..14] != [8, 6]);
    net.hosts[0].send(here, &[1; 10]);
    net.advance(Duration::from_secs(10));
    assert!(net.hosts[0].count("neighbour_solicitations") > solicitations);
}

#[test]
fn untagged_messages_arrive_in_order_in_both_directions() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let (here, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    for n in 0..200u8 {
        net.hosts[0].send(here, &[n; 100]);
    }
    for n in 0..200u8 {
        let data = net.run_until("a message", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Untagged { stream, data, .. } if *stream == there => Some(data.clone()),
                _ => None,
            })
        });
        assert_eq!(data, [n; 100]);
    }
    net.hosts[1].send(there, b"back");
    let back = net.run_until("the answer", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Untagged { data, .. } => Some(data.clone()),
            _ => None,
        })
    });
    assert_eq!(back, b"back");
}

/// Takes the calls of `offer` recorded since the last call of this function. `offer` passes frames to the device at
/// once. Each entry is the number of waiting frames.
fn take_offers(net: &mut Net, host: usize) -> Vec<usize> {
    std::mem::take(&mut net.hosts[host].cores[0].port_mut(0).offers)
}

#[test]
fn last_segment_of_a_turn_is_offered_at_once() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let streams: Vec<_> = (0..3).map(|_| net.open(0, 0, 1, (v4(2), PORT).into()).0).collect();
    net.run_until_idle();
    take_offers(&mut net, 0);
    // First one stream has data to send, then every stream. Frames are offered once, with the last stream's
    // segment.
    net.hosts[0].send(streams[0], &[1; 64]);
    net.turn();
    assert_eq!(take_offers(&mut net, 0), [1]);
    net.run_until_idle();
    assert_eq!(take_offers(&mut net, 0), [0; 0], "acknowledgements wait for the end of the turn");
    for &stream in &streams {
        net.hosts[0].send(stream, &[2; 64]);
    }
    net.turn();
    assert_eq!(take_offers(&mut net, 0), [3]);
    // A burst is offered once, with its last segment, if all of it can be sent.
    net.run_until_idle();
    net.hosts[0].send(streams[0], &[3; 3000]);
    net.turn();
    assert_eq!(take_offers(&mut net, 0), [3]);
}

#[test]
fn reject_reports_private_data_to_the_initiator() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    net.hosts[0].connect(0, (v4(2), PORT).into());
    let (stream, data) = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, private_data, local, .. } => {
                assert_eq!(*local, (v4(2), PORT).into());
                Some((*stream, private_data.clone()))
            }
            _ => None,
        })
    });
    assert_eq!(data, b"hello");
    net.hosts[1].command(0, |_| Command::Reject { stream, private_data: b"no".to_vec() });
    let reason = wait_connect_failure(&mut net);
    let private_data = b"no".to_vec();
    assert_eq!(
        reason,
        ConnectError::Closed(CloseReason::RejectedByPeer { private_data, enhanced: None }.into())
    );
}

#[test]
fn closed_stream_is_reported_at_both_ends_and_freed() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let (here, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
    for (host, id) in [(0, here), (1, there)] {
        net.run_until("the end", |net| {
            net.hosts[host].take_event(|e| match e {
                Event::Closed { stream, .. } if *stream == id => Some(()),
                _ => None,
            })
        });
    }
    // TIME-WAIT keeps the flow until it expires.
    net.advance(Duration::from_secs(150));
    assert_eq!(net.hosts[0].count("streams") + net.hosts[1].count("streams"), 0);
}

#[test]
fn an_abort_resets_the_peer() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let (here, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: true });
    let ended = net.run_until("the reset", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Closed { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    assert_eq!(ended, there);
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("streams") + net.hosts[1].count("streams"), 0);
}

fn wait_connect_failure(net: &mut Net) -> ConnectError {
    net.run_until("a failure", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::ConnectFailed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    })
}

#[test]
fn connects_fail_with_their_reasons() {
    let mut net = pair();
    net.hosts[0].connect(0, (v4(2), 9).into());
    let refused = ConnectError::Closed(CloseReason::ConnectRefused.into());
    assert_eq!(wait_connect_failure(&mut net), refused, "no listener");
    // RFC 3168 §6.1.1.1: after a refused SYN with ECN, a SYN without ECN is sent.
    assert_eq!(net.hosts[1].count("resets_sent"), 2);
    let begin = net.now;
    net.hosts[0].connect(0, (v4(77), PORT).into());
    assert_eq!(wait_connect_failure(&mut net), ConnectError::Unreachable);
    assert!(net.now - begin < Duration::from_secs(5));
    net.hosts[0].connect(0, ("2001:db9::1".parse::<std::net::IpAddr>().unwrap(), PORT).into());
    assert_eq!(wait_connect_failure(&mut net), ConnectError::NoRoute);
    for peer in ["224.0.0.1:9", "255.255.255.255:9", "0.0.0.0:9", "10.0.0.2:0"] {
        net.hosts[0].connect(0, peer.parse().unwrap());
        assert_eq!(wait_connect_failure(&mut net), ConnectError::BadPeer, "{peer}");
    }
    // The control thread of the listener never answers the request.
    net.hosts[1].listen(PORT);
    net.hosts[0].connect(0, (v4(2), PORT).into());
    assert!(matches!(
        wait_connect_failure(&mut net),
        ConnectError::Timeout(_) | ConnectError::Closed { .. }
    ));
    net.hosts[0].command(0, |_| Command::Drain);
    net.hosts[0].connect(0, (v4(2), PORT).into());
    assert_eq!(wait_connect_failure(&mut net), ConnectError::Draining);
}

#[test]
fn region_removal_completes_after_its_last_acknowledgement() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let len = 64 << 10;
    net.hosts[1].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.run_until_idle();
    // All frames are lost, so that the message remains unacknowledged.
    net.is_lost = Box::new(|_, _| true);
    net.hosts[0].write(here, (SOURCE, &source), SINK, len as u32);
    let remove =
        |sources| move |ticket| Command::RemoveStag { stag: SOURCE, removal: sources, ticket };
    let waits = net.hosts[0].command(0, remove(SourceRemoval::Wait));
    net.advance(Duration::from_millis(50));
    let done = |net: &mut Net, t| {
        net.hosts[0]
            .take_event(|e| matches!(e, Event::Done { ticket, .. } if *ticket == t).then_some(()))
    };
    assert!(done(&mut net, waits).is_none());
    // No further message can be sent from the region.
    let late = net.hosts[0].write(here, (SOURCE, &source), SINK, 10);
    net.run_until("a refusal", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::PostFailed { ticket, reason: PostFailure::NoRegion, .. } if *ticket == late => {
                Some(())
            }
            _ => None,
        })
    });
    net.is_lost = Box::new(|_, _| false);
    assert_eq!(net.wait_done(0, waits), Ok(()));
    let again = net.hosts[0].command(0, remove(SourceRemoval::Wait));
    assert!(matches!(net.wait_done(0, again), Err(CommandError::Stag(_))));
}

#[test]
fn region_removal_with_abort_ends_streams_sending_from_it() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    net.hosts[1].region(SINK.0, 1000, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, 1000, Access::NONE);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.run_until_idle();
    net.is_lost = Box::new(|_, _| true);
    net.hosts[0].write(here, (SOURCE, &source), SINK, 1000);
    net.run_until_idle();
    let sources = SourceRemoval::Abort;
    let ticket = net.hosts[0].command(0, |ticket| Command::RemoveStag {
        stag: SOURCE,
        removal: sources,
        ticket,
    });
    assert_eq!(net.wait_done(0, ticket), Ok(()));
    let closed = |e: &Event| matches!(e, Event::Closed { stream, .. } if *stream == here);
    net.run_until("the end", |net| net.hosts[0].take_event(|e| closed(e).then_some(())));
}

#[test]
fn write_to_removed_region_places_nothing() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let sink = net.hosts[1].region(SINK.0, 1000, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, 1000, Access::NONE);
    source.write(0, &[9; 1000]);
    let (here, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    let sources = SourceRemoval::Wait;
    let ticket = net.hosts[1].command(0, |ticket| Command::RemoveStag {
        stag: SINK,
        removal: sources,
        ticket,
    });
    assert_eq!(net.wait_done(1, ticket), Ok(()));
    net.hosts[0].write(here, (SOURCE, &source), SINK, 1000);
    net.run_until("an error", |net| {
        net.hosts[1].take_event(|e| {
            matches!(e, Event::Error { stream, .. } if *stream == there).then_some(())
        })
    });
    assert!(read_memory(&sink) == [0; 1000]);
}

/// RFC 5041 §8.3.1 (5): a revoked access right no longer applies once the worker has answered. A restored right applies
/// again.
#[test]
fn revoked_access_rejects_writes_until_restored() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    let sink = net.hosts[1].region(SINK.0, 1000, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, 1000, Access::NONE);
    source.write(0, &[9; 1000]);
    let set = |net: &mut Net, access| {
        let ticket =
            net.hosts[1].command(0, |ticket| Command::SetAccess { stag: SINK, access, ticket });
        assert_eq!(net.wait_done(1, ticket), Ok(()));
    };
    let (first, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    let (second, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    set(&mut net, Access::REMOTE_READ);
    net.hosts[0].write(first, (SOURCE, &source), SINK, 1000);
    let error = net.run_until("an error", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Error { stream, error } if *stream == there => Some(error.clone()),
            _ => None,
        })
    });
    assert_eq!(error.code, ddp::ErrorCode::InvalidStag);
    assert!(read_memory(&sink) == [0; 1000]);
    set(&mut net, Access::REMOTE_WRITE);
    let ticket = net.hosts[0].write(second, (SOURCE, &source), SINK, 1000);
    net.wait_sent(0, ticket);
    assert!(read_memory(&sink) == [9; 1000]);
    let access = Access::NONE;
    let unknown =
        net.hosts[1].command(0, |ticket| Command::SetAccess { stag: Stag(9), access, ticket });
    assert!(net.wait_done(1, unknown).is_err());
}

#[test]
fn bound_region_rejects_writes_of_other_streams() {
    let mut net = pair();
    net.hosts[1].listen(PORT);
    net.hosts[1].region(SINK.0, 1000, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, 1000, Access::NONE);
    let (a, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    let (b, other) = net.open(0, 0, 1, (v4(2), PORT).into());
    let stream = Some(there);
    let bind = net.hosts[1].command(0, |ticket| Command::BindStag { stag: SINK, stream, ticket });
    assert_eq!(net.wait_done(1, bind), Ok(()));
    net.hosts[0].write(b, (SOURCE, &source), SINK, 1000);
    net.run_until("an error", |net| {
        net.hosts[1].take_event(|e| {
            matches!(e, Event::Error { stream, .. } if *stream == other).then_some(())
        })
    });
    let ticket = net.hosts[0].write(a, (SOURCE, &source), SINK, 1000);
    net.run_until("the write to the bound stream", |net| {
        net.hosts[0].take_event(|e| {
            matches!(e, Event::Sent { ticket: t, .. } if *t == ticket).then_some(())
        })
    });
}

#[test]
fn listings_contain_every_stream_and_neighbour() {
    let mut net = pair();
    net.hosts[1].listen_with(PORT, 200, 400);
    let mut expected: Vec<_> =
        (0..150).map(|_| net.open(0, 0, 1, (v4(2), PORT).into()).1).collect();
    let parts = list_stream_parts(&mut net, 1);
    // Each part of the list is sent in a separate turn, so that packets are processed between the parts.
    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert_eq!(sizes, [32, 32, 32, 32, 22]);
    let mut found: Vec<_> = parts.concat().iter().map(|info| info.stream).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let stream = found[77];
    let which = api::StreamSelection::Stream(stream);
    let ticket =
        net.hosts[1].command(0, |ticket| Command::ListStreams { selection: which, ticket });
    let listed = net.run_until("one stream", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Streams { ticket: t, streams, last: true, .. } if *t == ticket => {
                Some(streams.iter().map(|s| s.stream).collect::<Vec<_>>())
            }
            _ => None,
        })
    });
    assert_eq!(listed, [stream]);
    // Requests a stream that does not exist, and more streams than one event holds.
    let page: Vec<_> = [ddp::StreamId(u64::MAX)].into_iter().chain(found[..40].to_vec()).collect();
    let which = api::StreamSelection::Streams(page.into());
    let ticket =
        net.hosts[1].command(0, |ticket| Command::ListStreams { selection: which, ticket });
    let mut listed = Vec::new();
    let mut parts = 0;
    net.run_until("a page", |net| {
        while let Some((streams, last)) = net.hosts[1].take_event(|e| match e {
            Event::Streams { ticket: t, streams, last, .. } if *t == ticket => {
                Some((streams.iter().map(|s| s.stream).collect::<Vec<_>>(), *last))
            }
            _ => None,
        }) {
            listed.extend(streams);
            parts += 1;
            if last {
                return Some(());
            }
        }
        None
    });
    assert_eq!((listed.as_slice(), parts), (&found[..40], 2));
    net.hosts[1].command(0, |ticket| Command::ListNeighbours { ticket });
    let neighbours = net.run_until("neighbours", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Neighbours { neighbours, .. } => Some(neighbours.clone()),
            _ => None,
        })
    });
    assert_eq!(neighbours.len(), 1);
    assert_eq!((neighbours[0].address, neighbours[0].mac), (v4(1), Some([2, 0, 0, 0, 0, 1])));
}

#[test]
fn drain_closes_streams_and_stop_resets_them() {
    let mut net = pair();
    let policy = EndpointPolicy { half_closed_timeout: None, ..EndpointPolicy::default() };
    net.hosts[1].listen_as(PORT, 9, 9, EndpointConfig { policy, ..Default::default() });
    net.hosts[1].closes_after_peer = false;
    let len = 500_000;
    net.hosts[1].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    let (here, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    let (stays, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    let ticket = net.hosts[0].write(here, (SOURCE, &source), SINK, len as u32);
    net.hosts[0].command(0, |_| Command::Drain);
    // Messages posted before the drain are still delivered.
    net.wait_sent(0, ticket);
    net.run_until("the peer's close", |net| {
        let closed = |e: &Event| matches!(e, Event::PeerClosed { stream, .. } if *stream == there);
        net.hosts[1].take_event(|e| closed(e).then_some(()))
    });
    net.hosts[1].command(0, |_| Command::Close { stream: there, abort: false });
    net.run_until("the end", |net| {
        net.hosts[0].take_event(|e| {
            matches!(e, Event::Closed { stream, .. } if *stream == here).then_some(())
        })
    });
    assert!(net.hosts[0].take_event(|e| matches!(e, Event::Drained).then_some(())).is_none());
    net.hosts[0].command(0, |_| Command::Stop);
    net.run_until("the other's end", |net| {
        net.hosts[0].take_event(|e| {
            matches!(e, Event::Closed { stream, .. } if *stream == stays).then_some(())
        })
    });
    net.run_until("the last event", |net| {
        net.hosts[0].take_event(|e| matches!(e, Event::Stopped).then_some(()))
    });
    assert!(net.hosts[0].cores[0].is_stopped());
    assert_eq!(net.hosts[0].count("streams"), 0);
    // The peer receives a reset.
    net.run_until("the reset", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::Closed { .. }).then_some(()))
    });
}

#[test]
fn idle_stream_frees_its_transient_state() {
    let (sctp, endpoint) = (Arc::default(), Arc::default());
    let sctp = SctpConfig { sctp, endpoint, udp: None };
    for config in [api::EndpointConfig::from(EndpointConfig::default()), sctp.into()] {
        let mut net = pair();
        net.hosts[1].listen_as(PORT, 100, 100, config.clone());
        net.hosts[1].region(SINK.0, 5000, Access::REMOTE_WRITE);
        let source = net.hosts[0].region(SOURCE.0, 5000, Access::NONE);
        let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config.clone());
        let ticket = net.hosts[0].write(here, (SOURCE, &source), SINK, 5000);
        let keeps = |net: &Net| {
            let conns = &net.hosts[0].cores[0].streams;
            let conn = conns.find_stream(here).and_then(|slot| conns.get(slot)).unwrap();
            !conn.transient.is_blank()
        };
        net.run_until("posting", |net| keeps(net).then_some(()));
        net.wait_sent(0, ticket);
        net.advance(Duration::from_secs(3));
        assert!(!keeps(&net), "{config:?}");
    }
}

// RFC 6056 §3.2: streams are opened from the configured ports, and each of these ports is used.
#[test]
fn streams_are_opened_from_the_configured_ports() {
    let local_ports = LocalPorts::new(2000, 2063).expect("64 ports");
    let mut net = Net::new(&[Plan { local_ports, ..Plan::new(1) }, Plan::new(2)]);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(PORT + 2, 10, 10, super::sctp::config());
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let ports = Arc::clone(&seen);
    net.is_lost = Box::new(move |from, frame| {
        if from == 0 && frame[12..14] == [8, 0] {
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            ports.lock().expect("not poisoned").insert((frame[23], port));
        }
        false
    });
    for _ in 0..LocalPorts::MIN_COUNT {
        net.open(0, 0, 1, (v4(2), PORT).into());
    }
    let all: BTreeSet<_> = (2000..=2063).map(|port| (6, port)).collect();
    assert_eq!(*seen.lock().expect("not poisoned"), all);
    // No port remains for this peer's listener.
    let ticket = net.hosts[0].connect(0, (v4(2), PORT).into());
    assert_eq!(super::sctp::wait_connect_failure(&mut net, ticket), ConnectError::NoPort);
    // Connects to another port of the peer are different flows, for which all local ports are free. SCTP has its own
    // port numbers.
    net.hosts[1].listen(PORT + 1);
    net.open(0, 0, 1, (v4(2), PORT + 1).into());
    net.open_as(0, 0, 1, (v4(2), PORT + 2).into(), super::sctp::config());
    let seen = seen.lock().expect("not poisoned");
    assert!(seen.iter().all(|&(_, port)| local_ports.contains(port)), "{seen:?}");
    assert_eq!(seen.iter().filter(|&&(protocol, _)| protocol == 132).count(), 1, "{seen:?}");
}
