//! Cost of unsolicited frames for a worker. `hot-floods NAME` processes a fixed number of frames of one kind, for
//! callgrind as in `hot`. `hot-floods --time NAME SECONDS` prints the nanoseconds per frame.
//!
//! It is a separate program because a worker in `hot` would change the compiler's inlining of the other paths.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod lone;

use std::hint::black_box;
use std::time::Instant;

use benches::floods::frames::{FLOOD_FRAMES, Kind};

use self::lone::{FloodedWorker, leak_frames, share};

/// Number of counted frames.
const FRAMES: u32 = 1024;
const PREFIX: &str = "flood-";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, seconds) = match words[..] {
        [name] => (name, None),
        ["--time", name, seconds] => (name, seconds.parse::<f64>().ok()),
        _ => ("", None),
    };
    if name == "--list" {
        let target = crc_fast::get_calculator_target(crc_fast::CrcAlgorithm::Crc32Iscsi);
        println!("crc {target}");
        Kind::ALL.iter().for_each(|kind| println!("{PREFIX}{} {FRAMES} frame", kind.name()));
        for (name, _, load) in share::SHARE_PATHS {
            let unit = match load {
                share::FrameMix::Stream => "segment",
                share::FrameMix::Association => "packet",
                share::FrameMix::Flood => "reset and 4 frames",
                share::FrameMix::Mixed => "segment and 4 frames",
            };
            println!("{name} {} {unit}", share::FRAMES);
        }
        return;
    }
    if let Some(&(_, kind, load)) = share::SHARE_PATHS.iter().find(|(known, ..)| *known == name) {
        return share::run(kind, load, &mut measured_hot_path).expect("a stream");
    }
    let named = |kind: &Kind| name.strip_prefix(PREFIX) == Some(kind.name());
    let Some(kind) = Kind::ALL.into_iter().find(named) else {
        println!("usage: hot-floods --list | hot-floods [--time] NAME [SECONDS]");
        std::process::exit(2);
    };
    let mut lone = FloodedWorker::new(kind).expect("a worker");
    lone.set_flood(leak_frames(lone.addresses.flood_frames(kind)));
    // After these frames the worker's tables are full.
    lone.receive_frames(FLOOD_FRAMES as usize);
    if let Some(seconds) = seconds {
        return println!("{:.2}", nanoseconds(&mut lone, seconds));
    }
    drop(black_box(Vec::<u8>::with_capacity(100 << 10)));
    measured_hot_path(&mut || lone.receive_frames(FRAMES as usize));
    assert_eq!(lone.worker.handle.counters().unaccounted(), 0);
}

/// Returns the nanoseconds per frame, in full bursts.
fn nanoseconds(lone: &mut FloodedWorker, seconds: f64) -> f64 {
    let (begin, mut frames) = (Instant::now(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        lone.receive_frames(FLOOD_FRAMES as usize);
        frames += FLOOD_FRAMES;
    }
    begin.elapsed().as_nanos() as f64 / f64::from(frames)
}

/// The function in which callgrind collects (`--toggle-collect`).
#[inline(never)]
fn measured_hot_path(work: &mut dyn FnMut()) {
    work();
}
