//! Tests of filters, headers and the ring of a capture.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proptest::prelude::*;

use super::headers::Headers;
use super::*;
use crate::drops::DropReason;
use crate::ids::Transport;

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

/// Builds an Ethernet frame with an IPv4 packet from A to B, with this protocol and payload.
fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
    frame.extend(A.iter().chain(&B));
    frame.extend(payload);
    frame
}

/// Builds an Ethernet frame with an IPv6 packet. `first` is its next-header field, `rest` its extension headers and
/// payload.
fn v6(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, first, 64]);
    for end in [1, 2] {
        frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
    }
    frame.extend(rest);
    frame
}

/// First bytes of a transport header: source port 1000, destination port 7471.
const PORTS: [u8; 4] = [0x03, 0xe8, 0x1d, 0x2f];

fn matches(filter: &str, frame: &[u8]) -> bool {
    let filter = Filter::parse(filter).unwrap();
    filter.matches(&Headers::parse(frame), Direction::In, false)
}

#[test]
fn each_filter_test_matches_only_its_frames() {
    let tcp = v4(6, &PORTS);
    let takes_it = [
        "",
        "tcp",
        "proto tcp",
        "proto 6",
        "ip",
        "host 10.0.0.1",
        "host 10.0.0.2",
        "src host 10.0.0.1",
        "dst net 10.0.0.0/24",
        "port 7471",
        "dst port 7471",
        "src port 1000",
        "in",
        "not dropped",
        "not not tcp",
        "tcp and port 1000 and host 10.0.0.2",
        "udp or port 7471",
        "udp or (tcp and not port 80)",
        "(tcp)and(port 7471)",
    ];
    for filter in takes_it {
        assert!(matches(filter, &tcp), "{filter}");
    }
    let leaves_it = [
        "sctp",
        "udp",
        "icmp",
        "icmp6",
        "arp",
        "ip6",
        "proto 7",
        "host 10.0.0.3",
        "src host 10.0.0.2",
        "dst host 10.0.0.1",
        "net 10.0.1.0/24",
        "host ::1",
        "src port 7471",
        "dst port 1000",
        "port 80",
        "vlan 5",
        "out",
        "dropped",
        "not tcp",
        "tcp and port 80",
        "not (tcp or arp)",
    ];
    for filter in leaves_it {
        assert!(!matches(filter, &tcp), "{filter}");
    }
}

#[test]
fn invalid_filter_is_refused_with_offending_word() {
    for (filter, says) in [
        ("tpc", "a test is one of"),
        ("port", "`port` wants a number from 0 to 65535, but the expression ends here"),
        ("port 65536", "`port` wants a number from 0 to 65535 at `65536`"),
        ("host 10.0.0", "`host` wants an IP address at `10.0.0`"),
        ("host ::ffff:10.0.0.1", "`host` wants an IP address at `::ffff:10.0.0.1`"),
        ("net 010.0.0.0/8", "`net` wants a network such as 192.0.2.0/24 at `010.0.0.0/8`"),
        ("net 10.0.0.0/33", "`net` wants a network"),
        ("proto 256", "`proto` wants a number from 0 to 255"),
        ("vlan 4096", "`vlan` wants a number from 0 to 4095"),
        ("src tcp", "`src` and `dst` are followed by host, net or port at `tcp`"),
        ("tcp port 80", "tests are joined by `and` or `or` at `port`"),
        ("tcp and", "a test is one of"),
        ("tcp and arp or udp", "side by side need parentheses at `or`"),
        ("(tcp", "a parenthesis is not closed"),
        ("tcp)", "closed that was not opened at `)`"),
        ("not", "a test is one of"),
    ] {
        let error = Filter::parse(filter).unwrap_err().to_string();
        assert!(error.starts_with("filter: ") && error.contains(says), "{filter}: {error}");
    }
    let deep = "(".repeat(40) + "tcp" + &")".repeat(40);
    assert!(
        Filter::parse(&deep).unwrap_err().to_string().contains("more than 16 nested parentheses")
    );
    let long = "tcp or ".repeat(200) + "tcp";
    assert!(Filter::parse(&long).unwrap_err().to_string().contains("at most 1024"));
}

#[test]
fn headers_parse_behind_vlan_and_extension_headers() {
    let mut tagged = v4(17, &PORTS);
    tagged.splice(12..12, [0x88, 0xa8, 0x20, 5, 0x81, 0x00, 0, 7]);
    assert!(matches("vlan 5 and udp and dst port 7471", &tagged));
    assert!(!matches("vlan 7", &tagged), "the outer tag counts");
    let hops = [60, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0];
    let through = v6(0, &[&hops[..], &PORTS].concat());
    assert!(matches("ip6 and tcp and port 7471 and host 2001:db8::2", &through));
    let first = v6(44, &[&[6, 0, 0, 1, 0, 0, 0, 0][..], &PORTS].concat());
    assert!(matches("tcp and port 7471", &first));
    let later = v6(44, &[&[6, 0, 0, 8, 0, 0, 0, 0][..], &PORTS].concat());
    assert!(
        matches("tcp", &later) && !matches("port 7471", &later),
        "a later fragment has no ports"
    );
    let mut later = v4(6, &PORTS);
    later[21] = 1;
    assert!(matches("tcp", &later) && !matches("port 7471", &later));
}

#[test]
fn arp_matches_sender_and_target_hosts() {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 1].iter().chain(&A));
    frame.extend([0; 6].iter().chain(&B));
    for filter in ["arp", "proto arp", "host 10.0.0.1", "dst host 10.0.0.2"] {
        assert!(matches(filter, &frame), "{filter}");
    }
    assert!(!matches("ip", &frame));
}

