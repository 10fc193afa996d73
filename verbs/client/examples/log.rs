//! A log shipped by RDMA Writes: the sender writes each line into the receiver's memory and notifies the receiver by
//! Immediate Data (RFC 7306). The receiver answers each line with an empty Send, which frees the memory of the line.
//!
//! ```text
//! log SOCKET receive ADDRESS:PORT
//! log SOCKET send ADDRESS:PORT LINE ...
//! ```
//!
//! The memory is a ring of [`ROOM`] bytes in [`LINES`] equal parts, one per line in flight. The private data of the
//! accept has the STag and the address of the ring, little-endian. The 8 bytes of Immediate Data are the offset and the
//! length of the line, little-endian.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use verbs_client::{
    AcceptOptions, Carried, Completed, Completion, CompletionQueue, ConnectOptions, MemoryAccess,
    MemoryRegion, QueuePair, QueuePairConfig, Remote, SendWork, Session, Status, Transport, post,
};

/// Size of the ring in bytes.
const ROOM: usize = 4096;
/// Maximum lines in flight.
const LINES: u32 = 8;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs the receiver (`receive`) or the sender (`send`), and writes its results to `output`.
pub fn run(arguments: &[String], output: &mut impl Write) -> Outcome {
    let [socket, role, address, lines @ ..] = arguments else {
        return Err("usage: log SOCKET receive|send ADDRESS:PORT [LINE ...]".into());
    };
    let side = Side::open(&Session::connect(socket)?)?;
    let address = address.parse()?;
    match role.as_str() {
        "receive" => {
            let listener = side.session.listen(address, Transport::Tcp, 1)?;
            writeln!(output, "listening at {}", listener.local())?;
            let request = listener.next_request(None)?.ok_or("no request")?;
            let Remote { stag, to } = side.memory.remote(0);
            let private_data = [&stag.to_le_bytes()[..], &to.to_le_bytes()].concat();
            request
                .accept(&side.pair, &AcceptOptions { private_data, ..AcceptOptions::default() })?;
            side.receive(output)
        }
        "send" => {
            let connection = side.pair.connect(address, &ConnectOptions::default())?;
            side.send(parse_name(&connection.private_data).ok_or("not a log")?, lines)?;
            side.pair.disconnect(Duration::from_secs(10))?;
            writeln!(output, "{} lines sent", lines.len())?;
            Ok(())
        }
        _ => Err("usage: log SOCKET receive|send ADDRESS:PORT [LINE ...]".into()),
    }
}

struct Side {
    session: Session,
    memory: MemoryRegion,
    completions: CompletionQueue,
    pair: QueuePair,
}

impl Side {
    fn open(session: &Session) -> Outcome<Side> {
        let domain = session.create_domain()?;
        let access =
            MemoryAccess { local_write: true, remote_write: true, ..MemoryAccess::default() };
        let memory = domain.alloc(ROOM, access)?;
        let channel = session.create_channel()?;
        let completions = session.create_completion_queue(4 * LINES, Some(&channel))?;
        let pair = domain.create_queue_pair(&QueuePairConfig {
            send_completions: &completions,
            receive_completions: &completions,
            max_sends: 2 * LINES,
            max_receives: LINES,
            copy_sources: false,
            shared_receives: None,
        })?;
        // The receives need no buffers: Immediate Data is in the completion, and the receiver's Sends are empty.
        for _ in 0..LINES {
            pair.post_receive(&post::receive(0, &[])?)?;
        }
        Ok(Side { session: session.clone(), memory, completions, pair })
    }

    fn next(&self) -> Outcome<Completion> {
        Ok(self.completions.next(TIMEOUT)?.ok_or("the peer does not answer")?)
    }

    fn receive(&self, output: &mut impl Write) -> Outcome {
        loop {
            let completion = self.next()?;
            match (completion.status, completion.completed) {
                (
                    Status::Success,
                    Completed::Received { carried: Carried::Immediate(note), .. },
                ) => {
                    let (at, len) = parse_note(note);
                    if at.checked_add(len).is_none_or(|end| end > ROOM) {
                        return Err("a line outside of the log".into());
                    }
                    let mut line = vec![0; len];
                    self.memory.read(at, &mut line);
                    writeln!(output, "{}", String::from_utf8_lossy(&line))?;
                    self.pair.post_receive(&post::receive(0, &[])?)?;
                    let work = post::send(post::inline(&[])?);
                    self.pair.post_send(&SendWork { signalled: false, ..work })?;
                }
                (Status::Flushed, _) => return Ok(()),
                other => return Err(format!("unexpected completion: {other:?}").into()),
            }
        }
    }

    fn send(&self, log: Remote, lines: &[String]) -> Outcome {
        let mut sent = 0;
        let mut confirmed = 0;
        let share = ROOM / LINES as usize;
        for line in lines {
            if line.len() > share {
                return Err(format!("a line has at most {share} bytes").into());
            }
            while sent - confirmed == LINES as usize {
                self.confirm(&mut confirmed)?;
            }
            // Each line in flight has its own part of the ring, at the same offset in both memories.
            let at = sent % LINES as usize * share;
            self.memory.write(at, line.as_bytes());
            let payload = post::gather(&[self.memory.sge(at..at + line.len())?])?;
            let remote = Remote { to: log.to + at as u64, ..log };
            let note = [(at as u32).to_le_bytes(), (line.len() as u32).to_le_bytes()].concat();
            let note = note.try_into().map_err(|_| "a note has 8 bytes")?;
            let works = [post::write(remote, payload), post::immediate(note)];
            self.pair.post_sends(&works.map(|work| SendWork { signalled: false, ..work }))?;
            sent += 1;
        }
        while confirmed < sent {
            self.confirm(&mut confirmed)?;
        }
        Ok(())
    }

    /// Waits for the Send by which the receiver frees the memory of a line.
    fn confirm(&self, confirmed: &mut usize) -> Outcome {
        let completion = self.next()?;
        if completion.status != Status::Success {
            return Err(format!("the log ended: {:?}", completion.status).into());
        }
        self.pair.post_receive(&post::receive(0, &[])?)?;
        *confirmed += 1;
        Ok(())
    }
}

fn parse_name(bytes: &[u8]) -> Option<Remote> {
    let (stag, rest) = bytes.split_first_chunk()?;
    let to = u64::from_le_bytes(*rest.first_chunk()?);
    Some(Remote { stag: u32::from_le_bytes(*stag), to })
}

fn parse_note(note: [u8; 8]) -> (usize, usize) {
    let [a, b, c, d, rest @ ..] = note;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(rest) as usize)
}
