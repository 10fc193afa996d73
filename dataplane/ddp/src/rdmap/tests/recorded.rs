//! ULPDUs recorded between two hosts with the kernel's siw. Each test replaces one side, whose output must equal the
//! recording byte by byte.

use super::pair::received;
use super::*;

/// The messages of one rping round. The client advertises its source buffer; the server reads it and sends "go
/// ahead". The client advertises its sink buffer; the server writes it and sends "go ahead".
const RPING: [(Side, &str); 7] = [
    (Side::Client, "4143000000000000000000000001000000000000559d579763707eb8290000000040"),
    (
        Side::Server,
        "414100000000000000010000000100000000\
         433679000000557de7cb7550000000407eb829000000559d57976370",
    ),
    (
        Side::Client,
        "c142433679000000557de7cb7550\
         72646d612d70696e672d303a204142434445464748494a4b4c4d4e4f50515253\
         5455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717200",
    ),
    (Side::Server, "41430000000000000000000000010000000000000000000000000000000000000000"),
    (Side::Client, "4143000000000000000000000002000000000000559d57976550e9b23c0000000040"),
    (
        Side::Server,
        "c140e9b23c000000559d57976550\
         72646d612d70696e672d303a204142434445464748494a4b4c4d4e4f50515253\
         5455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717200",
    ),
    (Side::Server, "41430000000000000000000000020000000000000000000000000000000000000000"),
];
const SERVER_SINK: (Stag, u64) = (Stag(0x4336_7900), 0x557d_e7cb_7550);
const CLIENT_SOURCE: (Stag, u64) = (Stag(0x7eb8_2900), 0x559d_5797_6370);
const CLIENT_SINK: (Stag, u64) = (Stag(0xe9b2_3c00), 0x559d_5797_6550);

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Client,
    Server,
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn with_buffer((stag, to): (Stag, u64), access: Access) -> (End, VecMemory) {
    let (mut end, memory) = (End::new(), VecMemory::new(64));
    let base_to = TaggedOffset(to);
    end.stags.insert(StagEntry { base_to, ..entry(stag, access, &memory) }).unwrap();
    (end, memory)
}

fn rping_segment(at: usize) -> Vec<u8> {
    hex(RPING[at].1)
}

#[test]
fn recorded_rping_client_is_served() {
    let (mut server, sink) = with_buffer(SERVER_SINK, Access::NONE);
    server.input(&rping_segment(0));
    server.post(WorkRequest::Read {
        sink_stag: SERVER_SINK.0,
        sink_to: TaggedOffset(SERVER_SINK.1),
        source_stag: CLIENT_SOURCE.0,
        source_to: TaggedOffset(CLIENT_SOURCE.1),
        len: 64,
        cookie: Cookie::user(1),
    });
    assert_eq!(server.sent_segments(), [rping_segment(1)]);
    server.input(&rping_segment(2));
    server.post(send(&[0; 16], 2));
    assert_eq!(server.sent_segments(), [rping_segment(3)]);
    server.input(&rping_segment(4));
    let (stag, to) = (CLIENT_SINK.0, TaggedOffset(CLIENT_SINK.1));
    let source = Source::Region { memory: sink.clone(), offset: 0, len: 64 };
    server.post(WorkRequest::Write { stag, to, source, cookie: Cookie::user(3) });
    server.post(send(&[0; 16], 4));
    assert_eq!(server.sent_segments(), [rping_segment(5), rping_segment(6)]);
    assert_eq!(sink.to_vec(), rping_segment(2)[14..]);
    let done = |event: &Event| matches!(event, Event::Completed { .. });
    assert_eq!(server.events().iter().filter(|event| done(event)).count(), 4);
}

#[test]
fn recorded_rping_server_is_driven() {
    let (mut client, source) = with_buffer(CLIENT_SOURCE, Access::REMOTE_READ);
    source.write(0, &rping_segment(2)[14..]);
    let sink = VecMemory::new(64);
    let base_to = TaggedOffset(CLIENT_SINK.1);
    let entry = StagEntry { base_to, ..entry(CLIENT_SINK.0, Access::REMOTE_WRITE, &sink) };
    client.stags.insert(entry).unwrap();
    client.post(send(&rping_segment(0)[18..], 1));
    assert_eq!(client.sent_segments(), [rping_segment(0)]);
    client.input(&rping_segment(1));
    assert_eq!(client.sent_segments(), [rping_segment(2)]);
    client.input(&rping_segment(3));
    client.post(send(&rping_segment(4)[18..], 2));
    assert_eq!(client.sent_segments(), [rping_segment(4)]);
    client.input(&rping_segment(5));
    client.input(&rping_segment(6));
    assert_eq!(sink.to_vec(), source.to_vec());
    let client_events = client.events();
    let sends = client_events.iter().filter(|event| **event == received(&[0; 16])).count();
    assert_eq!((sends, client.stream.counters().reads_served), (2, 1));
}

// A zero-length Read as ready-to-receive message (source STag 1, other fields zero), and its response.
#[test]
fn recorded_rtr_read_is_answered() {
    let request = hex("41410000000000000001000000010000000000000000000000000000000000000000\
                       000000010000000000000000");
    let response = hex("c142000000000000000000000000");
    let mut responder = End::new();
    responder.input(&request);
    assert_eq!(responder.sent_segments(), core::slice::from_ref(&response));
    let mut initiator = End::new();
    initiator.post(WorkRequest::Read {
        sink_stag: Stag(0),
        sink_to: TaggedOffset(0),
        source_stag: Stag(1),
        source_to: TaggedOffset(0),
        len: 0,
        cookie: Cookie::user(1),
    });
    assert_eq!(initiator.sent_segments(), [request]);
    initiator.input(&response);
    assert_eq!(initiator.events(), [completed(1, Outcome::Read { len: 0 })]);
}

// siw's Terminates have their own layout. The parsed numbers are those that siw intends.
#[test]
fn recorded_terminates_parse() {
    let untagged = "414700000000000000020000000100000000";
    let write = "c1401d38710000007fe213f5e000";
    let cases = [
        ("110003000040c1401d38710000007fe213f5e000", (1, 1, 0), write),
        ("110103000040c14028b5480000007f28ca746fe0", (1, 1, 1), "c14028b5480000007f28ca746fe0"),
        (
            "210203000040414300000000000000000000000100000000",
            (1, 2, 2),
            "414300000000000000000000000100000000",
        ),
        (
            "100007000000414100000000000000010000004000000000\
             ca52da0000007f58d49af000000000409bb7150000007f4335d32000",
            (0, 1, 0),
            "414100000000000000010000004000000000",
        ),
    ];
    for (payload, numbers, header) in cases {
        let mut end = End::with_config(Config { siw: true, ..config() });
        end.input(&[hex(untagged), hex(payload)].concat());
        let [Event::Terminated { by_peer: true, terminate }] = &end.events()[..] else {
            panic!("{payload}");
        };
        assert_eq!((terminate.layer, terminate.error_type, terminate.code), numbers);
        assert_eq!(
            (terminate.layout, terminate.ddp_header.as_slice()),
            (Layout::Siw, &hex(header)[..])
        );
        let read = terminate.read_request.map(|read| (read.source_stag, read.size));
        assert_eq!(read, (numbers.0 == 0).then_some((Stag(0x9bb7_1500), 64)));
    }
}
