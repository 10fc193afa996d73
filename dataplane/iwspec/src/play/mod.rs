//! Packet dialogues with another host in real time: the script plays the tester, the host is the implementation under
//! test. The host's state can be neither controlled nor inspected:
//!
//! | script | treatment |
//! |---|---|
//! | needs a local action (`do write`, `do connect`, ...) or a setting that the host lacks | skipped, with the reason |
//! | only sends and expects | played; its `event` and `check` lines are skipped and counted |
//!
//! [`player`] plays a dialogue, sans-IO; [`host`] describes the tested host. A [`Session`] connects them with the raw
//! port and a clock. Dialogues are played one after the other, each from another source port.

pub mod host;
pub mod player;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dialogue::script::{Script, ScriptError};

use crate::raw::station::ReceivedFrame;
use crate::raw::{Host, Raw, SendError, Timeline, random};
use player::chunks::SctpCodec;
use player::segments::TcpCodec;
use player::{DialogueCodec, PlaySummary, Player, Tolerance};

/// Time to resolve the next hop's hardware address.
const RESOLUTION: Duration = Duration::from_secs(5);
/// First port of the dynamic range (RFC 6335 §6). Dialogues use consecutive source ports, which start at random within
/// the first 8192 ports of the range.
const FIRST_PORT: u16 = 49_152;

/// Reason why a dialogue failed.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The host deviated from the script, or the script is invalid.
    #[error("{0}")]
    Script(#[from] ScriptError),
    /// The host sent a damaged packet; contains the reason.
    #[error("the host sent a damaged packet: {0}")]
    Damaged(String),
    /// The port has failed; contains the reason.
    #[error("{0}")]
    Port(String),
    /// A packet of the script cannot be sent.
    #[error("{0}")]
    Send(#[from] SendError),
}

/// A tester on an open port, with its next hop resolved.
#[derive(Debug)]
pub struct Session {
    host: Host,
    timeline: Timeline,
    /// Source port of the last dialogue.
    own_port: u16,
}

impl Session {
    /// Opens the port towards `host` and resolves the next hop.
    ///
    /// # Errors
    /// The port does not open, the next hop does not answer, or there are no random numbers.
    pub fn open(raw: &Raw, host: IpAddr) -> Result<Session, String> {
        let own_port = FIRST_PORT + random()? as u16 % 8192;
        let host = Host::open(raw, host, Instant::now() + RESOLUTION)?;
        Ok(Session { host, timeline: Timeline::new(), own_port })
    }

    /// Plays `script` against the host's port `to`.
    ///
    /// # Errors
    /// The first line from which the host deviates, with all packets so far; or a failure of the port.
    pub fn play(
        &mut self,
        script: Script,
        to: u16,
        tolerance: Tolerance,
    ) -> Result<(PlaySummary, String), PlayError> {
        self.own_port = self.own_port.checked_add(1).unwrap_or(FIRST_PORT);
        // The initial sequence number or tag is random, so that the host does not mistake the packets for those of a
        // connection in TIME-WAIT or of an earlier run.
        let number = random().map_or(self.own_port.into(), |n| n & 0x3fff_ffff);
        let ports = (self.own_port, to);
        if is_sctp(&script) {
            let partner = SctpCodec::new(&script, number, ports)?;
            self.run(Player::new(script, partner, tolerance))
        } else {
            let partner = TcpCodec::new(&script, number, ports)?;
            self.run(Player::new(script, partner, tolerance))
        }
    }

    /// Plays the dialogue to its end, then ends the host's connection. Returns summary and transcript.
    fn run<P: DialogueCodec>(
        &mut self,
        mut player: Player<P>,
    ) -> Result<(PlaySummary, String), PlayError> {
        let played = self.play_to_end(&mut player);
        if let Some(farewell) = player.abort_packet() {
            self.host.send(&farewell)?;
        }
        played.map(|played| (played, player.transcript().to_owned()))
    }

    fn play_to_end<P: DialogueCodec>(
        &mut self,
        player: &mut Player<P>,
    ) -> Result<PlaySummary, PlayError> {
        player.handle_timeout(self.timeline.now());
        loop {
            while let Some(carried) = player.poll_transmit() {
                self.host.send(&carried)?;
            }
            if let Some(outcome) = player.outcome() {
                return Ok(outcome.clone()?);
            }
            let until = self.timeline.at(player.poll_timeout().unwrap_or(self.timeline.now()));
            if let Some((received, _)) = self.host.receive(until).map_err(PlayError::Port)? {
                match received {
                    ReceivedFrame::Transport(carried) => {
                        player.input(self.timeline.now(), carried).map_err(PlayError::Damaged)?;
                    }
                    ReceivedFrame::Damaged(what) => return Err(PlayError::Damaged(what.into())),
                    ReceivedFrame::TooBig(_)
                    | ReceivedFrame::AddressRequest(_)
                    | ReceivedFrame::Resolved
                    | ReceivedFrame::Other => {}
                }
            }
            player.handle_timeout(self.timeline.now());
        }
    }
}

pub(crate) fn is_sctp(script: &Script) -> bool {
    script.settings.iter().any(|s| s.key == "stack" && s.value == "sctp")
}
