//! Conversations over TCP with one wrong field: in an MPA start-up frame, an FPDU, a DDP segment or an RDMAP message.

use base::ErrorNumbers;
use ddp::rdmap::{AtomicOp, WorkRequest};
use ddp::{Cookie, TaggedOffset};
use sim::oracle::{self, StartFrame};
use tcp_lite::mpa::Revision;

use crate::connection::{Connection, GOOD, OPEN, OWN, REGION, SINK, Setting, Worker};
use crate::fields::{self, Field, field};
use crate::table::{self, Table};

/// A conversation, and the step in which a field is changed.
struct Conversation {
    name: &'static str,
    setting: Setting,
    /// Operation that the endpoint under test posts after the first message.
    post: Post,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Post {
    Nothing,
    Read,
    Atomic,
}

enum Step {
    /// The peer's MPA Request or Reply Frame.
    Start(Vec<Field>),
    /// A ULPDU in which a field is changed, and the MSN of the message after it.
    Ulpdu { bytes: Vec<u8>, fields: Vec<Field>, next_msn: u32 },
    /// A ULPDU whose FPDU has the changed field (header, marker, pad or CRC), and the MSN of the message after it.
    Fpdu { bytes: Vec<u8>, next_msn: u32 },
}

/// A changed field of a step. The CRC is computed over the changed bytes, unless the field is the CRC.
#[derive(Clone, Copy)]
struct Change {
    field: Field,
    value: u64,
}

/// Observed result of a conversation: how the stream ended, events, memory, and Terminates sent by the endpoint.
struct Observed {
    ended: bool,
    reason: String,
    events: Vec<String>,
    memory: Vec<Vec<u8>>,
    terminates: Vec<Vec<u8>>,
}

fn stream(markers: bool, crc: bool) -> oracle::Stream {
    let mut stream = oracle::Stream::default();
    (stream.markers, stream.crc) = (markers, crc);
    stream
}

pub(crate) fn send(control: u8, msn: u32, stag: u32, payload: &[u8]) -> Vec<u8> {
    let [a, b, c, d] = stag.to_be_bytes();
    oracle::untagged(1, true, [0x40 | control, a, b, c, d], 0, msn, 0, payload)
}

fn request(control: u8, qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    oracle::untagged(1, true, [0x40 | control, 0, 0, 0, 0], qn, msn, 0, payload)
}

fn read_request() -> Vec<u8> {
    let mut out = 0x123u32.to_be_bytes().to_vec();
    out.extend(16u64.to_be_bytes());
    out.extend(64u32.to_be_bytes());
    out.extend(OPEN.0.to_be_bytes());
    out.extend(32u64.to_be_bytes());
    out
}

pub(crate) fn read_request_message() -> Vec<u8> {
    request(1, 1, 1, &read_request())
}

pub(crate) fn atomic_request_message() -> Vec<u8> {
    request(10, 1, 1, &atomic_request())
}

fn atomic_request() -> Vec<u8> {
    let mut out = 0u32.to_be_bytes().to_vec();
    out.extend(0x77u32.to_be_bytes());
    out.extend(OPEN.0.to_be_bytes());
    out.extend(64u64.to_be_bytes());
    for word in [5u64, 0, 0, 0] {
        out.extend(word.to_be_bytes());
    }
    out
}

fn concat_fields(header: &[Field], payload: &[Field]) -> Vec<Field> {
    header.iter().chain(payload).copied().collect()
}

/// Returns the MPA fields of an FPDU: length, pad, CRC and markers. `offset`: position of the FPDU in the stream.
/// `ulpdu`: length of its ULPDU, bytes.
fn fpdu_fields(fpdu: &[u8], offset: usize, markers: bool, ulpdu: usize) -> Vec<Field> {
    let mut all = Vec::new();
    let end = fpdu.len() - 4;
    let mut at = 0;
    let mut body = 0;
    while at < end {
        if markers && (offset + at).is_multiple_of(512) {
            all.push(field("marker reserved", at * 8, 16));
            all.push(field("FPDUPTR", at * 8 + 16, 16));
            at += 4;
            continue;
        }
        if body == 0 {
            all.push(field("ULPDU_Length", at * 8, 16));
        }
        if body >= 2 + ulpdu {
            all.push(field("PAD", at * 8, 8));
        }
        at += 1;
        body += 1;
    }
    all.push(field("CRC", end * 8, 32));
    all
}

impl Conversation {
    fn start_frame(&self) -> Vec<u8> {
        let setting = &self.setting;
        let two = setting.revision == Revision::Two;
        // Enhanced data: IRD 3, ORD 3. Flag A requests the peer-to-peer model, flag C an RDMA Write as ready-to-receive
        // message.
        let private_data = match (two, setting.peer_to_peer) {
            (false, _) => b"priv".to_vec(),
            (true, false) => vec![0, 3, 0, 3],
            (true, true) => vec![0x80, 3, 0x80, 3],
        };
        StartFrame {
            key: if setting.is_initiator { StartFrame::REPLY } else { StartFrame::REQUEST },
            markers: false,
            crc: setting.crc,
            reject: false,
            reserved: if two { 0x10 } else { 0 },
            revision: setting.revision.number(),
            claimed_length: None,
            private_data,
        }
        .bytes()
    }

