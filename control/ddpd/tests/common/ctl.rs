//! `ddpctl`, for tests of both programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of `ddpctl`, a program of another package.
pub(crate) fn ddpctl_path() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_ddpd")).with_file_name("ddpctl");
    assert!(program.exists(), "not built: run `cargo build -p ddpctl`");
    program
}

/// `ddpctl`.
pub(crate) fn ddpctl() -> Command {
    Command::new(ddpctl_path())
}
