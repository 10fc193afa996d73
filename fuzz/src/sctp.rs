//! Fuzz targets for SCTP: the parsers of packets and chunks, and an association that receives arbitrary packets.

use std::net::SocketAddr;
use std::sync::Arc;

use base::Instant;
use sctp_lite::sctp::{
    Association, Config, Cookie, Ends, Listener, ListenerResult, Secrets, State,
};
use sctp_lite::seam::{
    MessageOutcome, MessageRef, MessageSink, MessageSource, ReceivedMessage, TxBatch,
    WrittenMessage,
};
use wire::crc32c;
use wire::sctp::ddp::ControlRepr;
use wire::sctp::{Chunk, InitHeader, Packet, PacketBuilder, Parameter, Ports, Tag, Tsn, padded};

/// Checks that encoding and parsing do not change the chunks of a packet, nor DDP's session control messages (RFC 5043)
/// in DATA chunks.
pub(crate) fn sctp_packet(data: &[u8]) {
    let Ok(packet) = Packet::new(data) else { return };
    packet.checksum_ok();
    for raw in packet.chunks() {
        let Ok(raw) = raw else { break };
        let Ok(chunk) = Chunk::parse(raw) else { continue };
        let mut out = vec![0; 12 + padded(raw.bytes.len()) + 8 * raw.bytes.len()];
        let mut builder = PacketBuilder::new(&mut out, packet.ports(), packet.tag());
        if write_chunk(&chunk, &mut builder) {
            let len = builder.finish();
            let again = Packet::new(&out[..len]).expect("a common header");
            assert!(again.checksum_ok());
            let raw = again.chunks().next().expect("one chunk").expect("whole");
            assert_same(&chunk, &Chunk::parse(raw).expect("well formed"));
        }
        if let Chunk::Data(data) = chunk
            && let Ok(control) = ControlRepr::parse(data.payload)
        {
            let mut bytes = vec![0; control.wire_len()];
            control.emit(&mut bytes);
            assert_eq!(ControlRepr::parse(&bytes), Ok(control));
        }
    }
}

/// Appends a chunk to a packet. Returns false for an empty DATA chunk, malformed parameters or error causes, and chunk
/// types without an arm below.
fn write_chunk(chunk: &Chunk<'_>, b: &mut PacketBuilder<'_>) -> bool {
    let done = match chunk {
        Chunk::Data(data) => {
            let len = data.payload.len();
            if len == 0 {
                return false;
            }
            b.data_buffer()[..len].copy_from_slice(data.payload);
            b.push_data(&data.header, len)
        }
        Chunk::Init(init) | Chunk::InitAck(init) => {
            let Ok(parameters) = init.parameters().collect::<Result<Vec<_>, _>>() else {
                return false;
            };
            match chunk {
                Chunk::Init(_) => b.init(&init.header, &parameters),
                _ => b.init_ack(&init.header, &parameters),
            }
        }
        Chunk::Sack(sack) => {
            let gaps: Vec<_> = sack.gaps().collect();
            let duplicates: Vec<_> = sack.duplicates().collect();
            b.sack(sack.header, &gaps, &duplicates)
        }
        Chunk::Abort { causes, .. } | Chunk::Error(causes) => {
            let Ok(causes) = causes.into_iter().collect::<Result<Vec<_>, _>>() else {
                return false;
            };
            match chunk {
                Chunk::Abort { reflected, .. } => b.abort(*reflected, &causes),
                _ => b.error(&causes),
            }
        }
        Chunk::Shutdown { cumulative } => b.shutdown(*cumulative),
        Chunk::CookieEcho(cookie) => b.cookie_echo(cookie),
        Chunk::HeartbeatAck(value) => b.heartbeat_ack(value),
        _ => return false,
    };
    done.expect("room for the parsed chunk");
    true
}

fn assert_same(left: &Chunk<'_>, right: &Chunk<'_>) {
    match (left, right) {
        // Compared by decoded fields: the builder does not repeat undecoded bytes of the input.
        (Chunk::Init(a), Chunk::Init(b)) | (Chunk::InitAck(a), Chunk::InitAck(b)) => {
            assert_eq!(a.header, b.header);
            assert!(a.parameters().eq(b.parameters()));
        }
        (Chunk::Error(a), Chunk::Error(b))
        | (Chunk::Abort { causes: a, .. }, Chunk::Abort { causes: b, .. }) => {
            assert!(a.into_iter().eq(*b));
        }
        _ => assert_eq!(left, right),
    }
}

