//! An SCTP endpoint that sends raw packets: associations from any address, and arbitrary chunks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etherparse::IpNumber;
use wire::sctp::ddp::{self, ControlRepr, DdpSsn, Function};
use wire::sctp::{
    Chunk, DataHeader, GapBlock, InitHeader, Packet, PacketBuilder, Parameter, Ports, SackHeader,
    Tag, Tsn,
};

use crate::attack_context::AttackContext;
use crate::attacker_port::Answer;

/// Maximum wait for an answer of the target.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// State of an association.
#[derive(Clone, Debug)]
pub(crate) struct RawSctp {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Verification tag of received packets; `peer_tag` is the tag of sent packets.
    pub(crate) own_tag: u32,
    pub(crate) peer_tag: u32,
    /// Next TSN to send.
    pub(crate) tsn: u32,
    /// TSN of the last received DATA chunk. Before the first chunk, the peer's initial TSN minus 1.
    pub(crate) last_tsn: u32,
}

/// A message that arrived unfragmented, in one DATA chunk.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) stream: u16,
    pub(crate) ppid: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawSctp {
    /// Returns an association that has sent no packet yet.
    pub(crate) fn new(
        context: &mut AttackContext<'_>,
        from: IpAddr,
        remote: SocketAddr,
    ) -> RawSctp {
        let local = SocketAddr::new(from, context.next_port());
        let own_tag = context.random.u32(1..);
        RawSctp { local, remote, own_tag, peer_tag: 0, tsn: context.random.u32(..), last_tsn: 0 }
    }

    /// Builds a packet with verification tag `tag` and the chunks that `build` appends.
    pub(crate) fn build_packet(
        &self,
        tag: u32,
        build: impl FnOnce(&mut PacketBuilder<'_>) -> Result<(), wire::sctp::PacketFull>,
    ) -> Result<Vec<u8>> {
        let ports = Ports { source: self.local.port(), destination: self.remote.port() };
        let mut room = [0; 1440];
        let mut builder = PacketBuilder::new(&mut room, ports, Tag(tag));
        build(&mut builder)?;
        let len = builder.finish();
        Ok(room[..len].to_vec())
    }

    pub(crate) fn send(&self, context: &mut AttackContext<'_>, packet: &[u8]) -> Result<()> {
        context.station.send_ip(self.local.ip(), self.remote.ip(), IpNumber::SCTP, None, packet)
    }

    /// Builds an INIT with 64 streams in each direction and DDP's adaptation indication.
    pub(crate) fn build_init(&self) -> Result<Vec<u8>> {
        let header = InitHeader {
            tag: Tag(self.own_tag),
            a_rwnd: 1 << 20,
            outbound_streams: 64,
            inbound_streams: 64,
            initial_tsn: Tsn(self.tsn),
        };
        self.build_packet(0, |b| b.init(&header, &[Parameter::Adaptation(ddp::ADAPTATION_DDP)]))
    }

    /// Sends an INIT, waits for the INIT ACK and returns its cookie. Sets `peer_tag` and `last_tsn`.
    pub(crate) fn request_cookie(&mut self, context: &mut AttackContext<'_>) -> Result<Vec<u8>> {
        let init = self.build_init()?;
        self.send(context, &init)?;
        let mine = self.clone();
        let found = context.station.wait_answer(ANSWER_TIMEOUT, |answer| {
            mine.find_chunk(answer, |chunk| match chunk {
                Chunk::InitAck(init) => {
                    let cookie = init.parameters().find_map(|p| match p {
                        Ok(Parameter::StateCookie(cookie)) => Some(cookie.to_vec()),
                        _ => None,
                    })?;
                    Some((init.header.tag.0, init.header.initial_tsn.0, cookie))
                }
                _ => None,
            })
        });
        let (tag, first, cookie) = found.context("no INIT ACK")?;
        (self.peer_tag, self.last_tsn) = (tag, first.wrapping_sub(1));
        Ok(cookie)
    }

    /// Opens the association by the four-way handshake.
    pub(crate) fn open(&mut self, context: &mut AttackContext<'_>) -> Result<()> {
        let cookie = self.request_cookie(context)?;
        let echo = self.build_packet(self.peer_tag, |b| b.cookie_echo(&cookie))?;
        self.send(context, &echo)?;
        let mine = self.clone();
        let up = context.station.wait_answer(ANSWER_TIMEOUT, |answer| {
            mine.find_chunk(answer, |chunk| match chunk {
                Chunk::CookieAck => Some(true),
                Chunk::Abort { .. } => Some(false),
                _ => None,
            })
        });
        anyhow::ensure!(up == Some(true), "no COOKIE ACK but {up:?}");
        Ok(())
    }

    /// Sends one DATA chunk in its own packet, unordered as RFC 5043 §10 requires. The chunk has the association's next
    /// TSN.
    pub(crate) fn send_data(
        &mut self,
        context: &mut AttackContext<'_>,
        header: DataHeader,
        payload: &[u8],
    ) -> Result<()> {
        let tsn = Tsn(self.tsn);
        self.tsn = self.tsn.wrapping_add(1);
        let header = DataHeader { tsn, unordered: true, ..header };
        let packet = self.build_packet(self.peer_tag, |b| {
            b.data_buffer()[..payload.len()].copy_from_slice(payload);
            b.push_data(&header, payload.len())
        })?;
        self.send(context, &packet)
    }

    /// Sends an unfragmented message in one packet.
    pub(crate) fn send_message(
        &mut self,
        context: &mut AttackContext<'_>,
        stream: u16,
        ppid: u32,
        payload: &[u8],
    ) -> Result<()> {
        let header = DataHeader { stream, ppid, begin: true, end: true, ..DataHeader::default() };
        self.send_data(context, header, payload)
    }

    /// Sends a session control message.
    pub(crate) fn send_control(
        &mut self,
        context: &mut AttackContext<'_>,
        stream: u16,
        ssn: u16,
        function: Function,
    ) -> Result<()> {
        let repr = ControlRepr { ssn: DdpSsn(ssn), function, private_data: &[] };
        let mut bytes = vec![0; repr.wire_len()];
        repr.emit(&mut bytes);
        self.send_message(context, stream, ddp::PPID_CONTROL, &bytes)
    }

    /// Sends a DDP segment with DDP-SSN `ssn`.
    pub(crate) fn send_segment(
        &mut self,
        context: &mut AttackContext<'_>,
        stream: u16,
        ssn: u16,
        segment: &[u8],
    ) -> Result<()> {
        let bytes = [&ssn.to_be_bytes()[..], segment].concat();
        self.send_message(context, stream, ddp::PPID_SEGMENT, &bytes)
    }

    /// Waits at most `time` for a message that `pick` accepts. Acknowledges each received DATA chunk with a SACK.
    /// `None` if none arrives in time.
    pub(crate) fn wait_message<T>(
        &mut self,
        context: &mut AttackContext<'_>,
        time: Duration,
        mut pick: impl FnMut(&Message) -> Option<T>,
    ) -> Option<T> {
        let until = std::time::Instant::now() + time;
        let mine = self.clone();
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let (tsn, message) = context.station.wait_answer(left, |answer| {
                mine.find_chunk(answer, |chunk| match chunk {
                    Chunk::Data(data) => {
                        let (stream, ppid) = (data.header.stream, data.header.ppid);
                        let payload = data.payload.to_vec();
                        Some((data.header.tsn.0, Message { stream, ppid, payload }))
                    }
                    _ => None,
                })
            })?;
            self.last_tsn = tsn;
            let header = SackHeader { cumulative: Tsn(tsn), a_rwnd: 1 << 20 };
            let sack = self
                .build_packet(self.peer_tag, |b| b.sack(header, &[] as &[GapBlock], &[]))
                .ok()?;
            self.send(context, &sack).ok()?;
            if let Some(picked) = pick(&message) {
                return Some(picked);
            }
        }
    }

    /// Initiates a session. Returns true if the target accepts the session.
    pub(crate) fn open_session(
        &mut self,
        context: &mut AttackContext<'_>,
        stream: u16,
    ) -> Result<bool> {
        self.send_control(context, stream, 0, Function::Initiate)?;
        let answer =
            self.wait_message(context, ANSWER_TIMEOUT, |message| control_function(message, stream));
        Ok(answer == Some(Function::Accept.code()))
    }

    pub(crate) fn send_abort(&self, context: &mut AttackContext<'_>) -> Result<()> {
        let packet = self.build_packet(self.peer_tag, |b| b.abort(false, &[]))?;
        self.send(context, &packet)
    }

    /// Returns the result of `pick` for the first chunk that it accepts, in an answer to this association. `None` if it
    /// accepts none.
    pub(crate) fn find_chunk<T>(
        &self,
        answer: &Answer,
        mut pick: impl FnMut(Chunk<'_>) -> Option<T>,
    ) -> Option<T> {
        if answer.protocol != IpNumber::SCTP || answer.destination != self.local.ip() {
            return None;
        }
        let packet = Packet::new(&answer.payload).ok()?;
        let ports = packet.ports();
        if (ports.source, ports.destination) != (self.remote.port(), self.local.port()) {
            return None;
        }
        packet.chunks().filter_map(Result::ok).find_map(|raw| pick(Chunk::parse(raw).ok()?))
    }
}

/// Returns the function code of a session control message on `stream`; `None` for other messages.
pub(crate) fn control_function(message: &Message, stream: u16) -> Option<u16> {
    let is_one = message.ppid == ddp::PPID_CONTROL && message.stream == stream;
    let code = message.payload.get(2..4)?;
    is_one.then(|| u16::from_be_bytes([code[0], code[1]]))
}
