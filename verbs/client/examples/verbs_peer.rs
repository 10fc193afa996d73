//! A program for tests with other RDMA implementations: performs each operation and checks its result.
//!
//! ```text
//! verbs_peer SOCKET connect ADDRESS:PORT KIND OPERATION...
//! verbs_peer SOCKET serve ADDRESS:PORT CONNECTIONS
//! verbs_peer SOCKET reject ADDRESS:PORT TEXT
//! ```
//!
//! The server advertises its memory as region `box` in the layout of docs/protocol.md, sends each message back, and
//! exits after CONNECTIONS connections. `reject` rejects one request with TEXT as private data. KIND is `standard` or
//! `siw`, with `+p2p` for the peer-to-peer model. Operations of the client use the first region that the peer
//! advertises. A FILE has at most 4 MiB:
//!
//! ```text
//! write:FILE      Writes of unequal lengths       echo:N     a Send of N bytes; the peer sends it back
//! read:FILE       Reads, compared with the file   echose:N   the same with Solicited Event
//! stay:MS         keeps the connection open for MS milliseconds
//! rejected:TEXT   instead of a connection: the peer rejects with this private data
//! ```
//!
//! The completion of a Write does not show that the peer has placed its bytes. `read:FILE` after `write:FILE` does, or
//! the peer compares its memory with the file.

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use verbs_client::{
    AcceptOptions, CompletionQueue, ConnectOptions, ConnectionRequest, Error as VerbsError,
    Listener, MemoryAccess, MemoryRegion, PairEvent, Payload, PeerKind, QueuePair, QueuePairConfig,
    Remote, SendWork, Session, StartUp, Status, Transport, post,
};

/// Size in bytes of the memory that the peer may access, and of the client's buffer.
const ROOM: usize = 4 << 20;
/// Number of posted receives. Each has [`MESSAGE`] bytes.
const RECEIVES: usize = 8;
const MESSAGE: usize = 65_536;
/// `wr_id` of all operations of the send queue. The `wr_id` of a receive is the index of its buffer.
const REQUEST: u64 = 1000;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Lengths in bytes: every alignment, lengths around segment boundaries, and long messages.
const LENGTHS: [usize; 12] =
    [1, 2, 3, 1423, 1428, 1429, 4095, 4097, 65_535, 65_537, 262_144, 1_048_576];
const USAGE: &str = "usage: verbs_peer SOCKET connect|serve|reject ADDRESS:PORT ARGUMENT...";

type AnyError = Box<dyn Error + Send + Sync>;
type Outcome<T = ()> = Result<T, AnyError>;

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs one side, and writes its results to `output`.
pub fn run(arguments: &[String], output: &mut impl Write) -> Outcome {
    let [socket, role, address, argument, operations @ ..] = arguments else {
        return Err(USAGE.into());
    };
    let (session, address) = (Session::connect(socket)?, address.parse()?);
    match role.as_str() {
        "connect" => connect(&session, address, argument, operations, output),
        "serve" => serve(&session, address, argument.parse()?, output),
        "reject" => reject(&session, address, argument, output),
        _ => Err(USAGE.into()),
    }
}

// --- The server ---

fn serve(
    session: &Session,
    address: SocketAddr,
    connections: u32,
    output: &mut impl Write,
) -> Outcome {
    let listener = listen(session, address, output)?;
    for _ in 0..connections {
        let count = serve_connection(session, next_request(&listener)?)?;
        writeln!(output, "served, {count} messages")?;
    }
    Ok(())
}

fn reject(session: &Session, address: SocketAddr, text: &str, output: &mut impl Write) -> Outcome {
    let listener = listen(session, address, output)?;
    next_request(&listener)?.reject(text.as_bytes())?;
    Ok(writeln!(output, "rejected")?)
}

fn listen(session: &Session, address: SocketAddr, output: &mut impl Write) -> Outcome<Listener> {
    let listener = session.listen(address, Transport::Tcp, 4)?;
    writeln!(output, "listening at {}", listener.local())?;
    Ok(listener)
}

fn next_request(listener: &Listener) -> Outcome<ConnectionRequest> {
    Ok(listener.next_request(None)?.ok_or("no request")?)
}

/// Accepts a connection and answers messages until the connection ends. Returns their number.
fn serve_connection(session: &Session, request: ConnectionRequest) -> Outcome<u32> {
    let mut side = Side::open(session)?;
    let private_data = advertisement(&side.memory);
    request.accept(&side.pair, &AcceptOptions { private_data, ..AcceptOptions::default() })?;
    let mut count = 0;
    loop {
        match side.answer() {
            Ok(()) => count += 1,
            // The peer may close the connection as soon as it has received the answer.
            Err(error) if is_end(&error) => return Ok(count),
            Err(error) => return Err(error),
        }
    }
}

// --- The client ---

