//! `--lab`: a private appliance of this user, shared by the programs that run in it.
//!
//! ```text
//! ddpctl run --lab ── execve ──> program            holds `members`, shared
//!     └─ ddpctl lab-process detach                   ends at once, so that the lab is not a child of the program
//!          └─ ddpctl lab-process serve              holds `serving`; takes `members` exclusively to end the lab
//!                └─ ddpctl lab-process appliance ── execve ──> ddpd      ends with its parent
//! ```
//!
//! All state is in locks (flock) of three files in the lab's directory. The kernel releases them when a process ends in
//! any way:
//!
//! - `gate`: held exclusively while a program joins or starts the lab. Other programs wait.
//! - `members`: held shared by each program through a descriptor that its children inherit. The serving process ends
//!   the lab when it acquires the lock exclusively and no program has a session. It holds the lock until ddpd has
//!   ended. A program that joins meanwhile waits, and then starts the next lab. Each lab creates this file anew.
//! - `serving`: held by the serving process. A lab exists if and only if the lock is held.
//!
//! Programs can attach to a lab while the file `size` exists. The process that starts a lab removes the `size` of an
//! earlier lab that was killed. The serving process creates `size` when the appliance is ready.
//!
//! The processes of a lab do not inherit from the first program: its working directory, descriptors 3 to 9, which
//! shells use, and directories of verbs libraries in `LD_LIBRARY_PATH`.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::{Client, ClientError, ProgramInfo, Status};
use clap::Parser;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal};

use super::{PROGRAMS_SOCKET, libraries};
use crate::exit::{Exit, Failure};

/// First argument of the processes of a lab.
pub(crate) const LAB_PROCESS: &str = "lab-process";
/// Name of the lab's management socket.
pub(super) const MANAGEMENT_SOCKET: &str = "ddpd.sock";
/// Names of the files with locks.
const GATE: &str = "gate";
const MEMBERS: &str = "members";
const SERVING: &str = "serving";
/// File with the number of addresses of the running lab.
const SIZE: &str = "size";
const NEW_SIZE: &str = "size.new";
const CONFIG: &str = "lab.toml";
const LOG: &str = "ddpd.log";
/// Number of addresses of a new lab if the command line gives none.
const DEFAULT_SIZE: u8 = 2;
/// Lines that the serving process writes: programs can attach, or another lab is running.
const READY: &str = "ready";
const BUSY: &str = "another lab runs";
/// Script that starts the lab's first process without the descriptors that shells open. All other descriptors have
/// `FD_CLOEXEC`.
const WITHOUT_DESCRIPTORS: &str = r#"exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- "$@""#;
/// Maximum wait for the start of the appliance, and for the end of an earlier lab.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum wait for the lock of `gate`, which other programs hold while they wait for the end and the start of a lab.
const GATE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum wait for the appliance's end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of a query to the appliance's management socket.
const SILENCE: Duration = Duration::from_secs(2);
/// Number of consecutive queries without an answer after which the appliance counts as hung.
const MAX_SILENCES: u32 = 30;
/// User ID of all users that a user namespace does not map (user_namespaces(7)). The appliance grants this ID no
/// rights.
const OVERFLOW_UID: u32 = 65534;
/// Intervals: `INTERVAL` of the serving process's checks for live programs, `RETRY` of all other retries.
const INTERVAL: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(10);

/// Membership of this process in the lab.
#[derive(Debug)]
pub(super) struct Lab {
    directory: PathBuf,
    members: File,
}

impl Lab {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps the membership when this process executes another program.
    pub(super) fn keep_across_exec(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.members, FdFlags::empty())?)
    }
}

/// Joins the lab of this user, or starts it. `size`: number of addresses; `None` for any.
pub(super) fn join(size: Option<u8>) -> Result<Lab, Failure> {
    let directory = directory()?;
    let gate = open_lock(&directory, GATE)?;
    lock_gate(&gate)
        .map_err(|error| failed(&directory.join(GATE), "another program starts the lab", error))?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let joined = match is_served(&directory)? {
            true => join_running(&directory, size)?,
            false => start_new(&directory, size.unwrap_or(DEFAULT_SIZE))?,
        };
        if let Some(members) = joined {
            return Ok(Lab { directory, members });
        }
        if Instant::now() >= deadline {
            let message = "the earlier lab of this user neither starts nor ends";
            return Err(Failure::new(Exit::Failed, message));
        }
        std::thread::sleep(RETRY);
    }
}

