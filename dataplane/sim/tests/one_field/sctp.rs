//! Conversations over SCTP with one wrong field: in a chunk, a session control message, or a DDP segment.

use base::ErrorNumbers;

use crate::association::{Association, chunk, data};
use crate::connection::{GOOD, OPEN, OWN, Worker};
use crate::fields::{self, Field, field};
use crate::table::{self, Table};
use crate::tcp;

/// Packet of the conversation whose field is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Init,
    CookieEcho,
    Initiate,
    Segment,
    Sack,
    Terminate,
    Heartbeat,
    Shutdown,
    Abort,
    Error,
}

struct Conversation {
    name: &'static str,
    step: Step,
    /// ULPDU between the first and the last message.
    segment: Vec<u8>,
    /// True if `segment` is a Send, so that the last message has MSN 3 instead of 2.
    is_send: bool,
    fields: Vec<Field>,
}

struct Observed {
    ended: bool,
    reason: String,
    events: Vec<String>,
    memory: Vec<Vec<u8>>,
    /// Packet of the conversation's step before the change.
    legal: Vec<u8>,
}

/// Encodes the user message of a DDP segment: DDP-SSN, then ULPDU (RFC 5043 §5).
fn segment(ssn: u16, ulpdu: &[u8]) -> Vec<u8> {
    let mut message = ssn.to_be_bytes().to_vec();
    message.extend(ulpdu);
    message
}

fn control(ssn: u16, function: u16, private_data: &[u8]) -> Vec<u8> {
    let mut message = ssn.to_be_bytes().to_vec();
    message.extend(function.to_be_bytes());
    message.extend(private_data);
    message
}

/// Common header and header of the first chunk (RFC 9260 §3.1, §3.2).
const PACKET: &[Field] = &[
    field("verification tag", 32, 32),
    field("chunk type", 96, 8),
    field("chunk flags", 104, 8),
    field("chunk length", 112, 16),
];

/// INIT (RFC 9260 §3.3.2) with one adaptation indication (RFC 5061 §4.2.6).
const INIT: &[Field] = &[
    field("initiate tag", 128, 32),
    field("a_rwnd", 160, 32),
    field("outbound streams", 192, 16),
    field("inbound streams", 208, 16),
    field("initial TSN", 224, 32),
    field("parameter type", 256, 16),
    field("parameter length", 272, 16),
    field("adaptation", 288, 32),
];

/// DATA (RFC 9260 §3.3.1) with the DDP-SSN.
const DATA: &[Field] = &[
    field("TSN", 128, 32),
    field("stream identifier", 160, 16),
    field("stream sequence number", 176, 16),
    field("PPID", 192, 32),
    field("DDP-SSN", 224, 16),
];

const CONTROL: &[Field] = &[field("function code", 240, 16)];

/// SACK (RFC 9260 §3.3.4).
const SACK: &[Field] = &[
    field("cumulative TSN", 128, 32),
    field("a_rwnd", 160, 32),
    field("gaps", 192, 16),
    field("duplicates", 208, 16),
];

fn joined(lists: &[&[Field]]) -> Vec<Field> {
    lists.concat()
}

/// Returns the fields of a ULPDU at their position in a packet: 30 bytes later, after common header, DATA header and
/// DDP-SSN.
fn offset_behind_data(fields: &[Field]) -> Vec<Field> {
    fields.iter().map(|other| Field { at: other.at + 240, ..*other }).collect()
}

