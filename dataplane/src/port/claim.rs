//! A network interface of Linux has one user among the ports that use packet sockets, in whichever process: each socket
//! sees all frames, and both would answer. (Of AF_XDP the kernel refuses a second socket itself.)
//!
//! The user holds a socket with an abstract name (unix(7)), which the kernel keeps for each network namespace, as it does
//! interfaces, and frees with the process, however that ends.

use std::io::{Error, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use super::{PortConfig, PortError, PortKind};

/// Held while the interface is in use.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "held, not read")] UnixListener);

/// Claims the interface of a port, if it has one.
///
/// # Errors
/// Another process, or another port of this one, has it.
pub(super) fn claim(config: &PortConfig) -> Result<Option<Claim>, PortError> {
    let PortKind::AfPacket { device } = &config.kind else { return Ok(None) };
    if config.shares_interface {
        return Ok(None);
    }
    let name = format!("ddpd/interface/{device}");
    let claimed = SocketAddr::from_abstract_name(&name).and_then(|at| UnixListener::bind_addr(&at));
    match claimed {
        Ok(listener) => Ok(Some(Claim(listener))),
        Err(error) => Err(refused(config, device, holder(name.as_bytes()), &error)),
    }
}

fn refused(config: &PortConfig, device: &str, holder: Option<i32>, error: &Error) -> PortError {
    let (port, interface) = (config.name.clone(), device.to_owned());
    if error.kind() != ErrorKind::AddrInUse {
        let why = error.to_string();
        return PortError::Value { port, key: "device", value: interface, why };
    }
    let holder = match holder {
        Some(pid) if pid == std::process::id().cast_signed() => {
            "another port of this process".into()
        }
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    };
    PortError::InterfaceTaken { port, interface, holder }
}

/// The process that holds a name.
fn holder(name: &[u8]) -> Option<i32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name).ok()?).ok()?;
    Some(sockopt::socket_peercred(&socket).ok()?.pid.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_one_user() {
        let device = format!("ddpt{}", std::process::id());
        let config = PortConfig::new("p", PortKind::AfPacket { device: device.clone() });
        let first = claim(&config).unwrap().unwrap();
        let error = claim(&PortConfig::new("q", config.kind.clone())).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "port \"q\": interface {device} is used by another port of this process; stop that one or choose another \
                 interface"
            )
        );
        assert_eq!(error.key(), "device");
        let beside = PortConfig { shares_interface: true, ..config.clone() };
        assert!(claim(&beside).unwrap().is_none());
        drop(first);
        assert!(claim(&config).unwrap().is_some());
        assert!(claim(&PortConfig::new("r", PortKind::Ring { link: device })).unwrap().is_none());
    }
}
