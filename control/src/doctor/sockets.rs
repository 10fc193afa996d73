//! Checks that the sockets of the management API are free.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use config::Config;

use super::finding::{Check, Finding, quote};
use super::host::{Host, Unknown};
use super::subject::Subject;

const MANAGEMENT: Check =
    Check("management socket", "An appliance whose socket is taken does not start.");
const LISTEN: Check =
    Check("listen address", "An appliance whose address for observers is taken does not start.");

const DIRECTORY: Check =
    Check("management socket", "An appliance without a directory for its socket does not start.");

/// Code of the state LISTEN in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// Result of a connection attempt to the management socket.
enum ConnectResult {
    Unserved,
    InUse,
    Unknown(String),
}

fn try_connect(host: &Host, config: &Config) -> ConnectResult {
    match UnixStream::connect(host.path(&config.management.socket)) {
        Ok(_) => ConnectResult::InUse,
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => ConnectResult::Unserved,
            // For example, the socket belongs to another user, and this user must not connect.
            _ => ConnectResult::Unknown(error.to_string()),
        },
    }
}

pub(super) fn management(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    for config in &subject.configs {
        let path = config.management.socket.display();
        let parent = config.management.socket.parent().filter(|path| !path.as_os_str().is_empty());
        if let Some(parent) = parent.filter(|parent| !host.path(parent).is_dir()) {
            let shown = parent.display().to_string();
            found.push(
                DIRECTORY
                    .error(format!("{path}: there is no directory {shown}"))
                    .remedy("make it, for the user of ddpd")
                    .command(format!("mkdir -p {}", quote(&shown))),
            );
            continue;
        }
        found.push(match try_connect(host, config) {
            ConnectResult::Unserved => MANAGEMENT.ok(format!("{path} is free")),
            ConnectResult::Unknown(why) => MANAGEMENT.unknown(format!("{path}: {why}")),
            ConnectResult::InUse => MANAGEMENT
                .warning(format!("a process answers at {path}"))
                .remedy("if it is another appliance than this one, stop it or choose another management.socket")
                .command(format!("ddpctl --socket {} status", quote(&path.to_string()))),
        });
    }
}

pub(super) fn listen(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    for config in &subject.configs {
        let Some(address) = config.management.listen.address else { continue };
        let taken = match listening(host) {
            Ok(all) => all.into_iter().find(|other| addresses_conflict(address, *other)),
            Err(why) => {
                found.push(LISTEN.unknown(why));
                continue;
            }
        };
        found.push(match taken {
            None => LISTEN.ok(format!("{address} is free")),
            // The management socket is also taken: probably this appliance is already running.
            Some(other) if matches!(try_connect(host, config), ConnectResult::InUse) => LISTEN
                .warning(format!(
                    "{address}: a process listens on {other}, and at the management socket, too"
                ))
                .remedy("if it is another appliance than this one, choose another address"),
            Some(other) => LISTEN
                .error(format!("{address}: a process listens on {other}"))
                .remedy(
                    "choose another management.listen.address, or end the program that ss names",
                )
                .command(format!("ss -Hltnp sport = :{}", address.port())),
        });
    }
}

/// Returns true if a process can listen on only one of the two addresses: same port, and the same or an unspecified IP
/// address.
fn addresses_conflict(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |a: IpAddr, b: IpAddr| match a {
        IpAddr::V4(any) => any.is_unspecified() && b.is_ipv4(),
        // An IPv6 socket also accepts IPv4, unless the host's `bindv6only` is set.
        IpAddr::V6(any) => any.is_unspecified(),
    };
    let (x, y) = (a.ip(), b.ip());
    a.port() == b.port() && (x == y || covers(x, y) || covers(y, x))
}

/// Returns the TCP addresses on which programs of this network namespace listen.
fn listening(host: &Host) -> Result<Vec<SocketAddr>, Unknown> {
    let mut all = Vec::new();
    // Kernels without IPv6 lack tcp6.
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        if path.ends_with('6') && !host.exists(path) {
            continue;
        }
        let text = host.text(path)?;
        for line in text.lines().skip(1) {
            let mut words = line.split_whitespace();
            let (local, state) = (words.nth(1), words.nth(1));
            if state == Some(TCP_LISTEN) {
                let address = local.and_then(socket_address);
                all.push(address.ok_or_else(|| format!("{path} has a line without address"))?);
            }
        }
    }
    Ok(all)
}

/// Parses an address such as `0100007F:1F90`: each group of four bytes is a number in the host's byte order. `None` for
/// any other text.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{RING, Tree, only_finding, subject};

    const MORE: &str =
        "[management]\nsocket = \"/run/d.sock\"\n[management.listen]\naddress = \"127.0.0.1:8080\"";

    #[test]
    fn served_management_socket_is_a_warning() {
        let subject = subject("count = 1", RING, MORE);
        let tree = Tree::new(&[("run/x", "")]);
        assert_eq!(only_finding(&tree.run(&subject, management)).0, Severity::Ok);
        let listener = UnixListener::bind(tree.path("run/d.sock")).unwrap();
        let found = tree.run(&subject, management);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].command.as_deref(), Some("ddpctl --socket /run/d.sock status"));
        drop(listener);
    }

    #[test]
    fn missing_directory_of_management_socket_is_an_error() {
        let found = Tree::new(&[]).run(&subject("count = 1", RING, MORE), management);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].command.as_deref(), Some("mkdir -p /run"));
    }

    #[test]
    fn stale_management_socket_is_ok() {
        use socket2::{Domain, SockAddr, Socket, Type};
        let tree = Tree::new(&[("run/x", "")]);
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(tree.path("run/d.sock")).unwrap()).unwrap();
        let found = tree.run(&subject("count = 1", RING, MORE), management);
        assert_eq!(only_finding(&found).0, Severity::Ok);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listen_address_in_use_is_an_error() {
        let subject = subject("count = 1", RING, MORE);
        let line = |address: &str, state: &str| {
            let tree = Tree::new(&[]);
            tree.file(
                "proc/net/tcp",
                &format!("  sl  local\n   0: {address} 00000000:0000 {state} 0\n"),
            );
            let found = tree.run(&subject, listen);
            only_finding(&found).0
        };
        assert_eq!(line("0100007F:1F90", "0A"), Severity::Error);
        assert_eq!(line("00000000:1F90", "0A"), Severity::Error);
        assert_eq!(line("0100007F:1F90", "01"), Severity::Ok, "a connection");
        assert_eq!(line("0100007F:1F91", "0A"), Severity::Ok, "another port");
        assert_eq!(line("0200007F:1F90", "0A"), Severity::Ok, "another address");
        assert_eq!(line("xyz", "0A"), Severity::Unknown);
        assert_eq!(only_finding(&Tree::new(&[]).run(&subject, listen)).0, Severity::Unknown);
        let tree = Tree::new(&[("proc/net/tcp", "head\n")]);
        let any = "00000000000000000000000000000000:1F90";
        tree.file("proc/net/tcp6", &format!("head\n 0: {any} {any} 0A\n"));
        assert_eq!(
            only_finding(&tree.run(&subject, listen)).0,
            Severity::Error,
            "any of both families"
        );
    }
}
