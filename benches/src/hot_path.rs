//! Delimits the counted part of a hot path, for the programs `hot`, `hot-worker` and `hot-programs`. With the argument
//! `NAME`, callgrind counts the path inside [`measured_hot_path`]. With `--native ENGINE NAME`, [`crate::single_step`]
//! counts it between two signals.

use std::hint::black_box;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use crc32c::Engine;
use nix::sys::signal::{Signal, raise};

/// Function that runs its argument: [`run_counted`] or [`uncounted`].
pub type Runner<'a> = &'a mut dyn FnMut(&mut dyn FnMut());

/// Signal that the program sends to itself before and after each counted part. The tracer discards it.
pub const EDGE: Signal = Signal::SIGUSR1;

/// True if a tracer counts single steps.
static TRACED: AtomicBool = AtomicBool::new(false);

/// Reads the program's arguments. Returns them without `--native ENGINE`.
///
/// With `--native` it selects the CRC engine, waits for a byte on standard input, which the tracer sends after it has
/// attached, and runs an empty part. The count of the empty part is the cost of the two signals.
pub fn arguments() -> anyhow::Result<Vec<String>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--native") && arguments.len() >= 2 {
        let name = arguments.drain(..2).next_back().context("no engine")?;
        let engine = engine_named(&name).with_context(|| format!("no engine {name} here"))?;
        engine.make_best();
        std::io::stdin().read_exact(&mut [0]).context("no tracer")?;
        TRACED.store(true, Ordering::Relaxed);
        run_counted(&mut || ());
    }
    Ok(arguments)
}

/// Returns this CPU's engine of this name; `None` if the CPU does not support it.
pub fn engine_named(name: &str) -> Option<Engine> {
    let path = crc32c::Path::ALL.into_iter().find(|path| path.name() == name)?;
    Engine::with_path(path)
}

/// Runs `work` and counts its instructions. The preceding large allocation makes the allocator sort its freed chunks.
/// Otherwise the first allocation of a path would sort them, at a cost that depends on all earlier work.
pub fn measure(work: &mut dyn FnMut()) {
    drop(black_box(Vec::<u8>::with_capacity(100 << 10)));
    run_counted(work);
}

/// Runs `work` and counts its instructions.
pub fn run_counted(work: &mut dyn FnMut()) {
    if !TRACED.load(Ordering::Relaxed) {
        return measured_hot_path(work);
    }
    raise(EDGE).expect("a signal to this process");
    work();
    raise(EDGE).expect("a signal to this process");
}

/// Runs `work` without counting.
pub fn uncounted(work: &mut dyn FnMut()) {
    work();
}

/// The function in which callgrind collects (`--toggle-collect`).
#[inline(never)]
fn measured_hot_path(work: &mut dyn FnMut()) {
    work();
}
