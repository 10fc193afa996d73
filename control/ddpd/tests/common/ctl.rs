//! The `ddpctl` program, for tests that run it together with `ddpd`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of `ddpctl`. Another package builds the program, so cargo does not pass its path to the tests.
pub(crate) fn ddpctl_path() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_ddpd")).with_file_name("ddpctl");
    assert!(program.exists(), "not built: run `cargo build -p ddpctl`");
    program
}

/// Returns a command that runs `ddpctl`.
pub(crate) fn ddpctl() -> Command {
    Command::new(ddpctl_path())
}
