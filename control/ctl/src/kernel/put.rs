//! Writes a file into a peer's memory over a kernel socket: connects, performs MPA's start-up, sends the file, closes,
//! and waits for the peer's close.
//!
//! The calling thread blocks until the end. The file is read as it is sent; input from a pipe is sent in messages of at
//! most 1 MiB.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::refusal::Refusal;
use ddp::last_message::LastMessage;
use ddp::{
    Cookie, ERROR_QUEUE, Event, Message, PdId, RegionMemory, Source, Stag, StagTable, StreamId,
    TaggedOffset, advert,
};
use tcp_lite::mpa::{self, Params, Revision, StartupError};

use super::channel::Channel;
use super::deadline::Deadline;
use super::socket::{Interest, ReadResult, Socket, poll_until};
use super::{KernelError, KernelMemory, MpaOptions, Report};

/// Longest message, bytes. A longer file is sent as several messages.
const MAX_MESSAGE: u64 = 1 << 30;
/// Maximum message length for input from a pipe, bytes.
const PIPE_MESSAGE: u64 = 1 << 20;
/// Maximum number of segments sent before received bytes are processed and progress is reported.
const MAX_BURST: usize = 64;
/// Buffer size of a read, bytes.
const READ_LEN: usize = 64 * 1024;
/// Interval between two checks of a socket whose FIN is not acknowledged.
const CLOSE_POLL: Duration = Duration::from_millis(1);

/// The destination in the peer's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A region, identified by its name in the peer's advertisement.
    Region {
        /// Name of the region.
        name: String,
        /// Offset from the region's start, bytes.
        offset: u64,
    },
    /// STag and offset known beforehand; no advertisement is needed.
    Stag {
        /// Steering tag.
        stag: u32,
        /// Tagged offset of the first byte.
        to: u64,
    },
}

/// A transfer to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutRequest {
    /// Path of the file; for other input, its name in messages.
    pub file: PathBuf,
    /// Name or address of the peer.
    pub host: String,
    /// TCP port of the peer.
    pub port: u16,
    /// Destination in the peer's memory.
    pub target: Target,
    /// Requested MPA parameters.
    pub mpa: MpaOptions,
    /// Maximum time without progress, in each phase of the transfer.
    pub timeout: Duration,
    /// Time limit of the whole transfer; `None` for no limit.
    pub total_timeout: Option<Duration>,
    /// Congestion control algorithm of the kernel, such as `cubic`; `None` for the host's default.
    pub congestion: Option<String>,
}

/// Progress of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes passed to TCP, headers included: possibly slightly more than `total`.
    pub sent: u64,
    /// Length of the file, bytes; for a pipe, the number of bytes read so far.
    pub total: u64,
}