/// Joins the running lab. Returns `None` if the lab is ending or still starting. A lab can be starting although this
/// process holds the lock of `gate`: the lab's first program was killed, which released the lock.
fn join_running(directory: &Path, size: Option<u8>) -> Result<Option<File>, Failure> {
    let members = open_lock(directory, MEMBERS)?;
    let is_joined = flock(&members, FlockOperation::NonBlockingLockShared).is_ok();
    // The lab may have ended before the lock was taken.
    if !is_joined || !is_served(directory)? {
        return Ok(None);
    }
    let Ok(running) = fs::read_to_string(directory.join(SIZE)) else { return Ok(None) };
    check_size(running.trim(), size)?;
    Ok(Some(members))
}

/// Starts a lab and joins it. Returns `None` if another lab has locked `serving` in the meantime. This is possible if
/// the first program of that lab was killed before the lab had locked `serving`: its death released the lock of `gate`.
fn start_new(directory: &Path, size: u8) -> Result<Option<File>, Failure> {
    // The file `members` is created anew, because children of an earlier lab's programs may still hold the lock of the
    // old file.
    for name in [MEMBERS, SIZE, PROGRAMS_SOCKET, MANAGEMENT_SOCKET] {
        remove(directory, name).map_err(|e| failed(&directory.join(name), "cannot remove", e))?;
    }
    let members = open_lock(directory, MEMBERS)?;
    flock(&members, FlockOperation::NonBlockingLockShared).map_err(io::Error::from)?;
    Ok(start(directory, size)?.then_some(members))
}

/// Removes a file of the lab's directory, if it exists.
fn remove(directory: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(directory.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns true if a lab exists.
fn is_served(directory: &Path) -> Result<bool, Failure> {
    match flock(open_lock(directory, SERVING)?, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(failed(&directory.join(SERVING), "flock", error.into())),
    }
}

/// Returns the directory of the lab, which only this user may access.
fn directory() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    if uid == OVERFLOW_UID {
        let message = "uid 65534 cannot have a lab: it stands for all users that a user namespace does not map";
        let hint = "run the program as another user".to_owned();
        return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)));
    }
    // After su, `XDG_RUNTIME_DIR` may name a directory of the previous user, which is ignored.
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| {
        path.is_absolute()
            && path.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid)
    });
    let path = match runtime {
        Some(runtime) => runtime.join("ddpd-lab"),
        None => PathBuf::from(format!("/tmp/ddpd-lab-{uid}")),
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(&path, "cannot create the directory", error));
        }
        _ => {}
    }
    let found =
        path.symlink_metadata().map_err(|error| failed(&path, "the lab's directory", error))?;
    if !found.is_dir() || found.uid() != uid || found.permissions().mode() & 0o077 != 0 {
        let message = format!("{} is not a directory of mode 0700 of this user", path.display());
        let hint = "remove it, or set XDG_RUNTIME_DIR to a directory of this user".to_owned();
        return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)));
    }
    Ok(path)
}

fn open_lock(directory: &Path, name: &str) -> Result<File, Failure> {
    let path = directory.join(name);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    file.map_err(|error| failed(&path, "cannot open", error))
}

/// Takes the lock of `gate`: waits until no other program joins or starts the lab.
fn lock_gate(gate: &File) -> io::Result<()> {
    let deadline = Instant::now() + GATE_TIMEOUT;
    loop {
        match flock(gate, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(RETRY),
            result => return Ok(result?),
        }
    }
}

/// Checks that the running lab has the requested number of addresses.
fn check_size(running: &str, size: Option<u8>) -> Result<(), Failure> {
    let Some(size) = size else { return Ok(()) };
    if running == size.to_string() {
        return Ok(());
    }
    let message = format!("a lab of {running} addresses runs, which cannot become one of {size}");
    let hint = format!("use --lab={running}, or end the programs of the lab first");
    Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)))
}

/// Starts the lab and waits until programs can attach. Returns false if another lab runs.
fn start(directory: &Path, size: u8) -> Result<bool, Failure> {
    let ddpd = std::path::absolute(find_ddpd()?)?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", WITHOUT_DESCRIPTORS, "ddpctl"]).arg(std::env::current_exe()?);
    libraries::remove_from_environment(&mut command);
    let mut child = command
        .args([LAB_PROCESS, "detach"])
        .args([directory.as_os_str(), size.to_string().as_ref(), ddpd.as_os_str()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let Some(output) = child.stdout.take() else {
        return Err(Failure::new(Exit::Failed, "no pipe"));
    };
    let mut line = String::new();
    // The wait is bounded: the serving process writes a line after [`START_TIMEOUT`] at the latest, and its end closes
    // the pipe.
    let read = BufReader::new(output).read_line(&mut line);
    child.wait()?;
    read?;
    match line.trim_end() {
        READY => Ok(true),
        BUSY => Ok(false),
        reason => {
            let reason = if reason.is_empty() { "its process has ended" } else { reason };
            let message = format!("the lab does not start: {reason}");
            let hint = format!("{} has the log of ddpd", directory.join(LOG).display());
            Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)))
        }
    }
}

