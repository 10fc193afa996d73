//! Bytes that a sender keeps until they are acknowledged, so that a retransmission sends the same bytes.
//!
//! A run is the bytes kept under one number. Runs are copied into blocks, one after the other, and their memory is
//! freed with the block. A separate allocation for each run would cost more than the copy of a short run.
//!
//! Length of a new block: four times the bytes kept at that time, from 1 KiB to 64 KiB. The
//! [limit](RetransmitBuffer::set_limit) may shorten the block, but not below the length of its first run.
//!
//! Total memory: a block is added only for a run that does not fit into the last block. Two consecutive blocks
//! therefore contain more bytes than the capacity of the first. If runs are freed in order, all blocks except the last
//! take at most twice the bytes kept, plus the first block. Spare blocks are kept, at most as many as blocks are in
//! use, because the page faults of new allocations would take longer than the copies. If no bytes are kept, at most 8
//! KiB remain allocated.

use std::collections::VecDeque;

/// The shortest block, in bytes.
const MIN_BLOCK: usize = 1 << 10;
/// The longest block, in bytes, unless one run is longer.
const MAX_BLOCK: usize = 64 << 10;
/// The longest block, in bytes, that remains allocated when no bytes are kept.
const MAX_IDLE_BLOCK: usize = 8 << 10;

/// Runs of bytes. The number of a run is the position of its first byte in the stream, or the number of a message.
#[derive(Clone, Debug, Default)]
pub struct RetransmitBuffer {
    /// Kept runs, in order of their numbers.
    runs: VecDeque<Run>,
    /// Blocks in the order of allocation; new runs are appended to the last block.
    blocks: VecDeque<Block>,
    /// Number of the first block in `blocks`, counted from the first block ever allocated.
    first_block: u32,
    /// Unused blocks, at most as many as `blocks`.
    spare: Vec<Vec<u8>>,
    /// Sum of the lengths of `runs`.
    bytes: u64,
    /// Capacity of all blocks, spare blocks included, bytes.
    memory: u64,
    /// Capacity of the spare blocks, bytes.
    spare_memory: u64,
    /// See [`set_limit`](Self::set_limit).
    limit: u64,
}

/// Memory taken by kept bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// All memory, bytes.
    pub memory: u64,
    /// `memory` without spare blocks and without the free end of the last block, bytes. Callers compare this value with
    /// their limits.
    pub used: u64,
}

impl MemoryUse {
    /// No memory.
    pub const ZERO: MemoryUse = MemoryUse { memory: 0, used: 0 };

    /// Returns the sum of `self` and `other`, field by field.
    #[inline]
    pub fn plus(self, other: MemoryUse) -> MemoryUse {
        MemoryUse { memory: self.memory + other.memory, used: self.used + other.used }
    }

    /// Returns `self` minus `part`, field by field. No field of `part` may exceed the same field of `self`.
    #[inline]
    pub fn minus(self, part: MemoryUse) -> MemoryUse {
        MemoryUse { memory: self.memory - part.memory, used: self.used - part.used }
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    number: u64,
    /// Number of the block that contains the run, counted from the first block ever allocated.
    block: u32,
    offset: u32,
    len: u32,
}

#[derive(Clone, Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// Runs of this block that are still kept.
    runs: u32,
}

impl RetransmitBuffer {
    /// Creates an empty buffer.
    pub const fn new() -> Self {
        RetransmitBuffer {
            runs: VecDeque::new(),
            blocks: VecDeque::new(),
            first_block: 0,
            spare: Vec::new(),
            bytes: 0,
            memory: 0,
            spare_memory: 0,
            limit: 0,
        }
    }

    /// Returns the number of bytes kept.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory in use: zero if no bytes are kept, though a block may remain allocated.
    #[inline]
    pub fn memory_use(&self) -> MemoryUse {
        if self.bytes == 0 {
            return MemoryUse::ZERO;
        }
        let room = self.blocks.back().map_or(0, |last| last.bytes.capacity() - last.bytes.len());
        MemoryUse { memory: self.memory, used: self.memory - self.spare_memory - room as u64 }
    }

