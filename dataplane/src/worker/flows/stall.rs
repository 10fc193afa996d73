//! Reports of streams whose packets are not acknowledged: one report when a stream stalls and one when it resumes.

use base::Instant;

use super::carrier::ProgressChange;
use super::conn::Stage;
use super::lower_layer::LowerLayer;
use crate::api::Event;
use crate::io::PortIo;
use crate::worker::Core;

impl<Io: PortIo> Core<Io> {
    /// Reports that a TCP connection has stalled or resumed, once per transition.
    #[cold]
    pub(in crate::worker) fn check_stream_progress(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get(slot) else { return };
        let LowerLayer::Tcp(carrier) = &conn.lower else { return };
        if let Some(progress) = carrier.progress_change(conn.transient.stalled, now) {
            self.report_progress(slot, progress);
        }
    }

    /// Reports that the streams of an association have stalled or resumed, once per transition.
    #[cold]
    pub(in crate::worker) fn check_association_progress(
        &mut self,
        association_slot: u32,
        now: Instant,
    ) {
        let Some(association) = self.associations.get_mut(association_slot) else { return };
        let progress = association.carrier.progress_change(association.stalled, now);
        let Some(progress) = progress else { return };
        association.stalled = progress != ProgressChange::Resumed;
        let slots: Vec<u32> = association.sessions.values().copied().collect();
        for slot in slots {
            self.report_progress(slot, progress);
        }
    }

    /// Reports that a stream has stalled or resumed, if the stream is established and the last report was the opposite.
    /// A stream without a report counts as resumed.
    fn report_progress(&mut self, slot: u32, progress: ProgressChange) {
        let Some((mut stream, env)) = self.stream_mut(slot) else { return };
        let is_stalled = progress != ProgressChange::Resumed;
        if stream.conn.stage != Stage::Established || stream.conn.transient.stalled == is_stalled {
            return;
        }
        stream.conn.transient.stalled = is_stalled;
        let (id, before) = (stream.conn.id, env.control.events_sent());
        env.control.send(match progress {
            ProgressChange::Stalled(stall) => Event::Stalled { stream: id, stall },
            ProgressChange::Resumed => Event::Resumed { stream: id },
        });
        env.charge(&mut stream, before);
    }
}
