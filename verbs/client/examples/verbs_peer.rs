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
//! advertises. A FILE has at most 4 MiB.
//!
//! ```text
//! write:FILE      Writes of unequal lengths; who reads the peer's memory compares it with the file
//! read:FILE       Reads of unequal lengths; what they place is compared with the file
//! echo:N          a Send of N bytes; the peer sends it back
//! echose:N        the same with Solicited Event
//! stay:MS         keeps the connection open for MS milliseconds
//! rejected:TEXT   instead of a connection: the peer rejects with this private data
//! ```

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use verbs_client::{
    AcceptOptions, CompletionQueue, ConnectOptions, ConnectionRequest, Error as VerbsError,
    MemoryAccess, MemoryRegion, PairEvent, PeerKind, QueuePair, QueuePairConfig, Remote, SendWork,
    Session, StartUp, Status, Transport, post,
};

/// Size in bytes of the memory that the peer may access, and of the client's buffer.
const ROOM: usize = 4 << 20;
/// Number of posted receives. Each has [`MESSAGE`] bytes.
const RECEIVES: usize = 8;
const MESSAGE: usize = 65_536;
/// `wr_id` of all operations of the send queue. The `wr_id` of a receive is the index of its buffer.
const REQUEST: u64 = 1000;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
/// Lengths in bytes: every alignment, lengths around segment boundaries, and long messages.
const LENGTHS: [usize; 12] =
    [1, 2, 3, 1423, 1428, 1429, 4095, 4097, 65_535, 65_537, 262_144, 1_048_576];

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: verbs_peer SOCKET connect|serve|reject ADDRESS:PORT ARGUMENT...";
    let [socket, role, address, argument, operations @ ..] = arguments.as_slice() else {
        return Err(usage.into());
    };
    let (session, address) = (Session::connect(socket)?, address.parse()?);
    match role.as_str() {
        "connect" => connect(&session, address, argument, operations),
        "serve" | "reject" => {
            let listener = session.listen(address, Transport::Tcp, 4)?;
            println!("listening at {}", listener.local());
            let next = || -> Outcome<ConnectionRequest> {
                Ok(listener.next_request(None)?.ok_or("no request")?)
            };
            if role == "reject" {
                next()?.reject(argument.as_bytes())?;
                println!("rejected");
                return Ok(());
            }
            for _ in 0..argument.parse::<u32>()? {
                serve(&session, next()?)?;
            }
            Ok(())
        }
        _ => Err(usage.into()),
    }
}

/// A QP with its memory: one region for the peer, and one for messages.
struct Side {
    memory: MemoryRegion,
    messages: MemoryRegion,
    completions: CompletionQueue,
    pair: QueuePair,
    /// Completed receives that were not handled yet: index of the buffer, and length of the message in bytes.
    received: std::collections::VecDeque<(usize, usize)>,
}

impl Side {
    fn open(session: &Session) -> Outcome<Side> {
        let domain = session.create_domain()?;
        let local = MemoryAccess { local_write: true, ..MemoryAccess::default() };
        let shared = MemoryAccess { remote_write: true, remote_read: true, ..local };
        let (memory, messages) =
            (domain.alloc(ROOM, shared)?, domain.alloc(RECEIVES * MESSAGE, local)?);
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
        let side = Side { memory, messages, completions, pair, received: Default::default() };
        (0..RECEIVES).try_for_each(|buffer| side.post_receive(buffer))?;
        Ok(side)
    }

    fn post_receive(&self, buffer: usize) -> Outcome {
        let begin = buffer * MESSAGE;
        let sge = self.messages.sge(begin..begin + MESSAGE)?;
        Ok(self.pair.post_receive(&post::receive(buffer as u64, &[sge])?)?)
    }

    /// Waits for the next completion. Returns true if it is of an operation of the send queue, false if it is of a
    /// receive, and `None` at the end of the connection.
    fn step(&mut self) -> Outcome<Option<bool>> {
        let completion = self.completions.next(TIMEOUT)?.ok_or("no completion came")?;
        match (completion.status, completion.wr_id) {
            (Status::Success, REQUEST) => Ok(Some(true)),
            (Status::Success, buffer) => {
                self.received.push_back((buffer as usize, completion.byte_len as usize));
                Ok(Some(false))
            }
            (Status::Flushed, _) => Ok(None),
            (status, _) => Err(format!("a completion with {status:?}").into()),
        }
    }

    /// Posts an operation to the send queue and waits until it is complete.
    fn perform(&mut self, work: SendWork) -> Outcome {
        self.pair.post_send(&SendWork { wr_id: REQUEST, ..work })?;
        while !self.step()?.ok_or("the connection has ended")? {}
        Ok(())
    }

    /// Waits for a message. Returns the index of its buffer and its bytes; `None` at the end of the connection.
    fn message(&mut self) -> Outcome<Option<(usize, Vec<u8>)>> {
        while self.received.is_empty() {
            if self.step()?.is_none() {
                return Ok(None);
            }
        }
        let (buffer, len) = self.received.pop_front().ok_or("no message")?;
        let mut bytes = vec![0; len];
        self.messages.read(buffer * MESSAGE, &mut bytes);
        Ok(Some((buffer, bytes)))
    }
}