impl Conversation {
    fn play(&self, change: Option<(Field, u64)>) -> Observed {
        let mut worker = Worker::new();
        let mut good = Association::new(2);
        self.open(&mut good, &mut worker, None, &mut Vec::new());
        good.input(
            good.packet_with(&data(1, 16, &segment(1, &tcp::send(3, 1, 0, b"before")))),
            &mut worker,
        );

        let mut peer = Association::new(1);
        let mut legal = Vec::new();
        self.open(&mut peer, &mut worker, change, &mut legal);
        if peer.is_up() {
            self.exchange_data(&mut peer, &mut worker, change, &mut legal);
        }
        peer.settle(&mut worker);
        let is_terminate = |ulpdu: &&Vec<u8>| ulpdu[0] & 0x80 == 0 && ulpdu[1] & 15 == 7;
        let terminate = peer.ulpdus.iter().find(is_terminate).cloned();
        let (aborted, over) = (peer.aborted, peer.is_over() || peer.aborted || terminate.is_some());
        let (events, memory) = (peer.events.clone(), worker.writable_memory());

        let write = sim::oracle::tagged(1, true, 0x40, GOOD.0, 8, &[7; 600]);
        good.input(good.packet_with(&data(2, 16, &segment(2, &write))), &mut worker);
        good.input(
            good.packet_with(&data(3, 16, &segment(3, &tcp::send(3, 2, 0, b"behind")))),
            &mut worker,
        );
        assert_eq!(worker.second_region()[8..608], [7; 600], "the second association's Write");
        let text = format!("{:?}", b"behind");
        assert!(good.events.iter().any(|event| event.contains(&text)), "{:?}", good.events);
        assert!(!good.is_over());

        // A failed session reports its reason only after the peer's answer to its Terminate, or the end of the
        // association.
        peer.abort_and_check(&mut worker);
        let mut reason = match (&peer.closed, &peer.down_reason) {
            (Some((name, Some(numbers))), _) => format!("{name} {numbers}"),
            (Some((name, None)), _) => name.clone(),
            (None, Some(name)) => format!("{name}, no session"),
            (None, None) => "no association".to_owned(),
        };
        if let Some(terminate) = terminate {
            let seen = ErrorNumbers::new(terminate[18] >> 4, terminate[18] & 15, terminate[19]);
            // A message sequence that RFC 5043 §6 does not allow has no error numbers. The Terminate then reports a
            // local catastrophic error.
            let local = ErrorNumbers::new(2, 0, 5);
            let closed = peer.closed.as_ref().map(|(_, numbers)| numbers.unwrap_or(local));
            assert_eq!(Some(seen), closed, "the Terminate differs from the reason");
            reason += ", told";
        }
        if aborted {
            reason += ", aborted";
        }
        good.abort_and_check(&mut worker);
        worker.check();
        Observed { ended: over, reason, events, memory, legal }
    }

    /// Sends INIT, COOKIE ECHO and Initiate, and acknowledges the endpoint's reply.
    fn open(
        &self,
        peer: &mut Association,
        worker: &mut Worker,
        change: Option<(Field, u64)>,
        legal: &mut Vec<u8>,
    ) {
        let init = self.apply_change(Step::Init, peer.init(), change, legal);
        peer.input(init, worker);
        let echo = self.apply_change(Step::CookieEcho, peer.cookie_echo(), change, legal);
        peer.input(echo, worker);
        let initiate = peer.packet_with(&data(0, 17, &control(0, 1, b"hello")));
        let initiate = self.apply_change(Step::Initiate, initiate, change, legal);
        peer.input(initiate, worker);
        peer.acknowledge(worker);
    }

    fn exchange_data(
        &self,
        peer: &mut Association,
        worker: &mut Worker,
        change: Option<(Field, u64)>,
        legal: &mut Vec<u8>,
    ) {
        let first = segment(1, &tcp::send(3, 1, 0, b"first"));
        peer.input(peer.packet_with(&data(1, 16, &first)), worker);
        let step = peer.packet_with(&data(2, 16, &segment(2, &self.segment)));
        let step = self.apply_change(Step::Segment, step, change, legal);
        peer.input(step, worker);
        let msn = if self.is_send { 3 } else { 2 };
        let control_chunk = match self.step {
            Step::Sack => {
                let mut value = peer.last_tsn().to_be_bytes().to_vec();
                value.extend(65_536u32.to_be_bytes());
                value.extend([0; 4]);
                Some(chunk(3, 0, &value))
            }
            Step::Heartbeat => Some(chunk(4, 0, &[0, 1, 0, 8, 1, 2, 3, 4])),
            Step::Error => Some(chunk(9, 0, &[0, 1, 0, 8, 0, 9, 0, 0])),
            _ => None,
        };
        if let Some(bytes) = control_chunk {
            let packet = self.apply_change(self.step, peer.packet_with(&bytes), change, legal);
            peer.input(packet, worker);
        }
        let last = segment(3, &tcp::send(3, msn, 0, b"last"));
        peer.input(peer.packet_with(&data(3, 16, &last)), worker);
        peer.acknowledge(worker);
        let end = match self.step {
            Step::Terminate => Some(data(4, 17, &control(4, 4, b""))),
            Step::Shutdown => Some(chunk(7, 0, &peer.last_tsn().to_be_bytes())),
            Step::Abort => Some(chunk(6, 0, &[0, 12, 0, 8, 1, 2, 3, 4])),
            _ => None,
        };
        if let Some(bytes) = end {
            let packet = self.apply_change(self.step, peer.packet_with(&bytes), change, legal);
            peer.input(packet, worker);
        }
    }

