//! Rings between all pairs of workers. The rings carry frames to the worker that owns their flow or SA, and reports for
//! other workers. Each ring is bounded. If a ring is full, a message for it is dropped and counted, like a frame on a
//! link.

use std::sync::Arc;

use ipsec::strength::Strength;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::api::{Counters, DropReason};
use crate::net::icmp::Report;
use crate::net::neighbour::Claim;
use crate::wake::Wake;

/// A message from one worker to another. The worker that it is sent to is called the receiving worker below.
#[derive(Debug)]
pub enum Message<F> {
    /// A frame received from a port. The receiving worker processes the frame as if the frame had arrived on its own
    /// queue.
    Frame {
        /// Index of the receiving port.
        port: usize,
        /// The packet buffer, moved without a copy.
        frame: F,
        /// IPsec state of the frame.
        ipsec: IpsecState,
    },
    /// A neighbour's claim to an IP address.
    Neighbour {
        /// Index of the interface.
        interface: usize,
        /// The claimed address with its link-layer address, and the kind of packet that carried the claim.
        claim: Claim,
    },
    /// A packet reassembled from fragments that arrived on a port.
    Reassembled {
        /// Index of the receiving port.
        port: usize,
        /// The packet as one frame, Ethernet header first.
        bytes: Vec<u8>,
        /// IPsec state of the packet.
        ipsec: IpsecState,
    },
    /// A frame that the receiving worker seals with its SA and sends on a port.
    Seal {
        /// Index of the sending port.
        port: usize,
        /// The packet buffer, moved without a copy.
        frame: F,
        /// Minimum IPsec protection. The frame is dropped if the SA is weaker.
        min_strength: Strength,
    },
    /// An ICMP error, from a router or the peer, about a flow of the receiving worker.
    Icmp(Report),
    /// A report that a packet is too big. If a frame would exceed the path MTU once sealed, the owner of its flow
    /// receives the report. If an ICMP error quotes an ESP packet, all other workers receive the report, because the
    /// owner of the SA is not known. A worker without a matching flow or SA ignores the report.
    PacketTooBig(Report),
}

/// IPsec state of a frame from another worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpsecState {
    /// An ESP packet, to be opened by an SA of the receiving worker.
    Sealed,
    /// Admitted by the policies. The frame was opened by an SA of this strength, or arrived in clear.
    Passed(Strength),
}

/// One worker's ends of the rings to and from all other workers.
pub struct Mesh<F> {
    to: Vec<Option<Sender<F>>>,
    from: Vec<Consumer<Message<F>>>,
    /// Index in `from` of the ring to read next. Rings are read round robin, so that no worker starves another.
    next: usize,
}

struct Sender<F> {
    ring: Producer<Message<F>>,
    wake: Arc<Wake>,
    pushed: bool,
}

impl<F> Mesh<F> {
    /// Creates one mesh for each worker. `wakes` has one element per worker. Each ring holds `entries` messages, at
    /// least 1.
    pub(crate) fn full_mesh(wakes: &[Arc<Wake>], entries: usize) -> Vec<Mesh<F>> {
        let empty = |_| Mesh { to: Vec::new(), from: Vec::new(), next: 0 };
        let mut meshes: Vec<Mesh<F>> = (0..wakes.len()).map(empty).collect();
        for from in 0..wakes.len() {
            for (to, wake) in wakes.iter().enumerate() {
                let sender = (from != to).then(|| {
                    let (ring, end) = RingBuffer::new(entries.max(1));
                    meshes[to].from.push(end);
                    Sender { ring, wake: wake.clone(), pushed: false }
                });
                meshes[from].to.push(sender);
            }
        }
        meshes
    }

    /// Sends a message to the worker at index `worker`. If the ring is full, the message is counted and lost. A message
    /// to this worker itself is discarded.
    pub fn send(&mut self, worker: usize, message: Message<F>, counters: &Counters) {
        let Some(sender) = self.to.get_mut(worker).and_then(Option::as_mut) else { return };
        let is_for_sealing = matches!(message, Message::Seal { .. } | Message::PacketTooBig(_));
        let is_frame = !is_for_sealing && !matches!(message, Message::Neighbour { .. });
        let sent = match &message {
            Message::Neighbour { .. } => &counters.frames.mesh_news_out,
            _ if is_for_sealing => &counters.ipsec.mesh_seal_out,
            _ => &counters.frames.mesh_out,
        };
        if sender.ring.push(message).is_ok() {
            sender.pushed = true;
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

    /// Returns the next message from any other worker, round robin; `None` if all rings are empty.
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

    /// Wakes the workers to which messages were sent since the previous call. Called at the end of each iteration of
    /// the worker loop.
    pub fn wake(&mut self) {
        for sender in self.to.iter_mut().flatten() {
            if core::mem::take(&mut sender.pushed) {
                sender.wake.notify();
            }
        }
    }
}

#[cfg(test)]
mod model;
