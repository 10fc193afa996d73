//! The socket of a session: `AF_UNIX`, `SOCK_SEQPACKET`. A packet is one JSON message with its file descriptors.
//!
//! [`SessionSocket::send`] and [`SessionSocket::receive`] never block: they report a full or an empty socket as
//! [`SocketError::WouldBlock`].

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::{MAX_DESCRIPTORS, MAX_MESSAGE};

/// Size of the ancillary data for the file descriptors of one packet, bytes.
const ANCILLARY: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// A connected socket of a session, of type `SOCK_SEQPACKET`. Closed on drop.
#[derive(Debug)]
pub struct SessionSocket(OwnedFd);

/// Reason why a message could not be sent or received. Each error ends the session, except
/// [`SocketError::WouldBlock`], and [`SocketError::TooLong`] from a send.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Sending: the socket is full. Receiving: there is no message. Also returned if a signal interrupted the call.
    #[error("the socket is not ready")]
    WouldBlock,
    /// The other side has closed the socket.
    #[error("the other side has closed the session")]
    Closed,
    /// The message is longer than [`MAX_MESSAGE`], or has more than [`MAX_DESCRIPTORS`] descriptors.
    #[error("a message of more than {MAX_MESSAGE} bytes or {MAX_DESCRIPTORS} descriptors")]
    TooLong,
    /// The packet is not a message.
    #[error("not a message: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A system call failed.
    #[error("the socket failed: {0}")]
    System(#[from] Errno),
}

impl SessionSocket {
    /// Connects to the appliance's socket at `path`.
    ///
    /// # Errors
    /// No appliance listens at `path`, this user may not connect, or the path is too long.
    pub fn connect(path: &Path) -> Result<SessionSocket, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(SessionSocket(socket))
    }

    /// Wraps a connected socket of type `SOCK_SEQPACKET`.
    pub fn new(socket: OwnedFd) -> SessionSocket {
        SessionSocket(socket)
    }

    /// Sends a message with copies of these file descriptors. Never blocks.
    ///
    /// # Errors
    /// The socket is full, closed or broken, or the message is too long.
    pub fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(SocketError::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); ANCILLARY];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(SocketError::TooLong);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::INTR) => Err(SocketError::WouldBlock),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(SocketError::Closed),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a message and its file descriptors. Never blocks.
    ///
    /// # Errors
    /// There is no message, the socket is closed or broken, or the packet is not a message of this type.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), SocketError> {
        // The additional byte reveals a packet that is too long.
        let mut bytes = vec![0; MAX_MESSAGE + 1];
        let mut space = [MaybeUninit::uninit(); ANCILLARY];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Err(SocketError::WouldBlock),
            Err(Errno::CONNRESET) => return Err(SocketError::Closed),
            Err(error) => return Err(error.into()),
        };
        // Takes ownership of the file descriptors first, so that the descriptors of a refused packet are closed.
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 && descriptors.is_empty() {
            return Err(SocketError::Closed);
        }
        let truncated = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.bytes > MAX_MESSAGE || received.flags.intersects(truncated) {
            return Err(SocketError::TooLong);
        }
        Ok((serde_json::from_slice(&bytes[..received.bytes])?, descriptors))
    }
}

impl AsFd for SessionSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send, socketpair};

    use super::*;
    use crate::message::{Answer, Call, Message, Reply, Request};

    fn pair() -> (SessionSocket, SessionSocket) {
        let (type_, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (a, b) = socketpair(AddressFamily::UNIX, type_, flags, None).unwrap();
        (SessionSocket::new(a), SessionSocket::new(b))
    }

    fn hello(name: &str) -> Request {
        Request { id: 7, call: Call::Hello { oldest: 1, newest: 2, name: name.into() } }
    }

    #[test]
    fn message_arrives_with_its_descriptors() {
        let (program, appliance) = pair();
        program.send(&hello("test"), &[]).unwrap();
        let (request, descriptors) = appliance.receive::<Request>().unwrap();
        assert_eq!((request, descriptors.len()), (hello("test"), 0));
        let reply = Message::Reply(Reply { id: 7, result: Ok(Answer::Created { number: 3 }) });
        let (end, other) = pair();
        appliance.send(&reply, &[other.as_fd(), appliance.as_fd()]).unwrap();
        drop(other);
        let (received, descriptors) = program.receive::<Message>().unwrap();
        assert_eq!((received, descriptors.len()), (reply, 2));
        assert_eq!(
            send(&descriptors[0], b"x", SendFlags::empty()),
            Ok(1),
            "the passed socket is open"
        );
        drop(end);
    }

    #[test]
    fn socket_without_message_and_closed_socket_differ() {
        let (program, appliance) = pair();
        assert!(matches!(appliance.receive::<Request>(), Err(SocketError::WouldBlock)));
        drop(program);
        assert!(matches!(appliance.receive::<Request>(), Err(SocketError::Closed)));
        assert!(matches!(appliance.send(&hello(""), &[]), Err(SocketError::Closed)));
    }

    #[test]
    fn packets_that_are_not_messages_are_refused() {
        let (program, appliance) = pair();
        for packet in [
            &b"{"[..],
            b"null",
            br#"{"id":1,"call":"Open"}"#,
            br#"{"id":1,"call":"create_pd","x":1}"#,
        ] {
            send(&program.0, packet, SendFlags::empty()).unwrap();
            assert!(matches!(appliance.receive::<Request>(), Err(SocketError::Syntax(_))));
        }
        send(&program.0, &vec![b' '; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
        assert!(matches!(appliance.receive::<Request>(), Err(SocketError::TooLong)));
        assert!(matches!(
            program.send(&hello(&"x".repeat(MAX_MESSAGE)), &[]),
            Err(SocketError::TooLong)
        ));
    }

    #[test]
    fn full_socket_is_reported_and_loses_nothing() {
        let (program, appliance) = pair();
        let mut sent = 0;
        while program.send(&hello("a program that sends without end"), &[]).is_ok() {
            sent += 1;
            assert!(sent < 100_000);
        }
        assert!(matches!(program.send(&hello(""), &[]), Err(SocketError::WouldBlock)));
        let received = std::iter::from_fn(|| appliance.receive::<Request>().ok()).count();
        assert_eq!(received, sent);
    }
}
