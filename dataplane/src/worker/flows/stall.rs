//! Streams whose packets are not answered: one report when they stall, and one when they resume.

use base::Instant;

use super::carrier::Progress;
use super::conn::Stage;
use super::lower::Lower;
use crate::api::Event;
use crate::io::PortIo;
use crate::worker::Core;

impl<Io: PortIo> Core<Io> {
    /// Reports that a connection has stalled or resumed, if that is new.
    #[cold]
    pub(in crate::worker) fn check_progress(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get(slot) else { return };
        let Lower::Tcp(carrier) = &conn.lower else { return };
        if let Some(progress) = carrier.progress(conn.pending.stalled, now) {
            self.report_progress(slot, progress);
        }
    }

    /// Reports that the streams of an association have stalled or resumed, if that is new.
    #[cold]
    pub(in crate::worker) fn check_progress_of(&mut self, at: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(at) else { return };
        let progress = association.carrier.progress(association.stalled, now);
        let Some(progress) = progress else { return };
        association.stalled = progress != Progress::Resumed;
        let slots: Vec<u32> = association.sessions.values().copied().collect();
        for slot in slots {
            self.report_progress(slot, progress);
        }
    }

    /// Reports that a stream has stalled or resumed, if the control thread has it as established.
    fn report_progress(&mut self, slot: u32, progress: Progress) {
        let Some((mut of, env)) = self.resolve(slot) else { return };
        let stalls = progress != Progress::Resumed;
        if of.conn.stage != Stage::Established || of.conn.pending.stalled == stalls {
            return;
        }
        of.conn.pending.stalled = stalls;
        let (stream, before) = (of.conn.id, env.control.events_sent());
        env.control.send(match progress {
            Progress::Stalled(stall) => Event::Stalled { stream, stall },
            Progress::Resumed => Event::Resumed { stream },
        });
        env.charge(&mut of, before);
    }
}