/// Finds ddpd: in the directory of ddpctl, else in `PATH` and in the directories of system programs.
fn find_ddpd() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?.with_file_name("ddpd");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"].map(PathBuf::from);
    let directories = std::env::split_paths(&path).chain(system);
    let mut candidates = std::iter::once(own).chain(directories.map(|path| path.join("ddpd")));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        let hint = "install the package ddpd".to_owned();
        Failure::new(Exit::Failed, "the lab needs ddpd, which is not installed")
            .with_hint(Some(hint))
    })
}

fn failed(path: &Path, what: &str, error: io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{}: {what}: {error}", path.display()))
}

/// Arguments of a process of the lab.
#[derive(Debug, Parser)]
struct LabProcess {
    /// Role of this process in the lab
    #[arg(value_enum)]
    stage: Stage,
    /// Directory of the lab
    directory: PathBuf,
    /// Number of addresses
    size: u8,
    /// Path of ddpd
    ddpd: PathBuf,
    /// Process whose end ends the appliance
    #[arg(long, default_value_t = 0)]
    parent: i32,
}

/// Process of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Stage {
    /// Starts the serving process in a new session, and ends.
    Detach,
    /// Starts the appliance, waits for the end of the lab's last program, and ends the appliance.
    Serve,
    /// Becomes the appliance.
    Appliance,
}

/// Runs a process of the lab. The serving process writes errors to standard output, a pipe to the process that starts
/// the lab.
pub(crate) fn lab_process(arguments: &[OsString]) -> Result<(), Failure> {
    let process = LabProcess::try_parse_from(arguments)
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    match process.stage {
        Stage::Detach => {
            rustix::process::setsid().map_err(io::Error::from)?;
            process.command(Stage::Serve)?.spawn()?;
            Ok(())
        }
        Stage::Serve => {
            let outcome = process.serve();
            if let Err(reason) = &outcome {
                drop(writeln!(io::stdout(), "{reason}"));
            }
            outcome.map_err(|reason| Failure::new(Exit::Failed, reason))
        }
        Stage::Appliance => process.become_appliance(),
    }
}

impl LabProcess {
    fn command(&self, stage: Stage) -> io::Result<Command> {
        let stage = if stage == Stage::Serve { "serve" } else { "appliance" };
        let size: OsString = self.size.to_string().into();
        let mut command = Command::new(std::env::current_exe()?);
        command.args([LAB_PROCESS, stage]);
        command.args([self.directory.as_os_str(), &size, self.ddpd.as_os_str()]);
        Ok(command)
    }

    fn become_appliance(&self) -> Result<(), Failure> {
        use std::os::unix::process::CommandExt;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(io::Error::from)?;
        // If the parent ended before the signal was requested, no signal arrives.
        if rustix::process::getppid().map(Pid::as_raw_pid) != Some(self.parent) {
            return Err(Failure::new(Exit::Failed, "the lab has ended"));
        }
        let error =
            Command::new(&self.ddpd).arg("--config").arg(self.directory.join(CONFIG)).exec();
        Err(failed(&self.ddpd, "cannot execute", error))
    }

    /// Starts the appliance, waits until the last program of the lab has ended, and ends the appliance.
    fn serve(&self) -> Result<(), String> {
        let sentence = |failure: Failure| failure.message;
        let serving = open_lock(&self.directory, SERVING).map_err(sentence)?;
        flock(&serving, FlockOperation::NonBlockingLockExclusive).map_err(|_| BUSY.to_owned())?;
        let mut appliance = self.start_appliance().map_err(|error| error.to_string())?;
        let client = Client::new(&self.directory.join(MANAGEMENT_SOCKET))
            .map_err(|error| error.to_string())?
            .with_timeout(SILENCE);
        let started = self.wait_until_ready(&mut appliance, &client);
        let started = started.and_then(|()| self.announce_ready().map_err(|e| e.to_string()));
        let members = match started {
            Ok(()) => wait_for_last_program(&self.directory, &serving, &mut appliance, &client),
            Err(_) => None,
        };
        end(&mut appliance);
        // A directory that was made anew may have another lab.
        if is_in_directory(&serving, &self.directory) {
            for name in [SIZE, PROGRAMS_SOCKET, MANAGEMENT_SOCKET] {
                // After an error, the next start removes the file.
                drop(remove(&self.directory, name));
            }
        }
        // `serving` is released first: a program that then gets the lock of `members` finds that the lab has ended.
        drop(serving);
        drop(members);
        started
    }

