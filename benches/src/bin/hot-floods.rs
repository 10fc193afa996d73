//! What a worker does with frames that nobody wants, each kind of flood with a fixed number of frames, for callgrind as
//! `hot`. It is a program of its own: a worker in `hot` would change what the compiler makes of the other paths.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::hint::black_box;

use benches::floods::frames::{Kind, MANY};
use benches::floods::lone::{Lone, shared};

/// Frames that are counted.
const FRAMES: u32 = 1024;
const PREFIX: &str = "flood-";

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    if name == "--list" {
        let target = crc_fast::get_calculator_target(crc_fast::CrcAlgorithm::Crc32Iscsi);
        println!("crc {target}");
        return Kind::ALL
            .iter()
            .for_each(|kind| println!("{PREFIX}{} {FRAMES} frame", kind.name()));
    }
    let named = |kind: &Kind| name.strip_prefix(PREFIX) == Some(kind.name());
    let Some(kind) = Kind::ALL.into_iter().find(named) else {
        println!("usage: hot-floods --list | hot-floods NAME");
        std::process::exit(2);
    };
    let mut lone = Lone::new(kind).expect("a worker");
    lone.flood_with(shared(lone.ends.flood(kind)));
    // The worker is at its bounds from then on.
    lone.take(MANY as usize);
    drop(black_box(Vec::<u8>::with_capacity(100 << 10)));
    measured_hot_path(&mut || lone.take(FRAMES as usize));
    assert_eq!(lone.worker.handle.counters().unaccounted(), 0);
}

/// The function in which callgrind collects (`--toggle-collect`).
#[inline(never)]
fn measured_hot_path(work: &mut dyn FnMut()) {
    work();
}
