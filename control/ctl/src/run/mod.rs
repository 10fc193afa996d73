//! `run`: executes a verbs program with the libraries that replace libibverbs and librdmacm.
//!
//! The program runs in this process (execve), with the replacements in front of the system's libraries
//! (`LD_LIBRARY_PATH`) and the appliance's socket in its environment. All prerequisites are checked before the execve,
//! because the dynamic loader and the libraries of a program often report a missing part as "no device".

mod attach;
mod lab;
mod libraries;
mod sysfs;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args as ClapArgs;
use config::{DEFAULT_SOCKET, Transport};

use self::attach::devices;
pub(super) use self::lab::{LAB_PROCESS, lab_process};
use self::libraries::Libraries;
use super::exit::{Exit, Failure};
use super::streams::parse_transport;

/// Name of the socket for programs in the directory of the management socket.
const PROGRAMS_SOCKET: &str = "programs.sock";
/// Environment variables that the libraries read: path of the socket, the only device to show, transport of
/// connections.
const SOCKET_VARIABLE: &str = "DDPD_PROGRAMS_SOCKET";
const DEVICE_VARIABLE: &str = "DDPD_DEVICE";
const TRANSPORT_VARIABLE: &str = "DDPD_TRANSPORT";
/// Environment variable of `ddpctl`: path of the management socket.
const MANAGEMENT_VARIABLE: &str = "DDPD_SOCKET";

/// Arguments of `ddpctl run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Environment:\n  \
    DDPD_PROGRAMS_SOCKET  the appliance's socket, unless --appliance is given\n  \
    DDPD_VERBS_LIBRARY    directory of libibverbs.so.1 and librdmacm.so.1; by default the package's or the project's\n\n\
    Exit codes: 1 a library or the lab is missing, 2 the program or the device does not exist, 3 the appliance cannot be \
    reached, else that of the program.")]
pub struct Run {
    /// Socket of the appliance for programs (programs.socket); by default /run/ddpd/programs.sock
    #[arg(long, value_name = "SOCKET", conflicts_with = "lab")]
    appliance: Option<PathBuf>,
    /// Show the program only this device: an interface of the appliance. By default it sees all, and rdma_cm selects
    /// the device by address
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Transport of the program's connections and listeners: tcp or sctp; by default tcp
    #[arg(long, value_name = "TRANSPORT", value_parser = parse_transport)]
    transport: Option<Transport>,
    /// Show the devices in /sys/class/infiniband, for programs that read it without libibverbs. The program runs in its
    /// own user and mount namespace
    #[arg(long)]
    sysfs: bool,
    /// Use a private appliance of this user with N addresses 10.9.0.1, 10.9.0.2, ... at its devices lab1 (odd) and lab2
    /// (even). It starts with its first program and ends with its last one. Without N: 2, or as many as the running lab
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    lab: Option<Option<u8>>,
    /// Program with its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// Executes the program. Returns only if this fails.
pub(super) fn run(run: &Run) -> Result<(), Failure> {
    let [program, arguments @ ..] = &*run.program else {
        return Err(Failure::new(Exit::Usage, "a program is required"));
    };
    let program_file = libraries::find_program(program)?;
    let libraries = Libraries::find()?;
    libraries.check(&program_file)?;
    let lab = run.lab.map(lab::join).transpose()?;
    let socket = match &lab {
        Some(lab) => lab.directory().join(PROGRAMS_SOCKET),
        None => run.appliance.clone().unwrap_or_else(default_socket),
    };
    let devices = devices(&socket)?;
    if let (Some(name), Some(devices)) = (&run.device, &devices)
        && !devices.contains(name)
    {
        let message = format!("there is no device \"{name}\"");
        let hint = format!("the appliance has: {}", devices.join(", "));
        return Err(Failure::new(Exit::Usage, message).with_hint(Some(hint)));
    }
    let mut command = if run.sysfs {
        let shown = devices.unwrap_or_default();
        let shown =
            shown.into_iter().filter(|name| run.device.as_ref().is_none_or(|one| one == name));
        sysfs::command(shown, &program_file)?
    } else {
        let mut command = Command::new(&program_file);
        // Some programs select their function by the name under which they were started.
        command.arg0(program);
        command
    };
    command.args(arguments);
    libraries.set_environment(&mut command);
    command.env(SOCKET_VARIABLE, std::path::absolute(&socket)?);
    if let Some(device) = &run.device {
        command.env(DEVICE_VARIABLE, device);
    }
    if let Some(transport) = run.transport {
        command.env(TRANSPORT_VARIABLE, transport.as_str());
    }
    if let Some(lab) = &lab {
        command.env(MANAGEMENT_VARIABLE, lab.directory().join(lab::MANAGEMENT_SOCKET));
        // The lab ends when the program and its children have closed this descriptor.
        lab.keep_across_exec()?;
    }
    let error = command.exec();
    let message = format!("{}: cannot execute: {error}", command.get_program().display());
    Err(Failure::new(Exit::Usage, message))
}

/// Returns the path in `DDPD_PROGRAMS_SOCKET`, else the default path of the host's appliance.
fn default_socket() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => std::path::Path::new(DEFAULT_SOCKET).with_file_name(PROGRAMS_SOCKET),
    }
}