#[test]
fn stream_filter_matches_both_directions_and_udp_encapsulation() {
    let end = |address: [u8; 4], port| SocketAddr::new(IpAddr::from(address), port);
    let stream = |transport| StreamFilter { transport, local: end(B, 7471), remote: end(A, 1000) };
    let takes = |filter: &str, stream, frame: &[u8]| {
        let filter = Filter::parse(filter).unwrap().and_stream(stream);
        filter.matches(&Headers::parse(frame), Direction::In, false)
    };
    let (tcp, sctp) = (stream(Transport::Tcp), stream(Transport::Sctp));
    assert!(takes("", tcp, &v4(6, &PORTS)));
    assert!(!takes("arp", tcp, &v4(6, &PORTS)), "both filters must match");
    assert!(!takes("", sctp, &v4(6, &PORTS)));
    let back = StreamFilter { local: tcp.remote, remote: tcp.local, ..tcp };
    assert!(takes("", back, &v4(6, &PORTS)));
    assert!(takes("", sctp, &v4(132, &PORTS)));
    let in_udp = [&[0x26, 0xab, 0x26, 0xab, 0, 0, 0, 0][..], &PORTS].concat();
    assert!(takes("", sctp, &v4(17, &in_udp)));
    assert!(!takes("", tcp, &v4(17, &in_udp)));
    assert!(!takes("", StreamFilter { local: end(B, 7472), ..tcp }, &v4(6, &PORTS)));
}

fn tap(filter: &str, snap: usize, ring: usize) -> (Tap, Reader) {
    pair(Arc::new(Filter::parse(filter).unwrap()), snap, ring, || 42)
}

#[test]
fn captured_frame_is_original_up_to_snap_length() {
    let (mut tap, mut reader) = tap("", 16, 200);
    let frame: Vec<u8> = (0..60).collect();
    // More bytes than the ring holds, so that frames wrap around its end.
    for turn in 0..50 {
        let (direction, fate) = match turn % 3 {
            0 => (Direction::In, Fate::Passed),
            1 => (Direction::Out, Fate::LinkDown),
            _ => (Direction::In, Fate::Dropped(7)),
        };
        tap.record(direction, fate, &frame[turn % 8..]);
        let bytes = frame[turn % 8..turn % 8 + 16].to_vec();
        let len = 60 - (turn % 8) as u32;
        assert_eq!(reader.next_record(), Some(Record { time: 42, direction, fate, len, bytes }));
        assert_eq!(reader.next_record(), None);
    }
    assert_eq!((reader.counters().seen(), reader.counters().lost()), (50, 0));
}

#[test]
fn full_capture_ring_counts_lost_frames() {
    let (mut tap, mut reader) = tap("tcp", 64, 200);
    let (tcp, udp) = (v4(6, &PORTS), v4(17, &PORTS));
    for _ in 0..10 {
        tap.record(Direction::Out, Fate::Passed, &tcp);
        tap.record(Direction::Out, Fate::Passed, &udp);
    }
    let counters = reader.counters();
    assert_eq!(
        (counters.seen(), counters.lost()),
        (20, 7),
        "200 bytes are three frames of 38 + 24"
    );
    assert!(!reader.is_finished());
    drop(tap);
    assert!(reader.is_finished());
    let kept = std::iter::from_fn(|| reader.next_record()).count();
    assert_eq!(kept, 3, "frames in the ring outlive the tap");
}

#[test]
fn held_frame_records_its_drop_reason() {
    let drops = Drops::default();
    drops.count(DropReason::NoPort);
    let (mut tap, mut reader) = tap("", 64, 4096);
    let frame = v4(6, &PORTS);
    tap.hold(&frame, &drops);
    tap.release(&drops, false);
    tap.hold(&frame, &drops);
    drops.count(DropReason::NoStream);
    tap.release(&drops, false);
    tap.hold(&frame, &drops);
    tap.release(&drops, true);
    let fates: Vec<Fate> = std::iter::from_fn(|| reader.next_record()).map(|r| r.fate).collect();
    let reason = Fate::Dropped(DropReason::NoStream as u16);
    assert_eq!(fates, [Fate::Passed, reason, Fate::Forwarded]);
    let named = drops.iter().nth(DropReason::NoStream as usize).unwrap();
    assert_eq!((named.reason, named.count), (DropReason::NoStream.name(), 1));
}

#[test]
fn dropped_filter_matches_only_dropped_frames() {
    let drops = Drops::default();
    let (mut tap, mut reader) = tap("dropped", 64, 4096);
    for dropped in [false, true, false] {
        tap.hold(&v4(6, &PORTS), &drops);
        if dropped {
            drops.count(DropReason::NoStream);
        }
        tap.release(&drops, false);
    }
    tap.record(Direction::Out, Fate::Passed, &[]);
    tap.record(Direction::Out, Fate::QueueFull, &[]);
    let kept: Vec<_> = std::iter::from_fn(|| reader.next_record()).map(|r| r.direction).collect();
    assert_eq!(kept, [Direction::In, Direction::Out]);
    assert_eq!(reader.counters().seen(), 5);
}

proptest! {
    /// Checks that the parsers do not panic for any frame and any expression.
    #[test]
    fn any_filter_and_frame_does_not_panic(frame in prop::collection::vec(any::<u8>(), 0..200), text in "[ a-z0-9().!&|:/]{0,60}") {
        let headers = Headers::parse(&frame);
        if let Ok(filter) = Filter::parse(&text) {
            filter.matches(&headers, Direction::In, true);
        }
        for ethertype in [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x81, 0x00]] {
            let mut frame = frame.clone();
            if frame.len() >= 14 {
                frame[12..14].copy_from_slice(&ethertype);
            }
            Headers::parse(&frame);
        }
    }
}
