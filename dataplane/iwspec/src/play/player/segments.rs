//! TCP as a [`DialogueCodec`].
//!
//! Values adopted from the host: its initial sequence number from its SYN, and the private data of an MPA Reply if the
//! script leaves them open. The length of the private data shifts all later positions in the stream. If the private
//! data are an advertisement (`docs/protocol.md`, section 2), segments to STag 16 are redirected to the first
//! advertised region: its STag replaces theirs, and its base TO is added to their TO.
//!
//! Permitted deviations from the script:
//! - acknowledgements and window updates that the script does not list;
//! - another delay, at most half a second, of an acknowledgement that the script expects after a delay (RFC 9293
//!   §3.8.6.3 MUST-40);
//! - a FIN in a separate segment after the last data;
//! - any window and window scale;
//! - retransmissions of data, SYN or FIN, at any time.

use dialogue::exchange::{Exchange, Strictness};
use dialogue::script::{Action, Direction, Script, ScriptError, SegmentLine, number};
use dialogue::segment::Ecn;
use dialogue::segment::{Flags, Segment};
use dialogue::streams::Streams;

use super::{DialogueCodec, ExtraPacket, SCRIPT_STAG, first_region};
use crate::raw::station::TransportPacket;

/// State of the TCP connection on both sides.
#[derive(Debug)]
pub struct TcpCodec {
    exchange: Exchange,
    /// True if the host's initial sequence number is known.
    synchronized: bool,
    /// Last acknowledgement number of the host, relative to the tester's initial sequence number, and its window field.
    acknowledged: (u32, u16),
}

impl TcpCodec {
    /// Creates the script's side of a connection from port `ports.0` to the host's port `ports.1`. `peer_iss` is the
    /// tester's initial sequence number unless the script sets one.
    ///
    /// # Errors
    /// Describes the invalid setting or piece of a stream.
    pub fn new(script: &Script, peer_iss: u32, ports: (u16, u16)) -> Result<Self, ScriptError> {
        let streams = Streams::build(script)?;
        let own = script.settings.iter().find(|s| s.key == "peer-iss");
        let peer_iss = match own {
            Some(s) => {
                number(&s.value).map_err(|what| ScriptError { line: s.line, message: what })? as u32
            }
            None => peer_iss,
        };
        let iss = peer_iss ^ 0x5555_5555;
        Ok(TcpCodec {
            exchange: Exchange::new(streams, iss, peer_iss, ports, Strictness::IgnoreWindow),
            synchronized: false,
            acknowledged: (0, 0),
        })
    }

    /// Compares a segment with a line. If only the FIN of the line is missing, returns a line that expects this FIN.
    fn compare_line(
        &self,
        line: &SegmentLine,
        got: &Segment,
    ) -> Result<Option<SegmentLine>, String> {
        let fin_missing = line.flags.has(Flags::FIN)
            && !line.data.is_empty()
            && !got.flags.has(Flags::FIN)
            && !got.payload.is_empty();
        let mut first = line.clone();
        if fin_missing {
            first.flags = line.flags.without(Flags::FIN).without(Flags::PSH);
        }
        self.exchange.compare(&first, got)?;
        let capable = got.ecn != Ecn::NotEct;
        if line.args.has(if capable { "no-ect" } else { "ect" }) {
            return Err(format!("ECN-capable: {capable}"));
        }
        Ok(fin_missing.then(|| {
            let mut fin = line.clone();
            fin.data.clear();
            fin.args.remove("seq");
            fin.flags = line.flags.without(Flags::PSH);
            fin
        }))
    }

    /// Replaces the private data that the script leaves open with those of the host's MPA Reply.
    fn learn_reply(&mut self, script: &mut Script, got: &Segment) {
        let open = script.pieces.iter().position(|piece| {
            piece.direction == Direction::Out && piece.kind == "reply" && !piece.args.has("pd")
        });
        let Some(index) = open else { return };
        let name = &script.pieces[index].name;
        let position = got.seq.wrapping_sub(self.exchange.iss);
        if self.exchange.streams.position(name) != Ok(position) {
            return;
        }
        let Some(private_data) = private_data(&got.payload) else { return };
        let digits: String = private_data.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut learnt = script.clone();
        learnt.pieces[index].args.set("pd", &format!("hex:{digits}"));
        if let Some((stag, base)) = first_region(private_data) {
            retarget(&mut learnt, stag, base);
        }
        if let Ok(streams) = Streams::build(&learnt) {
            *script = learnt;
            self.exchange.streams = streams;
        }
    }
}

impl DialogueCodec for TcpCodec {
    type Packet = Segment;

    fn decode(&mut self, carried: TransportPacket) -> Result<Option<Segment>, String> {
        let TransportPacket::Tcp(segment) = carried else { return Ok(None) };
        let (own, host) = self.exchange.ports;
        if (segment.dst_port, segment.src_port) != (own, host) {
            return Ok(None);
        }
        if segment.flags.has(Flags::SYN) && !self.synchronized {
            self.synchronized = true;
            self.exchange.iss = segment.seq;
        }
        Ok(Some(segment))
    }

