//! The exchange of perftest with `-R`: two connections to one port. The first carries control messages: the server
//! answers each Send with a Send of the same length. The second connection carries the data.

use crate::case::Role;
use crate::message::{Kind, Message};
use crate::session::{Session, Stop};

use super::{receive, set_permitted};

/// Control messages before the second connection: version, cycle buffer, cache line, MTU, barrier.
const FIRST: [&str; 5] = [
    "data=hex:362e3036000000000000000000000000",
    "data=hex:00001000",
    "data=hex:00000040",
    "data=hex:3300",
    "len=56 data=fill:0",
];
/// Minimum length of a server's buffer, bytes: perftest's cycle buffer.
const BUFFER: u64 = 4096;

/// Performs the exchange before the second connection.
pub(super) fn begin(control: &mut Session<'_>) -> Result<(), Stop> {
    FIRST.iter().try_for_each(|message| exchange(control, message).map(drop))
}

/// Performs the exchange after the second connection: the server announces its buffer.
pub(super) fn prepare(session: &mut Session<'_>) -> Result<(), Stop> {
    if session.role() == Role::Initiator {
        // The client sends the first message and waits for the answer.
        return receive(session, Kind::Send, "the version of a perftest client").map(drop);
    }
    let Some(mut control) = session.companion.take() else { return Ok(()) };
    exchange(&mut control, "len=56 data=fill:0")?;
    // Fields: lid, out_reads, qpn, psn, rkey, pad, vaddr, gid, srqn, gid_index.
    let ours = format!("data=hex:{:032x}1ec5070000000000{:016x}{:048x}", 0, 0x1000, 0);
    let theirs = exchange(&mut control, &ours)?;
    let number = |from: usize, to: usize| {
        theirs.data[from..to].iter().fold(0u64, |n, &b| n << 8 | u64::from(b))
    };
    if theirs.data.len() < 56 {
        return Err(Stop::Inconclusive(
            "a perftest server's message of its buffer has less than 56 bytes".into(),
        ));
    }
    let (stag, to) = (number(16, 20), number(24, 32));
    session.companion = Some(control);
    set_permitted(session, stag, to, BUFFER);
    Ok(())
}

fn exchange(control: &mut Session<'_>, message: &str) -> Result<Message, Stop> {
    control.send_text(Kind::Send, message)?;
    receive(control, Kind::Send, "the control message of a perftest server")
}
