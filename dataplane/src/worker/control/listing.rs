//! Lists of streams and associations for operators. Each turn of the worker reports only a part of a list, so that
//! packets do not wait for a list of thousands of streams.

use std::collections::VecDeque;
use std::sync::Arc;

use base::Instant;

use super::report::stream_info;
use crate::api::{AssociationInfo, Event, StreamInfo, StreamSelection, Ticket};
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::conn::Stage;

/// Maximum number of streams, and of associations, in one [`Event::Streams`]. Collecting them takes about ten
/// microseconds.
const MAX_ENTRIES: usize = 32;
/// Maximum number of slots of one table that are examined per turn.
const MAX_SLOTS: u32 = 1024;

/// Requested lists, oldest first. Their number needs no limit, because the control thread has only few requests
/// outstanding at a time.
#[derive(Debug, Default)]
pub(in crate::worker) struct ListRequests(VecDeque<ListRequest>);

/// Progress of one list.
#[derive(Debug)]
struct ListRequest {
    selection: StreamSelection,
    ticket: Ticket,
    /// True once all streams are listed; associations follow.
    streams_done: bool,
    /// Next slot to examine, or next element of [`StreamSelection::Streams`].
    next_slot: u32,
}

/// The part of a list that one turn reports.
struct ListPart {
    streams: Vec<StreamInfo>,
    associations: Vec<AssociationInfo>,
    /// True if this part completes the list.
    last: bool,
}

impl ListRequests {
    #[inline]
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ListRequest {
    /// Collects entries from the next slots of a table with `slots` slots, within the limits per turn. The second
    /// value is true at the end of the table.
    fn collect_slots<T>(&mut self, slots: u32, get: impl Fn(u32) -> Option<T>) -> (Vec<T>, bool) {
        let end = slots.min(self.next_slot.saturating_add(MAX_SLOTS));
        let mut found = Vec::new();
        while self.next_slot < end && found.len() < MAX_ENTRIES {
            found.extend(get(self.next_slot));
            self.next_slot += 1;
        }
        (found, self.next_slot >= slots)
    }
}

impl<Io: PortIo> Core<Io> {
    pub(in crate::worker) fn queue_list(&mut self, which: StreamSelection, ticket: Ticket) {
        let streams_done =
            matches!(which, StreamSelection::Associations | StreamSelection::Association(_));
        self.list_requests.0.push_back(ListRequest {
            selection: which,
            ticket,
            streams_done,
            next_slot: 0,
        });
    }

    /// Reports the next part of the oldest list. Returns true if there was a list.
    #[cold]
    #[inline(never)]
    pub(in crate::worker) fn continue_list(&mut self, now: Instant) -> bool {
        let Some(mut listing) = self.list_requests.0.pop_front() else { return false };
        let part = match &listing.selection {
            &StreamSelection::Stream(id) => {
                let found = self.streams.find_stream(id);
                let info = found.and_then(|at| self.stream_info(at, now));
                let streams = info.into_iter().collect();
                ListPart { streams, associations: Vec::new(), last: true }
            }
            &StreamSelection::Association(id) => {
                let found = self.associations.find_by_id(id);
                let info = found.and_then(|at| self.associations.info(at, now));
                let associations = info.into_iter().collect();
                ListPart { streams: Vec::new(), associations, last: true }
            }
            StreamSelection::Streams(ids) => {
                let ids = Arc::clone(ids);
                let info = |at: u32| {
                    let id = ids.get(at as usize)?;
                    self.stream_info(self.streams.find_stream(*id)?, now)
                };
                let (streams, last) = listing.collect_slots(ids.len() as u32, info);
                ListPart { streams, associations: Vec::new(), last }
            }
            StreamSelection::All | StreamSelection::Associations => {
                self.collect_part(&mut listing, now)
            }
        };
        let ListPart { streams, associations, last } = part;
        let handshakes = if last { self.env.control.take_handshake_counts() } else { Vec::new() };
        if last || !streams.is_empty() || !associations.is_empty() {
            let ticket = listing.ticket;
            self.env.control.send(Event::Streams {
                ticket,
                streams,
                associations,
                handshakes,
                last,
            });
        }
        if !last {
            self.list_requests.0.push_front(listing);
        }
        true
    }

    fn collect_part(&self, listing: &mut ListRequest, now: Instant) -> ListPart {
        let mut streams = Vec::new();
        if !listing.streams_done {
            (streams, listing.streams_done) = listing
                .collect_slots(self.streams.slot_count() as u32, |at| self.stream_info(at, now));
            if !listing.streams_done {
                return ListPart { streams, associations: Vec::new(), last: false };
            }
            listing.next_slot = 0;
        }
        let slots = self.associations.slot_count() as u32;
        let (associations, last) =
            listing.collect_slots(slots, |at| self.associations.info(at, now));
        ListPart { streams, associations, last }
    }

    /// Returns the stream in a slot as listed for operators; `None` if the slot is vacant or the stream has ended.
    fn stream_info(&self, slot: u32, now: Instant) -> Option<StreamInfo> {
        let conn = self.streams.get(slot).filter(|conn| conn.stage != Stage::Ended)?;
        Some(stream_info(conn, &self.associations, now))
    }
}
