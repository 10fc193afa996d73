//! Tests of `ddpctl run` without an appliance. scripts/interop verbs runs programs in labs and between appliances.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

/// Creates a directory with empty files in place of the libraries.
fn libraries() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(directory.path().join(name), "").unwrap();
    }
    directory
}

fn run(libraries: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddpctl"));
    command.arg("run").args(arguments).env("DDPD_VERBS_LIBRARY", libraries);
    command.env_remove("DDPD_PROGRAMS_SOCKET").output().unwrap()
}

fn assert_fails(output: &Output, code: i32, sentence: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(sentence), "{text}");
}

#[test]
fn missing_libraries_name_their_package() {
    let nowhere = tempfile::tempdir().unwrap();
    let output = run(nowhere.path(), &["--", "true"]);
    assert_fails(&output, 1, "has no libibverbs.so.1 and librdmacm.so.1");
}

#[test]
fn missing_program_is_an_error_of_the_command_line() {
    let libraries = libraries();
    let output = run(libraries.path(), &["--", "no-such-program"]);
    assert_fails(&output, 2, "no-such-program is not in PATH: is its package installed?");
}

#[test]
fn missing_socket_gives_exit_code_3_and_both_remedies() {
    let libraries = libraries();
    let socket = libraries.path().join("programs.sock");
    let output = run(libraries.path(), &["--appliance", socket.to_str().unwrap(), "--", "true"]);
    assert_fails(&output, 3, "no appliance serves programs at");
    assert_fails(&output, 3, "--appliance, or use --lab");
}

#[test]
fn socket_of_another_type_is_an_error() {
    let libraries = libraries();
    let socket = libraries.path().join("programs.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let output = run(libraries.path(), &["--appliance", socket.to_str().unwrap(), "--", "true"]);
    assert_fails(&output, 3, "cannot connect to");
}

#[test]
fn appliance_and_lab_exclude_each_other() {
    let libraries = libraries();
    let output = run(libraries.path(), &["--appliance", "a.sock", "--lab", "--", "true"]);
    assert_fails(&output, 2, "cannot be used with");
    let output = run(libraries.path(), &["--lab=65", "--", "true"]);
    assert_fails(&output, 2, "65 is not in 1..=64");
}
