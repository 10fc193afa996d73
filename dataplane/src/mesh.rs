//! Rings from each worker to each other: for frames that arrived at a worker that does not own their
//! flow, and for what one worker learned and others need to know. Bounded: what does not fit is counted
//! and lost, as on a wire.

use std::sync::Arc;

use ipsec::strength::Strength;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::api::{Counters, DropReason};
use crate::net::icmp::Report;
use crate::net::neighbour::Claim;
use crate::wake::Wake;

/// A message from one worker to another.
#[derive(Debug)]
pub enum Message<F> {
    /// A frame that arrived on this port, to be taken as if it had arrived there.
    Frame {
        /// Place of the port.
        port: usize,
        /// The buffer itself moves.
        frame: F,
        /// How it is protected.
        cover: Cover,
    },
    /// An announcement by a neighbour.
    Neighbour {
        /// Place of the interface.
        interface: usize,
        /// Its content.
        claim: Claim,
    },
    /// A packet put together from fragments that arrived on this port.
    Whole {
        /// Place of the port.
        port: usize,
        /// A frame as it would have come uncut.
        bytes: Vec<u8>,
        /// As of frames.
        cover: Cover,
    },
    /// A frame to be sealed by an SA of the other worker, and sent by this port.
    Seal {
        /// Place of the port.
        port: usize,
        /// The buffer itself moves.
        frame: F,
        /// Sent under at least this protection, or dropped.
        least: Strength,
    },
    /// A report about a flow by a router or the peer (ICMP).
    Icmp(Report),
    /// A frame that was to be sealed here is too long then: what its flow is to know.
    TooLong(Report),
}

/// Protection by IPsec of a frame that another worker received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover {
    /// ESP, to be opened by an SA of the receiving worker.
    Sealed,
    /// The policies let it pass: opened by an SA of this strength, or in clear.
    Passed(Strength),
}

/// One worker's ends of the mesh.
pub struct Mesh<F> {
    to: Vec<Option<Way<F>>>,
    from: Vec<Consumer<Message<F>>>,
    /// Where the next round of reading begins, so that no worker starves another.
    next: usize,
}

struct Way<F> {
    ring: Producer<Message<F>>,
    wake: Arc<Wake>,
    pushed: bool,
}

impl<F> Mesh<F> {
    /// The meshes of as many workers as there are wakes, with rings of `entries` messages.
    pub(crate) fn all(wakes: &[Arc<Wake>], entries: usize) -> Vec<Mesh<F>> {
        let empty = |_| Mesh { to: Vec::new(), from: Vec::new(), next: 0 };
        let mut meshes: Vec<Mesh<F>> = (0..wakes.len()).map(empty).collect();
        for from in 0..wakes.len() {
            for (to, wake) in wakes.iter().enumerate() {
                let way = (from != to).then(|| {
                    let (ring, end) = RingBuffer::new(entries.max(1));
                    meshes[to].from.push(end);
                    Way { ring, wake: wake.clone(), pushed: false }
                });
                meshes[from].to.push(way);
            }
        }
        meshes
    }

    /// Sends a message to another worker, or loses it.
    pub fn send(&mut self, worker: usize, message: Message<F>, counters: &Counters) {
        let Some(way) = self.to.get_mut(worker).and_then(Option::as_mut) else { return };
        let of_sealing = matches!(message, Message::Seal { .. } | Message::TooLong(_));
        let is_frame = !of_sealing && !matches!(message, Message::Neighbour { .. });
        let sent = match &message {
            Message::Neighbour { .. } => &counters.frames.mesh_news_out,
            _ if of_sealing => &counters.ipsec.mesh_seal_out,
            _ => &counters.frames.mesh_out,
        };
        if way.ring.push(message).is_ok() {
            way.pushed = true;
            sent.add(1);
        } else {
            counters.frames.mesh_full.add(1);
            if is_frame {
                counters.drops.count(DropReason::MeshFull);
            }
        }
    }

    /// There is no other worker.
    pub fn is_alone(&self) -> bool {
        self.from.is_empty()
    }

    /// Sends a message to each other worker.
    pub fn send_all(&mut self, mut message: impl FnMut() -> Message<F>, counters: &Counters) {
        for worker in 0..self.to.len() {
            self.send(worker, message(), counters);
        }
    }

    /// The next message from any other worker.
    pub fn receive(&mut self) -> Option<Message<F>> {
        for _ in 0..self.from.len() {
            let at = self.next;
            self.next = (self.next + 1) % self.from.len();
            if let Ok(message) = self.from[at].pop() {
                return Some(message);
            }
        }
        None
    }

    /// True when [`receive`](Self::receive) would give something.
    pub fn is_waiting(&self) -> bool {
        self.from.iter().any(|ring| !ring.is_empty())
    }

    /// Wakes the workers that were sent messages. To be called at the end of each turn.
    pub fn wake(&mut self) {
        for way in self.to.iter_mut().flatten() {
            if core::mem::take(&mut way.pushed) {
                way.wake.notify();
            }
        }
    }
}

#[cfg(test)]
mod model;
