//! A TCP client that sends raw frames: a minimal connection, and segments that no kernel sends.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use etherparse::{IpNumber, TcpHeader, TcpOptionElement, TcpSlice};
use load::frames::build;

use crate::attack_context::AttackContext;
use crate::attacker_port::Answer;

/// Maximum wait for an answer of the target.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A segment received from the appliance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) syn: bool,
    pub(crate) rst: bool,
    pub(crate) fin: bool,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) payload: Vec<u8>,
}

/// State of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RawTcp {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) snd_nxt: u32,
    pub(crate) rcv_nxt: u32,
    /// TSval of the newest sent segment; each new segment adds 1. `ts_recent` is the newest received TSval.
    pub(crate) ts_val: u32,
    pub(crate) ts_recent: u32,
}

impl RawTcp {
    /// Returns a connection that has sent no segment yet.
    pub(crate) fn new(context: &mut AttackContext<'_>, from: IpAddr, remote: SocketAddr) -> RawTcp {
        let local = SocketAddr::new(from, context.next_port());
        RawTcp {
            local,
            remote,
            snd_nxt: context.random.u32(..),
            rcv_nxt: 0,
            ts_val: 1000,
            ts_recent: 0,
        }
    }

    /// Builds a segment at SND.NXT, modified by `change`. SND.NXT is unchanged.
    pub(crate) fn build_frame(
        &self,
        context: &AttackContext<'_>,
        change: impl FnOnce(&mut TcpHeader),
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let mut header =
            TcpHeader::new(self.local.port(), self.remote.port(), self.snd_nxt, 64_000);
        header.acknowledgment_number = self.rcv_nxt;
        header.ack = true;
        change(&mut header);
        let stamp =
            TcpOptionElement::Timestamp(self.ts_val, if header.ack { self.ts_recent } else { 0 });
        if header.syn {
            header.set_options(&[
                TcpOptionElement::MaximumSegmentSize(1400),
                TcpOptionElement::SelectiveAcknowledgementPermitted,
                stamp,
            ])?;
        } else if !header.rst {
            header.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, stamp])?;
        }
        build::tcp_frame(
            &context.station.frame_ends(self.local.ip(), self.remote.ip()),
            header,
            payload,
        )
    }

    /// Sends a segment, modified by `change`, and advances SND.NXT.
    pub(crate) fn send(
        &mut self,
        context: &mut AttackContext<'_>,
        change: impl FnOnce(&mut TcpHeader),
        payload: &[u8],
    ) -> Result<()> {
        let frame = self.build_next_frame(context, change, payload)?;
        context.station.send_frame(&frame)
    }

    /// Builds the next segment, modified by `change`, and advances SND.NXT.
    pub(crate) fn build_next_frame(
        &mut self,
        context: &AttackContext<'_>,
        change: impl FnOnce(&mut TcpHeader),
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        self.ts_val += 1;
        let mut flags = 0;
        let frame = self.build_frame(
            context,
            |header| {
                change(header);
                flags = u32::from(header.syn) + u32::from(header.fin);
            },
            payload,
        )?;
        self.snd_nxt = self.snd_nxt.wrapping_add(payload.len() as u32 + flags);
        Ok(frame)
    }

    /// Opens the connection by SYN, SYN-ACK and ACK.
    pub(crate) fn open(&mut self, context: &mut AttackContext<'_>) -> Result<()> {
        self.send_syn(context)?;
        self.send(context, |_| {}, &[])
    }

    /// Sends a SYN and waits for the SYN-ACK.
    pub(crate) fn send_syn(&mut self, context: &mut AttackContext<'_>) -> Result<Segment> {
        self.send(context, make_syn, &[])?;
        let answer = self.next_segment(context, ANSWER_TIMEOUT).context("no answer to a SYN")?;
        anyhow::ensure!(answer.syn && !answer.rst, "a SYN was answered by {answer:?}");
        Ok(answer)
    }

    /// Waits at most `time` for the next in-order segment with data, SYN or FIN, or a RST. Advances RCV.NXT. `None` if
    /// no such segment arrives in time.
    pub(crate) fn next_segment(
        &mut self,
        context: &mut AttackContext<'_>,
        time: Duration,
    ) -> Option<Segment> {
        self.next_segment_by(context, time, parse)
    }

    /// Waits at most `time` for the next in-order segment with data, SYN or FIN, or a RST, as `read` extracts it from
    /// an answer. Advances RCV.NXT. `None` if no such segment arrives in time.
    pub(crate) fn next_segment_by(
        &mut self,
        context: &mut AttackContext<'_>,
        time: Duration,
        mut read: impl FnMut(&Answer, SocketAddr, SocketAddr) -> Option<Segment>,
    ) -> Option<Segment> {
        let (local, remote) = (self.local, self.remote);
        let (ack, any) = (self.rcv_nxt, self.rcv_nxt == 0);
        let segment = context.station.wait_answer(time, |answer| {
            let segment = read(answer, local, remote)?;
            let moves = !segment.payload.is_empty() || segment.fin || segment.syn;
            // Skips segments out of order, such as retransmissions.
            (segment.rst || moves && (any || segment.seq == ack)).then_some(segment)
        })?;
        let len = segment.payload.len() as u32 + u32::from(segment.syn) + u32::from(segment.fin);
        self.rcv_nxt = segment.seq.wrapping_add(len);
        if let Some((value, _)) = segment.timestamps {
            self.ts_recent = value;
        }
        Some(segment)
    }

    /// Sends a RST at SND.NXT.
    pub(crate) fn send_reset(&mut self, context: &mut AttackContext<'_>) -> Result<()> {
        self.send(context, |header| header.rst = true, &[])
    }
}

/// Turns a segment header into a SYN header.
pub(crate) fn make_syn(header: &mut TcpHeader) {
    header.syn = true;
    header.ack = false;
    header.acknowledgment_number = 0;
}

/// Parses a TCP segment from `remote` to `local`; `None` for other answers.
pub(crate) fn parse(answer: &Answer, local: SocketAddr, remote: SocketAddr) -> Option<Segment> {
    if answer.protocol != IpNumber::TCP || answer.destination != local.ip() {
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
