//! The SRQ of a QP as the source of its stream's receives, and the reports of SRQs that have failed or have reached
//! their limit.

use std::sync::Arc;

use base::Instant;
use ddp::rdmap::{Receive, ReceiveSource};
use ddp::{StagTable, StreamId};

use super::Program;
use super::request::Regions;
use super::shared::{Notices, SharedQueue, Taken};
use crate::api::{Event, QueuePairError, SharedReceives};
use crate::io::PortIo;
use crate::memory::Memory;
use crate::worker::Core;

/// Receives of an SRQ for one stream.
#[derive(Debug)]
pub(super) struct Source {
    receives: Arc<SharedReceives>,
    stream: StreamId,
    notices: Notices,
    taken: Arc<Taken>,
}

impl Source {
    /// Creates the source of receives for the stream of a QP. Returns `None` if the stream already has a source.
    pub(super) fn new(
        queue: &mut SharedQueue,
        stream: StreamId,
        notices: &Notices,
    ) -> Option<Source> {
        if std::mem::replace(&mut queue.has_source, true) {
            return None;
        }
        let (receives, taken) = (Arc::clone(&queue.receives), Arc::clone(&queue.taken));
        Some(Source { receives, stream, notices: notices.clone(), taken })
    }
}

impl ReceiveSource<Memory> for Source {
    /// Takes the next receive of the SRQ. A receive with a refused SGE has no memory, so any message with payload is
    /// too long for it.
    fn take(&self, stags: &StagTable<Memory>) -> Option<Receive<Memory>> {
        let work = self.receives.take();
        if self.receives.has_notice() {
            self.notices.set();
        }
        let work = work?;
        let (pd, stream) = (self.receives.pd(), self.stream);
        let spans = Regions { stags, pd, stream, windows: None }.sink(&work.buffers);
        self.taken.push(work.wr_id, spans.is_err());
        Some(Receive { cookie: work.wr_id, spans: spans.unwrap_or_default() })
    }
}

impl<Io: PortIo> Core<Io> {
    /// Reports the notices of the SRQs of a program's QPs, and fails the QPs of SRQs that have failed.
    pub(super) fn report_shared_receives(&mut self, program: &mut Program, now: Instant) {
        if !program.notices.take() {
            return;
        }
        for pair in program.pairs.iter_mut().flatten() {
            let Some(SharedQueue { receives: shared, .. }) = &pair.receives.shared else {
                continue;
            };
            let events = [shared.take_low(), shared.take_failure()];
            let has_failed = shared.has_failed();
            for event in events.into_iter().flatten() {
                self.env.control.send(Event::Program(event));
            }
            if has_failed && !pair.ended {
                self.fail_pair(pair, QueuePairError::SharedReceives, now);
            }
        }
    }
}