/// Sends the file, or `input` instead if present, and waits until the peer has confirmed all data by its close. Calls
/// `progress` after each burst of segments, from the calling thread.
///
/// # Errors
/// See [`KernelError`]. The peer may have received part of the file.
pub fn put(
    request: &PutRequest,
    input: Option<Box<dyn io::Read>>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, KernelError> {
    if request.mpa.revision == Revision::Draft && matches!(request.target, Target::Region { .. }) {
        return Err(KernelError::NeedsStag);
    }
    let limit = request
        .total_timeout
        .map(|within| Deadline { timeout: within, expires_at: Instant::now() + within });
    let file = |source| KernelError::File { path: request.file.clone(), source };
    let pipe = match input {
        Some(input) => Some(input),
        None => KernelMemory::open_pipe(&request.file).map_err(file)?,
    };
    let memory = match pipe {
        None => KernelMemory::open(&request.file).map_err(file)?,
        Some(_) => KernelMemory::from_bytes(Vec::new()),
    };
    let socket = Socket::connect(&request.host, request.port, request.timeout, limit)?;
    if let Some(name) = &request.congestion {
        let refused = |source| KernelError::Congestion { name: name.clone(), source };
        socket.set_congestion(name).map_err(refused)?;
    }
    let mut transfer = Transfer::new(request, socket, memory)?;
    (transfer.pipe, transfer.deadline) = (pipe, limit);
    let (stag, to) = transfer.start_up(&request.target)?;
    transfer.send_file(stag, to, progress)?;
    transfer.await_close()?;
    transfer.report(stag, to)
}

struct Transfer {
    socket: Socket,
    channel: Channel,
    memory: KernelMemory,
    /// Source of the bytes instead of `memory`; `None` for a file, and after the end of a pipe.
    pipe: Option<Box<dyn io::Read>>,
    /// Bytes from the destination to the region's end; `u64::MAX` if the target is an STag.
    region_room: u64,
    path: PathBuf,
    stags: StagTable<KernelMemory>,
    timeout: Duration,
    deadline: Option<Deadline>,
    /// Time of the last progress.
    last_progress: Instant,
    started: Instant,
    total: u64,
    /// Payload bytes posted.
    posted: u64,
    /// Segment being sent. The kernel has accepted its first `pending_offset` bytes.
    pending: Vec<u8>,
    pending_offset: usize,
    buffer: Vec<u8>,
    peer_closed: bool,
}

impl Transfer {
    fn new(
        request: &PutRequest,
        socket: Socket,
        memory: KernelMemory,
    ) -> Result<Self, KernelError> {
        let channel = Channel::initiator(request.mpa)
            .map_err(|_| KernelError::Startup(StartupError::PrivateData { seen: 0 }))?;
        let now = Instant::now();
        Ok(Transfer {
            socket,
            channel,
            total: memory.len(),
            memory,
            pipe: None,
            region_room: u64::MAX,
            path: request.file.clone(),
            stags: StagTable::new(),
            timeout: request.timeout,
            deadline: None,
            last_progress: now,
            started: now,
            posted: 0,
            pending: Vec::new(),
            pending_offset: 0,
            buffer: vec![0; READ_LEN],
            peer_closed: false,
        })
    }

    /// Performs the start-up and returns the destination's STag and TO.
    fn start_up(&mut self, target: &Target) -> Result<(Stag, TaggedOffset), KernelError> {
        loop {
            self.flush()?;
            match self.receive()? {
                ReadResult::Eof => return Err(StartupError::Closed.into()),
                ReadResult::WouldBlock => self.wait("waiting for the peer's MPA reply")?,
                ReadResult::Bytes(n) => {
                    let (used, progress) = self.channel.startup_input(&self.buffer[..n])?;
                    let Some(progress) = progress else { continue };
                    let rest = self.buffer[used..n].to_vec();
                    let (params, private_data) = startup_result(progress)?;
                    let place = self.select_destination(target, &private_data)?;
                    self.start_full_operation(params);
                    self.channel.input(&rest, &self.stags)?;
                    return Ok(place);
                }
            }
        }
    }

    fn start_full_operation(&mut self, params: Params) {
        self.channel.start_full_operation(StreamId(1), PdId(0), params, self.socket.mss());
        self.started = Instant::now();
    }

    fn select_destination(
        &mut self,
        target: &Target,
        private_data: &[u8],
    ) -> Result<(Stag, TaggedOffset), KernelError> {
        let (name, offset) = match target {
            Target::Stag { stag, to } => return Ok((Stag(*stag), TaggedOffset(*to))),
            Target::Region { name, offset } => (name, *offset),
        };
        let regions = advert::decode(private_data)?;
        let Some(region) = regions.iter().find(|r| r.name == *name) else {
            let known = regions.into_iter().map(|r| r.name).collect();
            return Err(KernelError::NoRegion { name: name.clone(), known });
        };
        if region.busy {
            return Err(KernelError::Busy { name: name.clone() });
        }
        if !region.remote_write {
            return Err(KernelError::NotWritable { name: name.clone() });
        }
        let len = region.len;
        if offset.checked_add(self.total).is_none_or(|end| end > len) {
            return Err(KernelError::TooLarge { bytes: self.total, offset, len });
        }
        self.region_room = len - offset;
        Ok((Stag(region.stag), TaggedOffset(region.base_to.wrapping_add(offset))))
    }

    /// Passes the whole file to the kernel, then closes our sending direction.
    fn send_file(
        &mut self,
        stag: Stag,
        to: TaggedOffset,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), KernelError> {
        let mut first = true;
        loop {
            while self.has_more(first) && self.channel.outstanding() < 2 {
                self.post_message(stag, to, first)?;
                first = false;
            }
            let blocked = self.send_burst()?;
            self.process_input()?;
            progress(Progress { sent: self.channel.stream_bytes(), total: self.total });
            let all = self.posted == self.total && self.pipe.is_none();
            if self.pending.is_empty() && all && !self.channel.has_unsent() {
                break;
            }
            if self.peer_closed {
                let sent = self.channel.stream_bytes().min(self.total);
                return Err(KernelError::ClosedEarly { sent, total: self.total });
            }
            if blocked {
                self.wait("waiting for the peer to accept more data")?;
            }
        }
        self.socket.shut_down_write().or_else(|source| {
            self.process_input()?;
            Err(self.socket_error(source))
        })
    }

    fn has_more(&self, first: bool) -> bool {
        self.pipe.is_some() || self.posted < self.total || first
    }

    /// Reads the next [`PIPE_MESSAGE`] bytes of the pipe, fewer at its end. Blocks until they have arrived. Returns
    /// `None` without a pipe, and at the pipe's end, where the pipe is closed.
    ///
    /// # Errors
    /// The pipe cannot be read, or has more bytes than fit in the region.
    fn read_pipe(&mut self) -> Result<Option<Vec<u8>>, KernelError> {
        let Some(pipe) = &mut self.pipe else { return Ok(None) };
        // One byte more than the room left, to detect a pipe longer than the region.
        let most = (self.region_room - self.total).saturating_add(1).min(PIPE_MESSAGE);
        let mut bytes = Vec::new();
        let file = |source| KernelError::File { path: self.path.clone(), source };
        io::Read::take(pipe, most).read_to_end(&mut bytes).map_err(file)?;
        self.last_progress = Instant::now();
        if bytes.is_empty() {
            self.pipe = None;
            return Ok(None);
        }
        if bytes.len() as u64 > self.region_room - self.total {
            return Err(KernelError::Full { room: self.region_room });
        }
        self.total += bytes.len() as u64;
        Ok(Some(bytes))
    }

    fn post_message(
        &mut self,
        stag: Stag,
        to: TaggedOffset,
        first: bool,
    ) -> Result<(), KernelError> {
        let of_pipe = self.pipe.is_some();
        let piece = self.read_pipe()?;
        if of_pipe && piece.is_none() && !first {
            return Ok(());
        }
        let len = (self.total - self.posted).min(MAX_MESSAGE);
        let (memory, offset) = match piece {
            Some(bytes) => (KernelMemory::from_bytes(bytes), 0),
            None => (self.memory.clone(), self.posted),
        };
        let message = Message::Tagged {
            stag,
            to: TaggedOffset(to.0.wrapping_add(self.posted)),
            rsvd_ulp: 0,
            source: Source::Region { memory, offset, len: len as u32 },
            cookie: Cookie::user(self.posted),
        };
        // At most two messages are outstanding, so the queue has room. Posting fails only if the peer has ended the
        // stream.
        self.channel
            .post(message)
            .map_err(|_| KernelError::ClosedEarly { sent: self.posted, total: self.total })?;
        self.posted += len;
        Ok(())
    }

    /// Sends up to [`MAX_BURST`] segments. Returns true if the kernel accepts no more for now.
    fn send_burst(&mut self) -> Result<bool, KernelError> {
        let mss = self.socket.mss();
        for _ in 0..MAX_BURST {
            if self.pending.is_empty() {
                self.channel.poll_transmit(&mut self.pending, mss);
                self.pending_offset = 0;
                if let Some(source) = self.memory.take_error() {
                    return Err(match source.kind() {
                        io::ErrorKind::UnexpectedEof => KernelError::Truncated,
                        _ => KernelError::File { path: self.path.clone(), source },
                    });
                }
                if self.pending.is_empty() {
                    return Ok(false);
                }
            }
            let sent = match self.socket.send(&self.pending[self.pending_offset..]) {
                Ok(sent) => sent,
                Err(source) => {
                    // The peer's last message may have arrived before its reset.
                    self.process_input()?;
                    return Err(self.socket_error(source));
                }
            };
            let Some(n) = sent else { return Ok(true) };
            self.last_progress = Instant::now();
            self.pending_offset += n;
            if self.pending_offset == self.pending.len() {
                self.pending.clear();
            }
        }
        Ok(false)
    }

    fn flush(&mut self) -> Result<(), KernelError> {
        while self.send_burst()? {
            self.wait("waiting for the peer to accept data")?;
        }
        Ok(())
    }

    /// Reads received bytes and handles their events.
    fn process_input(&mut self) -> Result<(), KernelError> {
        let taken = self.receive_all();
        // The peer's last message precedes its reset or a subsequent MPA error, and is the cause of both.
        self.check_events()?;
        taken
    }

    fn receive_all(&mut self) -> Result<(), KernelError> {
        while !self.peer_closed {
            match self.receive()? {
                ReadResult::WouldBlock => break,
                ReadResult::Eof => {
                    self.peer_closed = true;
                    self.channel.peer_closed()?;
                }
                ReadResult::Bytes(n) => self.channel.input(&self.buffer[..n], &self.stags)?,
            }
        }
        Ok(())
    }

    fn check_events(&mut self) -> Result<(), KernelError> {
        while let Some(event) = self.channel.poll_event() {
            match event {
                Event::UntaggedDelivered { qn, data, .. } if qn == ERROR_QUEUE => {
                    return Err(peer_error(&data));
                }
                Event::Error(error) => return Err(KernelError::Ddp(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for the peer's close and for the acknowledgement of ours. Only both together confirm that all bytes are
    /// placed (docs/protocol.md §6): a peer that has already closed reports a later error by a reset.
    fn await_close(&mut self) -> Result<(), KernelError> {
        while !self.peer_closed {
            self.process_input()?;
            if !self.peer_closed {
                self.wait("waiting for the peer's close")?;
            }
        }
        while !self.map_error(self.socket.is_closed())? {
            self.next_deadline("waiting for the peer to acknowledge our close")?;
            // poll(2) does not report this acknowledgement.
            std::thread::sleep(CLOSE_POLL);
        }
        Ok(())
    }

    fn report(&self, stag: Stag, to: TaggedOffset) -> Result<Report, KernelError> {
        let elapsed = self.started.elapsed();
        let mss = self.socket.mss();
        let closed = KernelError::ClosedEarly { sent: self.posted, total: self.total };
        Ok(Report {
            peer: self.socket.peer(),
            parameters: self.channel.parameters(mss).ok_or(closed)?,
            stag: stag.0,
            to: to.0,
            bytes: self.total,
            elapsed,
            fpdus: self.channel.fpdus_sent(),
            stream_bytes: self.channel.stream_bytes(),
        })
    }

    fn receive(&mut self) -> Result<ReadResult, KernelError> {
        let arrived = self.socket.receive(&mut self.buffer);
        let arrived = self.map_error(arrived)?;
        if matches!(arrived, ReadResult::Bytes(_)) {
            self.last_progress = Instant::now();
        }
        Ok(arrived)
    }

    /// Waits until the socket is ready, at most until the next time limit expires. `during`: phase for error messages.
    fn wait(&self, during: &'static str) -> Result<(), KernelError> {
        let until = self.next_deadline(during)?;
        let interest = Interest { read: !self.peer_closed, write: !self.pending.is_empty() };
        let ready = poll_until(&mut [self.socket.poll_fd(interest)], until);
        self.map_error(ready)
    }

    /// Returns the time at which the progress time-out or the overall deadline expires, whichever is earlier.
    ///
    /// # Errors
    /// The time-out or the deadline has expired.
    fn next_deadline(&self, during: &'static str) -> Result<Instant, KernelError> {
        let (now, until) = (Instant::now(), self.last_progress + self.timeout);
        match self.deadline {
            Some(Deadline { timeout: within, expires_at: at }) if now >= at => {
                Err(KernelError::Late { during, within })
            }
            _ if now >= until => Err(KernelError::Timeout { during, after: self.timeout }),
            limit => Ok(limit.map_or(until, |limit| limit.expires_at.min(until))),
        }
    }

    fn map_error<T>(&self, result: io::Result<T>) -> Result<T, KernelError> {
        result.map_err(|source| self.socket_error(source))
    }

    fn socket_error(&self, source: io::Error) -> KernelError {
        KernelError::Socket { bytes: self.channel.stream_bytes().min(self.total), source }
    }
}

fn startup_result(progress: mpa::Progress) -> Result<(Params, Vec<u8>), KernelError> {
    match progress {
        mpa::Progress::Accepted { params, private_data } => Ok((params, private_data)),
        mpa::Progress::Rejected { private_data, .. } => {
            let (private_data, refusal) = (private_data.len(), Refusal::decode(&private_data));
            Err(KernelError::Rejected { private_data, refusal })
        }
        mpa::Progress::Unsuitable { error, .. } => Err(error.into()),
        mpa::Progress::Request(_) => Err(StartupError::BothInitiators.into()),
    }
}

fn peer_error(data: &[u8]) -> KernelError {
    match LastMessage::parse(data) {
        Ok(message) => KernelError::Peer(message),
        // The data do not have the format of docs/protocol.md, but any message on the error queue reports an error.
        Err(_) => KernelError::Peer(LastMessage::llp(0, 0)),
    }
}