    /// Runs the conversation, with or without a change. Checks that a second stream of the same worker continues.
    fn play(&self, change: Option<Change>) -> Observed {
        let mut worker = Worker::new();
        let good_setting = Setting { name: "good", ..RDMAP };
        let mut good = Connection::new(good_setting, 2, &mut worker);
        let mut good_stream = stream(false, true);
        good_stream.raw(
            &Conversation {
                name: "",
                setting: good_setting,
                post: Post::Nothing,
                step: Step::Start(Vec::new()),
            }
            .start_frame(),
        );
        good_stream.fpdu(&send(3, 1, 0, b"before"), oracle::Flaw::None);
        good.input_bytes(good_stream.bytes(), &mut worker);

        let mut line = Connection::new(self.setting, 1, &mut worker);
        let mut start = self.start_frame();
        if let (Step::Start(_), Some(change)) = (&self.step, change) {
            change.field.set(&mut start, change.value);
        }
        let markers_tx = start[16] & 0x80 != 0;
        line.input_bytes(&start, &mut worker);
        let mut stream = stream(self.setting.markers, self.setting.crc);
        let mut sent_len = 0;
        let mut give = |stream: &oracle::Stream, line: &mut Connection, worker: &mut Worker| {
            line.input_bytes(&stream.bytes()[sent_len..], worker);
            sent_len = stream.len();
        };
        stream.fpdu(&self.first(), oracle::Flaw::None);
        give(&stream, &mut line, &mut worker);
        let mut next_msn = 2;
        if !line.is_over() {
            self.post(&mut line, &mut worker);
            let mut bytes = match &self.step {
                Step::Start(_) => None,
                Step::Ulpdu { bytes, next_msn: msn, .. } | Step::Fpdu { bytes, next_msn: msn } => {
                    next_msn = *msn;
                    Some(self.answered(bytes, &line))
                }
            };
            if let (Step::Ulpdu { .. }, Some(bytes), Some(change)) =
                (&self.step, &mut bytes, change)
            {
                change.field.set(bytes, change.value);
            }
            if let Some(bytes) = bytes {
                let from = stream.len();
                stream.fpdu(&bytes, oracle::Flaw::None);
                let mut fpdu = stream.bytes()[from..].to_vec();
                if let (Step::Fpdu { .. }, Some(change)) = (&self.step, change) {
                    change.field.set(&mut fpdu, change.value);
                    let end = fpdu.len() - 4;
                    if change.field.at != end * 8 && self.setting.crc {
                        let crc = oracle::crc32c(&fpdu[..end]).to_le_bytes();
                        fpdu[end..].copy_from_slice(&crc);
                    }
                }
                line.input_bytes(&fpdu, &mut worker);
                sent_len = stream.len();
            }
            stream.fpdu(&self.last(next_msn), oracle::Flaw::None);
            line.input_bytes(&stream.bytes()[sent_len..], &mut worker);
        }
        line.settle(&mut worker);
        let over = line.is_over();
        let (events, memory) = (line.events.clone(), worker.writable_memory());

        // The second stream of the worker still delivers a Write and a Send.
        let from = good_stream.len();
        good_stream.fpdu(&oracle::tagged(1, true, 0x40, GOOD.0, 8, &[7; 600]), oracle::Flaw::None);
        good_stream.fpdu(&send(3, 2, 0, b"behind"), oracle::Flaw::None);
        good.input_bytes(&good_stream.bytes()[from..], &mut worker);
        assert_eq!(worker.second_region()[8..608], [7; 600], "the second stream's Write");
        assert!(
            good.events.iter().any(|event| event.contains(
                "behind"
                    .as_bytes()
                    .iter()
                    .map(u8::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
                    .as_str()
            )),
            "{:?}",
            good.events
        );
        assert!(!good.is_over());

        line.close_and_check(&mut worker);
        let reason = line.closed.as_ref().expect("the stream has ended");
        let numbers = reason.numbers();
        let code = numbers.map_or(String::new(), |numbers| format!(" {numbers}"));
        let terminates: Vec<Vec<u8>> = match self.setting.rdmap {
            true => line
                .ulpdus(markers_tx)
                .into_iter()
                .filter(|u| u[0] & 0x80 == 0 && u[1] & 15 == 7)
                .map(|u| u[18..].to_vec())
                .collect(),
            false => line
                .ulpdus(markers_tx)
                .into_iter()
                .filter(|u| u[0] & 0x80 == 0 && u[9] == 2)
                .map(|u| u[18..].to_vec())
                .collect(),
        };
        if let (true, Some(terminate)) = (self.setting.rdmap, terminates.first()) {
            let seen = ErrorNumbers::new(terminate[0] >> 4, terminate[0] & 15, terminate[1]);
            assert_eq!(Some(seen), numbers, "the Terminate differs from the reason {reason}");
        }
        let reason = format!("{}{code}", reason.name());
        good.close_and_check(&mut worker);
        worker.check();
        Observed { ended: over, reason, events, memory, terminates }
    }

    fn first(&self) -> Vec<u8> {
        match self.setting.rdmap {
            true => send(3, 1, 0, b"first"),
            false => oracle::untagged(1, true, [0; 5], 0, 1, 0, b"first"),
        }
    }

    fn last(&self, msn: u32) -> Vec<u8> {
        match self.setting.rdmap {
            true => send(3, msn, 0, b"last"),
            false => oracle::untagged(1, true, [0; 5], 0, msn, 0, b"last"),
        }
    }

    fn post(&self, line: &mut Connection, worker: &mut Worker) {
        let (source_stag, source_to, cookie) = (ddp::Stag(1), TaggedOffset(0), Cookie::user(1));
        match self.post {
            Post::Nothing => {}
            Post::Read => {
                let (sink_stag, sink_to, len) = (SINK, TaggedOffset(16), 64);
                line.post(
                    WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len, cookie },
                    worker,
                );
            }
            Post::Atomic => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                line.post(
                    WorkRequest::Atomic { op, stag: source_stag, to: source_to, cookie },
                    worker,
                );
            }
        }
    }

