//! Input that `ddpctl` reads itself: the standard input, pipes of the shell, and files whose path is not UTF-8 and
//! therefore cannot be sent in the API's JSON.
//!
//! `ddpctl` reads such input with its own permissions and sends it to the job as the body of a request.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use api::{Client, ClientError, ErrorKind, JobInfo};

use super::exit::{Exit, Failure};

/// Name of the standard input or output on the command line.
const STDIN_NAME: &str = "-";
/// Other names of the standard input. They are not opened, because open(2) fails if the input is closed or a socket.
const STDIN: [&str; 2] = ["/dev/stdin", "/dev/fd/0"];
/// Name of the standard input in messages.
const STDIN_DESCRIPTION: &str = "standard input";
/// Directories with descriptors of this process. In the appliance the same path names another file.
const DESCRIPTOR_DIRECTORIES: [&str; 3] = ["/dev/fd", "/proc/self", "/proc/thread-self"];

/// Returns true if the path is `-`, which names the standard input or output.
pub(super) fn is_stream(file: &Path) -> bool {
    file.as_os_str() == STDIN_NAME
}

/// Returns true if the path is `-` or another name of the standard input.
pub(super) fn is_stdin(file: &Path) -> bool {
    is_stream(file) || STDIN.iter().any(|name| file == Path::new(name))
}

/// Returns the file's path for messages, or `standard input`.
pub(super) fn display_name(file: &Path) -> String {
    if is_stdin(file) { STDIN_DESCRIPTION.into() } else { file.display().to_string() }
}

/// Returns the standard input.
///
/// # Errors
/// Standard input is closed.
pub(super) fn open_stdin() -> Result<standard::Stdin, Failure> {
    standard::stdin().map_err(|error| unreadable(Path::new(STDIN_NAME), &error))
}

/// Reads all bytes of a file, or of the standard input.
pub(super) fn read_file(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match is_stdin(file) {
        true => open_stdin()?.read_to_end(&mut bytes),
        false => File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|error| unreadable(file, &error))?;
    Ok(bytes)
}

pub(super) fn unreadable(file: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Usage, format!("{}: {error}", display_name(file)))
}

/// The process that reads a file.
pub(super) enum FileReader {
    /// The appliance reads the file at this absolute path.
    Appliance(PathBuf),
    /// This process reads the file.
    Local(Box<dyn Read + Send>),
}

/// Determines which process reads a file.
///
/// # Errors
/// The file does not exist, or `ddpctl` has to read it and cannot open it.
pub(super) fn select_reader(file: &Path) -> Result<FileReader, Failure> {
    if is_stdin(file) {
        return Ok(FileReader::Local(Box::new(open_stdin()?)));
    }
    let failed = |error| unreadable(file, &error);
    let kind = std::fs::metadata(file).map_err(failed)?.file_type();
    let has_name = kind.is_file() || kind.is_dir() || kind.is_fifo();
    if has_name && !DESCRIPTOR_DIRECTORIES.iter().any(|directory| file.starts_with(directory)) {
        let whole = std::fs::canonicalize(file).map_err(failed)?;
        if whole.to_str().is_some() {
            return Ok(FileReader::Appliance(whole));
        }
    }
    Ok(FileReader::Local(Box::new(File::open(file).map_err(failed)?)))
}

/// Returns the absolute path, which is valid UTF-8 and thus suitable for the API's JSON.
///
/// # Errors
/// The path is not UTF-8, or the working directory cannot be determined.
pub(super) fn absolute_utf8_path(path: &Path) -> Result<PathBuf, Failure> {
    let whole = std::path::absolute(path)?;
    if whole.to_str().is_some() {
        return Ok(whole);
    }
    let message =
        format!("{}: the path is not UTF-8, and the API's JSON requires UTF-8", whole.display());
    let hint = "rename the file or the directory that it lies in";
    Err(Failure::new(Exit::Usage, message).with_hint(Some(hint.into())))
}

/// The transmission of input to a job. Its thread ends with the input or the process, or when the job accepts no more
/// input.
pub(super) struct Upload(Arc<Mutex<Option<Failure>>>);

impl Upload {
    /// Starts a thread that sends the bytes of `reader` to the job. `name`: the reader's name in messages.
    pub(super) fn start(
        job: u64,
        name: String,
        reader: Box<dyn Read + Send>,
        client: &Client,
    ) -> Result<Upload, Failure> {
        let client = Client::new(client.socket())?;
        let failure = Arc::<Mutex<Option<Failure>>>::default();
        let noted = RecordingReader { reader, name, failure: Arc::clone(&failure) };
        let upload = Upload(Arc::clone(&failure));
        std::thread::Builder::new().name("input".into()).spawn(move || {
            let sent = client.upload(&format!("/v1/jobs/{job}/input"), noted);
            match sent {
                // The job accepts no more input; it reports the reason itself.
                Err(ClientError::Refused(refusal)) if refusal.error == ErrorKind::Conflict => {}
                Err(refused @ ClientError::Refused(_)) => {
                    record_failure(&failure, refused.into());
                    // An error is ignored: the job may already have ended.
                    drop(client.delete::<JobInfo>(&format!("/v1/jobs/{job}")));
                }
                // The transmission is complete, or the connection broke and the appliance ends the job.
                _ => {}
            }
        })?;
        Ok(upload)
    }

    /// Takes the reason for an incomplete transmission. `None` if no reason is recorded, or if the job itself reports
    /// it.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Records a failure, unless an earlier failure is recorded.
fn record_failure(noted: &Mutex<Option<Failure>>, failure: Failure) {
    noted.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
}

/// A reader that records its first error before the appliance can detect the truncated body.
struct RecordingReader {
    reader: Box<dyn Read + Send>,
    name: String,
    failure: Arc<Mutex<Option<Failure>>>,
}

impl Read for RecordingReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes);
        if let Err(error) = &read
            && error.kind() != io::ErrorKind::Interrupted
        {
            let message = format!("{}: {error}", self.name);
            record_failure(&self.failure, Failure::new(Exit::Failed, message));
        }
        read
    }
}
