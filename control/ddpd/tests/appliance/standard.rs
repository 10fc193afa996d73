//! Tests of Unix conventions of `ddpd` and `ddpctl`: standard streams, signals, and paths of files of any kind.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};

use api::{JobInfo, JobState};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::common::{Ddpd, Setup, ddpd};
use super::{REGION, region_target};

const URL: &str = "tcp://10.9.0.1:7471/inbox";

fn start() -> Ddpd {
    Ddpd::start(&Setup { sink: REGION, ..Setup::default() })
}

fn ddpctl(ddpd: &Ddpd, arguments: &[&str]) -> Command {
    let mut command = crate::common::ddpctl();
    command.arg("--socket").arg(ddpd.path("source.sock")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a shell command. `$ddpctl` and `$ddpd` are the programs, `$url` is the URL of a region.
fn shell(ddpd: &Ddpd, line: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", line]).current_dir(ddpd.path(""));
    command.env("ddpctl", crate::common::ddpctl_path()).env("ddpd", env!("CARGO_BIN_EXE_ddpd"));
    command.env("DDPD_SOCKET", ddpd.path("source.sock")).env("url", URL);
    command.stdin(Stdio::null()).output().unwrap()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn exit_code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn last_job(ddpd: &Ddpd) -> JobInfo {
    ddpd.source.get::<Vec<JobInfo>>("/v1/jobs").unwrap().pop().unwrap()
}

/// Waits until the last job has ended, and returns the job.
fn wait_for_last_job(ddpd: &Ddpd) -> JobInfo {
    loop {
        let job = last_job(ddpd);
        if job.state.is_finished() {
            return job;
        }
        std::thread::yield_now();
    }
}

/// Waits until the job of `child`, the only one in progress, has transferred this many bytes.
fn wait_until_read(ddpd: &Ddpd, child: &mut Child, bytes: u64) {
    loop {
        let jobs: Vec<JobInfo> = ddpd.source.get("/v1/jobs").unwrap();
        if jobs.iter().any(|job| !job.state.is_finished() && job.acknowledged >= bytes) {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "the job has ended");
        std::thread::yield_now();
    }
}

/// Runs a shell command on a terminal of type `term`, with `typed` and then end-of-file as input. The returned standard
/// output is the text on the terminal.
fn run_on_terminal(ddpd: &Ddpd, term: &str, line: &str, typed: &str) -> Output {
    shell(ddpd, &format!("printf '{typed}' | TERM={term} script -qec '{line}' /dev/null"))
}

/// Checks that no FIFO is left in the directory.
fn assert_no_fifo(ddpd: &Ddpd) {
    let entries = std::fs::read_dir(ddpd.path("")).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    let strange = names.iter().filter(|name| name.to_string_lossy().contains("fifo"));
    assert_eq!(strange.count(), 0, "{names:?}");
}

#[test]
fn stdin_is_put_even_if_its_file_is_outside_files_paths() {
    let ddpd = start();
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("file");
    std::fs::write(&file, vec![7; 3000]).unwrap();
    let shown = file.display();
    ddpd.file("inside", 10);
    for (line, bytes) in [
        (format!("$ddpctl put - $url <{shown}"), 3000),
        (format!("cat {shown} | $ddpctl put - $url"), 3000),
        (format!("(head -c 1000 >/dev/null; $ddpctl put - $url) <{shown}"), 2000),
        (format!("exec 3<{shown}; rm {shown}; $ddpctl put - $url <&3"), 3000),
        ("$ddpctl put - $url <<<hello".to_owned(), 6),
        ("$ddpctl put - $url </dev/null".to_owned(), 0),
        (
            "mkfifo pipe; (echo data >pipe) & $ddpctl put - $url <pipe; x=$?; rm pipe; exit $x"
                .to_owned(),
            5,
        ),
        ("$ddpctl put /dev/stdin $url <inside".to_owned(), 10),
        ("$ddpctl put <(echo abc) $url".to_owned(), 4),
    ] {
        let output = shell(&ddpd, &line);
        assert!(output.status.success(), "{line}: {}", stderr_text(&output));
        let job = last_job(&ddpd);
        assert_eq!((job.state, job.total), (JobState::Done, bytes), "{line}: {:?}", job.error);
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.starts_with("standard input to 10.9.0.1:7471") || line.contains("<("), "{out}");
    }
    let list = shell(&ddpd, "$ddpctl jobs");
    assert!(String::from_utf8(list.stdout).unwrap().contains("  standard input  "));
    assert_no_fifo(&ddpd);
}

#[test]
fn stdin_socket_or_terminal_is_put() {
    let ddpd = start();
    for is_nonblocking in [false, true] {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(is_nonblocking).unwrap();
        let mut child = ddpctl(&ddpd, &["put", "-", URL])
            .stdin(Stdio::from(OwnedFd::from(reader)))
            .spawn()
            .unwrap();
        writer.write_all(&[7; 100]).unwrap();
        wait_until_read(&ddpd, &mut child, 100);
        drop(writer);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr_text(&output));
        assert_eq!(last_job(&ddpd).total, 100);
    }
    let output = run_on_terminal(&ddpd, "xterm", "$ddpctl put - $url", "typed\\n");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(last_job(&ddpd).total, 6);
}

#[test]
fn unreadable_stdin_is_reported_in_one_sentence() {
    let ddpd = start();
    for (line, sentence) in [
        ("$ddpctl put - $url <&-", "standard input: it is closed"),
        ("$ddpctl put --kernel - $url <&-", "standard input: it is closed"),
        ("$ddpctl put /dev/stdin $url <&-", "standard input: it is closed"),
        ("$ddpctl send 10.9.0.1:7471 <&-", "standard input: it is closed"),
        ("$ddpctl regions add --file - <&-", "standard input: it is closed"),
        ("$ddpctl put - $url </", "standard input: Is a directory"),
        ("$ddpctl send 10.9.0.1:7471 </", "standard input: Is a directory"),
        ("$ddpctl put --detach - $url <<<x", "--detach needs a file"),
    ] {
        let output = shell(&ddpd, line);
        assert!(
            stderr_text(&output).starts_with(&format!("ddpctl: {sentence}")),
            "{line}: {}",
            stderr_text(&output)
        );
        assert!(matches!(exit_code(&output), Some(1 | 2)), "{line}: {}", output.status);
    }
}

#[test]
fn closed_stdout_reader_ends_program_without_message() {
    let ddpd = start();
    let commands = [
        "$ddpctl metrics",
        "$ddpctl status",
        "$ddpctl --json status",
        "$ddpctl config show",
        "$ddpctl stats --all",
        "$ddpctl events",
        "$ddpctl events --follow",
        "$ddpctl top --once",
        "$ddpctl regions read --output - scratch",
        "$ddpctl capture p --write -",
        "$ddpctl completions bash",
        "$ddpctl --help",
        "$ddpctl put --help",
        "$ddpd --help",
        "$ddpd --version",
        "$ddpd openapi",
        "$ddpd schema",
        "$ddpd check --no-machine source.toml",
        "$ddpd doctor",
    ];
    let made = shell(&ddpd, "$ddpctl regions add scratch --size 1MiB");
    assert!(made.status.success(), "{}", stderr_text(&made));
    for command in commands {
        // The reader is closed before the program starts.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = Command::new("bash");
        child.args(["-c", &format!("exec {command}")]).current_dir(ddpd.path(""));
        child.env("ddpctl", crate::common::ddpctl_path()).env("ddpd", env!("CARGO_BIN_EXE_ddpd"));
        child.env("DDPD_SOCKET", ddpd.path("source.sock"));
        let output =
            child.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(
            output.status.signal(),
            Some(Signal::PIPE.as_raw()),
            "{command}: {}",
            output.status
        );
        assert_eq!(stderr_text(&output), "", "{command}");
    }
}

#[test]
fn closed_stdout_reader_ends_waiting_program() {
    let ddpd = start();
    for arguments in [&["events", "--follow"][..], &["capture", "p", "--write", "-"]] {
        let mut child = ddpctl(&ddpd, arguments).spawn().unwrap();
        let mut head = [0; 16];
        child.stdout.take().unwrap().read_exact(&mut head).unwrap();
        // The process must end although no further event occurs.
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{arguments:?}");
        assert_eq!(stderr_text(&output), "", "{arguments:?}");
    }
}

#[test]
fn unwritable_stdout_is_an_error() {
    let ddpd = start();
    let full = "cannot write to the standard output: No space left on device";
    let closed = "cannot write to the standard output: it is closed";
    let commands = [
        "$ddpctl metrics",
        "$ddpctl status",
        "$ddpctl config show",
        "$ddpctl top --once",
        "$ddpctl events --count 1",
        "$ddpctl completions bash",
        "$ddpctl --help",
        "$ddpd --help",
        "$ddpd --version",
        "$ddpd openapi",
        "$ddpd check --no-machine source.toml",
    ];
    for command in commands {
        for (to, sentence) in [(">/dev/full", full), (">&-", closed)] {
            let output = shell(&ddpd, &format!("{command} {to}"));
            assert_eq!(exit_code(&output), Some(1), "{command} {to}: {}", stderr_text(&output));
            let program = &command[1..command.find(' ').unwrap()];
            assert!(
                stderr_text(&output).starts_with(&format!("{program}: {sentence}")),
                "{command} {to}: {}",
                stderr_text(&output)
            );
        }
    }
    let json = shell(&ddpd, "$ddpctl --json status >/dev/full");
    let error: serde_json::Value = serde_json::from_str(&stderr_text(&json)).unwrap();
    assert!(error["message"].as_str().unwrap().starts_with(full), "{error}");
    assert!(shell(&ddpd, "$ddpctl metrics >/dev/null").status.success());
}

#[test]
fn signal_cancels_the_job_then_kills_the_program() {
    let ddpd = start();
    for (signal, name) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        // If the test runs in the background or under nohup, its children inherit that these signals are ignored.
        // `env` restores the default actions.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,TERM").arg(crate::common::ddpctl_path());
        command.arg("--socket").arg(ddpd.path("source.sock")).args(["put", "-", URL]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"some").unwrap();
        wait_until_read(&ddpd, &mut child, 4);
        let pid = Pid::from_child(&child);
        // The transfer continues after a stop by SIGSTOP. SIGTSTP would not stop an orphaned process group, as on a
        // CI runner.
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
        kill_process(pid, Signal::CONT).unwrap();
        child.stdin.as_mut().unwrap().write_all(b" more").unwrap();
        wait_until_read(&ddpd, &mut child, 9);
        kill_process(pid, signal).unwrap();
        // Standard input is still open, so only the signal can have ended the process.
        let input = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(input);
        assert_eq!(output.status.signal(), Some(name), "{}", stderr_text(&output));
        assert_eq!(stderr_text(&output), "ddpctl: after 9 of 9 bytes: the job was cancelled\n");
        assert_eq!(wait_for_last_job(&ddpd).state, JobState::Cancelled);
    }
    assert_no_fifo(&ddpd);
}

