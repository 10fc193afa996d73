//! Checks the appliance's socket for programs: opens a session and closes it again.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_layout::version::VERSIONS;
use verbs_session::message::{Answer, Call, Message, RefusalKind, Reply, Request};
use verbs_session::socket::{SessionSocket, SocketError};

use crate::exit::{Exit, Failure};

/// Maximum wait for the appliance's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the names of the devices that the appliance offers to this user's programs; `None` if the answer cannot be
/// parsed, for example because `ddpd` has another version; the program's library then reports the error.
pub(super) fn devices(socket: &Path) -> Result<Option<Vec<String>>, Failure> {
    let session = SessionSocket::connect(socket).map_err(|error| unreachable(socket, error))?;
    let (oldest, newest) = (VERSIONS.oldest, VERSIONS.newest);
    let call = Call::Hello { oldest, newest, name: "ddpctl run".into() };
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let answer = session.send(&Request { id: 0, call }, &[]).and_then(|()| {
        loop {
            match session.receive::<Message>() {
                Err(SocketError::WouldBlock) if Instant::now() < deadline => wait(&session)?,
                Ok((message, _)) => return Ok(message),
                Err(error) => return Err(error),
            }
        }
    });
    match answer {
        Ok(Message::Reply(Reply { result: Ok(Answer::Welcome(welcome)), .. })) => {
            Ok(Some(welcome.devices.into_iter().map(|device| device.name).collect()))
        }
        Ok(Message::Reply(Reply { result: Err(refusal), .. })) => {
            let hint = (refusal.kind == RefusalKind::NotAllowed)
                .then(|| "[programs] allow of the appliance lists users and groups".into());
            Err(Failure::new(Exit::Failed, format!("the appliance refuses programs: {refusal}"))
                .with_hint(hint))
        }
        Ok(_) | Err(SocketError::Syntax(_)) => Ok(None),
        Err(SocketError::WouldBlock) => {
            let message = format!("the appliance at {} does not answer", socket.display());
            Err(Failure::new(Exit::Silent, message))
        }
        Err(error) => {
            let message =
                format!("the appliance at {} ends the session: {error}", socket.display());
            Err(Failure::new(Exit::Failed, message))
        }
    }
}

/// Waits for a message for at most 100 ms. [`devices`] repeats this until its deadline.
fn wait(session: &SessionSocket) -> Result<(), SocketError> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    match poll(&mut [PollFd::new(session, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn unreachable(socket: &Path, error: Errno) -> Failure {
    let socket = socket.display();
    let (message, hint) = match error {
        Errno::NOENT | Errno::CONNREFUSED => (
            format!("no appliance serves programs at {socket}"),
            "start ddpd with a section [programs] and name its socket by --appliance, or use --lab",
        ),
        Errno::ACCESS => (
            format!("this user may not use {socket}"),
            "add the user to [programs] allow of the appliance, or use --lab",
        ),
        error => (
            format!("cannot connect to {socket}: {error}"),
            "--appliance names a socket of [programs]",
        ),
    };
    Failure::new(Exit::Unreachable, message).with_hint(Some(hint.into()))
}
