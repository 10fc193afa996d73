//! Simulated network: virtual time, two hosts, and the path between them.

use crate::seam::TxBatch;
use base::Instant;
use core::time::Duration;

/// A host at one end of the path.
pub(super) trait Host {
    fn input(&mut self, now: Instant, bytes: &[u8]);
    fn transmit(&mut self, now: Instant, tx: &mut Tx);
    fn timeout(&self) -> Option<Instant>;
    fn expire(&mut self, now: Instant);
}

/// Segments written by a host.
#[derive(Default)]
pub(super) struct Tx {
    room: Vec<u8>,
    pub(super) segments: Vec<Vec<u8>>,
}

impl TxBatch for Tx {
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() >= 32 {
            return None;
        }
        self.room = vec![0; len];
        Some(&mut self.room)
    }

    fn commit(&mut self, len: usize) {
        self.segments.push(self.room[..len].to_vec());
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    A,
    B,
}

/// Treatment of a segment by the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Pass,
    Drop,
    /// The segment arrives after segments sent later.
    Delay(Duration),
    /// A middlebox cuts the payload at these offsets.
    Split(Vec<usize>),
    /// The segment is received twice.
    Duplicate,
    /// The segment is received with one bit changed before the last CRC field; its TCP checksum is valid.
    Corrupt,
}

struct InFlightSegment {
    arrives_at: Instant,
    order: u64,
    destination: Side,
    bytes: Vec<u8>,
}

/// Function that returns the fate of the `n`th segment that a side sends; `n` counts from 1.
type FateFn = dyn FnMut(Side, usize, &[u8]) -> Fate;

/// Two hosts, and the path between them.
pub(super) struct Net<A, B> {
    pub(super) now: Instant,
    pub(super) a: A,
    pub(super) b: B,
    pub(super) latency: Duration,
    fate: Box<FateFn>,
    sent: [usize; 2],
    order: u64,
    in_flight: Vec<InFlightSegment>,
    /// All sent segments with their sender, including lost segments.
    pub(super) log: Vec<(Side, Vec<u8>)>,
}

impl<A: Host, B: Host> Net<A, B> {
    pub(super) fn new(a: A, b: B) -> Self {
        Net {
            now: Instant::from_millis(1000),
            a,
            b,
            latency: Duration::from_micros(500),
            fate: Box::new(|_, _, _| Fate::Pass),
            sent: [0; 2],
            order: 0,
            in_flight: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Sets the function that determines the fate of each segment.
    pub(super) fn with_fate(
        mut self,
        fate: impl FnMut(Side, usize, &[u8]) -> Fate + 'static,
    ) -> Self {
        self.fate = Box::new(fate);
        self
    }

    /// Runs until `done` returns true, until no event is left, or for ten minutes of virtual time.
    pub(super) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let limit = self.now + Duration::from_secs(600);
        self.transmit();
        for _ in 0..2_000_000 {
            if done(self) || !self.step(limit) {
                return;
            }
        }
        panic!("the simulation does not end");
    }

    /// Runs until no event is left, for at most ten minutes of virtual time.
    pub(super) fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// Runs for `time` of virtual time.
    pub(super) fn run_for(&mut self, time: Duration) {
        let limit = self.now + time;
        self.transmit();
        while self.step(limit) {}
        self.now = limit;
    }

    fn step(&mut self, limit: Instant) -> bool {
        let flying = self.in_flight.iter().map(|f| f.arrives_at).min();
        let next = [flying, self.a.timeout(), self.b.timeout()].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= limit) else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        let mut due: Vec<InFlightSegment> = Vec::new();
        let mut i = 0;
        while i < self.in_flight.len() {
            if self.in_flight[i].arrives_at <= now {
                due.push(self.in_flight.remove(i))
            } else {
                i += 1
            }
        }
        due.sort_by_key(|f| (f.arrives_at, f.order));
        for f in due {
            match f.destination {
                Side::A => self.a.input(now, &f.bytes),
                Side::B => self.b.input(now, &f.bytes),
            }
        }
        if self.a.timeout().is_some_and(|at| at <= now) {
            self.a.expire(now);
        }
        if self.b.timeout().is_some_and(|at| at <= now) {
            self.b.expire(now);
        }
        self.transmit();
        true
    }

