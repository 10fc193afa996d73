//! Cost of a bulk transfer for a whole worker: the instructions of one end's iterations of the worker loop per full
//! frame. For the initiator this includes receiving acknowledgements, for the responder sending them.

use anyhow::bail;
use benches::hot_path::{Runner, uncounted};
use benches::rig_config::RigConfig;
use dataplane::io::BURST;

use crate::pair::{MAX_TURNS, StreamPair};

/// Minimum number of counted full frames.
pub(crate) const FRAMES: usize = 64;
/// Uncounted frames before the measurement, so that tables and records have reached their final size.
const WARM_UP_FRAMES: usize = 256;
/// Number of streams of the paths with several streams.
const STREAMS: u32 = 64;
/// Writes in flight on the stream of the paths with one stream, and on each stream of the others.
const WRITES: [usize; 2] = [8, 2];

/// End whose turns are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The initiator, which sends.
    Sender,
    /// The responder, which receives bursts of one stream.
    Receiver,
    /// The responder. Consecutive frames belong to different streams.
    InterleavedReceiver,
}

/// A transfer and the end that is counted.
pub(crate) struct Transfer {
    /// Name of the path.
    pub(crate) name: &'static str,
    end: End,
    adapt: fn(&mut RigConfig),
}

/// All paths.
pub(crate) const TRANSFERS: [Transfer; 12] = [
    path("send-1500", End::Sender, |_| ()),
    path("send-1500-unstable", End::Sender, |rig| rig.unstable = true),
    path("send-1500-markers", End::Sender, |rig| rig.markers = true),
    path("send-1500-sctp", End::Sender, |rig| rig.sctp = true),
    path("send-1500-streams", End::Sender, |rig| rig.streams = STREAMS),
    path("send-9000", End::Sender, |rig| rig.mtu = 9000),
    path("receive-1500", End::Receiver, |_| ()),
    path("receive-1500-markers", End::Receiver, |rig| rig.markers = true),
    path("receive-1500-sctp", End::Receiver, |rig| rig.sctp = true),
    path("receive-1500-streams", End::Receiver, |rig| rig.streams = STREAMS),
    path("receive-1500-interleaved", End::InterleavedReceiver, |rig| rig.streams = STREAMS),
    path("receive-9000", End::Receiver, |rig| rig.mtu = 9000),
];

const fn path(name: &'static str, end: End, adapt: fn(&mut RigConfig)) -> Transfer {
    Transfer { name, end, adapt }
}

impl Transfer {
    /// Runs the path: a warm-up, then rounds with at least [`FRAMES`] full frames, each under `counted`. Returns the
    /// number of counted full frames.
    pub(crate) fn run(&self, counted: Runner<'_>) -> anyhow::Result<usize> {
        let mut rig = RigConfig::default();
        (self.adapt)(&mut rig);
        let mut pair = StreamPair::new(&rig, WRITES[usize::from(rig.streams > 1)])?;
        let mut warm_up = 0;
        while warm_up < WARM_UP_FRAMES {
            warm_up += self.run_round(&mut pair, &mut uncounted)?;
        }
        let mut frames = 0;
        while frames < FRAMES {
            frames += self.run_round(&mut pair, counted)?;
        }
        Ok(frames)
    }

    /// Runs a turn of the sender, or passes a burst to the receiver, and lets the other end catch up. Returns the
    /// number of full frames.
    fn run_round(&self, pair: &mut StreamPair, counted: Runner<'_>) -> anyhow::Result<usize> {
        let full = match self.end {
            End::Sender => {
                let full = pair.run_initiator(counted);
                pair.deliver_pending();
                full
            }
            End::Receiver | End::InterleavedReceiver => {
                let burst = self.next_burst(pair)?;
                let full = burst.iter().filter(|frame| pair.is_full(frame)).count();
                pair.run_responder(burst, counted);
                full
            }
        };
        pair.discard_events();
        Ok(full)
    }

    /// Returns the next burst of the sender.
    fn next_burst(&self, pair: &mut StreamPair) -> anyhow::Result<Vec<&'static [u8]>> {
        for _ in 0..MAX_TURNS {
            let burst = pair.take_pending(BURST);
            if !burst.is_empty() {
                return Ok(burst);
            }
            pair.run_initiator(&mut uncounted);
            if self.end == End::InterleavedReceiver {
                pair.interleave_pending();
            }
        }
        bail!("the sender sends nothing")
    }
}