/// Upper layer that sends `messages_left` messages, and accepts received messages except those with a length of 6
/// modulo 7.
struct Upper {
    messages_left: u32,
}

impl MessageSink for Upper {
    fn deliver(&mut self, _now: Instant, message: ReceivedMessage<'_>) -> MessageOutcome {
        let len: usize = message.pieces.iter().map(|piece| piece.len()).sum();
        if len % 7 == 6 { MessageOutcome::Refused } else { MessageOutcome::Accepted }
    }

    fn free_space(&self) -> u32 {
        u32::MAX
    }
}

impl MessageSource for Upper {
    fn has_data(&self) -> bool {
        self.messages_left > 0
    }

    fn next(&mut self, _most: usize, out: &mut [u8]) -> Option<WrittenMessage> {
        let len = (self.messages_left * 100 % 1000 + 1) as u16;
        let out = out.get_mut(..usize::from(len)).filter(|_| self.messages_left > 0)?;
        out.fill(self.messages_left as u8);
        // Every second message is returned with its CRC32c, which a source may or may not know.
        let crc = self.messages_left.is_multiple_of(2).then(|| crc32c::update(0, out));
        self.messages_left -= 1;
        let message = MessageRef { stream: 0, len, tag: u64::from(self.messages_left) };
        Some(WrittenMessage { message, ppid: 16, immediate: false, crc, next_len: None })
    }

    fn rewrite(&mut self, message: MessageRef, out: &mut [u8]) {
        out.fill(message.tag as u8 + 1);
    }

    fn on_acknowledged(&mut self, _message: MessageRef) {}

    fn on_max_len_changed(&mut self, _most: usize) {}
}

#[derive(Default)]
pub(crate) struct Batch {
    packets: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Batch {
    pub(crate) fn packets(&self) -> &[Vec<u8>] {
        &self.packets
    }
}

impl TxBatch for Batch {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= 64 {
            return None;
        }
        self.buffer = vec![0; len];
        Some(&mut self.buffer)
    }

    fn commit(&mut self, len: usize) {
        self.packets.push(self.buffer[..len].to_vec());
    }
}

const PEER_TAG: Tag = Tag(0x0102_0304);
pub(crate) const PEER_TSN: Tsn = Tsn(0x1000);

pub(crate) fn ends() -> Ends {
    let local = SocketAddr::from(([10, 0, 0, 1], 9899));
    Ends { local, remote: ([10, 0, 0, 2], 4000).into() }
}