fn connect(
    session: &Session,
    address: SocketAddr,
    kind: &str,
    operations: &[String],
    output: &mut impl Write,
) -> Outcome {
    let mut side = Side::open(session)?;
    let options = ConnectOptions { start_up: start_up(kind)?, ..ConnectOptions::default() };
    let connected = side.pair.connect(address, &options);
    if let [only] = operations
        && let Some(text) = only.strip_prefix("rejected:")
    {
        return match connected {
            Err(VerbsError::Rejected { private_data }) if private_data == text.as_bytes() => {
                Ok(writeln!(output, "rejected with {text}")?)
            }
            other => Err(format!("not rejected with {text}: {other:?}").into()),
        };
    }
    let region = PeerRegion::parse(&connected?.private_data);
    for operation in operations {
        perform(&mut side, region, operation)?;
        writeln!(output, "{operation}: done")?;
    }
    side.pair.disconnect(TIMEOUT)?;
    Ok(writeln!(output, "disconnected")?)
}

/// Parses a KIND.
fn start_up(kind: &str) -> Outcome<StartUp> {
    let (name, peer_to_peer) = match kind.strip_suffix("+p2p") {
        Some(name) => (name, true),
        None => (kind, false),
    };
    let kinds = [PeerKind::Standard, PeerKind::Siw];
    let peer = kinds.into_iter().find(|peer| peer.name() == name).ok_or("no such kind of peer")?;
    Ok(StartUp { peer, peer_to_peer })
}

/// Performs an OPERATION and checks its result.
fn perform(side: &mut Side, region: Option<PeerRegion>, operation: &str) -> Outcome {
    let (name, argument) = operation.split_once(':').unwrap_or((operation, ""));
    let region = || region.ok_or("the peer advertises no region");
    match name {
        "write" => write_file(side, region()?, argument),
        "read" => read_file(side, region()?, argument),
        "echo" => echo(side, argument.parse()?, post::send),
        "echose" => echo(side, argument.parse()?, post::send_solicited),
        "stay" => stay(side, Duration::from_millis(argument.parse()?)),
        _ => Err(format!("{operation}: no such operation").into()),
    }
}

/// Writes a file to the start of the peer's region.
fn write_file(side: &mut Side, region: PeerRegion, path: &str) -> Outcome {
    let bytes = load_file(path, region)?;
    side.memory.write(0, &bytes);
    for piece in pieces(bytes.len()) {
        let remote = region.remote(piece.start);
        side.complete(post::write(remote, post::gather(&[side.memory.sge(piece)?])?))?;
    }
    Ok(())
}

/// Reads the start of the peer's region, and compares it with a file.
fn read_file(side: &mut Side, region: PeerRegion, path: &str) -> Outcome {
    let expected = load_file(path, region)?;
    // Every byte differs from the file's, so that a byte that no Read places is found.
    let inverted: Vec<u8> = expected.iter().map(|byte| !byte).collect();
    side.memory.write(0, &inverted);
    for piece in pieces(expected.len()) {
        let remote = region.remote(piece.start);
        side.complete(post::read(remote, &[side.memory.sge(piece)?])?)?;
    }
    let mut read = vec![0; expected.len()];
    side.memory.read(0, &mut read);
    match read.iter().zip(&expected).position(|(read, expected)| read != expected) {
        None => Ok(()),
        Some(at) => Err(format!("the bytes read differ from {path} at offset {at}").into()),
    }
}

/// Returns the bytes of a file, which must fit into the client's buffer and the peer's region.
fn load_file(path: &str, region: PeerRegion) -> Outcome<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    let limit = region.len.min(ROOM as u64);
    match bytes.len() as u64 {
        0 => Err(format!("{path} is empty").into()),
        len if len > limit => Err(format!("{path} is longer than {limit} bytes").into()),
        _ => Ok(bytes),
    }
}

