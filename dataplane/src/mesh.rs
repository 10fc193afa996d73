//! Rings between all pairs of workers. They carry frames to the owner of their flow or of their SA, and reports for
//! other workers. The rings are bounded. Messages that find a ring full are counted and lost, like frames on a link.

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
    /// A frame received from a port, to be processed as if the other worker had received it.
    Frame {
        /// Index of the receiving port.
        port: usize,
        /// The packet buffer, moved without a copy.
        frame: F,
        /// IPsec state of the frame.
        ipsec: IpsecState,
    },
    /// An announcement by a neighbour.
    Neighbour {
        /// Index of the interface.
        interface: usize,
        /// Announced IP and link-layer address, and the kind of packet.
        claim: Claim,
    },
    /// A packet reassembled from fragments that arrived on a port.
    Reassembled {
        /// Index of the receiving port.
        port: usize,
        /// The packet as an unfragmented frame.
        bytes: Vec<u8>,
        /// IPsec state of the packet.
        ipsec: IpsecState,
    },
    /// A frame to be sealed by an SA of the other worker and sent on a port.
    Seal {
        /// Index of the sending port.
        port: usize,
        /// The packet buffer, moved without a copy.
        frame: F,
        /// Minimum IPsec protection. The frame is dropped if the SA is weaker.
        min_strength: Strength,
    },
    /// An ICMP error about a flow of the other worker, from a router or the peer.
    Icmp(Report),
    /// A report of a packet that is too big. The owner of a flow receives it if the flow's frame exceeds the path MTU
    /// once sealed. All workers receive a report about ESP, because the owner of the SA is not known. Ignored without a
    /// match.
    PacketTooBig(Report),
}

/// IPsec state of a frame from another worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpsecState {
    /// ESP, to be opened by an SA of the receiving worker.
    Sealed,
    /// Admitted by the policies: opened by an SA of this strength, or in clear.
    Passed(Strength),
}

/// One worker's ends of the rings to and from all other workers.
pub struct Mesh<F> {
    to: Vec<Option<Sender<F>>>,
    from: Vec<Consumer<Message<F>>>,
    /// Index of the ring to read next, round robin, so that no worker starves another.
    next: usize,
}

struct Sender<F> {
    ring: Producer<Message<F>>,
    wake: Arc<Wake>,
    pushed: bool,
}

impl<F> Mesh<F> {
    /// Creates the mesh of each worker, one per element of `wakes`. Each ring holds `entries` messages.
    pub(crate) fn full_mesh(wakes: &[Arc<Wake>], entries: usize) -> Vec<Mesh<F>> {
        let empty = |_| Mesh { to: Vec::new(), from: Vec::new(), next: 0 };
        let mut meshes: Vec<Mesh<F>> = (0..wakes.len()).map(empty).collect();
        for from in 0..wakes.len() {
            for (to, wake) in wakes.iter().enumerate() {
                let way = (from != to).then(|| {
                    let (ring, end) = RingBuffer::new(entries.max(1));
                    meshes[to].from.push(end);
                    Sender { ring, wake: wake.clone(), pushed: false }
                });
                meshes[from].to.push(way);
            }
        }
        meshes
    }

    /// Sends a message to another worker. If the ring is full, the message is counted and lost.
    pub fn send(&mut self, worker: usize, message: Message<F>, counters: &Counters) {
        let Some(way) = self.to.get_mut(worker).and_then(Option::as_mut) else { return };
        let of_sealing = matches!(message, Message::Seal { .. } | Message::PacketTooBig(_));
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

    /// Returns true if there is only one worker.
    pub fn is_single_worker(&self) -> bool {
        self.from.is_empty()
    }

    /// Sends a message to every other worker.
    pub fn send_all(&mut self, mut message: impl FnMut() -> Message<F>, counters: &Counters) {
        for worker in 0..self.to.len() {
            self.send(worker, message(), counters);
        }
    }

    /// Returns the next message of any other worker, round robin.
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

    /// Returns true if [`receive`](Self::receive) would return a message.
    pub fn has_messages(&self) -> bool {
        self.from.iter().any(|ring| !ring.is_empty())
    }

    /// Wakes the workers to which messages were sent. Called at the end of each turn.
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
