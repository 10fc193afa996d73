//! An SCTP endpoint that sends raw frames: associations from any address, and any chunk.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etherparse::IpNumber;
use wire::sctp::ddp::{self, ControlRepr, DdpSsn, Function};
use wire::sctp::{
    Chunk, DataHeader, GapBlock, InitHeader, Packet, PacketBuilder, Parameter, Ports, SackHeader,
    Tag, Tsn,
};

use crate::field::Field;
use crate::station::Answer;

/// Time-out of an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// An association.
#[derive(Clone, Debug)]
pub(crate) struct RawSctp {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Verification tags of received packets and of sent packets.
    pub(crate) own_tag: u32,
    pub(crate) tag: u32,
    /// Next TSN to send.
    pub(crate) tsn: u32,
    /// Last TSN received in order.
    pub(crate) received: u32,
}

/// A message that was received in one chunk.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) stream: u16,
    pub(crate) ppid: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawSctp {
    /// Returns an association that has sent no packet yet.
    pub(crate) fn new(field: &mut Field<'_>, from: IpAddr, remote: SocketAddr) -> RawSctp {
        let local = SocketAddr::new(from, field.next_port());
        let own_tag = field.random.u32(1..);
        RawSctp { local, remote, own_tag, tag: 0, tsn: field.random.u32(..), received: 0 }
    }

    /// Builds a packet.
    pub(crate) fn packet(
        &self,
        tag: u32,
        build: impl FnOnce(&mut PacketBuilder<'_>) -> Result<(), wire::sctp::Full>,
    ) -> Result<Vec<u8>> {
        let ports = Ports { source: self.local.port(), destination: self.remote.port() };
        let mut room = [0; 1440];
        let mut builder = PacketBuilder::new(&mut room, ports, Tag(tag));
        build(&mut builder)?;
        let len = builder.finish();
        Ok(room[..len].to_vec())
    }

    /// Sends a packet.
    pub(crate) fn send(&self, field: &mut Field<'_>, packet: &[u8]) -> Result<()> {
        field.station.ip((self.local.ip(), self.remote.ip()), IpNumber::SCTP, None, packet)
    }

    /// Builds the INIT.
    pub(crate) fn init(&self) -> Result<Vec<u8>> {
        let header = InitHeader {
            tag: Tag(self.own_tag),
            a_rwnd: 1 << 20,
            outbound_streams: 64,
            inbound_streams: 64,
            initial_tsn: Tsn(self.tsn),
        };
        self.packet(0, |b| b.init(&header, &[Parameter::Adaptation(ddp::ADAPTATION_DDP)]))
    }

    /// Sends the INIT, waits for the INIT ACK and returns its cookie.
    pub(crate) fn cookie(&mut self, field: &mut Field<'_>) -> Result<Vec<u8>> {
        let init = self.init()?;
        self.send(field, &init)?;
        let mine = self.clone();
        let found = field.station.wait(PATIENCE, |answer| {
            mine.chunks(answer, |chunk| match chunk {
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
        (self.tag, self.received) = (tag, first.wrapping_sub(1));
        Ok(cookie)
    }

    /// Opens the association by all four packets.
    pub(crate) fn open(&mut self, field: &mut Field<'_>) -> Result<()> {
        let cookie = self.cookie(field)?;
        let echo = self.packet(self.tag, |b| b.cookie_echo(&cookie))?;
        self.send(field, &echo)?;
        let mine = self.clone();
        let up = field.station.wait(PATIENCE, |answer| {
            mine.chunks(answer, |chunk| match chunk {
                Chunk::CookieAck => Some(true),
                Chunk::Abort { .. } => Some(false),
                _ => None,
            })
        });
        anyhow::ensure!(up == Some(true), "no COOKIE ACK but {up:?}");
        Ok(())
    }

    /// Sends a DATA chunk in a packet of its own, unordered as RFC 5043 §10 requires.
    pub(crate) fn data(
        &mut self,
        field: &mut Field<'_>,
        (stream, ppid): (u16, u32),
        (begin, end): (bool, bool),
        payload: &[u8],
    ) -> Result<()> {
        let tsn = Tsn(self.tsn);
        self.tsn = self.tsn.wrapping_add(1);
        let header =
            DataHeader { tsn, stream, ppid, unordered: true, begin, end, ..DataHeader::default() };
        let packet = self.packet(self.tag, |b| {
            b.data_buffer()[..payload.len()].copy_from_slice(payload);
            b.push_data(&header, payload.len())
        })?;
        self.send(field, &packet)
    }

    /// Sends a session control message.
    pub(crate) fn control(
        &mut self,
        field: &mut Field<'_>,
        stream: u16,
        ssn: u16,
        function: Function,
    ) -> Result<()> {
        let repr = ControlRepr { ssn: DdpSsn(ssn), function, private_data: &[] };
        let mut bytes = vec![0; repr.wire_len()];
        repr.emit(&mut bytes);
        self.data(field, (stream, ddp::PPID_CONTROL), (true, true), &bytes)
    }

    /// Sends a DDP segment.
    pub(crate) fn segment(
        &mut self,
        field: &mut Field<'_>,
        stream: u16,
        ssn: u16,
        segment: &[u8],
    ) -> Result<()> {
        let bytes = [&ssn.to_be_bytes()[..], segment].concat();
        self.data(field, (stream, ddp::PPID_SEGMENT), (true, true), &bytes)
    }

    /// Waits for a message that `pick` accepts. All received DATA is acknowledged.
    pub(crate) fn wait<T>(
        &mut self,
        field: &mut Field<'_>,
        time: Duration,
        mut pick: impl FnMut(&Message) -> Option<T>,
    ) -> Option<T> {
        let until = std::time::Instant::now() + time;
        let mine = self.clone();
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let (tsn, message) = field.station.wait(left, |answer| {
                mine.chunks(answer, |chunk| match chunk {
                    Chunk::Data(data) => {
                        let (stream, ppid) = (data.header.stream, data.header.ppid);
                        let payload = data.payload.to_vec();
                        Some((data.header.tsn.0, Message { stream, ppid, payload }))
                    }
                    _ => None,
                })
            })?;
            self.received = tsn;
            let header = SackHeader { cumulative: Tsn(tsn), a_rwnd: 1 << 20 };
            let sack = self.packet(self.tag, |b| b.sack(header, &[] as &[GapBlock], &[])).ok()?;
            self.send(field, &sack).ok()?;
            if let Some(picked) = pick(&message) {
                return Some(picked);
            }
        }
    }

    /// Initiates a session; returns true if it is accepted.
    pub(crate) fn session(&mut self, field: &mut Field<'_>, stream: u16) -> Result<bool> {
        self.control(field, stream, 0, Function::Initiate)?;
        let answer = self.wait(field, PATIENCE, |message| function_of(message, stream));
        Ok(answer == Some(Function::Accept.code()))
    }

    /// Sends an ABORT.
    pub(crate) fn abort(&self, field: &mut Field<'_>) -> Result<()> {
        let packet = self.packet(self.tag, |b| b.abort(false, &[]))?;
        self.send(field, &packet)
    }

    /// Tries `pick` on each chunk of an answer to this association.
    pub(crate) fn chunks<T>(
        &self,
        answer: &Answer,
        mut pick: impl FnMut(Chunk<'_>) -> Option<T>,
    ) -> Option<T> {
        if answer.protocol != IpNumber::SCTP || answer.to != self.local.ip() {
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

/// Returns the function of a session control message on `stream`.
pub(crate) fn function_of(message: &Message, stream: u16) -> Option<u16> {
    let is_one = message.ppid == ddp::PPID_CONTROL && message.stream == stream;
    let code = message.payload.get(2..4)?;
    is_one.then(|| u16::from_be_bytes([code[0], code[1]]))
}
