//! Share of a worker's processor time that a stream keeps under a flood. The flooded worker is the responder. The other
//! end is a second worker (initiator), whose instructions are not counted.
//!
//! With [`FrameMix::Mixed`], each segment of the stream is followed by [`FLOOD_RATIO`] flood frames, in full bursts.
//! With [`FrameMix::Flood`], an RST that matches no stream takes the place of each segment, so that a burst has as many
//! flood frames. The cost of a flood frame depends on that number, because the worker examines only a few unmatched
//! frames per burst.
//!
//! ```text
//!  share = instructions per segment without a flood / (mixed - flood)
//!  mixed:  instructions per segment with its frames of the flood
//!  flood:  instructions of these frames alone
//! ```

use std::sync::Arc;

use anyhow::ensure;
use benches::end_config::EndConfig;
use benches::floods::frames::Kind;
use benches::frame_port::leak_frames;
use benches::hot_path::{Runner, uncounted};
use benches::rig_config::{RigConfig, Side};
use dataplane::io::BURST;
use dataplane::{Command, ListenerConfig, ListenerId, Ticket};

use crate::pair::{BURSTS_PER_TURN, StreamPair};

/// Frames of the flood per segment of the stream.
pub(crate) const FLOOD_RATIO: usize = 4;
/// Number of counted segments. With [`FrameMix::Flood`], RSTs are counted in their place.
pub(crate) const FRAMES: usize = 512;

/// Rounds of warm-up, after which the flood has filled the worker's tables.
const WARM_UP_ROUNDS: usize = 32;
/// Frames whose instructions are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameMix {
    /// Frames of the TCP stream only.
    Stream,
    /// Frames of the SCTP stream only.
    Association,
    /// The flood only, with RSTs instead of segments. The stream is idle.
    Flood,
    /// Stream and flood in the same bursts.
    Mixed,
}

/// All paths: name, kind of flood, counted frames.
pub(crate) const SHARE_PATHS: [(&str, Kind, FrameMix); 8] = [
    ("share-alone", Kind::Rst, FrameMix::Stream),
    ("share-alone-sctp", Kind::Init, FrameMix::Association),
    ("share-flood-rst", Kind::Rst, FrameMix::Flood),
    ("share-flood-syn", Kind::Syn, FrameMix::Flood),
    ("share-flood-init", Kind::Init, FrameMix::Flood),
    ("share-rst", Kind::Rst, FrameMix::Mixed),
    ("share-syn", Kind::Syn, FrameMix::Mixed),
    ("share-init", Kind::Init, FrameMix::Mixed),
];

/// The stream's workers, and the flood of the responder.
struct FloodedPair {
    pair: StreamPair,
    flood: &'static [&'static [u8]],
    resets: &'static [&'static [u8]],
    /// Number of frames passed to the responder in rounds so far.
    mixed: usize,
}

/// Runs a path: the warm-up, then rounds with [`FRAMES`] segments in total, each under `counted`.
pub(crate) fn run(kind: Kind, mix: FrameMix, counted: Runner<'_>) -> anyhow::Result<()> {
    let mut flooded = FloodedPair::new(kind, mix)?;
    for _ in 0..WARM_UP_ROUNDS {
        flooded.run_round(mix, &mut uncounted)?;
    }
    let mut frames = 0;
    while frames < FRAMES {
        frames += flooded.run_round(mix, counted)?;
    }
    ensure!(frames == FRAMES, "{frames} frames were counted");
    let counters = flooded.pair.responder.handle.counters();
    ensure!(counters.unaccounted() == 0, "frames are not accounted for");
    Ok(())
}

impl FloodedPair {
    fn new(kind: Kind, mix: FrameMix) -> anyhow::Result<FloodedPair> {
        // The stream is over TCP with every kind of flood, except for `FrameMix::Association`.
        let sctp = mix == FrameMix::Association;
        let rig = RigConfig { sctp, ..RigConfig::default() };
        let mut pair = StreamPair::new(&rig, 1)?;
        if kind == Kind::Init && !sctp {
            // The flood's listener, in addition to the stream's.
            let config = EndConfig::new(&kind.adapt_rig(rig), Side::Responder)?;
            if let Some(listener) = config.listener {
                let listener = Arc::new(ListenerConfig { id: ListenerId(2), ..listener });
                pair.command_responder(Command::AddListener { listener, ticket: Ticket(5) })?;
            }
        }
        let addresses = &pair.addresses;
        let flood = leak_frames(addresses.flood_frames(kind));
        let resets = leak_frames(addresses.flood_frames(Kind::Rst));
        Ok(FloodedPair { pair, flood, resets, mixed: 0 })
    }

    /// Runs one round: a burst of the stream's segments, or [`BURSTS_PER_TURN`] bursts mixed with flood frames. Returns
    /// the number of frames that are not flood frames: segments, or with [`FrameMix::Flood`] the RSTs in their place.
    fn run_round(&mut self, mix: FrameMix, counted: Runner<'_>) -> anyhow::Result<usize> {
        let has_flood = !matches!(mix, FrameMix::Stream | FrameMix::Association);
        let total = if has_flood { BURSTS_PER_TURN * BURST } else { BURST };
        let (mut frames, mut segments) = (Vec::with_capacity(total), 0);
        for _ in 0..total {
            let index = self.mixed;
            self.mixed += 1;
            if has_flood && !index.is_multiple_of(FLOOD_RATIO + 1) {
                frames.push(self.flood[index % self.flood.len()]);
                continue;
            }
            segments += 1;
            frames.push(match mix {
                FrameMix::Flood => self.resets[index % self.resets.len()],
                FrameMix::Stream | FrameMix::Association | FrameMix::Mixed => {
                    self.pair.next_frame()?
                }
            });
        }
        self.pair.run_responder(frames, counted);
        let left = self.pair.responder.port(0).map_or(0, |port| port.remaining());
        ensure!(left == 0, "{left} frames were not received");
        self.pair.discard_events();
        Ok(segments)
    }
}
