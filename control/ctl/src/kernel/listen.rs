//! A listener over kernel sockets that offers one region. It serves several connections at a time, places the peers'
//! writes in the region and reports each complete message.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ddp::advert::{self, Advertised};
use ddp::last_message::LastMessage;
use ddp::{Access, Event, PdId, Stag, StagEntry, StagTable, StreamId, TaggedOffset, UlpKind};
use tcp_lite::mpa::{AcceptError, Config, MpaError, Params, Progress, Revision, StartupError};

use super::channel::{Channel, last_message};
use super::socket::{Interest, ReadResult, Socket, poll_until};
use super::{KernelError, KernelMemory, NegotiatedParameters};

/// Maximum number of concurrent connections. Further connections wait in the kernel's accept queue.
const MAX_CONNECTIONS: usize = 64;
/// Longest interval between two checks of the stop flag.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// Buffer size of a read, bytes.
const READ_LEN: usize = 256 * 1024;
/// Maximum number of reads from one connection before the next connection is served.
const MAX_READS: usize = 16;

/// The region that a listener offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// Name of the region in the advertisement.
    pub name: String,
    /// Size of the region, bytes.
    pub len: u64,
    /// STag; `None` for a random STag.
    pub stag: Option<u32>,
    /// TO of the region's first byte.
    pub base_to: u64,
    /// File that contains the region; `None` for memory of the process.
    pub file: Option<PathBuf>,
}

/// Configuration of a listener.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Local address; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// MPA parameters: revisions, markers, CRC and the time-out of the start-up.
    pub mpa: Config,
    /// The offered region.
    pub region: RegionSpec,
    /// Time without received or sent data after which a connection is reset.
    pub idle_timeout: Duration,
    /// Number of connections after which the listener ends; `None`: the listener ends only when stopped.
    pub connections: Option<usize>,
}

/// An event of a listener.
#[derive(Clone, PartialEq, Debug)]
pub enum ServeEvent {
    /// A connection entered Full Operation.
    Connected {
        /// Address of the peer.
        peer: SocketAddr,
        /// Negotiated parameters.
        parameters: NegotiatedParameters,
    },
    /// A tagged message was placed completely.
    Delivered {
        /// Address of the peer.
        peer: SocketAddr,
        /// STag of the message, as sent by the peer.
        stag: u32,
        /// TO of the message's first byte.
        to: u64,
        /// Length of the message, bytes.
        len: u64,
    },
    /// A connection ended.
    Closed {
        /// Address of the peer.
        peer: SocketAddr,
        /// Payload bytes placed.
        placed: u64,
        /// Outcome of the connection.
        outcome: ConnectionOutcome,
    },
}

/// End of a connection: complete, or the first error.
#[derive(Clone, PartialEq, Debug)]
pub enum ConnectionOutcome {
    /// The peer closed the connection gracefully, and all its messages were complete.
    Complete,
    /// The peer closed within a message.
    Incomplete,
    /// The start-up failed.
    Startup(StartupError),
    /// The peer violated MPA.
    Mpa(MpaError),
    /// The peer violated DDP.
    Ddp(ddp::DdpError),
    /// The socket failed, for instance by a reset.
    SocketError(io::ErrorKind),
    /// No data was received or sent for [`ListenConfig::idle_timeout`].
    IdleTimeout,
}

/// Totals of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServeTotals {
    /// Connections accepted by TCP.
    pub connections: u64,
    /// Connections with the outcome [`ConnectionOutcome::Complete`].
    pub complete: u64,
    /// Payload bytes placed.
    pub bytes: u64,
}

/// A listening socket with its region.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    config: ListenConfig,
    memory: KernelMemory,
    stag: Stag,
    stags: StagTable<KernelMemory>,
    advert: Vec<u8>,
}

