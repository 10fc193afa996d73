//! The standard input, or another pipe of this process, as a file that the appliance can open: a FIFO beside the API's
//! socket, gone as soon as the appliance has opened it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What `ddpctl put` is given for the standard input.
const STDIN: &str = "-";

/// The path that stands for a file of the command line.
pub(super) fn path(file: &Path) -> &Path {
    if file == Path::new(STDIN) { Path::new("/dev/stdin") } else { file }
}

/// True for anything that is read to its end: no ordinary file, no directory.
pub(super) fn is_pipe(file: &Path) -> bool {
    std::fs::metadata(path(file)).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// The appliance may run as another user than root, who runs this: it owns its socket, and then what is made for it.
fn give_to_owner_of(socket: &Path, fifo: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, chown};
    let owner = std::fs::metadata(socket)?.uid();
    if std::fs::metadata(fifo)?.uid() == owner { Ok(()) } else { chown(fifo, Some(owner), None) }
}

/// A FIFO that a thread fills. The thread ends with the process, or when the appliance closes the FIFO.
pub(super) struct Pipe {
    fifo: PathBuf,
    error: Arc<Mutex<Option<io::Error>>>,
}

impl Pipe {
    /// A FIFO with the bytes of `file`, beside `socket`.
    pub(super) fn start(file: &Path, socket: &Path) -> io::Result<Pipe> {
        let mut input: Box<dyn io::Read + Send> = match file == Path::new(STDIN) {
            true => Box::new(io::stdin()),
            false => Box::new(File::open(file)?),
        };
        let socket = std::fs::canonicalize(socket)?;
        let fifo = socket.with_file_name(format!(".ddpctl-{}.fifo", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into())?;
        if let Err(error) = give_to_owner_of(&socket, &fifo) {
            let _ = std::fs::remove_file(&fifo);
            return Err(error);
        }
        let error = Arc::new(Mutex::new(None));
        let pipe = Pipe { fifo: fifo.clone(), error: Arc::clone(&error) };
        std::thread::Builder::new().name("pipe".into()).spawn(move || {
            let opened = File::options().write(true).open(&fifo);
            // Gone already if the job ended first.
            let _ = std::fs::remove_file(&fifo);
            let copied = opened.and_then(|mut output| {
                let copied = copy(&mut *input, &mut output);
                // Before the appliance sees the end.
                if let Err(problem) = &copied {
                    let problem = io::Error::new(problem.kind(), problem.to_string());
                    *error.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                }
                copied
            });
            drop(copied);
        })?;
        Ok(pipe)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.fifo
    }

    /// Why the input could not be read to its end.
    pub(super) fn error(&self) -> Option<io::Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Gone if the appliance has opened it.
        let _ = std::fs::remove_file(&self.fifo);
    }
}

/// Copies to the end. That nobody reads any more is no error: the job tells why.
fn copy(input: &mut dyn io::Read, output: &mut File) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let n = match input.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if io::Write::write_all(output, &bytes[..n]).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, chown};

    #[test]
    fn the_fifo_belongs_to_the_user_that_runs_the_appliance() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("ddpd.sock");
        std::fs::write(&socket, "").unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&socket, Some(65_534), None).unwrap();
        }
        let input = dir.path().join("input");
        std::fs::write(&input, "bytes").unwrap();
        let pipe = Pipe::start(&input, &socket).unwrap();
        let (fifo, owner) =
            (std::fs::metadata(pipe.path()).unwrap(), std::fs::metadata(&socket).unwrap().uid());
        assert_eq!((fifo.uid(), fifo.mode() & 0o777), (owner, 0o600));
        assert_eq!(std::fs::read(pipe.path()).unwrap(), b"bytes");
    }
}