    /// Returns a copy of `bytes`. If they are an Atomic Response, copies the identifier of the endpoint's Atomic
    /// Request into it.
    fn answered(&self, bytes: &[u8], line: &Connection) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if self.post == Post::Atomic {
            let sent = line.ulpdus(false);
            let request = sent.iter().find(|u| u[1] & 15 == 10).expect("the request was sent");
            bytes[18..22].copy_from_slice(&request[22..26]);
        }
        bytes
    }

    fn steps(&self) -> (Vec<u8>, Vec<Field>) {
        match &self.step {
            Step::Start(fields) => (self.start_frame(), fields.clone()),
            Step::Ulpdu { bytes, fields, .. } => (bytes.clone(), fields.clone()),
            Step::Fpdu { bytes, .. } => {
                let mut stream = stream(self.setting.markers, self.setting.crc);
                stream.fpdu(&self.first(), oracle::Flaw::None);
                let from = stream.len();
                stream.fpdu(bytes, oracle::Flaw::None);
                let fpdu = stream.bytes()[from..].to_vec();
                let fields = fpdu_fields(&fpdu, from, self.setting.markers, bytes.len());
                (fpdu, fields)
            }
        }
    }

    /// Runs the conversation with each value of each field, and records the outcomes.
    fn run(&self, table: &mut Table) {
        let as_it_is = self.play(None);
        assert!(!as_it_is.ended || self.name == "terminate", "{}: {}", self.name, as_it_is.reason);
        let (bytes, fields) = self.steps();
        for field in fields {
            let legal = field.get(&bytes);
            for value in field.values(legal) {
                let observed = self.play(Some(Change { field, value }));
                let same = observed.events == as_it_is.events && observed.memory == as_it_is.memory;
                let outcome =
                    if observed.ended && (observed.reason != as_it_is.reason || !as_it_is.ended) {
                        let (reason, sent) = (&observed.reason, observed.terminates.len());
                        assert!(sent <= 1, "{sent} last messages");
                        format!("{reason}{}", if sent == 1 { ", told" } else { "" })
                    } else if same {
                        "harmless".to_owned()
                    } else if table::has_last_message(&observed.events) {
                        "goes on".to_owned()
                    } else {
                        format!("waits, then {}", observed.reason)
                    };
                table.record(self.name, self.setting.name, field.name, value, outcome);
            }
        }
    }
}

