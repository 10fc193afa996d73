//! Programs with many QPs: memory per QP, and the total rate of all QPs of a program.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use verbs_client::{NO_COMPLETION, SendWork, Session, post};

use super::ends::{BATCH, End, connect, offset, poll};
use super::{LoneAppliance, SLICE, alternate, ratio};
use crate::appliance::TIMEOUT;
use crate::row::Row;

/// Maximum numbers of incomplete sends and of incomplete receives of an idle QP.
const IDLE_DEPTHS: (u32, u32) = (8, 8);
/// Messages in flight on the only QP of the program with one QP.
pub(super) const DEPTH_OF_ONE: u32 = 64;

/// Measures the memory of idle QPs of two programs.
pub(super) fn idle(appliance: &LoneAppliance, pairs: u32, row: &mut Row) -> anyhow::Result<()> {
    let none = |_: &Session| Ok(None);
    // The first QP causes allocations that do not depend on the number of QPs, so it is created before the memory is
    // read.
    let first = End::new(&appliance.programs, 1, IDLE_DEPTHS, none)?;
    let before = MemoryUse::now()?;
    let ends = [(); 2].map(|()| End::new(&appliance.programs, pairs, IDLE_DEPTHS, none));
    let [near, far] = ends;
    let (near, far) = (near?, far?);
    let created = MemoryUse::now()?;
    // The CQs and the programs' memory are not part of the QPs.
    let entries = f64::from(near.queue.capacity() + far.queue.capacity());
    let own = 64.0 * entries + (near.memory.len() + far.memory.len()) as f64;
    let number = f64::from(2 * pairs);
    let shared = created.shared - before.shared - own;
    row.set((shared + created.private - before.private) / number);
    row.add_extra("rings_bytes", shared / number);
    row.add_extra("other_bytes", (created.private - before.private) / number);
    connect(&near, &far)?;
    let connected = MemoryUse::now()?;
    row.add_extra("connection_bytes", (connected.private - created.private) / number);
    drop(first);
    Ok(())
}

/// Memory in use, bytes.
struct MemoryUse {
    /// Shared memory of the whole system, which includes the memory files of the queues.
    shared: f64,
    /// Private memory of this process, which is both appliance and programs.
    private: f64,
}

impl MemoryUse {
    fn now() -> anyhow::Result<MemoryUse> {
        let kib = |file: &str, key: &str| -> anyhow::Result<f64> {
            let text = std::fs::read_to_string(file)?;
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            Ok(number.with_context(|| format!("no {key} in {file}"))? * 1024.0)
        };
        let (shared, private) =
            (kib("/proc/meminfo", "Shmem:")?, kib("/proc/self/status", "RssAnon:")?);
        Ok(MemoryUse { shared, private })
    }
}

/// Measures the rate of Writes on `number` QPs of a program, relative to the rate on the only QP of another program.
pub(super) fn rate(
    appliance: &LoneAppliance,
    (number, len, depth): (u32, u32, u32),
    pairs: usize,
    row: &mut Row,
) -> anyhow::Result<()> {
    let mut sides = [
        Writers::connect(appliance, number, len, depth)?,
        Writers::connect(appliance, 1, len, DEPTH_OF_ONE)?,
    ];
    // With more QPs the slices are longer, so that each QP posts several times in a slice.
    let slice = SLICE * (1 + number / 100);
    let pairs = (pairs * 10 / (1 + number as usize / 100)).max(3);
    let rates = alternate(pairs, ratio, |side| sides[side].write_for(slice))?;
    rates.add_to(row, ["many_per_s", "one_per_s"]);
    Ok(())
}

/// A program that writes on all of its QPs, to another program.
struct Writers {
    near: End,
    far: End,
    len: usize,
    depth: u32,
    /// Writes posted so far.
    sent: u64,
}

impl Writers {
    fn connect(
        appliance: &LoneAppliance,
        number: u32,
        len: u32,
        depth: u32,
    ) -> anyhow::Result<Writers> {
        let none = |_: &Session| Ok(None);
        let near = End::new(&appliance.programs, number, (depth, 1), none)?;
        let far = End::new(&appliance.programs, number, (1, 1), none)?;
        connect(&near, &far)?;
        Ok(Writers { near, far, len: len as usize, depth, sent: 0 })
    }

    fn post(&mut self, pair: usize) -> anyhow::Result<()> {
        let at = offset(self.sent, self.len);
        let payload = post::gather(&[self.near.memory.sge(at..at + self.len)?])?;
        let work = post::write(self.far.memory.remote(at), payload);
        // `wr_id` is the index of the QP in `pairs`. The completion itself identifies the QP by
        // another number.
        let work = SendWork { wr_id: pair as u64, ..work };
        self.sent += 1;
        Ok(self.near.pairs[pair].post_send(&work)?)
    }

    /// Keeps `depth` Writes in flight on each QP for `time`. Returns the rate, messages per second.
    fn write_for(&mut self, time: Duration) -> anyhow::Result<f64> {
        let mut completions = [NO_COMPLETION; BATCH];
        let (begin, mut complete) = (Instant::now(), 0);
        for pair in 0..self.near.pairs.len() {
            (0..self.depth).try_for_each(|_| self.post(pair))?;
        }
        let mut in_flight = self.near.pairs.len() as u64 * u64::from(self.depth);
        let mut last = begin;
        while in_flight > 0 {
            anyhow::ensure!(last - begin < time + TIMEOUT, "Writes do not complete");
            let many = poll(&self.near.queue, &mut completions)?.len();
            in_flight -= many as u64;
            complete += many as u64;
            if last - begin < time {
                for completion in &completions[..many] {
                    self.post(completion.wr_id as usize)?;
                    in_flight += 1;
                }
            }
            last = Instant::now();
        }
        Ok(complete as f64 / (last - begin).as_secs_f64())
    }
}
