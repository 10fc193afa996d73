//! The standard streams of `ddpd` and `ddpctl`, with Unix conventions.
//!
//! If the reader closes the pipe, SIGPIPE ends the program without a message. Any other write error is an error of the
//! command. Using a stream that was closed when the process started is also an error; /dev/null does not replace it.

use std::fs::File;
use std::io::{self, IsTerminal, LineWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::SIGPIPE;
use unix_users::streams::was_closed;

/// Error text for a standard stream that was closed when the process started.
const CLOSED_ERROR: &str = "it is closed";

/// True once the standard output is opened.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// The standard output, line-buffered.
#[derive(Debug)]
pub struct Stdout(LineWriter<Raw>);

impl Stdout {
    /// Returns the standard output of this process. If it was closed, the first write fails.
    pub fn open() -> Stdout {
        IN_USE.store(true, Ordering::Relaxed);
        let file = duplicate_stream(rustix::stdio::stdout(), 1);
        Stdout(LineWriter::new(Raw(file.map_err(|error| error.to_string()))))
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[derive(Debug)]
struct Raw(Result<File, String>);

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.0 {
            Ok(file) => write_blocking(file, bytes),
            Err(sentence) => Err(io::Error::other(sentence.clone())),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => end_by_signal(SIGPIPE),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                let sentence = format!("cannot write to the standard output: {error}");
                Err(io::Error::new(error.kind(), sentence))
            }
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes bytes and returns their number. Waits while a non-blocking file is full; another process may have made the
/// file non-blocking.
fn write_blocking(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(file.as_fd(), PollFlags::OUT)?;
            }
            written => return written,
        }
    }
}

/// Returns the standard input.
///
/// # Errors
/// The standard input was closed when the process started.
pub fn stdin() -> io::Result<Stdin> {
    duplicate_stream(rustix::stdio::stdin(), 0).map(Stdin)
}

/// The standard input; see [`stdin`].
#[derive(Debug)]
pub struct Stdin(File);

impl io::Read for Stdin {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(self.0.as_fd(), PollFlags::IN)?;
                }
                read => return read,
            }
        }
    }
}

fn duplicate_stream(stream: BorrowedFd<'_>, number: i32) -> io::Result<File> {
    if was_closed(number) {
        return Err(io::Error::other(CLOSED_ERROR));
    }
    Ok(File::from(stream.try_clone_to_owned()?))
}

fn wait(fd: BorrowedFd<'_>, events: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, events)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ends the process with the default action of the signal. A shell then reports exit status 128 + `signal`.
pub fn end_by_signal(signal: i32) -> ! {
    // The default action of all signals used here ends the process. `exit` is reached only if the signal is blocked.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}

/// Starts a thread that ends the process as soon as the reader of the standard output closes it, even without output.
/// Has no effect if the standard output is not open, as in tests that pass another writer.
///
/// # Errors
/// The thread cannot be started.
pub fn exit_when_reader_closes() -> io::Result<()> {
    if !IN_USE.load(Ordering::Relaxed) {
        return Ok(());
    }
    std::thread::Builder::new().name("reader".into()).spawn(|| {
        let output = rustix::stdio::stdout();
        loop {
            let mut fds = [PollFd::from_borrowed_fd(output, PollFlags::empty())];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                Ok(_) if fds[0].revents().contains(PollFlags::ERR) => end_by_signal(SIGPIPE),
                // A closed terminal sends SIGHUP, which needs no handling here.
                _ => return,
            }
        }
    })?;
    Ok(())
}

/// Returns true if a stream is a terminal that supports escape codes.
pub fn is_capable(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns true if a stream may have colours: <https://no-color.org>.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    is_capable(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
