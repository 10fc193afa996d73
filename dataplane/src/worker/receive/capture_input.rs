//! Input from a port while a capture runs. Each frame is processed separately. The [`Tap`] holds the frame meanwhile,
//! and records it with its outcome (passed, forwarded, dropped) when the frame is released. Only queues of the captured
//! port use this code.

use arrayvec::ArrayVec;
use base::Instant;

use crate::api::{CommandError, PortId};
use crate::capture::Tap;
use crate::io::{BURST, Frame, PortIo};
use crate::worker::Core;
use crate::worker::arrival::{Arrivals, Packet};

impl<Io: PortIo> Core<Io> {
    /// Starts or ends a capture of a port: `tap` replaces the previous capture, `None` ends it.
    ///
    /// # Errors
    /// This worker has no queue of the port.
    pub(in crate::worker) fn set_tap(
        &mut self,
        port: PortId,
        tap: Option<Box<Tap>>,
    ) -> Result<(), CommandError> {
        let slot = self.env.ports.get_mut(usize::from(port.0)).ok_or(CommandError::NoPort)?;
        slot.io.set_tap(tap);
        Ok(())
    }

    /// Processes a burst under the same limits as without a capture: matched frames first, then the others. Returns the
    /// number of frames that matched a stream or an association.
    #[cold]
    #[inline(never)]
    pub(in crate::worker) fn input_captured_burst(
        &mut self,
        port: usize,
        frames: ArrayVec<Io::Frame, BURST>,
        now: Instant,
    ) -> usize {
        let (mut matched, mut unmatched) = (0, Arrivals::new());
        self.begin_burst(frames.is_full());
        self.env.control.counters().burst_frames.record(frames.len() as u64);
        for frame in frames {
            let counters = &self.env.control.counters().frames;
            counters.rx_frames.add(1);
            counters.rx_bytes.add(frame.bytes().len() as u64);
            let (meshed, left) = (counters.mesh_out.get(), unmatched.len());
            self.hold_capture(port, frame.bytes());
            let mut arrivals = Arrivals::new();
            self.input_packet(port, Packet::Frame(frame), now, &mut arrivals);
            matched += self.look_up_and_input(&mut arrivals, &[], &mut unmatched, now);
            // An unmatched frame is held again and released below. An unmatched reassembled packet is not a captured
            // frame, so the fragment that completed it is released now.
            let is_unmatched =
                unmatched.get(left).is_some_and(|a| matches!(a.frame, Packet::Frame(_)));
            if !is_unmatched {
                let forwarded = self.env.control.counters().frames.mesh_out.get() > meshed;
                self.release_capture(port, forwarded);
            }
        }
        for arrival in &unmatched {
            let frame = matches!(arrival.frame, Packet::Frame(_));
            if frame {
                self.hold_capture(port, arrival.frame.bytes());
            }
            self.input_unmatched_arrival(arrival, now);
            if frame {
                self.release_capture(port, false);
            }
        }
        matched
    }

    /// Replaces the capture's held frame by its decrypted form, if the capture records plaintext.
    pub(in crate::worker) fn capture_opened(&mut self, port: usize, frame: &[u8]) {
        if let Some(tap) = self.env.ports.get_mut(port).and_then(|slot| slot.io.tap()) {
            tap.hold_plaintext(frame);
        }
    }

    fn hold_capture(&mut self, port: usize, frame: &[u8]) {
        if let Some(tap) = self.env.ports.get_mut(port).and_then(|slot| slot.io.tap()) {
            tap.hold(frame, &self.env.control.counters().drops);
        }
    }

    fn release_capture(&mut self, port: usize, forwarded: bool) {
        if let Some(tap) = self.env.ports.get_mut(port).and_then(|slot| slot.io.tap()) {
            tap.release(&self.env.control.counters().drops, forwarded);
        }
    }
}