#[test]
fn killed_client_fails_its_job_and_leaves_no_fifo() {
    let ddpd = start();
    let mut child = ddpctl(&ddpd, &["put", "-", URL]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"half").unwrap();
    wait_until_read(&ddpd, &mut child, 4);
    child.kill().unwrap();
    child.wait().unwrap();
    let job = wait_for_last_job(&ddpd);
    let sentence = "the input ended early: its client closed the connection";
    assert_eq!((job.state, job.error.as_deref()), (JobState::Failed, Some(sentence)));
    assert_no_fifo(&ddpd);
}

#[test]
fn non_utf8_paths_work_or_are_refused_as_such() {
    let ddpd = start();
    let name = OsStr::from_bytes(b"f\xff");
    let file = ddpd.path("").join(name);
    std::fs::write(&file, vec![7; 500]).unwrap();
    let output = ddpctl(&ddpd, &["put"]).arg(&file).arg(URL).output().unwrap();
    assert!(output.status.success(), "{}", stderr_text(&output));
    assert_eq!(last_job(&ddpd).total, 500);
    let refused = |arguments: &[&str]| {
        let output = ddpctl(&ddpd, arguments).arg(&file).output().unwrap();
        assert_eq!(exit_code(&output), Some(2), "{arguments:?}: {}", stderr_text(&output));
        assert!(stderr_text(&output).contains("UTF-8"), "{arguments:?}: {}", stderr_text(&output));
    };
    refused(&["put", "--detach", "--stag", "1", "--to", "0", "tcp://10.9.0.1:7471"]);
    refused(&["get", "rdmap://10.9.0.1:7471/inbox"]);
    refused(&["config", "save"]);
    refused(&["regions", "add", "r", "--size", "1", "--path"]);
}

