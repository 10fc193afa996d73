//! Making memory, on a thread of its own: mapping, pre-faulting and reading a file take time that the
//! control thread does not have.

use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use dataplane::memory::{Backing, Memory, MemoryConfig};
use ddp::RegionMemory as _;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::budget::{Budget, Charge, Of};
use super::source::{Fill, SourceFile, window};
use crate::beneath::{Directories, Use};
use crate::config::{self, RegionSection};

/// What is to be made.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A region's memory.
    Region(RegionSection),
    /// A file or pipe opened, and memory for a part of it, to be sent. Nothing is read yet.
    File(PathBuf),
    /// A piece of it read.
    Fill(Fill),
    /// So many bytes of zeros that peers may write to, locked if that is possible.
    Scratch(u64),
    /// So many bytes to be sent, which nobody changes.
    Source(u64),
    /// A file with these bytes.
    Save {
        /// Where they are.
        memory: Memory,
        /// How many of them.
        len: u64,
        /// The file; made anew.
        path: PathBuf,
    },
    /// Zeros in these bytes of these.
    Clear(Vec<(Memory, Range<u64>)>),
}

/// A request, numbered by the control thread.
#[derive(Clone, Debug)]
pub struct Load {
    /// Comes back with the result.
    pub id: u64,
    /// What is to be made.
    pub wanted: Wanted,
    /// Where files may lie.
    pub files: Arc<Directories>,
}

/// What was made.
#[derive(Debug)]
pub struct Loaded {
    /// The bytes.
    pub memory: Memory,
    /// Bytes of it that count; the memory of an empty file has one more.
    pub len: u64,
    /// A file region's file, open for writing.
    pub file: Option<File>,
    /// A file that is to be sent.
    pub source: Option<Arc<SourceFile>>,
}

/// A request's result; the failure is a sentence.
#[derive(Debug)]
pub struct Finished {
    /// The request's number.
    pub id: u64,
    /// What came of it.
    pub result: Result<Loaded, String>,
}

/// Handle on the thread. Dropping it waits for the request that is being worked on.
#[derive(Debug)]
pub struct Loader {
    requests: Option<Sender<Load>>,
    finished: Receiver<Finished>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts the thread. `wake` is called from it after each result.
    pub fn start(
        name: &str,
        budget: Budget,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Loader> {
        let (requests, inbox) = channel::<Load>();
        let (outbox, finished) = channel();
        let wake = Arc::new(wake);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            for load in inbox {
                let (outbox, wake, budget) = (outbox.clone(), Arc::clone(&wake), budget.clone());
                let answer = move |Load { id, wanted, files }: Load| {
                    let result = self::load(&wanted, &budget, &files);
                    // The control thread may have ended.
                    let _ = outbox.send(Finished { id, result });
                    wake();
                };
                match &load.wanted {
                    // It may wait for long; a job has one of these at a time.
                    Wanted::Fill(fill) if fill.source.is_pipe() => spawn(load, answer),
                    _ => answer(load),
                }
            }
        })?;
        Ok(Loader { requests: Some(requests), finished, thread: Some(thread) })
    }

    /// Queues a request.
    pub fn request(&self, load: Load) {
        if let Some(requests) = &self.requests
            && requests.send(load).is_err()
        {
            tracing::error!("the loader thread has died: a request is lost");
        }
    }

    /// The next result, if there is one.
    pub fn poll(&self) -> Option<Finished> {
        self.finished.try_recv().ok()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the loader thread panicked");
        }
    }
}

/// On a thread of its own. Without one the loader's does it.
fn spawn(load: Load, answer: impl Fn(Load) + Clone + Send + 'static) {
    let (again, given) = (answer.clone(), load.clone());
    if let Err(error) = std::thread::Builder::new().name("pipe".into()).spawn(move || answer(given))
    {
        tracing::warn!("no thread for a pipe: {error}");
        again(load);
    }
}

