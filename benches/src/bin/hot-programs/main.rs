//! Cost of a local program's operations: in the library, and at the worker. `hot-programs NAME` performs a fixed number
//! of operations, whose instructions are counted as in `hot`.
//!
//! It is a separate program, because this code in `hot` would change the compiler's inlining decisions for the other
//! paths.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod sessions;
mod stage;

use std::hint::black_box;

use anyhow::Context as _;
use benches::hot_path::{self, run_counted, uncounted};
use verbs_client::{NO_COMPLETION, post};

use self::stage::{LEN, Stage};

/// Number of counted operations.
const OPERATIONS: u32 = 512;

/// All paths: name, description of a unit.
const PATHS: [(&str, &str); 6] = [
    ("program-post", "Write posted by the library"),
    ("program-post-64", "Write posted by the library, 64 with one doorbell"),
    ("program-poll", "completion polled by the library"),
    ("program-poll-empty", "poll of an empty CQ by the library"),
    ("program-worker", "64-byte Write of a program, at both ends of the stream"),
    ("load-worker", "64-byte Write of the worker's own load, at both ends of the stream"),
];

fn main() -> anyhow::Result<()> {
    let name = hot_path::arguments()?.into_iter().next().unwrap_or_default();
    if name == "--list" {
        let target = crc_fast::get_calculator_target(crc_fast::CrcAlgorithm::Crc32Iscsi);
        println!("crc {target}");
        PATHS.iter().for_each(|(name, unit)| println!("{name} {OPERATIONS} {unit}"));
        return Ok(());
    }
    if !PATHS.iter().any(|(known, _)| *known == name) {
        println!("usage: hot-programs --list | hot-programs NAME");
        std::process::exit(2);
    }
    let mut stage = Stage::new(OPERATIONS)?;
    // After this warm-up, queues and records of the stream are allocated, and its congestion window is open.
    for _ in 0..8 {
        stage.load(OPERATIONS, &mut uncounted)?;
        post_all(&stage, 1)?;
        stage.perform(&mut uncounted)?;
        poll_all(&stage)?;
    }
    match name.as_str() {
        "program-post" => count(&mut || post_all(&stage, 1))?,
        "program-post-64" => count(&mut || post_all(&stage, 64))?,
        "program-poll" => {
            post_all(&stage, 1)?;
            stage.perform(&mut uncounted)?;
            count(&mut || poll_all(&stage))?;
        }
        "program-poll-empty" => count(&mut || {
            (0..OPERATIONS).try_for_each(|_| {
                anyhow::ensure!(black_box(&stage.queue).poll_one()?.is_none(), "a completion");
                Ok(())
            })
        })?,
        "program-worker" => {
            post_all(&stage, 1)?;
            stage.perform(&mut run_counted)?;
        }
        _ => stage.load(OPERATIONS, &mut run_counted)?,
    }
    Ok(())
}

/// Posts all Writes, `batch` per doorbell. Builds the requests of one batch and posts them repeatedly, as a program
/// with fixed buffers does.
fn post_all(stage: &Stage, batch: usize) -> anyhow::Result<()> {
    let remote = stage.remote();
    let payload = post::gather(&[stage.memory.sge(0..LEN)?])?;
    let works = vec![post::write(remote, payload); batch];
    for _ in 0..OPERATIONS as usize / batch {
        match &works[..] {
            [work] => stage.pair.post_send(black_box(work))?,
            works => stage.pair.post_sends(black_box(works)).map_err(|error| error.error)?,
        }
    }
    Ok(())
}

/// Polls all completions, 16 at a time.
fn poll_all(stage: &Stage) -> anyhow::Result<()> {
    let mut completions = [NO_COMPLETION; 16];
    let mut polled = 0;
    while polled < OPERATIONS as usize {
        let many = stage.queue.poll(&mut completions)?;
        anyhow::ensure!(many > 0, "{polled} completions of {OPERATIONS}");
        polled += many;
        black_box(&completions);
    }
    Ok(())
}

/// Runs `work`, whose instructions are counted.
fn count(work: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut result = None;
    run_counted(&mut || result = Some(work()));
    result.context("nothing was run")?
}
