//! A TCP client that sends raw frames: a minimal conversation, and segments that a kernel never
//! sends.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etherparse::{IpNumber, TcpHeader, TcpOptionElement, TcpSlice};
use load::frames::build;

use crate::field::Field;
use crate::station::Answer;

/// Time-out of an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// A segment of the appliance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) syn: bool,
    pub(crate) rst: bool,
    pub(crate) fin: bool,
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) payload: Vec<u8>,
}

/// State of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RawTcp {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// SND.NXT.
    pub(crate) seq: u32,
    /// RCV.NXT.
    pub(crate) ack: u32,
    /// TSval of the next segment, and the newest one received.
    pub(crate) clock: u32,
    pub(crate) echo: u32,
}

impl RawTcp {
    /// Returns a connection that has sent no segment yet.
    pub(crate) fn new(field: &mut Field<'_>, from: IpAddr, remote: SocketAddr) -> RawTcp {
        let local = SocketAddr::new(from, field.next_port());
        RawTcp { local, remote, seq: field.random.u32(..), ack: 0, clock: 1000, echo: 0 }
    }

    /// Builds a segment at SND.NXT, modified by `change`. SND.NXT is unchanged.
    pub(crate) fn frame(
        &self,
        field: &Field<'_>,
        change: impl FnOnce(&mut TcpHeader),
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let mut header = TcpHeader::new(self.local.port(), self.remote.port(), self.seq, 64_000);
        header.acknowledgment_number = self.ack;
        header.ack = true;
        change(&mut header);
        let stamp = TcpOptionElement::Timestamp(self.clock, if header.ack { self.echo } else { 0 });
        if header.syn {
            header.set_options(&[
                TcpOptionElement::MaximumSegmentSize(1400),
                TcpOptionElement::SelectiveAcknowledgementPermitted,
                stamp,
            ])?;
        } else if !header.rst {
            header.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, stamp])?;
        }
        build::tcp_frame(&field.station.ends(self.local.ip(), self.remote.ip()), header, payload)
    }

    /// Sends a segment and moves SND.NXT.
    pub(crate) fn send(
        &mut self,
        field: &mut Field<'_>,
        change: impl FnOnce(&mut TcpHeader),
        payload: &[u8],
    ) -> Result<()> {
        let frame = self.next_frame(field, change, payload)?;
        field.station.send(&frame)
    }

    /// Builds the next segment and advances SND.NXT.
    pub(crate) fn next_frame(
        &mut self,
        field: &Field<'_>,
        change: impl FnOnce(&mut TcpHeader),
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        self.clock += 1;
        let mut flags = 0;
        let frame = self.frame(
            field,
            |header| {
                change(header);
                flags = u32::from(header.syn) + u32::from(header.fin);
            },
            payload,
        )?;
        self.seq = self.seq.wrapping_add(payload.len() as u32 + flags);
        Ok(frame)
    }

    /// Opens the connection by SYN, SYN-ACK and ACK.
    pub(crate) fn open(&mut self, field: &mut Field<'_>) -> Result<()> {
        self.syn(field)?;
        self.send(field, |_| {}, &[])
    }

    /// Sends a SYN and waits for the SYN-ACK.
    pub(crate) fn syn(&mut self, field: &mut Field<'_>) -> Result<Segment> {
        self.send(field, as_syn, &[])?;
        let answer = self.next(field, PATIENCE).context("no answer to a SYN")?;
        anyhow::ensure!(answer.syn && !answer.rst, "a SYN was answered by {answer:?}");
        Ok(answer)
    }

    /// Waits for the next new segment and advances RCV.NXT.
    pub(crate) fn next(&mut self, field: &mut Field<'_>, time: Duration) -> Option<Segment> {
        self.next_of(field, time, parse)
    }

    /// Waits for the next new segment, as extracted from answers by `read`, and advances RCV.NXT.
    pub(crate) fn next_of(
        &mut self,
        field: &mut Field<'_>,
        time: Duration,
        mut read: impl FnMut(&Answer, SocketAddr, SocketAddr) -> Option<Segment>,
    ) -> Option<Segment> {
        let (local, remote) = (self.local, self.remote);
        let (ack, any) = (self.ack, self.ack == 0);
        let segment = field.station.wait(time, |answer| {
            let segment = read(answer, local, remote)?;
            let moves = !segment.payload.is_empty() || segment.fin || segment.syn;
            // Retransmissions are skipped.
            (segment.rst || moves && (any || segment.seq == ack)).then_some(segment)
        })?;
        let len = segment.payload.len() as u32 + u32::from(segment.syn) + u32::from(segment.fin);
        self.ack = segment.seq.wrapping_add(len);
        if let Some((value, _)) = segment.timestamps {
            self.echo = value;
        }
        Some(segment)
    }

    /// Resets the connection.
    pub(crate) fn reset(&mut self, field: &mut Field<'_>) -> Result<()> {
        self.send(field, |header| header.rst = true, &[])
    }
}

/// Turns a segment into a SYN.
pub(crate) fn as_syn(header: &mut TcpHeader) {
    header.syn = true;
    header.ack = false;
    header.acknowledgment_number = 0;
}

/// Parses a segment from `remote` to `local`.
pub(crate) fn parse(answer: &Answer, local: SocketAddr, remote: SocketAddr) -> Option<Segment> {
    if answer.protocol != IpNumber::TCP || answer.to != local.ip() {
        return None;
    }
    let tcp = TcpSlice::from_slice(&answer.payload).ok()?;
    if (tcp.source_port(), tcp.destination_port()) != (remote.port(), local.port()) {
        return None;
    }
    let timestamps = tcp.options_iterator().find_map(|option| match option {
        Ok(TcpOptionElement::Timestamp(value, echo)) => Some((value, echo)),
        _ => None,
    });
    Some(Segment {
        seq: tcp.sequence_number(),
        syn: tcp.syn(),
        rst: tcp.rst(),
        fin: tcp.fin(),
        timestamps,
        payload: tcp.payload().to_vec(),
    })
}
