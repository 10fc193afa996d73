//! Tests of the pcapng file: frames, comments, lengths and checksums.

use std::io::Write as _;
use std::process::{Command, Stdio};

use api::{FlightEvent, StreamId};
use pcap_file::pcapng::PcapNgReader;

use super::*;

fn header(transport: &str, from_peer: bool, flags: u8, length: u16) -> FlightHeader {
    let (number, acknowledges, window) = (1000, 2000, 300);
    let transport = transport.into();
    FlightHeader { transport, from_peer, number, acknowledges, window, flags, length }
}

fn flight(local: &str, remote: &str, headers: Vec<FlightHeader>) -> Flight {
    let event = |event: &str, after_us, header| FlightEvent {
        after_us,
        event: event.into(),
        detail: "as it was".into(),
        header,
    };
    let mut events = vec![event("timeout", 5, None)];
    events.extend((10..).zip(headers).map(|(at, header)| event("seen", at, Some(header))));
    events.push(event("gave_up", 99, None));
    Flight {
        stream: StreamId(7),
        listener: None,
        job: None,
        program: None,
        local: local.into(),
        remote: remote.into(),
        began_us: 1_700_000_000_000_000,
        end: None,
        sentences: vec![],
        events,
        left_out: 0,
        recorder_left_out: 0,
        counters: Default::default(),
    }
}

fn explanation() -> Why {
    let tcp = vec![header("tcp", false, 0x18, 1448), header("tcp", true, 0x14, 0)];
    let sctp = vec![
        header("sctp", false, DATA, 1400),
        header("sctp", true, SACK, 0),
        header("sctp", true, 6, 0),
        header("sctp", true, SHUTDOWN, 0),
    ];
    let mut streams = vec![
        flight("10.0.0.1:7471", "10.0.0.9:5000", tcp),
        flight("[2001:db8::1]:7471", "[2001:db8::9]:5000", sctp),
    ];
    streams[1].began_us += 1000;
    Why { sentences: vec![], streams }
}

#[test]
fn headers_become_frames_and_events_become_comments() {
    let (bytes, headers) = pcapng_file(&explanation());
    assert_eq!(headers, 6);
    let text = String::from_utf8_lossy(&bytes);
    let comment = "stream 0000000000000007; timeout: as it was; seen: as it was";
    assert!(text.contains(comment));
    // The comment of each stream's last frame also has the events after that frame.
    let end = "stream 0000000000000007; seen: as it was; gave_up: as it was";
    assert_eq!(text.matches(end).count(), 2);
    assert_eq!(pcapng_file(&Why::default()).1, 0);
}

#[test]
fn frames_of_several_streams_are_sorted_by_time() {
    let mut why = explanation();
    why.streams[0].began_us += 1002;
    let (bytes, _) = pcapng_file(&why);
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut times = Vec::new();
    while let Some(block) = reader.next_block() {
        times.extend(block.unwrap().into_enhanced_packet().map(|packet| packet.timestamp));
    }
    assert_eq!(times.len(), 6);
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn frame_has_headers_only_and_original_length() {
    let why = explanation();
    let header = why.streams[0].events[1].header.clone().unwrap();
    let (data, len) = build_frame(&why.streams[0], &header).unwrap();
    assert_eq!((data.len(), len), (54, 54 + 1448));
    // The frame is addressed to the peer and has a correct IPv4 header checksum.
    assert_eq!(data[26..34], [10, 0, 0, 1, 10, 0, 0, 9]);
    assert_eq!(checksum(&data[14..34]), 0);
    assert_eq!(
        data[34..],
        [29, 47, 19, 136, 0, 0, 3, 232, 0, 0, 7, 208, 0x50, 0x18, 1, 44, 0, 0, 0, 0]
    );
}

// RFC 1071 §1: carries are added until none is left.
#[test]
fn checksum_folds_repeated_carry() {
    let [local, remote] = ["192.168.0.1:1", "10.0.106.128:2"];
    let flight = flight(local, remote, vec![header("tcp", false, 0x10, 1448)]);
    let header = flight.events[1].header.clone().unwrap();
    let (data, _) = build_frame(&flight, &header).unwrap();
    let words = data[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    assert_eq!(words.sum::<u32>() % 0xffff, 0);
}

#[test]
fn tshark_reads_pcapng_file() {
    let mut command = Command::new("tshark");
    let fields =
        ["frame.protocols", "tcp.seq_raw", "tcp.ack_raw", "tcp.flags.reset", "sctp.chunk_type"];
    command.args(["-n", "-r", "-", "-T", "fields", "-E", "separator=,"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("tshark, which scripts/setup installs");
    child.stdin.take().unwrap().write_all(&pcapng_file(&explanation()).0).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[0].starts_with("eth:ethertype:ip:tcp,1000,2000,"), "{text}");
    // Depending on its version, tshark prints a flag as 1 or as True.
    let reset = |value| lines[1].contains(&format!(",1000,2000,{value}"));
    assert!(reset("1") || reset("True"), "{text}");
    for (line, chunk) in lines[2..].iter().zip([",0", ",3", ",6", ",7"]) {
        assert!(line.starts_with("eth:ethertype:ipv6:sctp") && line.ends_with(chunk), "{text}");
    }
}