const RDMAP: Setting = Setting {
    name: "rev 1",
    is_initiator: false,
    revision: Revision::One,
    markers: false,
    crc: true,
    rdmap: true,
    peer_to_peer: false,
};

/// Settings for the conversations with DDP and RDMAP headers. Outcomes must not depend on the setting.
const SETTINGS: [Setting; 4] = [
    RDMAP,
    Setting { name: "markers", markers: true, ..RDMAP },
    Setting { name: "no CRC", crc: false, ..RDMAP },
    Setting { name: "rev 2", revision: Revision::Two, markers: true, ..RDMAP },
];

/// Runs all conversations with each value of each field.
pub(crate) fn run(table: &mut Table) {
    conversations().iter().for_each(|conversation| conversation.run(table));
}

fn conversations() -> Vec<Conversation> {
    let mut all = Vec::new();
    for setting in SETTINGS {
        let mut add = |name, post, bytes: Vec<u8>, fields: Vec<Field>, next_msn| {
            all.push(Conversation {
                name,
                setting,
                post,
                step: Step::Ulpdu { bytes, fields, next_msn },
            });
        };
        let untagged = |payload| concat_fields(fields::UNTAGGED, payload);
        add("send", Post::Nothing, send(3, 2, 0, &[1; 40]), untagged(&[]), 3);
        add("send with invalidate", Post::Nothing, send(4, 2, OWN.0, &[1; 40]), untagged(&[]), 3);
        add("send with solicited event", Post::Nothing, send(5, 2, 0, &[1; 40]), untagged(&[]), 3);
        add("send with both", Post::Nothing, send(6, 2, OWN.0, &[1; 40]), untagged(&[]), 3);
        add("immediate", Post::Nothing, send(8, 2, 0, &[1; 8]), untagged(&[]), 3);
        add(
            "immediate with solicited event",
            Post::Nothing,
            send(9, 2, 0, &[1; 8]),
            untagged(&[]),
            3,
        );
        add(
            "write",
            Post::Nothing,
            oracle::tagged(1, true, 0x40, OPEN.0, 16, &[9; 64]),
            fields::TAGGED.to_vec(),
            2,
        );
        add(
            "read request",
            Post::Nothing,
            request(1, 1, 1, &read_request()),
            untagged(fields::READ_REQUEST),
            2,
        );
        add(
            "read response",
            Post::Read,
            oracle::tagged(1, true, 0x42, SINK.0, 16, &[8; 64]),
            fields::TAGGED.to_vec(),
            2,
        );
        add(
            "atomic request",
            Post::Nothing,
            request(10, 1, 1, &atomic_request()),
            untagged(fields::ATOMIC_REQUEST),
            2,
        );
        add(
            "atomic response",
            Post::Atomic,
            request(11, 3, 1, &[0; 12]),
            untagged(fields::ATOMIC_RESPONSE),
            2,
        );
        add(
            "terminate",
            Post::Nothing,
            request(7, 2, 1, &[0x11, 1, 0, 0]),
            untagged(fields::TERMINATE),
            2,
        );
    }
    let bare = Setting { name: "bare DDP", rdmap: false, ..RDMAP };
    for setting in [bare, Setting { name: "bare DDP, markers", markers: true, ..bare }] {
        let tagged = oracle::tagged(1, true, 0, OPEN.0, 16, &[9; 64]);
        let untagged = oracle::untagged(1, true, [0; 5], 0, 2, 0, &[1; 40]);
        let step = Step::Ulpdu { bytes: tagged, fields: bare_ddp(fields::TAGGED), next_msn: 2 };
        all.push(Conversation { name: "ddp tagged", setting, post: Post::Nothing, step });
        let step = Step::Ulpdu { bytes: untagged, fields: bare_ddp(fields::UNTAGGED), next_msn: 3 };
        all.push(Conversation { name: "ddp untagged", setting, post: Post::Nothing, step });
    }
    for setting in [
        RDMAP,
        Setting { name: "markers", markers: true, ..RDMAP },
        Setting { name: "no CRC", crc: false, ..RDMAP },
    ] {
        let name = if setting.markers {
            "fpdu with markers"
        } else if setting.crc {
            "fpdu"
        } else {
            "fpdu without crc"
        };
        let bytes = oracle::tagged(1, true, 0x40, OPEN.0, 16, &[9; 1101]);
        all.push(Conversation {
            name,
            setting,
            post: Post::Nothing,
            step: Step::Fpdu { bytes, next_msn: 2 },
        });
    }
    all.extend(startups());
    all
}

