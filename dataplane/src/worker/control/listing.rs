//! Lists of streams and associations for operators. Each turn reports a few of them, because a worker with thousands
//! also has packets to process.

use std::collections::VecDeque;

use base::Instant;

use super::report::info;
use crate::api::{AssociationInfo, Event, Listed, StreamInfo, Ticket};
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::conn::Stage;

/// Streams in one [`Event::Streams`], at most, and associations likewise: about ten microseconds.
const MOST: usize = 32;
/// Slots of one table examined in one turn, at most.
const PLACES: u32 = 1024;

/// Requested lists, oldest first. The control thread has few outstanding.
#[derive(Debug, Default)]
pub(in crate::worker) struct Listings(VecDeque<Listing>);

/// Progress of one list.
#[derive(Clone, Copy, Debug)]
struct Listing {
    which: Listed,
    ticket: Ticket,
    /// All streams were listed; associations follow.
    streams: bool,
    /// The next slot to examine.
    next: u32,
}

impl Listings {
    #[inline]
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Listing {
    /// Collects the streams, or associations, in the next slots. The second value is true at the end of the table.
    fn next_of<T>(&mut self, places: u32, get: impl Fn(u32) -> Option<T>) -> (Vec<T>, bool) {
        let end = places.min(self.next.saturating_add(PLACES));
        let mut some = Vec::new();
        while self.next < end && some.len() < MOST {
            some.extend(get(self.next));
            self.next += 1;
        }
        (some, self.next >= places)
    }
}

impl<Io: PortIo> Core<Io> {
    pub(in crate::worker) fn list(&mut self, which: Listed, ticket: Ticket) {
        let streams = matches!(which, Listed::Associations | Listed::Association(_));
        self.listings.0.push_back(Listing { which, ticket, streams, next: 0 });
    }

    /// Continues the oldest list. Returns whether there was one.
    #[cold]
    #[inline(never)]
    pub(in crate::worker) fn list_more(&mut self, now: Instant) -> bool {
        let Some(mut listing) = self.listings.0.pop_front() else { return false };
        let (streams, associations, last) = match listing.which {
            Listed::Stream(id) => (
                self.streams.find(id).and_then(|at| self.stream_at(at, now)).into_iter().collect(),
                Vec::new(),
                true,
            ),
            Listed::Association(name) => {
                let found = self.associations.find_name(name);
                let info = found.and_then(|at| self.associations.info(at, now));
                (Vec::new(), info.into_iter().collect(), true)
            }
            Listed::Everything | Listed::Associations => self.next_part(&mut listing, now),
        };
        let handshakes = if last { self.env.control.take_handshakes() } else { Vec::new() };
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
            self.listings.0.push_front(listing);
        }
        true
    }

    fn next_part(
        &self,
        listing: &mut Listing,
        now: Instant,
    ) -> (Vec<StreamInfo>, Vec<AssociationInfo>, bool) {
        let mut streams = Vec::new();
        if !listing.streams {
            (streams, listing.streams) =
                listing.next_of(self.streams.places() as u32, |at| self.stream_at(at, now));
            if !listing.streams {
                return (streams, Vec::new(), false);
            }
            listing.next = 0;
        }
        let places = self.associations.places() as u32;
        let (associations, last) = listing.next_of(places, |at| self.associations.info(at, now));
        (streams, associations, last)
    }

    /// Returns the stream in a slot as operators see it.
    fn stream_at(&self, at: u32, now: Instant) -> Option<StreamInfo> {
        let conn = self.streams.get(at).filter(|conn| conn.stage != Stage::Ended)?;
        Some(info(conn, &self.associations, now))
    }
}
