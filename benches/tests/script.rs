//! Tests of `scripts/bench --why-no-veth`, which prints the reason why no veth pair can be created. If tools are
//! missing, the reason names the tools and not missing root privileges.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn find_tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.find_map(|dir| Some(dir.join(name)).filter(|p| p.is_file())).unwrap_or_else(|| {
        panic!("{name} is not installed");
    })
}

/// Runs `scripts/bench --why-no-veth` with the user ID `user` and only `tools` in PATH. Returns the printed reason,
/// empty if a veth pair can be created.
fn no_veth_reason(user: u32, tools: &[&str]) -> String {
    let bin = tempfile::tempdir().unwrap();
    for tool in ["bash", "dirname"] {
        std::os::unix::fs::symlink(find_tool(tool), bin.path().join(tool)).unwrap();
    }
    let program = |name: &str, text: &str| {
        let file = bin.path().join(name);
        std::fs::write(&file, format!("#!{}\n{text}\n", find_tool("bash").display())).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("id", &format!("echo {user}"));
    tools.iter().for_each(|tool| program(tool, ":"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/bench");
    let mut command = Command::new(find_tool("bash"));
    let output = command.arg(script).arg("--why-no-veth").env("PATH", bin.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn missing_tool_is_named_with_install_command() {
    let text = no_veth_reason(0, &["ip"]);
    assert!(text.contains("ethtool, sysctl"), "{text}");
    assert!(text.contains("apt-get install ethtool procps"), "{text}");
    assert!(!text.contains("root"), "{text}");
    assert_eq!(no_veth_reason(0, &["ip", "ethtool", "sysctl"]), "");
}

#[test]
fn unprivileged_user_gets_root_required() {
    assert!(no_veth_reason(1000, &["ip", "ethtool", "sysctl"]).contains("needs root"));
}
