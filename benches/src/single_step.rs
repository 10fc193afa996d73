//! Instruction counts of a program without an emulator: the kernel stops the program after each instruction (ptrace).
//! Counts include AVX-512, which valgrind does not support. A step takes 10 to 40 µs.
//!
//! An instruction with a repeat prefix counts once per repetition. [`GLIBC`] avoids such instructions in the C library.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::hot_path::EDGE;

/// Tunables of the C library that select the same functions on every CPU with AVX2.
const GLIBC: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-ERMS,-FSRM,-RTM";
/// Maximum number of steps of a path. Only a hang reaches it.
const MAX_STEPS: u64 = 20_000_000;

/// Result of [`count_steps`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Steps {
    /// Instructions of all counted parts, and the program's standard output.
    Counted(u64, String),
    /// The system does not permit ptrace.
    NotPermitted,
}

/// Counts the instructions that `program --native ENGINE NAME` executes in the counted parts.
pub fn count_steps(program: &Path, engine: &str, name: &str) -> anyhow::Result<Steps> {
    let mut child = Command::new(program)
        .args(["--native", engine, name])
        .env("GLIBC_TUNABLES", GLIBC)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{}", program.display()))?;
    let counted = trace(&mut child);
    if !matches!(counted, Ok(Some(_))) {
        // Both calls fail if the program has ended, because the tracer has waited for it.
        let _ = (child.kill(), child.wait());
    }
    let text = std::io::read_to_string(child.stdout.take().context("no output")?)?;
    Ok(match counted.with_context(|| format!("{} {name}", program.display()))? {
        Some(steps) => Steps::Counted(steps, text),
        None => Steps::NotPermitted,
    })
}

/// Attaches to the program and counts until it ends. Returns `None` if the system does not permit ptrace.
fn trace(child: &mut Child) -> anyhow::Result<Option<u64>> {
    let pid = Pid::from_raw(child.id().try_into()?);
    match ptrace::attach(pid) {
        Ok(()) => {}
        Err(Errno::EPERM | Errno::ENOSYS) => return Ok(None),
        Err(error) => bail!("ptrace: {error}"),
    }
    ensure!(matches!(waitpid(pid, None)?, WaitStatus::Stopped(..)), "the program has ended");
    ptrace::setoptions(pid, Options::PTRACE_O_EXITKILL)?;
    ptrace::cont(pid, None)?;
    child.stdin.take().context("no input")?.write_all(b"\n")?;

    // The first part is empty. Its count is the cost of the two signals, which every part includes.
    let (mut signals, mut total) = (None, 0);
    loop {
        match waitpid(pid, None)? {
            WaitStatus::Exited(_, 0) => {
                ensure!(total > 0, "nothing was counted");
                return Ok(Some(total));
            }
            WaitStatus::Stopped(_, signal) if signal == EDGE => {
                let steps = count_part(pid)?;
                match signals {
                    None => signals = Some(steps),
                    Some(signals) => total += steps - signals,
                }
                ensure!(total < MAX_STEPS, "more than {MAX_STEPS} instructions");
                ptrace::cont(pid, None)?;
            }
            WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal)?,
            other => bail!("{other:?}"),
        }
    }
}

/// Counts the steps up to the next [`EDGE`].
fn count_part(pid: Pid) -> anyhow::Result<u64> {
    for steps in 0..MAX_STEPS {
        ptrace::step(pid, None)?;
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, signal) if signal == EDGE => return Ok(steps),
            other => bail!("in a counted part: {other:?}"),
        }
    }
    bail!("more than {MAX_STEPS} instructions")
}