/// The configuration file and its directory have names that are not UTF-8. The API's answers with these names must be
/// valid JSON.
#[test]
fn ddpd_accepts_a_non_utf8_configuration_path() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join(OsStr::from_bytes(b"d\xff"));
    std::fs::create_dir(&own).unwrap();
    let files = ["odd", "even"].map(|name| {
        let file = own.join(OsStr::from_bytes(&[name.as_bytes(), b"\xff.toml"].concat()));
        let host = name.len() as u8;
        std::fs::write(&file, super::config_text(dir.path(), name, host, "", "")).unwrap();
        file
    });
    let mut child = ddpd(&files).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let socket = dir.path().join("odd.sock");
    let outputs =
        [&["status"][..], &["--json", "status"], &["config", "show"], &["config", "diff"]].map(
            |arguments| {
                let mut command = crate::common::ddpctl();
                command.arg("--socket").arg(&socket).args(arguments).output().unwrap()
            },
        );
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "ready\n");
    for output in outputs {
        assert!(output.status.success(), "{}", stderr_text(&output));
    }
}

#[test]
fn escape_codes_are_written_to_capable_terminals_only() {
    let ddpd = start();
    let (file, _) = ddpd.file("file", 100);
    assert_eq!(ddpd.put(region_target(&file, "inbox")).state, JobState::Done);
    for command in
        ["$ddpctl --help", "$ddpctl put - $url <file", "$ddpctl top --once", "$ddpctl jobs"]
    {
        let output = shell(&ddpd, command);
        assert!(output.status.success(), "{command}: {}", stderr_text(&output));
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{command}");
    }
    // The progress bar is drawn only on terminals that support escape codes.
    for (term, draws) in [("xterm", true), ("dumb", false)] {
        let output = run_on_terminal(&ddpd, term, "$ddpctl put - $url <file", "");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(shown.contains('\x1b') || shown.contains("left"), draws, "{term}: {shown:?}");
    }
    let top = run_on_terminal(&ddpd, "dumb", "$ddpctl top", "");
    let shown = String::from_utf8_lossy(&top.stdout);
    assert!(shown.contains("top needs a terminal") && !shown.contains('\x1b'), "{shown:?}");
}