/// Returns `fields` with RsvdULP in place of the fields of RDMAP. In bare DDP, the whole RsvdULP belongs to the ULP
/// (RFC 5041 §4).
fn bare_ddp(fields: &[Field]) -> Vec<Field> {
    let mut all = vec![field("RsvdULP", 8, 8)];
    for other in fields {
        match other.name {
            "RV" | "RDMAP reserved" | "opcode" => {}
            "Invalidate STag" => all.push(field("RsvdULP", other.at, other.bits)),
            _ => all.push(*other),
        }
    }
    all
}

fn startups() -> Vec<Conversation> {
    let key: Vec<Field> = (0..16).map(|byte| field("key", byte * 8, 8)).collect();
    let plain = concat_fields(&key, fields::START_FRAME);
    let enhanced = concat_fields(&plain, fields::ENHANCED);
    let two = Setting { revision: Revision::Two, ..RDMAP };
    let opens = |setting| Setting { is_initiator: true, ..setting };
    let p2p = |setting| Setting { peer_to_peer: true, ..setting };
    let zero = Setting { revision: Revision::Zero, rdmap: false, ..RDMAP };
    [
        ("request, rev 0", zero, &plain),
        ("request, rev 1", RDMAP, &plain),
        ("request, rev 2", two, &enhanced),
        ("reply, rev 0", opens(zero), &plain),
        ("reply, rev 1", opens(RDMAP), &plain),
        ("reply, rev 2", opens(two), &enhanced),
        ("reply, rev 2, peer to peer", p2p(opens(two)), &enhanced),
    ]
    .into_iter()
    .map(|(name, setting, fields)| Conversation {
        name,
        setting,
        post: Post::Nothing,
        step: Step::Start(fields.clone()),
    })
    .collect()
}

const _: () = assert!(REGION.end - REGION.start == 2048);