/// Makes what is wanted. Blocks.
///
/// # Errors
/// One sentence that names the region or file and the reason.
pub fn load(wanted: &Wanted, budget: &Budget, files: &Directories) -> Result<Loaded, String> {
    match wanted {
        Wanted::Region(section) => {
            let made = region(section, budget, files);
            made.map_err(|error| format!("region {}: {error}", section.name))
        }
        Wanted::File(path) => {
            let source = SourceFile::open(files, path)?;
            let (window, len) = (window(source.size()), source.size().unwrap_or(0));
            let charge = charge(budget, Of::Job, &path.display().to_string(), window)?;
            let backing = Backing::Anonymous;
            let config = MemoryConfig { backing, len: window, remote_write: false, lock: true };
            let source = Some(Arc::new(source));
            Ok(Loaded { source, ..made(&config, charge, len)? })
        }
        Wanted::Fill(fill) => {
            let (memory, len) = (fill.memory.clone(), fill.read()?);
            Ok(Loaded { memory, len, file: None, source: None })
        }
        Wanted::Scratch(len) => anonymous(*len, true, budget),
        Wanted::Source(len) => {
            let loaded = anonymous(*len, false, budget)?;
            fill(&loaded.memory, &(0..*len), &vec![0x5a; COPY]);
            Ok(loaded)
        }
        Wanted::Save { memory, len, path } => {
            let file = files.open(path, Use::Replace).map_err(|refused| refused.to_string())?;
            save(memory, *len, file).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(Loaded { memory: memory.clone(), len: *len, file: None, source: None })
        }
        Wanted::Clear(all) => {
            let zeros = vec![0; COPY];
            all.iter().for_each(|(memory, bytes)| fill(memory, bytes, &zeros));
            // Nothing is made: the one byte stands for it, and is not charged, so that a full ceiling is no obstacle.
            let backing = Backing::Anonymous;
            let config = MemoryConfig { backing, len: 1, remote_write: true, lock: false };
            let memory = Memory::new(&config).map_err(|error| error.to_string())?;
            Ok(Loaded { memory, len: 1, file: None, source: None })
        }
    }
}

fn anonymous(len: u64, remote_write: bool, budget: &Budget) -> Result<Loaded, String> {
    let charge = charge(budget, Of::Job, "memory of a job", len)?;
    let backing = Backing::Anonymous;
    let config = MemoryConfig { backing, len: len.max(1), remote_write, lock: true };
    made(&config, charge, len)
}

fn charge(budget: &Budget, of: Of, what: &str, len: u64) -> Result<Charge, String> {
    budget.charge(of, what, len).map_err(|over| over.to_string())
}

/// Maps memory that has been charged. The charge goes with it.
fn made(config: &MemoryConfig, charge: Charge, len: u64) -> Result<Loaded, String> {
    let memory = Memory::new(config).map_err(|error| error.to_string())?;
    Ok(Loaded { memory: memory.charged(charge), len, file: None, source: None })
}

/// Bytes that are copied at a time.
const COPY: usize = 1 << 20;

fn save(memory: &Memory, len: u64, mut file: File) -> std::io::Result<()> {
    let mut bytes = vec![0; COPY];
    let mut at = 0;
    while at < len {
        let n = (len - at).min(COPY as u64);
        let part = &mut bytes[..n as usize];
        memory.read(at, part);
        file.write_all(part)?;
        at += n;
    }
    file.sync_all()
}

/// Writes `with` over these bytes again and again.
fn fill(memory: &Memory, bytes: &Range<u64>, with: &[u8]) {
    let mut at = bytes.start;
    while at < bytes.end {
        let n = (bytes.end - at).min(with.len() as u64);
        memory.write(at, &with[..n as usize]);
        at += n;
    }
}

/// A region may change at any time, also where peers may not write: Reads and atomic operations put their
/// answers there, and it is cleared.
fn region(section: &RegionSection, budget: &Budget, files: &Directories) -> Result<Loaded, String> {
    let charged = |len| charge(budget, Of::Region, "its memory", len);
    let backing = match &section.backing {
        config::Backing::Anonymous => Backing::Anonymous,
        config::Backing::Hugepages => Backing::Huge,
        config::Backing::SharedMemory { object } => Backing::Shared { name: object.clone() },
        config::Backing::File { path, .. } => {
            let file = files.open(path, Use::ReadWrite).map_err(|refused| refused.to_string())?;
            let metadata = file.metadata().map_err(|error| cannot_open(path, &error))?;
            let len = section.size.unwrap_or(metadata.len());
            if len == 0 {
                return Err(format!("{} is empty: give the region a size", path.display()));
            }
            let charge = charged(len)?;
            let (len, config) = staged(path, len, true);
            return Ok(Loaded { file: Some(file), ..made(&config, charge, len)? });
        }
    };
    let len = section.size.ok_or("it has no size")?;
    let reserved = backing == Backing::Huge && len <= config::free_huge_memory();
    let config = MemoryConfig { backing, len, remote_write: true, lock: true };
    if !reserved {
        return made(&config, charged(len)?, len);
    }
    let memory = Memory::new(&config).map_err(|error| error.to_string())?;
    // Somebody else may have taken the hugepages in between.
    let memory = if memory.is_huge() { memory } else { memory.charged(charged(len)?) };
    Ok(Loaded { memory, len, file: None, source: None })
}

fn staged(path: &Path, len: u64, remote_write: bool) -> (u64, MemoryConfig) {
    let backing = Backing::Staged { path: path.to_owned() };
    (len, MemoryConfig { backing, len: len.max(1), remote_write, lock: true })
}

