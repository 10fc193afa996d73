//! Fuzz target for a worker's end of a send or receive queue whose shared memory a verbs program has filled.

use std::sync::atomic::Ordering;

use verbs_layout::ring::{self, Consumer, RingError};
use verbs_layout::work::{ReceiveWork, SendWork};
use verbs_layout::{MAX_UNITS, Word};

/// Capacity of the ring, units.
const CAPACITY: usize = 16;

/// Passes a ring with arbitrary contents to the consumer. Input: the producer's index (8 bytes, little-endian), then
/// the units of the ring. Missing bytes are zero.
pub(crate) fn program_queue(data: &[u8]) {
    let memory: Vec<Word> = (0..ring::words(CAPACITY)).map(|_| Word::new(0)).collect();
    let mut words = data.chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    memory[0].store(words.next().unwrap_or(0), Ordering::Relaxed);
    for (to, word) in memory[ring::HEADER_WORDS..].iter().zip(words) {
        to.store(word, Ordering::Relaxed);
    }
    let mut worker = Consumer::new(&memory, CAPACITY).expect("a ring of 16 units");
    let mut popped = 0;
    loop {
        match worker.pop() {
            Ok(Some(units)) => {
                popped += units.len();
                assert!(popped <= CAPACITY, "units beyond the capacity");
                if let Ok(work) = SendWork::decode(&units) {
                    assert_eq!(work.encode(), units);
                }
                if let Ok(work) = ReceiveWork::decode(&units) {
                    assert_eq!(work.encode(), units);
                }
            }
            Ok(None) => break,
            Err(RingError::UnitCount(units)) => {
                assert!(units == 0 || usize::from(units) > MAX_UNITS);
                break;
            }
            Err(RingError::Truncated { units, available }) => break assert!(available < units),
            Err(RingError::LyingIndex) => break assert_eq!(popped, 0),
            Err(RingError::Full) => unreachable!("a consumer is not full"),
        }
    }
}
