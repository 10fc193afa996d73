//! Test of the `ddpctl` program without an appliance. The tests of `ddpd` run `ddpctl` with an appliance.

use std::process::Command;

#[test]
fn unreachable_appliance_gives_exit_code_3() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddpctl"));
    let output = command.args(["--socket", "/nonexistent/ddpd.sock", "status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/ddpd.sock"));
}