    fn start_appliance(&self) -> io::Result<Child> {
        let create = |name: &str, text: &str| {
            let path = self.directory.join(name);
            let mut options = OpenOptions::new();
            let mut file =
                options.create(true).write(true).truncate(true).mode(0o600).open(path)?;
            file.write_all(text.as_bytes()).map(|()| file)
        };
        create(CONFIG, &configuration(&self.directory, self.size))?;
        let log = create(LOG, "")?;
        self.command(Stage::Appliance)?
            .args(["--parent", &std::process::id().to_string()])
            // The variable is for the programs of the lab, not for ddpd.
            .env_remove("LD_PRELOAD")
            // DPDK creates its runtime directory there, else in /tmp.
            .env("XDG_RUNTIME_DIR", &self.directory)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    fn wait_until_ready(&self, appliance: &mut Child, client: &Client) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = appliance.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("ddpd ended with {status}: {}", self.last_log_line()));
            }
            match client.get::<Status>("/v1/status") {
                Ok(_) if self.directory.join(PROGRAMS_SOCKET).exists() => return Ok(()),
                Err(ClientError::Refused(refusal)) => return Err(refusal.to_string()),
                // The appliance is not ready yet.
                Ok(_) | Err(_) => {}
            }
            if Instant::now() >= deadline {
                return Err("ddpd does not answer".into());
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Reports that programs can attach: to the first program through its pipe, which is then released, and to later
    /// programs through the file `size`.
    fn announce_ready(&self) -> io::Result<()> {
        // The file is renamed into place, so that later programs see the whole file or none.
        let new = self.directory.join(NEW_SIZE);
        fs::write(&new, format!("{}\n", self.size))?;
        fs::rename(&new, self.directory.join(SIZE))?;
        let mut out = io::stdout();
        // A failed write is ignored: the first program may have been killed while others wait for the lab.
        drop(writeln!(out, "{READY}").and_then(|()| out.flush()));
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        loop {
            match rustix::stdio::dup2_stdout(&null) {
                // EBUSY: another thread opens a file at the same time (dup(2)).
                Err(Errno::INTR | Errno::BUSY) => {}
                result => return Ok(result?),
            }
        }
    }

    fn last_log_line(&self) -> String {
        let log = fs::read_to_string(self.directory.join(LOG)).unwrap_or_default();
        log.lines().last().unwrap_or("its log is empty").to_owned()
    }
}

/// Waits until no program has joined the lab or has a session, or until the appliance has ended. In the first case,
/// returns the file `members`, which is locked exclusively. After the lab's directory was removed, no program can join
/// and the appliance cannot be queried. Then only programs that have joined are waited for.
fn wait_for_last_program(
    directory: &Path,
    serving: &File,
    appliance: &mut Child,
    client: &Client,
) -> Option<File> {
    let mut silences = 0;
    let mut last = None;
    while matches!(appliance.try_wait(), Ok(None)) {
        // The file is opened each time, because a program that did not find this lab may have replaced it.
        let opened = open_lock(directory, MEMBERS);
        let is_reachable = is_in_directory(serving, directory);
        if is_reachable && let Ok(members) = opened {
            last = Some(members);
        }
        if last.as_ref().is_none_or(is_free) {
            // A child of a program may have closed the inherited descriptor of `members` and still have a session.
            let query = || client.get::<Vec<ProgramInfo>>("/v1/programs").ok();
            if !is_reachable || !is_used(query(), &mut silences) {
                return last;
            }
        }
        if let Some(members) = &last {
            // Unlocks `members`, so that programs can join until the next check. Unlocking a valid descriptor cannot
            // fail.
            let _ = flock(members, FlockOperation::Unlock);
        }
        std::thread::sleep(INTERVAL);
    }
    None
}