/// Splits `total` bytes into pieces of the lengths in [`LENGTHS`].
fn pieces(total: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    LENGTHS.iter().cycle().map_while(move |len| {
        let piece = at..total.min(at + len);
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Sends `len` bytes with the operation `send`, and compares the peer's answer with them.
fn echo(side: &mut Side, len: usize, send: fn(Payload) -> SendWork) -> Outcome {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
    let source = side.memory.sge(0..len)?;
    side.memory.write(0, &bytes);
    side.complete(send(post::gather(&[source])?))?;
    let (buffer, len) = side.message()?;
    let mut answer = vec![0; len];
    side.messages.read(buffer * MESSAGE, &mut answer);
    if answer != bytes {
        return Err("another message came back".into());
    }
    side.post_receive(buffer)
}

/// Keeps the connection open for `duration`. Fails if it ends earlier.
fn stay(side: &Side, duration: Duration) -> Outcome {
    let end = Instant::now() + duration;
    while let Some(event) =
        side.pair.next_event(Some(end.saturating_duration_since(Instant::now())))?
    {
        if let PairEvent::Disconnected { .. } | PairEvent::Failed { .. } = event {
            return Err(format!("the connection has ended: {event:?}").into());
        }
    }
    Ok(())
}

// --- Both ---

/// A QP with its memory: one region for the peer, and one for messages.
struct Side {
    memory: MemoryRegion,
    messages: MemoryRegion,
    completions: CompletionQueue,
    pair: QueuePair,
    /// Completed receives that were not handled yet: index of the buffer, and length of the message in bytes.
    received: VecDeque<(usize, usize)>,
}

impl Side {
    fn open(session: &Session) -> Outcome<Side> {
        let domain = session.create_domain()?;
        let local = MemoryAccess { local_write: true, ..MemoryAccess::default() };
        let shared = MemoryAccess { remote_write: true, remote_read: true, ..local };
        let memory = domain.alloc(ROOM, shared)?;
        let messages = domain.alloc(RECEIVES * MESSAGE, local)?;
        let channel = session.create_channel()?;
        let completions = session.create_completion_queue(64, Some(&channel))?;
        let pair = domain.create_queue_pair(&QueuePairConfig {
            send_completions: &completions,
            receive_completions: &completions,
            max_sends: 8,
            max_receives: RECEIVES as u32,
            copy_sources: false,
            shared_receives: None,
        })?;
        let side = Side { memory, messages, completions, pair, received: VecDeque::new() };
        (0..RECEIVES).try_for_each(|buffer| side.post_receive(buffer))?;
        Ok(side)
    }

    /// Clears a receive buffer, so that no earlier message passes for the next one, and posts it.
    fn post_receive(&self, buffer: usize) -> Outcome {
        let begin = buffer * MESSAGE;
        self.messages.write(begin, &[0; MESSAGE]);
        let sge = self.messages.sge(begin..begin + MESSAGE)?;
        Ok(self.pair.post_receive(&post::receive(buffer as u64, &[sge])?)?)
    }

    /// Waits for the next completion. Returns true if it is of an operation of the send queue, false if it is of a
    /// receive. Fails with [`VerbsError::Ended`] at the end of the connection.
    fn step(&mut self) -> Outcome<bool> {
        let completion = self.completions.next(Some(TIMEOUT))?.ok_or("no completion")?;
        match (completion.status, completion.wr_id) {
            (Status::Success, REQUEST) => Ok(true),
            (Status::Success, buffer) => {
                self.received.push_back((buffer as usize, completion.byte_len as usize));
                Ok(false)
            }
            (Status::Flushed, _) => Err(VerbsError::Ended("its posts are flushed".into()).into()),
            (status, _) => Err(format!("a completion with {status:?}").into()),
        }
    }

    /// Posts an operation to the send queue and waits until it is complete.
    fn complete(&mut self, work: SendWork) -> Outcome {
        self.pair.post_send(&SendWork { wr_id: REQUEST, ..work })?;
        while !self.step()? {}
        Ok(())
    }

    /// Waits for a message. Returns the index of its buffer and its length in bytes.
    fn message(&mut self) -> Outcome<(usize, usize)> {
        loop {
            match self.received.pop_front() {
                Some(message) => return Ok(message),
                None => self.step()?,
            };
        }
    }

    /// Waits for a message and sends it back from its receive buffer.
    fn answer(&mut self) -> Outcome {
        let (buffer, len) = self.message()?;
        let begin = buffer * MESSAGE;
        let payload = post::gather(&[self.messages.sge(begin..begin + len)?])?;
        self.complete(post::send(payload))?;
        self.post_receive(buffer)
    }
}

fn is_end(error: &AnyError) -> bool {
    matches!(error.downcast_ref(), Some(VerbsError::Ended(_)))
}

/// Returns private data that advertises a region, in the layout for RDMAP (docs/protocol.md).
fn advertisement(memory: &MemoryRegion) -> Vec<u8> {
    let mut bytes = b"DDPA\x01\x02\x00\x01".to_vec();
    bytes.extend(memory.stag().to_be_bytes());
    // Access flags (Write and Read), length of the name, two reserved bytes.
    bytes.extend([3, 3, 0, 0]);
    bytes.extend(memory.address().to_be_bytes());
    bytes.extend((memory.len() as u64).to_be_bytes());
    bytes.extend(b"box");
    bytes
}

/// A region that the peer advertises.
#[derive(Clone, Copy)]
struct PeerRegion {
    base: Remote,
    len: u64,
}

impl PeerRegion {
    /// Returns the first region of an advertisement; `None` if there is none.
    fn parse(bytes: &[u8]) -> Option<PeerRegion> {
        let entry = bytes.strip_prefix(b"DDPA\x01")?.get(3..)?;
        let stag = u32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
        let to = u64::from_be_bytes(entry.get(8..16)?.try_into().ok()?);
        let len = u64::from_be_bytes(entry.get(16..24)?.try_into().ok()?);
        Some(PeerRegion { base: Remote { stag, to }, len })
    }

    fn remote(&self, at: usize) -> Remote {
        Remote { to: self.base.to + at as u64, ..self.base }
    }
}