    fn apply_change(
        &self,
        step: Step,
        mut bytes: Vec<u8>,
        change: Option<(Field, u64)>,
        legal: &mut Vec<u8>,
    ) -> Vec<u8> {
        if step == self.step {
            legal.clone_from(&bytes);
        }
        if let Some((field, value)) = change.filter(|_| step == self.step) {
            field.set(&mut bytes, value);
        }
        bytes
    }
}

/// Runs all conversations with each value of each field.
pub(crate) fn run(table: &mut Table) {
    for conversation in conversations() {
        let as_it_is = conversation.play(None);
        for field in &conversation.fields {
            let legal = field.get(&as_it_is.legal);
            for value in field.values(legal) {
                let observed = conversation.play(Some((*field, value)));
                let same = observed.events == as_it_is.events && observed.memory == as_it_is.memory;
                let outcome = if same && observed.reason == as_it_is.reason {
                    "harmless".to_owned()
                } else if observed.ended {
                    observed.reason
                } else if table::has_last_message(&observed.events) {
                    "goes on".to_owned()
                } else {
                    format!("waits, {}", observed.reason)
                };
                table.record(conversation.name, "", field.name, value, outcome);
            }
        }
    }
}

fn conversations() -> Vec<Conversation> {
    let send = tcp::send(3, 2, 0, &[1; 40]);
    let plain = |name, step, fields| Conversation {
        name,
        step,
        segment: send.clone(),
        is_send: true,
        fields,
    };
    let mut all = vec![
        plain("INIT", Step::Init, joined(&[PACKET, INIT])),
        plain("COOKIE ECHO", Step::CookieEcho, PACKET.to_vec()),
        plain("Initiate", Step::Initiate, joined(&[PACKET, DATA, CONTROL])),
        plain("SACK", Step::Sack, joined(&[PACKET, SACK])),
        plain(
            "HEARTBEAT",
            Step::Heartbeat,
            joined(&[PACKET, &[field("info type", 128, 16), field("info length", 144, 16)]]),
        ),
        plain(
            "ERROR",
            Step::Error,
            joined(&[PACKET, &[field("cause", 128, 16), field("cause length", 144, 16)]]),
        ),
        plain("Terminate", Step::Terminate, joined(&[PACKET, DATA, CONTROL])),
        plain("SHUTDOWN", Step::Shutdown, joined(&[PACKET, &[field("cumulative TSN", 128, 32)]])),
        plain(
            "ABORT",
            Step::Abort,
            joined(&[PACKET, &[field("cause", 128, 16), field("cause length", 144, 16)]]),
        ),
    ];
    let with = |name, segment: Vec<u8>, is_send, header: &[Field], more: &[Field]| Conversation {
        name,
        step: Step::Segment,
        segment,
        is_send,
        fields: joined(&[PACKET, DATA, &offset_behind_data(header), &offset_behind_data(more)]),
    };
    all.push(with("send", send.clone(), true, fields::UNTAGGED, &[]));
    all.push(with(
        "send with invalidate",
        tcp::send(4, 2, OWN.0, &[1; 40]),
        true,
        fields::UNTAGGED,
        &[],
    ));
    let write = sim::oracle::tagged(1, true, 0x40, OPEN.0, 16, &[9; 64]);
    all.push(with("write", write, false, fields::TAGGED, &[]));
    all.push(with(
        "read request",
        tcp::read_request_message(),
        false,
        fields::UNTAGGED,
        fields::READ_REQUEST,
    ));
    all.push(with(
        "atomic request",
        tcp::atomic_request_message(),
        false,
        fields::UNTAGGED,
        fields::ATOMIC_REQUEST,
    ));
    all
}