fn serve(session: &Session, request: ConnectionRequest) -> Outcome {
    let mut side = Side::open(session)?;
    let private_data = advertisement(&side.memory);
    request.accept(&side.pair, &AcceptOptions { private_data, ..AcceptOptions::default() })?;
    let mut count = 0;
    while let Some((buffer, bytes)) = side.message()? {
        side.post_receive(buffer)?;
        side.memory.write(0, &bytes);
        let payload = post::gather(&[side.memory.sge(0..bytes.len())?])?;
        // The peer may close the connection as soon as it has received the answer.
        if side.perform(post::send(payload)).is_err() {
            break;
        }
        count += 1;
    }
    println!("served, {count} messages");
    Ok(())
}

fn connect(
    session: &Session,
    address: std::net::SocketAddr,
    kind: &str,
    operations: &[String],
) -> Outcome {
    let mut side = Side::open(session)?;
    let (kind, peer_to_peer) = match kind.strip_suffix("+p2p") {
        Some(kind) => (kind, true),
        None => (kind, false),
    };
    let kinds = [PeerKind::Standard, PeerKind::Siw];
    let peer = kinds.into_iter().find(|peer| peer.name() == kind).ok_or("no such kind of peer")?;
    let start_up = StartUp { peer, peer_to_peer };
    let options = ConnectOptions { start_up, ..ConnectOptions::default() };
    let connected = side.pair.connect(address, &options);
    if let [only] = operations
        && let Some(text) = only.strip_prefix("rejected:")
    {
        return match connected {
            Err(VerbsError::Rejected { private_data }) if private_data == text.as_bytes() => {
                println!("rejected with {text}");
                Ok(())
            }
            other => Err(format!("not rejected with {text}: {other:?}").into()),
        };
    }
    let remote = read_advertisement(&connected?.private_data);
    for operation in operations {
        let (name, argument) = operation.split_once(':').unwrap_or((operation, ""));
        match name {
            "write" | "read" => {
                let remote = remote.ok_or("the peer advertises no region")?;
                let transfer = if name == "write" { write_file } else { read_file };
                transfer(&mut side, remote, argument)?;
            }
            "echo" | "echose" => echo(&mut side, argument.parse()?, name == "echose")?,
            "stay" => {
                let event = side.pair.next_event(Some(Duration::from_millis(argument.parse()?)))?;
                if let Some(event @ PairEvent::Disconnected { .. }) = event {
                    return Err(format!("the connection has ended: {event:?}").into());
                }
            }
            _ => return Err(format!("{operation}: no such operation").into()),
        }
        println!("{operation}: done");
    }
    side.pair.disconnect(Duration::from_secs(20))?;
    println!("disconnected");
    Ok(())
}

fn write_file(side: &mut Side, remote: Remote, path: &str) -> Outcome {
    let bytes = read_file_that_fits(path)?;
    side.memory.write(0, &bytes);
    for range in pieces(bytes.len()) {
        let payload = post::gather(&[side.memory.sge(range.clone())?])?;
        side.perform(post::write(remote_at(remote, range.start), payload))?;
    }
    Ok(())
}

fn read_file(side: &mut Side, remote: Remote, path: &str) -> Outcome {
    let bytes = read_file_that_fits(path)?;
    // No byte of the memory may equal that of the file before it is placed.
    let other_bytes: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    side.memory.write(0, &other_bytes);
    for range in pieces(bytes.len()) {
        let sink = side.memory.sge(range.clone())?;
        side.perform(post::read(remote_at(remote, range.start), &[sink])?)?;
    }
    let mut placed = vec![0; bytes.len()];
    side.memory.read(0, &mut placed);
    if placed == bytes { Ok(()) } else { Err("the peer's memory differs from the file".into()) }
}

/// Returns `remote` with an offset in bytes.
fn remote_at(remote: Remote, offset: usize) -> Remote {
    Remote { to: remote.to + offset as u64, ..remote }
}

/// Returns the bytes of a file, which must fit into the memory of a [`Side`].
fn read_file_that_fits(path: &str) -> Outcome<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    if bytes.len() > ROOM {
        return Err(format!("{path} has {} bytes; {ROOM} are allowed", bytes.len()).into());
    }
    Ok(bytes)
}

/// Returns consecutive ranges from 0 to `len` with the lengths [`LENGTHS`], repeated. The last range may be shorter.
fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    LENGTHS.iter().cycle().map_while(move |piece| {
        let range = begin..len.min(begin + piece);
        begin = range.end;
        (!range.is_empty()).then_some(range)
    })
}

fn echo(side: &mut Side, len: usize, is_solicited: bool) -> Outcome {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
    side.memory.write(0, &bytes);
    let payload = post::gather(&[side.memory.sge(0..len)?])?;
    side.perform(if is_solicited { post::send_solicited(payload) } else { post::send(payload) })?;
    let (buffer, answer) = side.message()?.ok_or("the connection has ended")?;
    side.post_receive(buffer)?;
    if answer == bytes { Ok(()) } else { Err("another message came back".into()) }
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

/// Returns the first region of an advertisement; `None` if there is none.
fn read_advertisement(bytes: &[u8]) -> Option<Remote> {
    let entry = bytes.strip_prefix(b"DDPA\x01")?.get(3..)?;
    let stag = u32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
    let to = u64::from_be_bytes(entry.get(8..16)?.try_into().ok()?);
    Some(Remote { stag, to })
}