/// Returns a packet from the peer: a common header with `tag` and no checksum, then `chunks`.
pub(crate) fn packet(tag: Tag, chunks: &[u8]) -> Vec<u8> {
    let Ports { source, destination } = ends().ports().reversed();
    let mut bytes = Vec::new();
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend(tag.0.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(chunks);
    bytes
}

/// Passes arbitrary packets to an association. Input: one byte of configuration, then one record per packet: length,
/// delay, chunks. The packet arrives after the square of the delay byte, in ms. The two low bits of the delay byte also
/// select the verification tag. Configuration:
///
/// ```text
///   bit 0: active open, otherwise passive    bit 1: shutdown requested before the first packet
///   bit 2: the final ABORT is not transmitted    bit 3: lengths are in units of 8 bytes
///   bits 4 to 7: number of messages to send
/// ```
pub(crate) fn sctp_association(data: &[u8]) {
    let Some((&flags, mut rest)) = data.split_first() else { return };
    let mut now = Instant::from_millis(1);
    let mut upper = Upper { messages_left: u32::from(flags >> 4) };
    let (config, secrets) = config();
    let listener = Listener::new(config, secrets);
    let mut association = if flags & 1 == 0 { passive(now) } else { active(now) };
    if flags & 2 != 0 {
        association.shutdown(now);
    }
    drive(&mut association, now, &mut upper);
    while let Some((&[len, wait], after)) = rest.split_first_chunk::<2>() {
        let len = usize::from(len) * if flags & 8 == 0 { 1 } else { 8 };
        let (chunks, next) = after.split_at(len.min(after.len()));
        rest = next;
        now += core::time::Duration::from_millis(u64::from(wait).pow(2));
        let tag = [association.local_tag(), association.local_tag(), PEER_TAG, Tag::NONE];
        let bytes = packet(tag[usize::from(wait & 3)], chunks);
        let packet = Packet::new(&bytes).expect("a common header");
        // The input is arbitrary, so any drop reason is allowed.
        let _ = association.input(now, &packet, &mut upper);
        if association.poll_timeout().is_some_and(|at| at <= now) {
            association.handle_timeout(now);
        }
        drive(&mut association, now, &mut upper);
        // A listener answers the same packet with at most one packet, at most three times as long.
        let mut batch = Batch::default();
        let arrived = listener.input(now, &ends(), &packet, &mut batch);
        assert!(!matches!(arrived, ListenerResult::Accept(_)), "a forged cookie was accepted");
        let answered: usize = batch.packets.iter().map(Vec::len).sum();
        assert!(batch.packets.len() <= 1 && answered <= 3 * bytes.len(), "{answered} bytes");
    }
    finish(&mut association, now, &mut upper, flags & 4 == 0);
}

/// Aborts the association and checks that it ends. With `has_room` it ends when its ABORT is transmitted, otherwise
/// when its timer expires.
fn finish(association: &mut Association, now: Instant, upper: &mut Upper, has_room: bool) {
    association.abort(now, b"");
    while association.poll_event().is_some() {}
    if has_room {
        drive(association, now, upper);
    } else if let Some(at) = association.poll_timeout() {
        association.handle_timeout(at);
    }
    assert!(association.is_done(), "the association does not end");
    assert_eq!(association.poll_timeout(), None);
}

fn drive(association: &mut Association, now: Instant, upper: &mut Upper) {
    let mut batch = Batch::default();
    association.poll_transmit(now, upper, &mut batch);
    for bytes in batch.packets {
        let packet = Packet::new(&bytes).expect("a common header");
        assert!(packet.checksum_ok());
        for raw in packet.chunks() {
            Chunk::parse(raw.expect("whole")).expect("well formed");
        }
    }
    while association.poll_event().is_some() {}
}

fn config() -> (Arc<Config>, Arc<Secrets>) {
    (Arc::new(Config::default()), Arc::new(Secrets::new([1; 16])))
}

/// Returns an association in COOKIE-WAIT. Only packets of the input can complete its handshake.
fn active(now: Instant) -> Association {
    let (config, secrets) = config();
    Association::connect(config, secrets, ends(), 1480, now)
}

/// Returns an association in ESTABLISHED, created by the peer's COOKIE ECHO.
fn passive(now: Instant) -> Association {
    let (config, secrets) = config();
    let (cookie, echo) = cookie(now, &config, &secrets);
    let echo = Packet::new(&echo).expect("a packet");
    let mut association = Association::accept(config, secrets, ends(), 1480, &cookie, now);
    let taken = association.input(now, &echo, &mut Upper { messages_left: 0 });
    taken.result.expect("the listener accepts its own cookie");
    assert_eq!(association.state(), State::Established);
    association
}

/// Returns a valid State Cookie, and the peer's packet with the COOKIE ECHO that contains it.
pub(crate) fn cookie(
    now: Instant,
    config: &Arc<Config>,
    secrets: &Arc<Secrets>,
) -> (Cookie, Vec<u8>) {
    let listener = Listener::new(Arc::clone(config), Arc::clone(secrets));
    let header = InitHeader {
        tag: PEER_TAG,
        a_rwnd: 65_536,
        outbound_streams: 16,
        inbound_streams: 16,
        initial_tsn: PEER_TSN,
    };
    let mut out = [0; 256];
    let mut builder = PacketBuilder::new(&mut out, ends().ports().reversed(), Tag::NONE);
    builder.init(&header, &[Parameter::Adaptation(1)]).expect("room");
    let len = builder.finish();
    let mut batch = Batch::default();
    let init = Packet::new(&out[..len]).expect("a packet");
    assert_eq!(listener.input(now, &ends(), &init, &mut batch), ListenerResult::Answered);
    let answer = Packet::new(&batch.packets[0]).expect("a packet");
    let raw = answer.chunks().next().expect("a chunk").expect("whole");
    let Ok(Chunk::InitAck(init)) = Chunk::parse(raw) else { panic!("an INIT ACK") };
    let cookie = init.parameters().find_map(|parameter| match parameter {
        Ok(Parameter::StateCookie(cookie)) => Some(cookie),
        _ => None,
    });
    let mut builder = PacketBuilder::new(&mut out, ends().ports().reversed(), init.header.tag);
    builder.cookie_echo(cookie.expect("a cookie")).expect("room");
    let len = builder.finish();
    let echo = Packet::new(&out[..len]).expect("a packet");
    let ListenerResult::Accept(cookie) = listener.input(now, &ends(), &echo, &mut batch) else {
        panic!("a good cookie")
    };
    (cookie, out[..len].to_vec())
}
