//! Two good programs, one at each appliance, connected to each other. Their transfers must continue during every
//! attack.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_client::{
    AcceptOptions, Completion, CompletionQueue, ConnectOptions, Listener, MemoryRegion, PairEvent,
    ProtectionDomain, QueuePair, QueuePairConfig, Session, Status, Transport, post,
};

use super::raw::ALL;

/// Length of a Write and of a Read, bytes.
const PIECE: usize = 64 << 10;

/// A connected pair of programs, in this process.
pub(crate) struct ProgramPair {
    client: End,
    server: End,
    _listener: Listener,
    len: usize,
}

/// A program with its QP and two buffers.
struct End {
    pair: QueuePair,
    queue: CompletionQueue,
    source: MemoryRegion,
    sink: MemoryRegion,
    _domain: ProtectionDomain,
    session: Session,
}

impl ProgramPair {
    /// Attaches a program to each appliance. The program at `server` listens at `local`, and the program at `client`
    /// connects. `len`: length of a transfer, bytes.
    pub(crate) fn connect(
        client: &Path,
        server: &Path,
        local: SocketAddr,
        len: usize,
        timeout: Duration,
    ) -> Result<ProgramPair> {
        let (client, server) = (End::attach(client, len)?, End::attach(server, len)?);
        let listener = server.session.listen(local, Transport::Tcp, 1)?;
        client.pair.start_connect(local, &ConnectOptions::default())?;
        let request = listener.next_request(Some(timeout))?.context("no connection request")?;
        request.start_accept(&server.pair, &AcceptOptions::default())?;
        for end in [&client, &server] {
            match end.pair.next_event(Some(timeout))?.context("no connection")? {
                PairEvent::Established(_) => {}
                other => anyhow::bail!("{other:?}"),
            }
        }
        Ok(ProgramPair { client, server, _listener: listener, len })
    }

    /// Writes bytes to the server's memory, sends a message, and reads the bytes back. Compares both copies. Returns
    /// the number of compared bytes.
    pub(crate) fn transfer(&self, bytes: &[u8], timeout: Duration) -> Result<u64> {
        let ProgramPair { client, server, len, .. } = self;
        ensure!(bytes.len() == *len, "{} bytes", bytes.len());
        client.source.write(0, bytes);
        client.sink.write(0, &vec![0; *len]);
        server.pair.post_receive(&post::receive(1, &[server.source.sge(0..8)?])?)?;
        let pieces = || (0..*len).step_by(PIECE).map(|at| at..(at + PIECE).min(*len));
        for piece in pieces() {
            let payload = post::gather(&[client.source.sge(piece.clone())?])?;
            client.pair.post_send(&post::write(server.sink.remote(piece.start), payload))?;
        }
        client.pair.post_send(&post::send(post::inline(b"complete")?))?;
        server.complete(timeout).context("the message")?;
        let mut seen = vec![0; *len];
        server.sink.read(0, &mut seen);
        ensure!(seen == bytes, "DIFFERS: memory that a program has written");
        for piece in pieces() {
            let sink = client.sink.sge(piece.clone())?;
            client.pair.post_send(&post::read(server.sink.remote(piece.start), &[sink])?)?;
        }
        for _ in 0..2 * pieces().count() + 1 {
            client.complete(timeout).context("an operation")?;
        }
        client.sink.read(0, &mut seen);
        ensure!(seen == bytes, "DIFFERS: memory that a program has read");
        Ok(2 * *len as u64)
    }
}

impl End {
    fn attach(socket: &Path, len: usize) -> Result<End> {
        let session = Session::connect(socket)?;
        let domain = session.create_domain()?;
        let channel = session.create_channel()?;
        let queue = session.create_completion_queue(64, Some(&channel))?;
        let pair = domain.create_queue_pair(&QueuePairConfig {
            send_completions: &queue,
            receive_completions: &queue,
            max_sends: 32,
            max_receives: 4,
            copy_sources: false,
            shared_receives: None,
        })?;
        let (source, sink) = (domain.alloc(len, ALL)?, domain.alloc(len, ALL)?);
        Ok(End { pair, queue, source, sink, _domain: domain, session })
    }

    /// Waits for the next completion, which must be a success.
    fn complete(&self, timeout: Duration) -> Result<Completion> {
        let completion = self.queue.next(Some(timeout))?.context("no completion in time")?;
        let end = || match self.pair.next_event(Some(Duration::ZERO)) {
            Ok(Some(event)) => format!("{event:?}"),
            _ => String::new(),
        };
        ensure!(completion.status == Status::Success, "{:?} {}", completion.status, end());
        Ok(completion)
    }
}