    /// Limits the memory to `limit` bytes. A new block takes at most the rest of the limit, or the length of its first
    /// run if that is longer. The limit is initially 0, so each block is as long as its run. Frees unused memory if the
    /// limit is exceeded.
    #[inline]
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        if self.memory > limit {
            self.shrink();
        }
    }

    /// Keeps `bytes` under `number`, which must be unused.
    #[inline]
    pub fn keep(&mut self, number: u64, bytes: &[u8]) {
        self.block_with_room(bytes.len()).bytes.extend_from_slice(bytes);
        self.push_run(number, bytes.len());
    }

    /// Keeps `len` bytes under `number`, which must be unused. `write` receives them, all zero, and fills them.
    pub fn keep_with(&mut self, number: u64, len: usize, write: impl FnOnce(&mut [u8])) {
        let block = &mut self.block_with_room(len).bytes;
        let at = block.len();
        block.resize(at + len, 0);
        write(&mut block[at..]);
        self.push_run(number, len);
    }

    /// Returns the bytes kept under `number`.
    pub fn get(&self, number: u64) -> Option<&[u8]> {
        let run = self.runs.get(self.runs.partition_point(|run| run.number < number))?;
        let block = self.blocks.get(run.block.wrapping_sub(self.first_block) as usize)?;
        let bytes = &block.bytes[run.offset as usize..][..run.len as usize];
        (run.number == number).then_some(bytes)
    }

    /// Frees the run with the lowest number.
    #[inline]
    pub fn free_first(&mut self) {
        let Some(run) = self.runs.pop_front() else { return };
        self.bytes -= u64::from(run.len);
        if let Some(block) = self.blocks.get_mut(run.block.wrapping_sub(self.first_block) as usize)
        {
            block.runs -= 1;
            if block.runs == 0 {
                self.free_blocks();
            }
        }
    }

    /// Returns the last block, with room for `len` more bytes.
    #[inline]
    fn block_with_room(&mut self, len: usize) -> &mut Block {
        let fits = |last: &Block| last.bytes.capacity() - last.bytes.len() >= len;
        if !self.blocks.back().is_some_and(fits) {
            self.add_block(len);
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]
    }

    #[inline(never)]
    fn add_block(&mut self, len: usize) {
        let spare = self.take_spare();
        let kept = usize::try_from(self.bytes).unwrap_or(MAX_BLOCK);
        let left = usize::try_from(self.limit.saturating_sub(self.memory)).unwrap_or(MAX_BLOCK);
        let wanted = kept.saturating_mul(4).clamp(MIN_BLOCK, MAX_BLOCK).min(left).max(len);
        let bytes = match spare.capacity() >= wanted {
            true => spare,
            false => Vec::with_capacity(wanted),
        };
        self.memory += bytes.capacity() as u64;
        self.blocks.push_back(Block { bytes, runs: 0 });
    }

    /// Takes a spare block, or an empty `Vec` if there is none. Subtracts its capacity from `memory` and
    /// `spare_memory`.
    fn take_spare(&mut self) -> Vec<u8> {
        let spare = self.spare.pop().unwrap_or_default();
        self.memory -= spare.capacity() as u64;
        self.spare_memory -= spare.capacity() as u64;
        spare
    }

    /// Adds the last `len` bytes of the last block to `runs` under `number`.
    #[inline]
    fn push_run(&mut self, number: u64, len: usize) {
        let last = self.blocks.len() - 1;
        let block = &mut self.blocks[last];
        block.runs += 1;
        let at = (block.bytes.len() - len) as u32;
        let block = self.first_block.wrapping_add(last as u32);
        let run = Run { number, block, offset: at, len: len as u32 };
        self.bytes += len as u64;
        if self.runs.back().is_none_or(|last| last.number < number) {
            return self.runs.push_back(run);
        }
        let place = self.runs.partition_point(|run| run.number < number);
        self.runs.insert(place, run);
    }

    /// Moves the unused blocks at the front to `spare`, and frees spare blocks in excess of the number of `blocks`.
    #[inline(never)]
    fn free_blocks(&mut self) {
        while self.blocks.len() > 1 && self.blocks[0].runs == 0 {
            let Some(block) = self.blocks.pop_front() else { break };
            self.first_block = self.first_block.wrapping_add(1);
            let mut bytes = block.bytes;
            bytes.clear();
            self.spare_memory += bytes.capacity() as u64;
            self.spare.push(bytes);
        }
        while self.spare.len() > self.blocks.len() {
            self.take_spare();
        }
        if self.runs.is_empty() {
            self.clear_blocks(MAX_IDLE_BLOCK);
        }
    }

    /// Frees the spare blocks and all blocks longer than `longest` bytes, and empties the others.
    /// Requires that no run is kept.
    fn clear_blocks(&mut self, longest: usize) {
        self.spare.clear();
        self.spare_memory = 0;
        self.blocks.iter_mut().for_each(|block| block.bytes.clear());
        self.blocks.retain(|block| block.bytes.capacity() <= longest);
        self.memory = self.blocks.iter().map(|block| block.bytes.capacity() as u64).sum();
    }

    /// Frees spare blocks while the memory exceeds the limit, and all blocks if no run is kept.
    #[cold]
    fn shrink(&mut self) {
        while self.memory > self.limit && !self.spare.is_empty() {
            self.take_spare();
        }
        if self.runs.is_empty() {
            self.clear_blocks(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use proptest::prelude::*;

    use super::*;

    fn bytes(number: u64, len: usize) -> Vec<u8> {
        (0..len).map(|i| (number as usize * 31 + i) as u8).collect()
    }

    proptest! {
        /// Runs of any length, kept in any order and freed from the lowest number on, are returned unchanged, and their
        /// memory is counted.
        #[test]
        fn kept_runs_are_returned_unchanged(
            steps in prop::collection::vec((0u64..40, 0usize..9000, 0usize..12, any::<bool>()), 1..200),
        ) {
            let (mut kept, mut model, mut base) = (RetransmitBuffer::new(), BTreeMap::new(), 0);
            kept.set_limit(u64::MAX);
            for (ahead, len, freed, written) in steps {
                let number = base + ahead;
                if let Entry::Vacant(entry) = model.entry(number) {
                    let run = bytes(number, len);
                    match written {
                        true => kept.keep_with(number, len, |out| out.copy_from_slice(&run)),
                        false => kept.keep(number, &run),
                    }
                    entry.insert(run);
                }
                for _ in 0..freed {
                    if let Some((number, _)) = model.pop_first() {
                        base = number + 1;
                        kept.free_first();
                    }
                }
                let all: usize = model.values().map(Vec::len).sum();
                prop_assert_eq!(kept.bytes(), all as u64);
                for number in base..base + 40 {
                    prop_assert_eq!(kept.get(number), model.get(&number).map(|run| &run[..]));
                }
                let blocks = kept.blocks.iter().map(|block| block.bytes.capacity());
                let spare: usize = kept.spare.iter().map(Vec::capacity).sum();
                let memory = blocks.sum::<usize>() + spare;
                prop_assert_eq!((kept.memory, kept.spare_memory), (memory as u64, spare as u64));
                if all == 0 {
                    prop_assert_eq!(kept.memory_use(), MemoryUse::ZERO);
                }
                if model.is_empty() {
                    prop_assert!(memory <= MAX_IDLE_BLOCK);
                }
            }
        }

        /// A caller that compares [`MemoryUse::used`] with the limit before each run exceeds the limit by at most one
        /// run. The caller has to stop only if the kept bytes are at least half of the limit, less one block of
        /// `MAX_BLOCK` bytes. Runs are kept in the order of their numbers; in a sender, only split
        /// segments are kept in another order.
        #[test]
        fn retransmit_buffer_memory_stays_within_limit(
            limits in prop::collection::vec(prop_oneof![0u64..20_000, 200_000u64..1_000_000, Just(u64::MAX)], 1..4),
            steps in prop::collection::vec((1usize..9000, any::<bool>()), 1..2000),
        ) {
            let (mut kept, mut number, mut lens) = (RetransmitBuffer::new(), 0, VecDeque::new());
            let mut longest = 0;
            let part = steps.len().div_ceil(limits.len());
            for (i, (len, more)) in steps.into_iter().enumerate() {
                let limit = limits[i / part];
                kept.set_limit(limit);
                let (before, used) = (kept.memory_use(), kept.memory - kept.spare_memory);
                prop_assert!(before.used <= before.memory);
                if !more {
                    lens.pop_front();
                    kept.free_first();
                } else if before.used < limit || kept.bytes() == 0 {
                    kept.keep(number, &bytes(number, len));
                    lens.push_back(len);
                    number += 1;
                    longest = longest.max(len);
                    let most = limit.max(used).saturating_add(longest as u64);
                    prop_assert!(kept.memory_use().memory <= most, "{:?} of {limit}", kept.memory_use());
                } else {
                    prop_assert!(2 * kept.bytes() + 2 * MAX_BLOCK as u64 >= limit, "{} of {limit}", kept.bytes());
                }
                let all: usize = lens.iter().sum();
                prop_assert_eq!(kept.bytes(), all as u64);
                prop_assert!(kept.memory_use().memory as usize <= 4 * all + 4 * MAX_BLOCK, "{:?} for {all}", kept.memory_use());
            }
        }
    }

    /// A stream that keeps 64 segments in flight reuses the blocks that it has freed.
    #[test]
    fn freed_blocks_are_reused() {
        let mut kept = RetransmitBuffer::new();
        kept.set_limit(u64::MAX);
        let segment = [7; 1448];
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..10_000 {
            kept.keep(number, &segment);
            if number >= 64 {
                kept.free_first();
            }
            if number > 1000 {
                seen.insert(kept.get(number).map(<[u8]>::as_ptr));
            }
        }
        // 64 segments take two blocks. With the block being filled and the partly freed block, at most four are in use.
        assert!(seen.len() <= 4 * MAX_BLOCK / segment.len(), "{}", seen.len());
        (0..64).for_each(|_| kept.free_first());
        assert_eq!((kept.bytes(), kept.memory_use()), (0, MemoryUse::ZERO));
    }
}