/// Whether a file can be opened for writing, or made; nothing is made.
///
/// # Errors
/// One sentence.
pub fn writable(path: &Path, usage: Use, files: &Directories) -> Result<(), String> {
    files.admit(path, usage).map_err(|refused| refused.to_string())?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (may_write, may_add) = (Access::WRITE_OK, Access::WRITE_OK | Access::EXEC_OK);
    // Not by opening: that would wait on a pipe.
    let checked = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Errno::ISDIR),
        Ok(_) => access(path, may_write),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => access(parent, may_add),
        Err(error) => return Err(cannot_open(path, &error)),
    };
    checked.map_err(|error| cannot_open(path, &error.into()))
}

fn cannot_open(path: &Path, error: &std::io::Error) -> String {
    format!("cannot open {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use ddp::memory::RegionMemory;

    use super::*;

    fn made_of(wanted: &Wanted) -> Result<Loaded, String> {
        load(wanted, &Budget::unlimited(), &Directories::everywhere())
    }

    fn section(backing: config::Backing, size: Option<u64>) -> RegionSection {
        RegionSection {
            name: "r".into(),
            size,
            backing,
            base_to: 0,
            remote_write: true,
            remote_read: false,
            remote_atomic: false,
            clear_between_peers: false,
            shared: false,
        }
    }

    #[test]
    fn a_file_region_holds_the_file_and_can_be_written_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let backing = config::Backing::File { path: path.clone(), fsync: config::Fsync::Never };
        let refused = made_of(&Wanted::Region(section(backing.clone(), None))).unwrap_err();
        assert!(refused.ends_with("is empty: give the region a size"), "{refused}");
        std::fs::write(&path, b"content").unwrap();
        let loaded = made_of(&Wanted::Region(section(backing.clone(), None))).unwrap();
        let mut bytes = [0; 7];
        loaded.memory.read(0, &mut bytes);
        assert_eq!((&bytes, loaded.len), (b"content", 7));
        assert!(loaded.file.is_some() && !loaded.memory.is_stable());
        let loaded = made_of(&Wanted::Region(section(backing, Some(100)))).unwrap();
        assert_eq!(loaded.memory.len(), 100);
    }

    /// The slots of rping and what `get` fetches into change with what is read, atomics change what they
    /// name: what was sent from there has to be kept until it is acknowledged.
    #[test]
    fn a_region_is_never_stable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = config::Backing::File { path, fsync: config::Fsync::Never };
        for backing in [config::Backing::Anonymous, file] {
            for remote_write in [false, true] {
                let section = RegionSection { remote_write, ..section(backing.clone(), Some(64)) };
                let loaded = made_of(&Wanted::Region(section)).unwrap();
                assert!(!loaded.memory.is_stable(), "{backing:?} {remote_write}");
            }
        }
    }

    #[test]
    fn a_file_to_send_is_stable_and_may_be_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"").unwrap();
        let loaded = made_of(&Wanted::File(path)).unwrap();
        assert!(loaded.len == 0 && loaded.memory.is_stable());
        let refused = made_of(&Wanted::File(dir.path().to_owned())).unwrap_err();
        assert!(refused.ends_with("is not an ordinary file or a pipe"), "{refused}");
        let refused = made_of(&Wanted::File(dir.path().join("none"))).unwrap_err();
        assert!(refused.starts_with("cannot open "), "{refused}");
    }

    // Else nobody who comes after a peer would be accepted.
    #[test]
    fn what_is_cleared_needs_no_room_under_the_ceiling() {
        let budget = Budget::unlimited();
        let _all = budget.charge(Of::Job, "all", u64::MAX - 4095).unwrap();
        assert!(load(&Wanted::Scratch(1), &budget, &Directories::everywhere()).is_err());
        assert!(load(&Wanted::Clear(Vec::new()), &budget, &Directories::everywhere()).is_ok());
    }

    #[test]
    fn the_thread_answers_in_order_and_wakes() {
        let (woken, wakes) = channel();
        let wake = move || woken.send(()).unwrap();
        let loader = Loader::start("t", Budget::unlimited(), wake).unwrap();
        let files = Arc::new(Directories::everywhere());
        let region = section(config::Backing::Anonymous, Some(4096));
        loader.request(Load { id: 1, wanted: Wanted::Region(region), files: Arc::clone(&files) });
        loader.request(Load { id: 2, wanted: Wanted::File("/nonexistent".into()), files });
        wakes.recv().unwrap();
        wakes.recv().unwrap();
        assert!(matches!(loader.poll(), Some(Finished { id: 1, result: Ok(_) })));
        assert!(matches!(loader.poll(), Some(Finished { id: 2, result: Err(_) })));
        assert!(loader.poll().is_none());
    }
}
