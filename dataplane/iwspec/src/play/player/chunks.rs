//! SCTP as a [`DialogueCodec`].
//!
//! Values adopted from the host: its tag, initial TSN and cookie, and the private data of an Accept (RFC 5043 §5.2.3)
//! if the script leaves them open. If the private data are an advertisement (`docs/protocol.md`, section 2), segments
//! to STag 16 are redirected to the first advertised region: its STag replaces theirs, and its base TO is added to
//! their TO.
//!
//! Permitted deviations from the script:
//! - acknowledgements that the script does not list;
//! - another delay, at most half a second, of a SACK that the script expects after a delay (RFC 9260 §6.2);
//! - retransmissions of DATA, at any time.

use dialogue::chunks::{Conversation, summarize};
use dialogue::received_packet::ReceivedPacket;
use dialogue::script::{Action, ChunkLine, PacketLine, Script, ScriptError, number};

use super::{DialogueCodec, ExtraPacket, SCRIPT_STAG, first_region};
use crate::raw::station::TransportPacket;

/// Default initial TSN of the tester.
const FIRST_TSN: u32 = 7_000;
/// Function code of an Accept, after the DDP-SSN (RFC 5043 §5.2.3).
const ACCEPT: [u8; 2] = [0, 2];

/// State of the association on both sides.
#[derive(Debug)]
pub struct SctpCodec {
    conversation: Conversation,
    /// TSN after the highest TSN of the host; `None` before its first DATA.
    next_tsn: Option<u32>,
    /// Last Cumulative TSN Ack of the host.
    acknowledged: Option<u32>,
}

impl SctpCodec {
    /// Creates the script's side of an association from port `ports.0` to the host's port `ports.1`. `tag` is the
    /// tester's tag unless the script sets one.
    ///
    /// # Errors
    /// Describes the invalid setting.
    pub fn new(script: &Script, tag: u32, ports: (u16, u16)) -> Result<Self, ScriptError> {
        let own = |key: &str, default: u32| {
            let Some(s) = script.settings.iter().find(|s| s.key == key) else { return Ok(default) };
            let value =
                number(&s.value).map_err(|what| ScriptError { line: s.line, message: what })?;
            Ok(value as u32)
        };
        // RFC 9260 §3.3.2: the tag is not zero. The default has its lowest bit set.
        let (tag, tsn) = (own("peer-tag", tag | 1)?, own("peer-tsn", FIRST_TSN)?);
        let conversation = Conversation::new(ports.0, ports.1, tag, tsn);
        Ok(SctpCodec { conversation, next_tsn: None, acknowledged: None })
    }
}

impl DialogueCodec for SctpCodec {
    type Packet = ReceivedPacket;

    fn decode(&mut self, carried: TransportPacket) -> Result<Option<ReceivedPacket>, String> {
        let TransportPacket::Sctp(bytes) = carried else { return Ok(None) };
        let packet = ReceivedPacket::parse(&bytes)?;
        let ports = (self.conversation.stack_port, self.conversation.peer_port);
        Ok(Some(packet).filter(|packet| packet.ports == ports))
    }

    fn learn(&mut self, script: &mut Script, packet: &ReceivedPacket) {
        let Some(private_data) =
            packet.data().find_map(|(_, message)| accept_private_data(message))
        else {
            return;
        };
        let digits: String = private_data.iter().map(|byte| format!("{byte:02x}")).collect();
        for line in script.steps.iter_mut().filter_map(|step| match &mut step.action {
            Action::ExpectPacket(line) => Some(line),
            _ => None,
        }) {
            let open = |chunk: &&mut ChunkLine| {
                chunk.args.positional(0) == Some("accept") && !chunk.args.has("pd")
            };
            for chunk in line.chunks.iter_mut().filter(open) {
                chunk.args.set("pd", &format!("hex:{digits}"));
            }
        }
        if let Some((stag, base)) = first_region(private_data) {
            retarget(script, stag, base);
        }
    }

    fn build_packet(&mut self, line: &Action) -> Result<(TransportPacket, String), String> {
        let Action::SendPacket(line) = line else { return Err("is no SCTP packet".into()) };
        let bytes = self.conversation.build_packet(line)?;
        let words = summarize(&bytes).unwrap_or_else(|| format!("{bytes:02x?}"));
        Ok((TransportPacket::Sctp(bytes), words))
    }

    fn compare(&mut self, line: &Action, got: &ReceivedPacket) -> Result<Option<Action>, String> {
        let Action::ExpectPacket(line) = line else { return Err("is no SCTP packet".into()) };
        // A mismatch may be an extra packet, so values are adopted only from a match.
        let mut conversation = self.conversation.clone();
        conversation.compare(line, got)?;
        self.conversation = conversation;
        Ok(None)
    }

    fn on_matched(&mut self, got: &ReceivedPacket) {
        for (tsn, _) in got.data() {
            let end = tsn.wrapping_add(1);
            self.next_tsn = Some(self.next_tsn.filter(|&next| !is_after(end, next)).unwrap_or(end));
        }
        self.acknowledged = got.sacks().last().or(self.acknowledged);
    }

    fn classify_extra(&self, got: &ReceivedPacket) -> Option<ExtraPacket> {
        let known = self.acknowledged.unwrap_or(self.conversation.peer_tsn.wrapping_sub(1));
        let is_new = got.sacks().all(|cumulative| is_after(cumulative, known));
        if !got.is_data_and_sacks() {
            None
        } else if got.data().next().is_none() {
            is_new.then_some(ExtraPacket::Acknowledgement)
        } else {
            let is_old = |tsn| self.next_tsn.is_some_and(|next| is_after(next, tsn));
            got.data().all(|(tsn, _)| is_old(tsn)).then_some(ExtraPacket::Retransmission)
        }
    }

    fn may_be_delayed(&self, line: &Action) -> bool {
        let Action::ExpectPacket(line) = line else { return false };
        line.chunks.iter().all(|chunk| chunk.kind == "SACK")
    }

    fn show(&self, got: &ReceivedPacket) -> String {
        self.conversation.show(got)
    }

    fn abort_packet(&mut self) -> Option<TransportPacket> {
        if self.conversation.stack_tag == 0 {
            return None;
        }
        let abort = ChunkLine { kind: "ABORT".into(), ..ChunkLine::default() };
        let line = PacketLine { chunks: vec![abort], ..PacketLine::default() };
        self.conversation.build_packet(&line).ok().map(TransportPacket::Sctp)
    }
}

/// Returns true if TSN `a` is after `b`, by serial number arithmetic (RFC 9260 §1.6, RFC 1982).
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Returns the private data of an Accept; `None` for another message or without private data.
fn accept_private_data(message: &[u8]) -> Option<&[u8]> {
    let rest = message.get(2..)?.strip_prefix(&ACCEPT)?;
    Some(rest).filter(|private_data| !private_data.is_empty())
}

/// Redirects the script's tagged segments for STag 16 to the region with `stag`, whose first byte has TO `base`.
fn retarget(script: &mut Script, stag: u32, base: u64) {
    for step in &mut script.steps {
        let Action::SendPacket(line) = &mut step.action else { continue };
        for chunk in &mut line.chunks {
            let args = &mut chunk.args;
            let is_script_stag = matches!(args.get("stag"), None | Some(SCRIPT_STAG));
            if args.positional(0) == Some("tagged") && is_script_stag {
                let to = args.number("to", 0).unwrap_or(0);
                args.set("stag", &stag.to_string());
                args.set("to", &base.wrapping_add(to).to_string());
            }
        }
    }
}