    fn learn(&mut self, script: &mut Script, segment: &Segment) {
        self.learn_reply(script, segment);
    }

    fn build_packet(&mut self, line: &Action) -> Result<(TransportPacket, String), String> {
        let Action::Send(line) = line else { return Err("is no segment".into()) };
        let mut segment = self.exchange.build_segment(line)?;
        if line.args.has("ce") {
            segment.ecn = Ecn::Ce;
        }
        self.exchange.on_peer_segment(&segment);
        let words = self.exchange.show(&segment, true);
        Ok((TransportPacket::Tcp(segment), words))
    }

    fn compare(&mut self, line: &Action, got: &Segment) -> Result<Option<Action>, String> {
        let Action::Expect(line) = line else { return Err("is no segment".into()) };
        Ok(self.compare_line(line, got)?.map(Action::Expect))
    }

    fn on_matched(&mut self, got: &Segment) {
        self.exchange.on_segment(got);
        if got.flags.has(Flags::ACK) && !got.flags.has(Flags::RST) {
            self.acknowledged = (got.ack.wrapping_sub(self.exchange.peer_iss), got.window);
        }
    }

    fn classify_extra(&self, got: &Segment) -> Option<ExtraPacket> {
        let (acknowledged, window) = self.acknowledged;
        let ack = got.ack.wrapping_sub(self.exchange.peer_iss);
        let seq = got.seq.wrapping_sub(self.exchange.iss);
        let next = self.exchange.out_next;
        let is_new = (acknowledged < ack && ack <= self.exchange.received.contiguous())
            || (ack == acknowledged && got.window > window);
        let bare = got.flags == Flags::ACK && got.payload.is_empty() && seq == next;
        let is_old = !got.flags.has(Flags::RST)
            && got.sequence_len() > 0
            && seq.wrapping_add(got.sequence_len()) <= next;
        match self.synchronized {
            true if bare && is_new => Some(ExtraPacket::Acknowledgement),
            true if is_old => Some(ExtraPacket::Retransmission),
            _ => None,
        }
    }

    fn may_be_delayed(&self, line: &Action) -> bool {
        let Action::Expect(line) = line else { return false };
        line.flags == Flags::ACK && line.data.is_empty() && !line.args.has("len")
    }

    fn show(&self, got: &Segment) -> String {
        self.exchange.show(got, false)
    }

    fn abort_packet(&mut self) -> Option<TransportPacket> {
        let (ack, _) = self.acknowledged;
        let reset = Segment {
            src_port: self.exchange.ports.0,
            dst_port: self.exchange.ports.1,
            // RFC 5961 §3.2: the host accepts a RST only with exactly the sequence number that it expects.
            seq: self.exchange.peer_iss.wrapping_add(ack),
            flags: Flags::RST,
            ..Segment::default()
        };
        self.synchronized.then_some(TransportPacket::Tcp(reset))
    }
}

/// Returns the private data of an MPA frame (RFC 5044 §7.1.1); `None` if they are empty or not complete in `bytes`.
fn private_data(bytes: &[u8]) -> Option<&[u8]> {
    let len = u16::from_be_bytes(bytes.get(18..20)?.try_into().ok()?);
    bytes.get(20..20 + usize::from(len)).filter(|data| !data.is_empty())
}

/// Redirects the script's tagged segments for STag 16 to the region with `stag`, whose first byte has TO `base`. Also
/// rewrites a tagged header that an expected Terminate quotes.
fn retarget(script: &mut Script, stag: u32, base: u64) {
    for piece in &mut script.pieces {
        if piece.direction == Direction::In
            && piece.kind == "tagged"
            && piece.args.get("stag") == Some(SCRIPT_STAG)
        {
            let to = piece.args.number("to", 0).unwrap_or(0);
            piece.args.set("stag", &stag.to_string());
            piece.args.set("to", &base.wrapping_add(to).to_string());
        }
        if piece.direction == Direction::Out
            && let Some(hex) = piece.args.get("hex")
            && let Some(hex) = retarget_quoted(hex, stag, base)
        {
            piece.args.set("hex", &hex);
        }
    }
}

/// Rewrites STag and TO of the tagged header that a Terminate quotes. `hex` is the Terminate's payload, in which the
/// quoted header begins at byte 8. Returns `None` if no tagged header for STag 16 is quoted.
fn retarget_quoted(hex: &str, stag: u32, base: u64) -> Option<String> {
    let (head, rest) = (hex.get(..20)?, hex.get(28..)?);
    let is_tagged = matches!(hex.get(16..17)?, "8" | "c");
    if !is_tagged || u32::from_str_radix(hex.get(20..28)?, 16) != Ok(16) {
        return None;
    }
    let to = u64::from_str_radix(rest.get(..16)?, 16).ok()?.wrapping_add(base);
    Some(format!("{head}{stag:08x}{to:016x}{}", rest.get(16..)?))
}