impl Listener {
    /// Opens the socket and the region.
    ///
    /// # Errors
    /// The address or the file cannot be used.
    pub fn bind(config: ListenConfig) -> Result<Self, KernelError> {
        let region = &config.region;
        let memory = match &region.file {
            None => KernelMemory::zeroed(region.len as usize),
            Some(path) => KernelMemory::create(path, region.len)
                .map_err(|source| KernelError::File { path: path.clone(), source })?,
        };
        let listen = |source| KernelError::Listen { address: config.address, source };
        let stag = Stag(match region.stag {
            Some(stag) => stag,
            None => getrandom::u32().map_err(|e| listen(io::Error::other(e)))?,
        });
        let socket = TcpListener::bind(config.address).map_err(listen)?;
        socket.set_nonblocking(true).map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        let mut stags = StagTable::new();
        stags
            .insert(StagEntry {
                stag,
                pd: PdId(0),
                stream: None,
                base_to: TaggedOffset(region.base_to),
                len: region.len,
                access: Access::REMOTE_WRITE,
                memory: memory.clone(),
                memory_offset: 0,
            })
            .map_err(|e| listen(io::Error::other(e)))?;
        let advert = advert::encode_for(
            UlpKind::Ddp,
            &[Advertised {
                name: region.name.clone(),
                stag: stag.0,
                base_to: region.base_to,
                len: region.len,
                remote_write: true,
                remote_read: false,
                remote_atomic: false,
                busy: false,
            }],
        );
        Ok(Listener { socket, address, config, memory, stag, stags, advert })
    }

    /// Returns the local address. If port 0 was requested, it has the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the region's STag, as requested or chosen at random.
    pub fn stag(&self) -> u32 {
        self.stag.0
    }

    /// Returns the region's memory, which contains the peers' writes.
    pub fn memory(&self) -> &KernelMemory {
        &self.memory
    }

    /// Serves until `stop` is set or the configured number of connections has ended. Calls `on_event` from the calling
    /// thread.
    ///
    /// # Errors
    /// The listening socket or the file of the region fails. Failures of a connection are events.
    pub fn serve(
        &mut self,
        stop: &AtomicBool,
        on_event: &mut dyn FnMut(ServeEvent),
    ) -> Result<ServeTotals, KernelError> {
        let mut served = ServeTotals::default();
        let mut connections: Vec<Connection> = Vec::new();
        let mut buffer = vec![0; READ_LEN];
        while !stop.load(Ordering::Relaxed) {
            let more = self.accepts_more(served.connections) && connections.len() < MAX_CONNECTIONS;
            if more {
                self.accept(&mut connections, &mut served)?;
            }
            for connection in &mut connections {
                connection.make_progress(self, &mut buffer, on_event);
            }
            connections.retain(|connection| match &connection.outcome {
                None => true,
                Some(outcome) => {
                    served.bytes += connection.channel.placed_bytes();
                    served.complete += u64::from(*outcome == ConnectionOutcome::Complete);
                    on_event(connection.closed_event(outcome.clone()));
                    false
                }
            });
            self.check_file_error()?;
            if connections.is_empty() && !self.accepts_more(served.connections) {
                break;
            }
            self.wait_ready(&connections, more)?;
        }
        Ok(served)
    }

    fn accepts_more(&self, so_far: u64) -> bool {
        self.config.connections.is_none_or(|n| so_far < n as u64)
    }

