//! An association without socket, in real time: consumes and produces packets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sctp_lite::sctp::{Association, CloseReason, Config, Event};
use sctp_lite::seam::TxBatch;

use super::upper::Upper;
use super::{DDP, PACKET, packet};

/// Maximum number of packets per call of [`Core::output`].
const MAX_PACKETS: usize = 256;

/// Reason why an association ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The shutdown sequence is complete.
    Shutdown,
    /// The peer aborted or refused the association.
    Abort,
    /// Any other reason, as a sentence.
    Lost(String),
}

/// An association and its user messages.
#[derive(Debug)]
pub struct Core {
    association: Association,
    /// User messages received and to be sent.
    pub upper: Upper,
    begin: Instant,
    /// True once the association is established.
    pub up: bool,
    /// True once the peer has begun the shutdown.
    pub peer_shuts_down: bool,
    /// Reason of the end; `None` while the association exists.
    pub ended: Option<Ended>,
}

/// Returns the configuration of an association with this number of stream pairs.
pub fn config(streams: u16) -> Arc<Config> {
    let default = Config::default();
    let receive = (*default.receive).clone();
    Arc::new(Config {
        adaptation: DDP,
        streams,
        path_mtu_probing: false,
        heartbeat_interval: None,
        // SACKs each packet at once, because a device may wait for the acknowledgement of its Accept.
        receive: Arc::new(sctp_lite::sctp::receive::ReceiveConfig {
            packets_per_sack: 1,
            ..receive
        }),
        ..default
    })
}

/// Returns the current time for the protocol code: 1 s plus the time since `begin`.
pub(crate) fn protocol_time(begin: Instant) -> base::Instant {
    base::Instant::from_nanos(1_000_000_000 + begin.elapsed().as_nanos() as u64)
}

impl Core {
    /// Returns a core around an association that was created at `begin`.
    pub fn new(association: Association, begin: Instant) -> Core {
        Core {
            association,
            upper: Upper::default(),
            begin,
            up: false,
            peer_shuts_down: false,
            ended: None,
        }
    }

    fn now(&self) -> base::Instant {
        protocol_time(self.begin)
    }

    /// Processes a packet of the peer.
    pub fn input(&mut self, bytes: &[u8]) {
        let now = self.now();
        if let Ok(packet) = wire::sctp::Packet::new(bytes)
            && packet.checksum_ok()
        {
            // Ignores the drop reason: later packets of the peer show the effect.
            let _ = self.association.input(now, &packet, &mut self.upper);
        }
        self.events();
    }

    /// Processes expired timers, and returns the packets to send.
    pub fn output(&mut self) -> Vec<Vec<u8>> {
        let now = self.now();
        if self.association.poll_timeout().is_some_and(|due| due <= now) {
            self.association.handle_timeout(now);
        }
        let mut batch = Batch::default();
        self.association.poll_transmit(now, &mut self.upper, &mut batch);
        self.events();
        for packet in &mut batch.packets {
            packet::set_ordered(packet, |data| self.upper.is_ordered(data));
        }
        batch.packets
    }

    /// Returns the time until the next timer expires.
    pub fn due(&self) -> Option<Duration> {
        self.association.poll_timeout().map(|due| due.saturating_since(self.now()))
    }

    /// Returns true if nothing remains to be sent or received.
    pub fn is_done(&self) -> bool {
        self.association.is_done()
    }

    /// Begins the graceful shutdown (RFC 9260 §9.2).
    pub fn shutdown(&mut self) {
        let now = self.now();
        self.association.shutdown(now);
    }

    /// Aborts the association: the next output contains an ABORT.
    pub fn abort(&mut self) {
        let now = self.now();
        self.association.abort(now, b"");
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.association.poll_event() {
            match event {
                Event::Up { .. } => self.up = true,
                Event::Restarted { .. } => {
                    self.ended.get_or_insert(Ended::Lost("the peer has restarted".into()));
                }
                Event::PeerShutdown => self.peer_shuts_down = true,
                Event::Closed(reason) => {
                    self.ended.get_or_insert(match reason {
                        CloseReason::Shutdown => Ended::Shutdown,
                        CloseReason::PeerAborted { .. } | CloseReason::Refused { .. } => {
                            Ended::Abort
                        }
                        other => Ended::Lost(format!("{other:?}")),
                    });
                }
            }
        }
    }
}

/// Collects the packets to send.
#[derive(Default)]
pub(crate) struct Batch {
    /// Complete packets, in order.
    pub packets: Vec<Vec<u8>>,
    room: Vec<u8>,
}

impl TxBatch for Batch {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= MAX_PACKETS {
            return None;
        }
        self.room = vec![0; len.min(PACKET)];
        Some(&mut self.room)
    }

    fn commit(&mut self, len: usize) {
        self.room.truncate(len);
        self.packets.push(std::mem::take(&mut self.room));
    }
}
