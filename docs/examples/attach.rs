//! Attaches to a shared-memory region of a running `ddpd`, waits for completions and prints them.
//!
//! ```text
//! cargo run --example attach -- /run/ddpd/ddpd.sock.attach OBJECT [COUNT]
//! ```
//!
//! The program exits after COUNT completions, or when the region is removed or `ddpd` exits. Other programs need no
//! code of `ddpd`: `docs/shared-memory.md` describes the complete interface.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

const REPLY_LEN: usize = 48;
const HEAD: usize = 64;
const SLOTS: usize = 256;
const SLOT: usize = 64;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(socket), Some(object)) = (args.next(), args.next()) else {
        return fail("usage: attach SOCKET OBJECT [COUNT]");
    };
    let count = args.next().map_or(Ok(u64::MAX), |count| count.parse());
    let Ok(count) = count else { return fail("COUNT must be a number") };
    match run(&socket, &object, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(sentence: &str) -> ExitCode {
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "attach: {sentence}");
    ExitCode::FAILURE
}

fn run(socket: &str, object: &str, count: u64) -> io::Result<()> {
    let attached = Attached::to(socket, object)?;
    let mut out = io::stdout();
    writeln!(out, "attached: {} bytes, ring of {} slots", attached.region.len, attached.capacity)?;
    let mut next = attached.head().saturating_sub(attached.capacity);
    let mut seen = 0;
    loop {
        // A wake-up is consumed before the ring is read, so that completions published later wake the next wait.
        let mut wakes = [0; 8];
        let _ = rustix::io::read(&attached.event, &mut wakes);
        while seen < count && next < attached.head() {
            let oldest = attached.head().saturating_sub(attached.capacity);
            if next < oldest {
                writeln!(out, "lost {} completions: too slow", oldest - next)?;
                // Optional: reports the loss to `ddpd`, which counts it for `ddpctl stats`.
                (&attached.connection).write_all(&(oldest - next).to_le_bytes())?;
                next = oldest;
            }
            if let Some(record) = attached.record(next) {
                attached.print(next, &record, &mut out)?;
                seen += 1;
            }
            next += 1;
        }
        if seen >= count || !attached.wait()? && next >= attached.head() {
            return Ok(());
        }
    }
}

/// A completion record of the ring.
struct Record {
    kind: u16,
    stag: u32,
    offset: u64,
    len: u64,
    stream: u64,
}

/// The mapped region, the mapped ring of completions, and the socket of wake-ups, received from `ddpd`.
struct Attached {
    connection: UnixStream,
    region: Mapping,
    ring: Mapping,
    event: OwnedFd,
    capacity: u64,
}

impl Attached {
    fn to(socket: &str, object: &str) -> io::Result<Attached> {
        let mut connection = UnixStream::connect(socket)?;
        connection.write_all(format!("{object}\n").as_bytes())?;
        let mut reply = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let pieces = &mut [IoSliceMut::new(&mut reply)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = recvmsg(&connection, pieces, &mut control, flags)?.bytes;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        if len < REPLY_LEN || &reply[..4] != b"DDPM" {
            return Err(bad("the reply is not that of an attach socket"));
        }
        if reply[4..8] != [0; 4] {
            return Err(bad(&String::from_utf8_lossy(&reply[REPLY_LEN..len])));
        }
        let [region, ring, event]: [OwnedFd; 3] =
            fds.try_into().map_err(|_| bad("not three descriptors"))?;
        let word = |at: usize| {
            u64::from_le_bytes(reply[at..at + 8].try_into().expect("a slice of eight bytes"))
        };
        let (region_len, capacity) = (word(8) as usize, word(32));
        let ring_len = SLOTS + capacity as usize * SLOT;
        Ok(Attached {
            connection,
            region: Mapping::new(&region, region_len, ProtFlags::READ | ProtFlags::WRITE)?,
            ring: Mapping::new(&ring, ring_len, ProtFlags::READ)?,
            event,
            capacity,
        })
    }

    /// Returns the number of completions published so far.
    fn head(&self) -> u64 {
        self.ring.word(HEAD).load(Ordering::Acquire)
    }

    /// Returns record `n`; `None` if a later record overwrote it before or during the read.
    fn record(&self, n: u64) -> Option<Record> {
        let at = SLOTS + (n % self.capacity) as usize * SLOT;
        let field = |offset: usize| self.ring.word(at + offset).load(Ordering::Relaxed);
        // Acquire: loads after this one see the record's fields and the region's bytes that the record describes.
        if self.ring.word(at).load(Ordering::Acquire) != 2 * n + 2 {
            return None;
        }
        let record = Record {
            kind: (field(32) >> 32) as u16,
            stag: field(32) as u32,
            offset: field(8),
            len: field(16),
            stream: field(24),
        };
        fence(Ordering::Acquire);
        (self.ring.word(at).load(Ordering::Relaxed) == 2 * n + 2).then_some(record)
    }

    fn print(&self, n: u64, record: &Record, out: &mut impl Write) -> io::Result<()> {
        let Record { kind, stag, offset, len, stream } = record;
        match kind {
            1 => {
                let first = self.region.bytes(*offset as usize, (*len as usize).min(16));
                writeln!(
                    out,
                    "{n}: stream {stream:016x} STag {stag:#010x}: {len} bytes at {offset}: {first:02x?}"
                )
            }
            2 => writeln!(out, "{n}: stream {stream:016x} may write"),
            3 => writeln!(out, "{n}: stream {stream:016x} has ended"),
            4 => writeln!(out, "{n}: the region was removed from the network"),
            other => writeln!(out, "{n}: kind {other}, which this program does not know"),
        }
    }

    /// Waits for completions. Returns false if `ddpd` has closed the connection.
    fn wait(&self) -> io::Result<bool> {
        let mut fds =
            [PollFd::new(&self.event, PollFlags::IN), PollFd::new(&self.connection, PollFlags::IN)];
        poll(&mut fds, None)?;
        Ok(fds[1].revents().is_empty())
    }
}

/// A shared memory mapping, which stays mapped until the process exits.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(fd: &impl AsFd, len: usize, prot: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses a free address, so no existing mapping is replaced. `ddpd` seals the object
        // against shrinking, so accesses within `len` stay valid.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        Ok(Mapping { start: start.cast(), len })
    }

    /// Returns the 64-bit word at offset `at`. The ring is little-endian, as are the supported machines.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        // SAFETY: `at + 8 <= len` and `at` is a multiple of 8, checked above; `start` is page-aligned. The mapping is
        // never unmapped. This program only loads the word, atomically, because `ddpd` may store it concurrently.
        unsafe { &*self.start.add(at).cast() }
    }

    /// Returns a copy of `len` bytes at offset `at`.
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at <= self.len && len <= self.len - at);
        let mut out = vec![0; len];
        // SAFETY: `at + len <= self.len`, checked above, and `out` is a separate allocation of `len` bytes. A peer may
        // write concurrently; the copy is then a mix of old and new bytes, all of which are valid for `u8`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), out.as_mut_ptr(), len) };
        out
    }
}
