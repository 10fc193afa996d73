//! The service manager's socket, `$NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

/// Result of sending a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome {
    /// The message was sent, or dropped because there is no manager or the send failed.
    Done,
    /// The manager's socket is full; the message was not sent.
    Full,
}

/// Socket for messages to the manager. Without a manager, messages are dropped.
#[derive(Debug)]
pub struct Socket {
    /// Socket and address; without an address the socket is connected.
    destination: Option<(UnixDatagram, Option<SocketAddr>)>,
    /// True once a failure was logged.
    warned: AtomicBool,
}

impl Socket {
    /// Opens the socket named by `$NOTIFY_SOCKET`. An unusable name is logged.
    pub fn from_env() -> Socket {
        Socket::open_named(std::env::var_os("NOTIFY_SOCKET").as_deref())
    }

    /// Opens the socket `name`: a path, or `@` and an abstract name.
    pub fn open_named(name: Option<&OsStr>) -> Socket {
        let opened = name.filter(|name| !name.is_empty()).map(open).transpose();
        let socket = Socket { destination: None, warned: AtomicBool::new(false) };
        match opened {
            Ok(to) => Socket { destination: to, ..socket },
            Err(error) => {
                socket.warn(&error);
                socket
            }
        }
    }

    /// Returns true if messages can be sent to a service manager.
    pub fn is_present(&self) -> bool {
        self.destination.is_some()
    }

    /// Sends a message of lines `NAME=value`. Never blocks.
    pub fn send(&self, message: &str) -> SendOutcome {
        let Some((socket, to)) = &self.destination else { return SendOutcome::Done };
        let sent = match to {
            Some(to) => socket.send_to_addr(message.as_bytes(), to),
            None => socket.send(message.as_bytes()),
        };
        match sent {
            Ok(_) => SendOutcome::Done,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => SendOutcome::Full,
            Err(error) => {
                self.warn(&error);
                SendOutcome::Done
            }
        }
    }

    /// Logs the first failure only.
    fn warn(&self, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the service manager cannot be notified through NOTIFY_SOCKET: {error}; the appliance serves all the same"
            );
        }
    }
}

/// Opens a socket for `name`. With an abstract name it is connected now, because the sandbox later denies connect(2). A
/// path is resolved for each message, because the manager may replace its socket.
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
