//! Restores the order of a stream's messages from their DDP-SSNs (RFC 5043 §5.2.1).

use super::Chunk;

/// Maximum number of messages held while an earlier message is missing.
const MAX_HELD: usize = 4096;

/// Received messages of one stream.
#[derive(Debug, Default)]
pub struct Inbound {
    /// DDP-SSN of the next message in order.
    next: u16,
    /// Messages that arrived before an earlier message; at most [`MAX_HELD`].
    held: Vec<Chunk>,
}

impl Inbound {
    /// Processes a received message, and appends the messages that are now in order to `ready`. The flag is false for a
    /// message outside the sequence: too short, duplicate, too far ahead, or early while `MAX_HELD` messages are held.
    pub fn arrive(&mut self, chunk: Chunk, ready: &mut Vec<(Chunk, bool)>) {
        let ahead = chunk.ssn().map(|ssn| ssn.wrapping_sub(self.next));
        let known = |held: &[Chunk]| held.iter().any(|c| c.ssn() == chunk.ssn());
        match ahead {
            Some(0) => {}
            // RFC 5043 §10: at most 32767 chunks may be outstanding.
            Some(1..0x8000) if self.held.len() < MAX_HELD && !known(&self.held) => {
                self.held.push(chunk);
                return;
            }
            _ => return ready.push((chunk, false)),
        }
        ready.push((chunk, true));
        self.next = self.next.wrapping_add(1);
        while let Some(at) = self.held.iter().position(|c| c.ssn() == Some(self.next)) {
            ready.push((self.held.swap_remove(at), true));
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Removes and returns a held message, although an earlier message is missing.
    pub fn take_early(&mut self) -> Option<Chunk> {
        if self.held.is_empty() { None } else { Some(self.held.remove(0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(ssn: u16) -> Chunk {
        let data = ssn.to_be_bytes().to_vec();
        Chunk { stream: 0, ppid: 16, unordered: true, whole: true, data }
    }

    #[test]
    fn messages_are_ready_in_the_order_of_ssns() {
        let mut inbound = Inbound::default();
        let mut arrive = |ssn: u16| {
            let mut ready = vec![];
            inbound.arrive(chunk(ssn), &mut ready);
            ready.iter().map(|(c, good)| (c.ssn().unwrap_or(0), *good)).collect::<Vec<_>>()
        };
        assert_eq!(arrive(1), []);
        assert_eq!(arrive(3), []);
        assert_eq!(arrive(0), [(0, true), (1, true)]);
        assert_eq!(arrive(1), [(1, false)]);
        assert_eq!(arrive(3), [(3, false)]);
        assert_eq!(arrive(2), [(2, true), (3, true)]);
        assert_eq!(arrive(0x8004), [(0x8004, false)]);
        assert_eq!(inbound.take_early(), None);
    }

    #[test]
    fn held_messages_are_bounded() {
        let mut inbound = Inbound::default();
        let mut ready = vec![];
        (1..6000).for_each(|ssn| inbound.arrive(chunk(ssn), &mut ready));
        assert_eq!(ready.len(), 5999 - MAX_HELD);
        assert_eq!(inbound.take_early().and_then(|c| c.ssn()), Some(1));
    }
}
