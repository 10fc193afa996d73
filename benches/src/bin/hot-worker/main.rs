//! Cost of a whole worker's turns: bulk transfers, unsolicited frames, and both. `hot-worker NAME` runs one path, whose
//! instructions are counted as in `hot`. `hot-worker --time NAME SECONDS` prints the nanoseconds per frame of a flood.
//!
//! It is a separate program because a worker in `hot` would change the compiler's inlining of the other paths.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod flooded;
mod pair;
mod share;
mod transfer;

use std::time::Instant;

use anyhow::ensure;
use benches::floods::frames::{FLOOD_FRAMES, Kind};
use benches::frame_port::leak_frames;
use benches::hot_path::{self, measure, run_counted};

use self::flooded::FloodedWorker;
use self::share::{FrameMix, SHARE_PATHS};
use self::transfer::{TRANSFERS, Transfer};

/// Number of counted frames of a flood.
const FRAMES: u32 = 1024;
const PREFIX: &str = "flood-";

fn main() -> anyhow::Result<()> {
    let arguments = hot_path::arguments()?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, seconds) = match words[..] {
        ["--list"] => {
            list();
            return Ok(());
        }
        [name] => (name, None),
        ["--time", name, seconds] => (name, Some(seconds.parse()?)),
        _ => ("", None),
    };
    if let Some(transfer) = TRANSFERS.iter().find(|transfer| transfer.name == name) {
        let frames = transfer.run(&mut run_counted)?;
        println!("units {frames}");
        return Ok(());
    }
    if let Some(&(_, kind, mix)) = SHARE_PATHS.iter().find(|(known, ..)| *known == name) {
        return share::run(kind, mix, &mut run_counted);
    }
    let named = |kind: &Kind| name.strip_prefix(PREFIX) == Some(kind.name());
    let Some(kind) = Kind::ALL.into_iter().find(named) else {
        println!("usage: hot-worker --list | hot-worker [--time] NAME [SECONDS]");
        std::process::exit(2);
    };
    let mut flooded = FloodedWorker::new(kind)?;
    flooded.set_flood(leak_frames(flooded.addresses.flood_frames(kind)));
    // After these frames the worker's tables are full.
    flooded.receive_frames(FLOOD_FRAMES as usize);
    if let Some(seconds) = seconds {
        println!("{:.2}", nanoseconds(&mut flooded, seconds));
        return Ok(());
    }
    measure(&mut || flooded.receive_frames(FRAMES as usize));
    ensure!(flooded.worker.handle.counters().unaccounted() == 0, "frames are not accounted for");
    Ok(())
}

/// Prints the CRC engine, then the paths with their number of units and the unit.
fn list() {
    println!("crc {}", crc_fast::get_calculator_target(crc_fast::CrcAlgorithm::Crc32Iscsi));
    for Transfer { name, .. } in TRANSFERS {
        println!("{name} {} full frame", transfer::FRAMES);
    }
    for kind in Kind::ALL {
        println!("{PREFIX}{} {FRAMES} frame", kind.name());
    }
    for (name, _, mix) in SHARE_PATHS {
        let unit = match mix {
            FrameMix::Stream => "segment",
            FrameMix::Association => "packet",
            FrameMix::Flood => "reset and 4 frames",
            FrameMix::Mixed => "segment and 4 frames",
        };
        println!("{name} {} {unit}", share::FRAMES);
    }
}

/// Returns the nanoseconds per frame, in full bursts.
fn nanoseconds(flooded: &mut FloodedWorker, seconds: f64) -> f64 {
    let (begin, mut frames) = (Instant::now(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        flooded.receive_frames(FLOOD_FRAMES as usize);
        frames += FLOOD_FRAMES;
    }
    begin.elapsed().as_nanos() as f64 / f64::from(frames)
}
