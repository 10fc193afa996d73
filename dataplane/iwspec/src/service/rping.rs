//! The exchange of rping. In a Send of 16 bytes, the client announces `{address, rkey, size}` of its source buffer. The
//! server reads the buffer and answers with a Send. The client then announces its sink, and the server writes to it.

use crate::case::{Need, Role};
use crate::message::Kind;
use crate::session::{Session, Stop};
use crate::value::Arguments;

use super::{receive, set_memory, set_permitted};

/// Length of a buffer announcement, bytes.
const ANNOUNCEMENT: usize = 16;
/// Size of the tester's buffer, bytes: the default of an rping server.
const SIZE: u64 = 64;
/// STag of the tester's buffer.
const STAG: u64 = 0x1ec5_0700;

pub(super) fn prepare(session: &mut Session<'_>, needs: &[Need]) -> Result<(), Stop> {
    let memory =
        needs.iter().any(|n| matches!(n.capability.as_str(), "read" | "write" | "both" | "asks"));
    match session.role() {
        Role::Responder if memory => server(session),
        Role::Responder => Ok(()),
        Role::Initiator => {
            client(session, needs.iter().any(|n| matches!(n.capability.as_str(), "write")))
        }
    }
}

/// Performs the exchange with a server, which answers the announcement of the tester's buffer with a Read Request.
fn server(session: &mut Session<'_>) -> Result<(), Stop> {
    send(session, &format!("data=hex:{:016x}{STAG:08x}{SIZE:08x}", 0x1000))?;
    let request = receive(session, Kind::Read, "the Read Request of an rping server")?;
    let (sink, to) = (request.field("sink").unwrap_or(0), request.field("sink-to").unwrap_or(0));
    let length = request.field("size").unwrap_or(0);
    set_memory(session, "asks", sink, to, length);
    // An rping server also registers the sink of its Reads for remote access.
    set_permitted(session, sink, to, length);
    Ok(())
}

/// Performs the exchange with a client, which announces its source, and its sink after the source was read. Without
/// `sink`, ends after the first announcement.
fn client(session: &mut Session<'_>, sink: bool) -> Result<(), Stop> {
    announced(session, "read")?;
    if sink {
        let read = "sink=0x1ec50700 sink-to=0 stag=$read.stag to=$read.to len=$read.len";
        session.send(Kind::Read, &words(read)?)?;
        receive(session, Kind::Response, "the Read Response of an rping client")?;
        send(session, "len=16 data=fill:0")?;
        announced(session, "write")?;
    }
    Ok(())
}

fn announced(session: &mut Session<'_>, name: &str) -> Result<(), Stop> {
    let message = receive(session, Kind::Send, "the buffer announcement of an rping client")?;
    let Some(bytes) = message.data.first_chunk::<ANNOUNCEMENT>() else {
        return Err(Stop::Inconclusive("the buffer announcement has less than 16 bytes".into()));
    };
    let number =
        |from: usize, to: usize| bytes[from..to].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    set_memory(session, name, number(8, 12), number(0, 8), number(12, 16));
    Ok(())
}

fn send(session: &mut Session<'_>, text: &str) -> Result<(), Stop> {
    session.send(Kind::Send, &words(text)?)
}

fn words(text: &str) -> Result<Arguments, Stop> {
    Arguments::parse(text.split(' ')).map_err(Stop::Inconclusive)
}
