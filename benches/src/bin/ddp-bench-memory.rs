//! Measures the heap memory of streams. It is a separate program because its allocator counts allocations, which would
//! slow other measurements.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use benches::cell;
use benches::plan::Task;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

fn main() -> anyhow::Result<()> {
    let counting = dhat::Profiler::builder().testing().trim_backtraces(Some(1)).build();
    let json = std::env::args().nth(2).ok_or_else(|| anyhow::anyhow!("usage: task JSON"))?;
    let Task::Cell(task) = serde_json::from_str(&json)? else {
        anyhow::bail!("only cells are measured here");
    };
    let row = cell::measure_cell(&task, Some(&|| dhat::HeapStats::get().curr_bytes as u64))?;
    println!("{}", serde_json::to_string(&row)?);
    drop(counting);
    Ok(())
}