    /// Lets each host transmit until it has no segment due.
    pub(super) fn transmit(&mut self) {
        for side in [Side::A, Side::B] {
            loop {
                let mut tx = Tx::default();
                match side {
                    Side::A => self.a.transmit(self.now, &mut tx),
                    Side::B => self.b.transmit(self.now, &mut tx),
                }
                let full = tx.segments.len() >= 32;
                for bytes in tx.segments {
                    self.send(side, bytes);
                }
                if !full {
                    break;
                }
            }
        }
    }

    fn send(&mut self, from: Side, bytes: Vec<u8>) {
        let (count, to) = match from {
            Side::A => (&mut self.sent[0], Side::B),
            Side::B => (&mut self.sent[1], Side::A),
        };
        *count += 1;
        let fate = (self.fate)(from, *count, &bytes);
        self.log.push((from, bytes.clone()));
        let (delay, pieces) = match fate {
            Fate::Drop => return,
            Fate::Pass => (Duration::ZERO, vec![bytes]),
            Fate::Delay(delay) => (delay, vec![bytes]),
            Fate::Split(cuts) => (Duration::ZERO, split(&bytes, &cuts)),
            Fate::Duplicate => (Duration::ZERO, vec![bytes.clone(), bytes]),
            Fate::Corrupt => (Duration::ZERO, vec![corrupt(bytes)]),
        };
        for bytes in pieces {
            self.order += 1;
            let at = self.now + self.latency + delay;
            self.in_flight.push(InFlightSegment {
                arrives_at: at,
                order: self.order,
                destination: to,
                bytes,
            });
        }
    }

    /// Returns the non-empty payloads that a side has sent, in order of transmission.
    pub(super) fn payloads(&self, side: Side) -> Vec<&[u8]> {
        let of = |(_, bytes): &'_ (Side, Vec<u8>)| header_len(bytes);
        self.log
            .iter()
            .filter(|(from, bytes)| *from == side && bytes.len() > header_len(bytes))
            .map(|entry| &entry.1[of(entry)..])
            .collect()
    }

    /// Returns true if a side has sent a reset.
    pub(super) fn has_reset(&self, side: Side) -> bool {
        self.log.iter().any(|(from, bytes)| *from == side && bytes[13] & 0x04 != 0)
    }
}

fn header_len(bytes: &[u8]) -> usize {
    usize::from(bytes[12] >> 4) * 4
}

/// Returns true for a segment with payload.
pub(super) fn has_payload(bytes: &[u8]) -> bool {
    bytes.len() > header_len(bytes)
}

fn corrupt(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 8;
    bytes[at] ^= 0x10;
    bytes
}

/// Cuts a segment as a middlebox would: same header, sequence numbers advanced, FIN on the last part only.
fn split(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let header = header_len(bytes);
    let len = bytes.len() - header;
    let mut cuts: Vec<usize> =
        cuts.iter().filter(|cut| **cut > 0 && **cut < len).copied().collect();
    cuts.push(0);
    cuts.push(len);
    cuts.sort_unstable();
    cuts.dedup();
    if len == 0 {
        return vec![bytes.to_vec()];
    }
    cuts.windows(2)
        .map(|cut| {
            let mut piece = bytes[..header].to_vec();
            let seq = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            piece[4..8].copy_from_slice(&seq.wrapping_add(cut[0] as u32).to_be_bytes());
            if cut[1] < len {
                piece[13] &= !0x01;
            }
            piece.extend_from_slice(&bytes[header + cut[0]..header + cut[1]]);
            piece
        })
        .collect()
}
