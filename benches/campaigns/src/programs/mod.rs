//! Local programs of the campaigns: a good program at each appliance, and hostile programs.
//!
//! A hostile program is a separate process ([`main`]), so that it can be killed. It speaks the protocol of sessions
//! without the client library (`raw`), because the library never breaks a rule of the protocol.

mod acts;
pub(crate) mod pair;
pub(crate) mod partner;
pub(crate) mod raw;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use clap::Parser as _;

pub(crate) use self::acts::{Act, STEPS};

/// First argument of a campaign program that runs it as a hostile program.
pub const SUBCOMMAND: &str = "hostile-program";

/// Command-line arguments of a hostile program.
#[derive(clap::Parser)]
#[command(about = "Attach to an appliance and break its rules")]
struct Arguments {
    /// What the program does
    act: Act,
    /// Socket of the appliance for programs
    #[arg(long)]
    socket: PathBuf,
    /// Address and port of the peer
    #[arg(long)]
    remote: SocketAddr,
    /// Seed of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Duration, in milliseconds
    #[arg(long, default_value_t = 0)]
    milliseconds: u64,
}

/// Runs a hostile program. Prints a line before each step, and at the end the number of its attempts.
///
/// # Errors
/// The appliance does not answer as it should, or accepts a call that it must refuse.
#[allow(clippy::print_stdout)]
pub fn main() -> Result<()> {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    let attempts = acts::run(&arguments)?;
    println!("attempts {attempts}");
    Ok(())
}

/// Starts a hostile program.
pub(crate) fn start(
    act: Act,
    socket: &Path,
    remote: SocketAddr,
    seed: u64,
    milliseconds: u64,
) -> Result<Child> {
    let mut command = command(act, socket, remote)?;
    command.args(["--seed", &seed.to_string(), "--milliseconds", &milliseconds.to_string()]);
    command.stdin(Stdio::null()).spawn().context("the hostile program does not start")
}

/// Starts a program that does one step of a session for each line of its input.
pub(crate) fn start_walk(socket: &Path, remote: SocketAddr) -> Result<Child> {
    let mut command = command(Act::Walk, socket, remote)?;
    command.stdin(Stdio::piped()).spawn().context("the program does not start")
}

fn command(act: Act, socket: &Path, remote: SocketAddr) -> Result<Command> {
    let name = clap::ValueEnum::to_possible_value(&act).context("a name")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([SUBCOMMAND, name.get_name(), "--socket"]).arg(socket);
    command.args(["--remote", &remote.to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}
