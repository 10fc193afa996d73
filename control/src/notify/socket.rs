//! The manager's socket, `$NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The manager has it, or there is no manager, or it cannot be reached.
    Done,
    /// The manager's socket is full.
    Full,
}

/// Where messages go; without a manager, nowhere.
#[derive(Debug)]
pub struct Socket {
    /// Without an address the socket is connected.
    to: Option<(UnixDatagram, Option<SocketAddr>)>,
    warned: AtomicBool,
}

impl Socket {
    /// The socket that the environment names. One that cannot be used is a line in the log.
    pub fn from_env() -> Socket {
        Socket::named(std::env::var_os("NOTIFY_SOCKET").as_deref())
    }

    /// The socket of this name: a path, or an abstract name after `@`.
    pub fn named(name: Option<&OsStr>) -> Socket {
        let opened = name.filter(|name| !name.is_empty()).map(open).transpose();
        let socket = Socket { to: None, warned: AtomicBool::new(false) };
        match opened {
            Ok(to) => Socket { to, ..socket },
            Err(error) => {
                socket.warn(&error);
                socket
            }
        }
    }

    /// There is a manager.
    pub fn is_there(&self) -> bool {
        self.to.is_some()
    }

    /// Sends a message, lines of `NAME=value`, without waiting.
    pub fn send(&self, message: &str) -> Sent {
        let Some((socket, to)) = &self.to else { return Sent::Done };
        let sent = match to {
            Some(to) => socket.send_to_addr(message.as_bytes(), to),
            None => socket.send(message.as_bytes()),
        };
        match sent {
            Ok(_) => Sent::Done,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            Err(error) => {
                self.warn(&error);
                Sent::Done
            }
        }
    }

    /// One line, however often it fails.
    fn warn(&self, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the service manager cannot be notified through NOTIFY_SOCKET: {error}; the appliance serves all the same"
            );
        }
    }
}

/// An abstract name is connected to at once: later the sandbox refuses it. A path is resolved for each message, as its socket
/// may be replaced.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, Option<SocketAddr>)> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let address = match name.as_bytes() {
        [b'@', name @ ..] => {
            socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            None
        }
        [b'/', ..] => Some(SocketAddr::from_pathname(name)?),
        _ => {
            let name = name.display();
            let message = format!("{name} is neither an absolute path nor an abstract name");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    };
    Ok((socket, address))
}