/// Locks the file of members exclusively, and returns true if no program holds it.
fn is_free(members: &File) -> bool {
    flock(members, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Returns true if `serving`, the open file of a lab, is the file of this name in the directory. It is not after the
/// directory was removed, whether or not another one was created.
fn is_in_directory(serving: &File, directory: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let own = serving.metadata().map(identity).ok();
    own.is_some() && directory.join(SERVING).symlink_metadata().map(identity).ok() == own
}

/// Returns true if a program may have a session. An appliance that does not answer may be stalled together with its
/// host. Only after [`MAX_SILENCES`] unanswered queries does it count as ended.
fn is_used(programs: Option<Vec<ProgramInfo>>, silences: &mut u32) -> bool {
    match programs {
        Some(list) => {
            *silences = 0;
            !list.is_empty()
        }
        None => {
            *silences += 1;
            *silences < MAX_SILENCES
        }
    }
}

/// Ends the appliance: by SIGTERM, and by SIGKILL if it has not ended in time.
fn end(appliance: &mut Child) {
    let pid = i32::try_from(appliance.id()).ok().and_then(Pid::from_raw);
    let deadline = Instant::now() + END_TIMEOUT;
    if let Some(pid) = pid
        && matches!(appliance.try_wait(), Ok(None))
    {
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    while matches!(appliance.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(RETRY);
    }
    // An error means that the process has ended.
    drop(appliance.kill());
    drop(appliance.wait());
}

/// Returns the configuration of the lab's appliance. Its two interfaces are the ends of one link. The addresses of the
/// lab alternate between them. Each address reaches all others, over the link or inside its interface.
fn configuration(directory: &Path, size: u8) -> String {
    let path = |name: &str| toml::Value::from(directory.join(name).to_string_lossy().into_owned());
    let mut text = format!(
        "# The lab of `ddpctl run --lab`. Written at each start.\n\
         name = \"lab\"\n\
         [memory]\nhugepages = \"never\"\n\
         [workers]\ncount = 1\nidle = \"adaptive\"\n\
         [management]\nsocket = {}\ndrain_timeout = \"0s\"\n\
         [programs]\nsocket = {}\nprograms = 256\n",
        path(MANAGEMENT_SOCKET),
        path(PROGRAMS_SOCKET),
    );
    for end in 1..=2 {
        text += &format!(
            "[[port]]\nname = \"lab{end}\"\nkind = \"ring\"\nlink = \"lab\"\nmtu = 9000\n"
        );
        let addresses: Vec<String> =
            (end..=size).step_by(2).map(|number| format!("\"10.9.0.{number}/24\"")).collect();
        if !addresses.is_empty() {
            text += &format!(
                "[[interface]]\nname = \"lab{end}\"\nport = \"lab{end}\"\naddresses = [{}]\n",
                addresses.join(", ")
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_appliance_is_in_use_until_it_hangs() {
        let mut silences = 0;
        for _ in 1..MAX_SILENCES {
            assert!(is_used(None, &mut silences));
        }
        assert!(!is_used(None, &mut silences));
        assert!(!is_used(Some(Vec::new()), &mut silences));
        assert!(is_used(None, &mut silences), "an answer resets the count");
    }

    #[test]
    fn program_joins_a_running_lab_that_has_announced_its_size() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let serving = open_lock(path, SERVING).unwrap();
        flock(&serving, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(join_running(path, Some(2)).unwrap().is_none(), "the lab starts");
        fs::write(path.join(SIZE), "2\n").unwrap();
        assert!(join_running(path, Some(2)).unwrap().is_some());
        assert!(join_running(path, None).unwrap().is_some());
        assert!(join_running(path, Some(3)).is_err());
        drop(serving);
        assert!(join_running(path, None).unwrap().is_none(), "the lab has ended");
    }

    #[test]
    fn serving_file_of_a_removed_or_new_directory_is_not_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ddpd-lab");
        fs::create_dir(&path).unwrap();
        let serving = open_lock(&path, SERVING).unwrap();
        assert!(is_in_directory(&serving, &path));
        fs::remove_dir_all(&path).unwrap();
        assert!(!is_in_directory(&serving, &path), "the directory is removed");
        fs::create_dir(&path).unwrap();
        let _other = open_lock(&path, SERVING).unwrap();
        assert!(!is_in_directory(&serving, &path), "the directory has another lab");
    }

    #[test]
    fn configuration_of_each_size_is_valid() {
        for size in [1, 2, 3, 64] {
            let text = configuration(Path::new("/tmp/a \"lab\""), size);
            let document = config::Document::parse(Path::new("lab.toml"), &text).unwrap();
            let interfaces = document.config.interfaces;
            assert_eq!(interfaces.len(), usize::from(size.min(2)));
            let addresses = interfaces.iter().flat_map(|interface| interface.addresses.iter());
            let mut addresses: Vec<String> = addresses.map(|net| net.addr().to_string()).collect();
            addresses.sort();
            let mut expected: Vec<String> = (1..=size).map(|n| format!("10.9.0.{n}")).collect();
            expected.sort();
            assert_eq!(addresses, expected);
        }
    }
}