    fn accept(
        &self,
        connections: &mut Vec<Connection>,
        served: &mut ServeTotals,
    ) -> Result<(), KernelError> {
        match self.socket.accept() {
            Ok((stream, _)) => {
                served.connections += 1;
                // A peer that has already disconnected is not an error of the listener.
                if let Ok(socket) = Socket::new(stream) {
                    // docs/protocol.md §6: unless closed gracefully, a connection ends with a reset, even if this
                    // process ends. An error of a socket that is already closed is ignored.
                    let _ = socket.set_reset_on_close(true);
                    let id = StreamId(served.connections);
                    connections.push(Connection::new(socket, id, &self.config.mpa));
                }
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(source) => Err(KernelError::Listen { address: self.address, source }),
        }
    }

    fn check_file_error(&self) -> Result<(), KernelError> {
        match (self.memory.take_error(), &self.config.region.file) {
            (Some(source), Some(path)) => Err(KernelError::File { path: path.clone(), source }),
            _ => Ok(()),
        }
    }

    fn wait_ready(&self, connections: &[Connection], more: bool) -> Result<(), KernelError> {
        use rustix::event::{PollFd, PollFlags};
        let mut fds: Vec<PollFd<'_>> = connections
            .iter()
            .map(|c| {
                let interest = Interest { read: !c.peer_closed, write: !c.pending.is_empty() };
                c.socket.poll_fd(interest)
            })
            .collect();
        if more {
            fds.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        poll_until(&mut fds, Instant::now() + POLL_TIMEOUT)
            .map_err(|source| KernelError::Listen { address: self.address, source })
    }
}

/// Returns true for errors of `accept` after which the listener continues: they concern at most one connection.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

#[derive(Debug)]
struct Connection {
    id: StreamId,
    socket: Socket,
    channel: Channel,
    pending: Vec<u8>,
    pending_offset: usize,
    peer_closed: bool,
    /// True if the peer closed within a message.
    incomplete: bool,
    /// True if our sending direction is closed.
    is_write_closed: bool,
    /// Outcome of a connection whose error is being reported to the peer. Later input is discarded.
    ending_outcome: Option<ConnectionOutcome>,
    outcome: Option<ConnectionOutcome>,
    last_progress: Instant,
    opened_at: Instant,
}

impl Connection {
    fn new(socket: Socket, id: StreamId, mpa: &Config) -> Self {
        let now = Instant::now();
        Connection {
            id,
            socket,
            channel: Channel::responder(mpa.clone()),
            pending: Vec::new(),
            pending_offset: 0,
            peer_closed: false,
            incomplete: false,
            is_write_closed: false,
            ending_outcome: None,
            outcome: None,
            last_progress: now,
            opened_at: now,
        }
    }

    fn closed_event(&self, outcome: ConnectionOutcome) -> ServeEvent {
        ServeEvent::Closed {
            peer: self.socket.peer(),
            placed: self.channel.placed_bytes(),
            outcome,
        }
    }

    /// Processes input and output without blocking.
    fn make_progress(
        &mut self,
        listener: &Listener,
        buffer: &mut [u8],
        on_event: &mut dyn FnMut(ServeEvent),
    ) {
        let result =
            self.read_socket(listener, buffer, on_event).and_then(|()| self.write_socket());
        match result {
            Ok(()) => self.check_timeouts(&listener.config),
            Err(outcome) => self.outcome = Some(outcome),
        }
    }

    fn read_socket(
        &mut self,
        listener: &Listener,
        buffer: &mut [u8],
        on_event: &mut dyn FnMut(ServeEvent),
    ) -> Result<(), ConnectionOutcome> {
        for _ in 0..MAX_READS {
            if self.peer_closed {
                break;
            }
            match self.socket.receive(buffer).map_err(|e| self.socket_error(&e))? {
                ReadResult::WouldBlock => break,
                ReadResult::Eof => self.handle_fin()?,
                ReadResult::Bytes(n) => {
                    self.last_progress = Instant::now();
                    self.handle_bytes(listener, &buffer[..n], on_event)?;
                }
            }
            self.handle_events(on_event);
        }
        Ok(())
    }

    fn handle_bytes(
        &mut self,
        listener: &Listener,
        mut bytes: &[u8],
        on_event: &mut dyn FnMut(ServeEvent),
    ) -> Result<(), ConnectionOutcome> {
        if self.ending_outcome.is_some() {
            return Ok(());
        }
        if !self.channel.is_full_operation() {
            let (used, progress) =
                self.channel.startup_input(bytes).map_err(ConnectionOutcome::Startup)?;
            bytes = &bytes[used..];
            match progress {
                Some(Progress::Request(request)) => {
                    // The Start Key of the first MPA draft has no private data, so the region is not advertised.
                    let silent = request.revision == Revision::Draft;
                    let advert: &[u8] = if silent { &[] } else { &listener.advert };
                    let params = self.channel.accept(advert).map_err(|error| {
                        ConnectionOutcome::Startup(match error {
                            AcceptError::PrivateData(e) => {
                                StartupError::PrivateData { seen: e.len as u16 }
                            }
                            AcceptError::Unsuitable(error) => error,
                        })
                    })?;
                    self.start_full_operation(params, on_event);
                }
                _ => return Ok(()),
            }
        }
        match self.channel.input(bytes, &listener.stags) {
            Ok(()) => Ok(()),
            // The responder must not send before the first FPDU, so the error cannot be reported to the peer. A
            // graceful close would mean success, so the connection is reset.
            Err(error) if !self.channel.may_send() => Err(ConnectionOutcome::Mpa(error)),
            Err(error) => {
                self.terminate(
                    ConnectionOutcome::Mpa(error),
                    &LastMessage::llp(MpaError::ETYPE, error.code()),
                );
                Ok(())
            }
        }
    }

    fn start_full_operation(&mut self, params: Params, on_event: &mut dyn FnMut(ServeEvent)) {
        let mss = self.socket.mss();
        self.channel.start_full_operation(self.id, PdId(0), params, mss);
        if let Some(parameters) = self.channel.parameters(mss) {
            on_event(ServeEvent::Connected { peer: self.socket.peer(), parameters });
        }
    }

    fn handle_events(&mut self, on_event: &mut dyn FnMut(ServeEvent)) {
        while let Some(event) = self.channel.poll_event() {
            match event {
                Event::TaggedDelivered { stag, to, len, .. } => {
                    let peer = self.socket.peer();
                    on_event(ServeEvent::Delivered { peer, stag: stag.0, to: to.0, len });
                }
                Event::Error(error) => {
                    let content = last_message(&error);
                    self.terminate(ConnectionOutcome::Ddp(error), &content);
                }
                Event::PeerClosed { incomplete } => self.incomplete = incomplete,
                _ => {}
            }
        }
    }

    /// Posts the last message and ends sending (RFC 5041 §7.1). Later input is discarded.
    fn terminate(&mut self, outcome: ConnectionOutcome, content: &LastMessage) {
        if self.ending_outcome.is_none() {
            self.ending_outcome = Some(outcome);
            // Fails only if a last message was posted before.
            let _ = self.channel.post_last_message(content);
        }
    }

    fn handle_fin(&mut self) -> Result<(), ConnectionOutcome> {
        self.peer_closed = true;
        if self.ending_outcome.is_some() {
            return Ok(());
        }
        if !self.channel.is_full_operation() {
            return Err(ConnectionOutcome::Startup(StartupError::Closed));
        }
        self.channel.peer_closed().map_err(ConnectionOutcome::Mpa)
    }

    fn write_socket(&mut self) -> Result<(), ConnectionOutcome> {
        loop {
            if self.pending.is_empty() {
                self.channel.poll_transmit(&mut self.pending, self.socket.mss());
                self.pending_offset = 0;
            }
            if self.pending.is_empty() {
                break;
            }
            let sent = self.socket.send(&self.pending[self.pending_offset..]);
            let Some(n) = sent.map_err(|e| self.socket_error(&e))? else { return Ok(()) };
            self.last_progress = Instant::now();
            self.pending_offset += n;
            if self.pending_offset == self.pending.len() {
                self.pending.clear();
            }
        }
        if !self.is_write_closed && (self.peer_closed || self.ending_outcome.is_some()) {
            self.socket.shut_down_write().map_err(|e| self.socket_error(&e))?;
            self.is_write_closed = true;
        }
        if self.is_write_closed && self.peer_closed {
            // Both ends have closed gracefully: no reset.
            let _ = self.socket.set_reset_on_close(false);
            let complete = if self.incomplete {
                ConnectionOutcome::Incomplete
            } else {
                ConnectionOutcome::Complete
            };
            self.outcome = Some(self.ending_outcome.take().unwrap_or(complete));
        }
        Ok(())
    }

    fn check_timeouts(&mut self, config: &ListenConfig) {
        if self.outcome.is_some() {
            return;
        }
        if !self.channel.is_full_operation()
            && self.opened_at.elapsed() >= config.mpa.startup_timeout
        {
            // RFC 5044 §7.1.2 (10): the start-up has a time limit.
            self.outcome = Some(ConnectionOutcome::Startup(StartupError::Timeout));
        } else if self.last_progress.elapsed() >= config.idle_timeout {
            self.outcome =
                Some(self.ending_outcome.take().unwrap_or(ConnectionOutcome::IdleTimeout));
        }
    }

    fn socket_error(&mut self, error: &io::Error) -> ConnectionOutcome {
        self.ending_outcome.take().unwrap_or(ConnectionOutcome::SocketError(error.kind()))
    }
}
