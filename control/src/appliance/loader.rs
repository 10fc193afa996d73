//! The loader thread creates memory: mapping, populating and reading a file would block the control thread too long. A
//! large request, or a read from a pipe, runs on a separate thread, so that other requests do not wait for it.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use api::Input;
use config::directories::{Directories, OpenPurpose};
use config::{self, RegionSection};
use dataplane::memory::{Backing, Memory, MemoryConfig, Progress};
use ddp::RegionMemory as _;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::budget::{Budget, Charge, ChargeKind};
use super::source::{Fill, SourceFile, window_len};

/// A task that would block the control thread: work on memory or files.
#[derive(Clone, Debug)]
pub enum LoadTask {
    /// Creates a region's memory.
    Region(RegionSection),
    /// Opens a file or pipe to send, and creates memory for a part of it (`window_len`). Reads nothing yet.
    File(PathBuf),
    /// Creates memory for a part of a client's input. Reads nothing yet.
    Input(Input),
    /// Reads a piece of a file, pipe or client's input.
    Fill(Fill),
    /// Creates this many bytes of zeroed memory, writable by peers, locked in memory if possible.
    Scratch(u64),
    /// Creates this many bytes of memory from which data is sent. The contents do not change.
    Source(u64),
    /// Writes memory to a file.
    Save {
        /// Source of the bytes.
        memory: Memory,
        /// Number of bytes to write.
        len: u64,
        /// The file. An existing file is replaced.
        path: PathBuf,
    },
    /// Zeroes these ranges.
    Clear(Vec<(Memory, Range<u64>)>),
    /// Drops the handle, then sends the result. If this was the last handle, the result is sent when the memory has
    /// been freed.
    Free(Memory),
}

/// Minimum size (bytes) of tasks that run on a separate thread.
pub const LARGE_REQUEST: u64 = 64 << 20;

impl LoadTask {
    /// Returns the number of bytes to create, copy or free. Returns 0 for `File`, `Input` and `Fill`, which create or
    /// fill at most the bounded memory of one put.
    fn bytes(&self) -> u64 {
        match self {
            LoadTask::Region(section) => match (&section.backing, section.size) {
                (config::Backing::File { path, .. }, None) => {
                    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
                }
                (_, size) => size.unwrap_or(0),
            },
            LoadTask::File(_) | LoadTask::Input(_) | LoadTask::Fill(_) => 0,
            LoadTask::Scratch(len) | LoadTask::Source(len) | LoadTask::Save { len, .. } => *len,
            LoadTask::Clear(all) => all.iter().map(|(_, bytes)| bytes.end - bytes.start).sum(),
            LoadTask::Free(memory) => memory.len(),
        }
    }
}

/// Progress and cancellation of a request.
#[derive(Debug, Default)]
pub struct Watch {
    percent: AtomicU8,
    cancelled: AtomicBool,
}

impl Watch {
    /// Returns the progress in percent, 0 to 100.
    pub fn percent(&self) -> u8 {
        self.percent.load(Ordering::Relaxed)
    }

    /// Cancels the request at its next step. Its result is then an error.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn update(&self, progress: Progress) -> bool {
        let percent = u128::from(progress.done) * 100 / u128::from(progress.total.max(1));
        self.percent.store(u8::try_from(percent).unwrap_or(100), Ordering::Relaxed);
        !self.cancelled.load(Ordering::Relaxed)
    }

    /// Records the progress.
    ///
    /// # Errors
    /// The request was cancelled.
    fn check(&self, done: u64, total: u64) -> Result<(), String> {
        self.update(Progress { done, total }).then_some(()).ok_or_else(|| "cancelled".to_owned())
    }
}

/// A request to the loader.
#[derive(Clone, Debug)]
pub struct Load {
    /// Number of the request, returned with the result.
    pub id: u64,
    /// The task to perform.
    pub task: LoadTask,
    /// Directories below which files may be opened.
    pub files: Arc<Directories>,
    /// Progress and cancellation of the request.
    pub watch: Arc<Watch>,
}

/// Result of a successful request.
#[derive(Debug)]
pub struct LoadedMemory {
    /// The created memory; for other tasks the memory that they used, or a placeholder.
    pub memory: Memory,
    /// Length of the valid data, bytes. It is 0 for an empty file, whose memory has 1 byte.
    pub len: u64,
    /// The file of a file-backed region, open for writing.
    pub file: Option<File>,
    /// The source to send; `None` for tasks that do not open one.
    pub source: Option<Arc<SourceFile>>,
}

/// Result of a request. The error is one sentence.
#[derive(Debug)]
pub struct LoadResult {
    /// Number of the request.
    pub id: u64,
    /// The memory, or the reason for the failure.
    pub result: Result<LoadedMemory, String>,
}

/// Handle to the loader thread. Dropping it cancels all requests, and waits until the loader thread has answered the
/// queued requests. It does not wait for the separate threads of large requests and pipes.
#[derive(Debug)]
pub struct Loader {
    /// Watches of the requests in progress. Watches of finished requests are removed with the next request.
    watches: RefCell<Vec<Weak<Watch>>>,
    requests: Option<Sender<Load>>,
    finished: Receiver<LoadResult>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts the thread. The loader calls `wake` after each result.
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
                let answer = move |Load { id, task: wanted, files, watch }: Load| {
                    let result = self::load(&wanted, &budget, &files, &watch);
                    if let LoadTask::Free(memory) = wanted {
                        memory.free();
                    }
                    // The send fails if the control thread has ended.
                    let _ = outbox.send(LoadResult { id, result });
                    wake();
                };
                match &load.task {
                    // A pipe may block for long. A job has at most one such request at a time, which bounds the number
                    // of threads.
                    LoadTask::Fill(fill) if fill.source.is_pipe() => spawn("pipe", load, answer),
                    // Regions and jobs of this size are few, which bounds the number of threads.
                    wanted if wanted.bytes() >= LARGE_REQUEST => spawn("memory", load, answer),
                    _ => answer(load),
                }
            }
        })?;
        let (requests, thread) = (Some(requests), Some(thread));
        Ok(Loader { watches: RefCell::default(), requests, finished, thread })
    }

    /// Queues a request. [`poll`](Self::poll) returns its result.
    pub fn request(&self, load: Load) {
        let mut watches = self.watches.borrow_mut();
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&load.watch));
        if let Some(requests) = &self.requests
            && requests.send(load).is_err()
        {
            tracing::error!("the loader thread has died: a request is lost");
        }
    }

    /// Returns the next result, if any.
    pub fn poll(&self) -> Option<LoadResult> {
        self.finished.try_recv().ok()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.watches.borrow().iter().filter_map(Weak::upgrade).for_each(|watch| watch.cancel());
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the loader thread panicked");
        }
    }
}

/// Serves a request on a new thread; on the loader thread if no thread can be created.
fn spawn(name: &str, load: Load, answer: impl Fn(Load) + Clone + Send + 'static) {
    // The request is moved to the new thread or, if none can be created, used here. It is not cloned, because a request
    // to free memory must have the last handle.
    let (request, answer_here) = (Arc::new(Mutex::new(Some(load))), answer.clone());
    let take = |load: &Mutex<Option<Load>>| load.lock().ok().and_then(|mut load| load.take());
    let moved_request = Arc::clone(&request);
    let run = move || {
        if let Some(load) = take(&moved_request) {
            answer(load);
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
        tracing::warn!("no thread `{name}`: {error}");
        if let Some(load) = take(&request) {
            answer_here(load);
        }
    }
}

/// Performs a task. Blocks.
///
/// # Errors
/// Returns one sentence with the region or file, and the reason.
pub fn load(
    task: &LoadTask,
    budget: &Budget,
    files: &Directories,
    watch: &Watch,
) -> Result<LoadedMemory, String> {
    match task {
        LoadTask::Region(section) => {
            let made = region(section, budget, files, watch);
            made.map_err(|error| format!("region {}: {error}", section.name))
        }
        LoadTask::File(path) => map_window(SourceFile::open(files, path)?, budget, watch),
        LoadTask::Input(input) => map_window(SourceFile::input(input.clone()), budget, watch),
        LoadTask::Fill(fill) => {
            let (memory, len) = (fill.memory.clone(), fill.read()?);
            Ok(LoadedMemory { memory, len, file: None, source: None })
        }
        LoadTask::Scratch(len) => anonymous(*len, true, budget, watch),
        LoadTask::Source(len) => {
            let loaded = anonymous(*len, false, budget, watch)?;
            fill(&loaded.memory, &(0..*len), &vec![0x5a; COPY_CHUNK], watch)?;
            Ok(loaded)
        }
        LoadTask::Save { memory, len, path } => {
            let file =
                files.open(path, OpenPurpose::Replace).map_err(|refused| refused.to_string())?;
            save(memory, *len, file, watch)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(LoadedMemory { memory: memory.clone(), len: *len, file: None, source: None })
        }
        LoadTask::Clear(all) => {
            let zeros = vec![0; COPY_CHUNK];
            all.iter().try_for_each(|(memory, bytes)| fill(memory, bytes, &zeros, watch))?;
            Ok(empty_result())
        }
        LoadTask::Free(_) => Ok(empty_result()),
    }
}

/// Creates the memory into which the source is read.
fn map_window(source: SourceFile, budget: &Budget, watch: &Watch) -> Result<LoadedMemory, String> {
    let (window, len) = (window_len(source.size()), source.size().unwrap_or(0));
    let charge = charge(budget, ChargeKind::Job, source.name(), window)?;
    let backing = Backing::Anonymous;
    let config = MemoryConfig { backing, len: window, remote_write: false, lock: true };
    let source = Some(Arc::new(source));
    Ok(LoadedMemory { source, ..map_charged(&config, budget, charge, len, watch)? })
}

/// Returns the result of tasks that create no memory. The result needs neither memory nor a mapping, so these tasks
/// succeed even when the memory ceiling is reached.
fn empty_result() -> LoadedMemory {
    LoadedMemory { memory: Memory::empty(), len: 0, file: None, source: None }
}

/// Creates memory of a job without a file. `remote_write`: true if peers may write to it.
fn anonymous(
    len: u64,
    remote_write: bool,
    budget: &Budget,
    watch: &Watch,
) -> Result<LoadedMemory, String> {
    let charge = charge(budget, ChargeKind::Job, "memory of a job", len)?;
    let backing = Backing::Anonymous;
    let config = MemoryConfig { backing, len: len.max(1), remote_write, lock: true };
    map_charged(&config, budget, charge, len, watch)
}

fn charge(budget: &Budget, kind: ChargeKind, purpose: &str, len: u64) -> Result<Charge, String> {
    budget.charge(kind, purpose, len).map_err(|over| over.to_string())
}

/// Maps memory that was charged to the budget. The charge ends when the memory is freed.
fn map_charged(
    config: &MemoryConfig,
    budget: &Budget,
    charge: Charge,
    len: u64,
    watch: &Watch,
) -> Result<LoadedMemory, String> {
    let memory = map_memory(config, budget, watch)?;
    Ok(LoadedMemory { memory: memory.with_charge(charge), len, file: None, source: None })
}

fn map_memory(config: &MemoryConfig, budget: &Budget, watch: &Watch) -> Result<Memory, String> {
    Memory::prepare(config, budget.maps(), &mut |at| watch.update(at))
        .map_err(|error| error.to_string())
}

/// Bytes copied at once.
const COPY_CHUNK: usize = 1 << 20;

fn save(memory: &Memory, len: u64, mut file: File, watch: &Watch) -> std::io::Result<()> {
    let mut bytes = vec![0; COPY_CHUNK];
    let mut at = 0;
    while at < len {
        watch.check(at, len).map_err(std::io::Error::other)?;
        let n = (len - at).min(COPY_CHUNK as u64);
        let part = &mut bytes[..n as usize];
        memory.read(at, part);
        file.write_all(part)?;
        at += n;
    }
    file.sync_all()
}

/// Fills the range `bytes` with repetitions of `pattern`.
fn fill(memory: &Memory, bytes: &Range<u64>, pattern: &[u8], watch: &Watch) -> Result<(), String> {
    let mut at = bytes.start;
    while at < bytes.end {
        watch.check(at - bytes.start, bytes.end - bytes.start)?;
        let n = (bytes.end - at).min(pattern.len() as u64);
        memory.write(at, &pattern[..n as usize]);
        at += n;
    }
    Ok(())
}

/// Creates a region's memory. The memory is always configured as writable by peers, because its contents change even
/// without that right: the region is cleared, and Reads and atomic operations store their results in it.
fn region(
    section: &RegionSection,
    budget: &Budget,
    files: &Directories,
    watch: &Watch,
) -> Result<LoadedMemory, String> {
    let charged = |len| charge(budget, ChargeKind::Region, "its memory", len);
    let backing = match &section.backing {
        config::Backing::Anonymous => Backing::Anonymous,
        config::Backing::Hugepages => Backing::Huge,
        config::Backing::SharedMemory { object } => Backing::Shared { name: object.clone() },
        config::Backing::File { path, .. } => {
            let file =
                files.open(path, OpenPurpose::ReadWrite).map_err(|refused| refused.to_string())?;
            let metadata = file.metadata().map_err(|error| open_error(path, &error))?;
            let len = section.size.unwrap_or(metadata.len());
            if len == 0 {
                return Err(format!("{} is empty: give the region a size", path.display()));
            }
            let charge = charged(len)?;
            let (len, config) = staging_config(path, len, true);
            let loaded = map_charged(&config, budget, charge, len, watch)?;
            // If the file was truncated while it was read, the end of the region would be zeros. The region is refused.
            let now = file.metadata().map_err(|error| open_error(path, &error))?.len();
            if section.size.is_none() && now != len {
                return Err(format!(
                    "{} changed its length from {len} to {now} bytes while it was read: give the region a size, or try again",
                    path.display()
                ));
            }
            return Ok(LoadedMemory { file: Some(file), ..loaded });
        }
    };
    let len = section.size.ok_or("it has no size")?;
    let reserved = backing == Backing::Huge && len <= config::free_hugepage_bytes();
    let config = MemoryConfig { backing, len, remote_write: true, lock: true };
    if !reserved {
        return map_charged(&config, budget, charged(len)?, len, watch);
    }
    let memory = map_memory(&config, budget, watch)?;
    // Another process may have taken the hugepages since the check. The memory is then ordinary, and only ordinary
    // memory is charged.
    let memory = if memory.is_huge() { memory } else { memory.with_charge(charged(len)?) };
    Ok(LoadedMemory { memory, len, file: None, source: None })
}

/// Returns the length and the configuration of memory into which a file is read.
fn staging_config(path: &Path, len: u64, remote_write: bool) -> (u64, MemoryConfig) {
    let backing = Backing::Staged { path: path.to_owned() };
    (len, MemoryConfig { backing, len: len.max(1), remote_write, lock: true })
}

/// Checks that a file could be opened for writing, or created. Does neither.
///
/// # Errors
/// Returns one sentence with the file and the reason.
pub fn check_writable(path: &Path, files: &Directories) -> Result<(), String> {
    files.admit(path).map_err(|refused| refused.to_string())?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (may_write, may_add) = (Access::WRITE_OK, Access::WRITE_OK | Access::EXEC_OK);
    // The file is not opened, because opening a pipe would block.
    let checked = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Errno::ISDIR),
        Ok(_) => access(path, may_write),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => access(parent, may_add),
        Err(error) => return Err(open_error(path, &error)),
    };
    checked.map_err(|error| open_error(path, &error.into()))
}

fn open_error(path: &Path, error: &std::io::Error) -> String {
    format!("cannot open {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use ddp::memory::RegionMemory;

    use super::*;

    fn load_unlimited(wanted: &LoadTask) -> Result<LoadedMemory, String> {
        load(wanted, &Budget::unlimited(), &Directories::root(), &Watch::default())
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
    fn file_region_holds_file_contents_and_is_writable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let backing = config::Backing::File { path: path.clone(), fsync: config::Fsync::Never };
        let refused =
            load_unlimited(&LoadTask::Region(section(backing.clone(), None))).unwrap_err();
        assert!(refused.ends_with("is empty: give the region a size"), "{refused}");
        std::fs::write(&path, b"content").unwrap();
        let loaded = load_unlimited(&LoadTask::Region(section(backing.clone(), None))).unwrap();
        let mut bytes = [0; 7];
        loaded.memory.read(0, &mut bytes);
        assert_eq!((&bytes, loaded.len), (b"content", 7));
        assert!(loaded.file.is_some() && !loaded.memory.is_stable());
        let loaded = load_unlimited(&LoadTask::Region(section(backing, Some(100)))).unwrap();
        assert_eq!(loaded.memory.len(), 100);
    }

    /// Region memory may change at any time: Reads write to slots and to destinations of `get`, atomics to their
    /// targets. A copy of data sent from region memory must therefore be kept until the data is acknowledged.
    #[test]
    fn region_memory_is_never_stable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = config::Backing::File { path, fsync: config::Fsync::Never };
        for backing in [config::Backing::Anonymous, file] {
            for remote_write in [false, true] {
                let section = RegionSection { remote_write, ..section(backing.clone(), Some(64)) };
                let loaded = load_unlimited(&LoadTask::Region(section)).unwrap();
                assert!(!loaded.memory.is_stable(), "{backing:?} {remote_write}");
            }
        }
    }

    #[test]
    fn staged_file_is_stable_and_may_be_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"").unwrap();
        let loaded = load_unlimited(&LoadTask::File(path)).unwrap();
        assert!(loaded.len == 0 && loaded.memory.is_stable());
        let refused = load_unlimited(&LoadTask::File(dir.path().to_owned())).unwrap_err();
        assert!(refused.ends_with("is not an ordinary file or a pipe"), "{refused}");
        let refused = load_unlimited(&LoadTask::File(dir.path().join("none"))).unwrap_err();
        assert!(refused.starts_with("cannot open "), "{refused}");
    }

    // At a full memory ceiling, a region must still be cleared for the next peer.
    #[test]
    fn clear_is_not_charged_to_the_memory_ceiling() {
        let budget = Budget::unlimited();
        let _all = budget.charge(ChargeKind::Job, "all", u64::MAX - 4095).unwrap();
        let load = |wanted: &LoadTask| {
            super::load(wanted, &budget, &Directories::root(), &Watch::default())
        };
        assert!(load(&LoadTask::Scratch(1)).is_err());
        assert!(load(&LoadTask::Clear(Vec::new())).is_ok());
    }

    /// Returns a loader, the channel of its wake-ups, and a constructor of requests.
    fn start_loader() -> (Loader, Receiver<()>, impl Fn(u64, LoadTask) -> Load) {
        let (woken, wakes) = channel();
        // The send fails if the test has ended.
        let wake = move || {
            let _ = woken.send(());
        };
        let loader = Loader::start("t", Budget::unlimited(), wake).unwrap();
        let files = Arc::new(Directories::root());
        let load = move |id, wanted| Load {
            id,
            task: wanted,
            files: Arc::clone(&files),
            watch: Arc::default(),
        };
        (loader, wakes, load)
    }

    #[test]
    fn results_arrive_in_order_with_a_wake_up_each() {
        let (loader, wakes, load) = start_loader();
        let region = section(config::Backing::Anonymous, Some(4096));
        loader.request(load(1, LoadTask::Region(region)));
        loader.request(load(2, LoadTask::File("/nonexistent".into())));
        wakes.recv().unwrap();
        wakes.recv().unwrap();
        assert!(matches!(loader.poll(), Some(LoadResult { id: 1, result: Ok(_) })));
        assert!(matches!(loader.poll(), Some(LoadResult { id: 2, result: Err(_) })));
        assert!(loader.poll().is_none());
    }

    /// Returns a request that runs until it is cancelled: it clears `memory` 2^20 times.
    fn endless_request(memory: &Memory) -> LoadTask {
        LoadTask::Clear(vec![(memory.clone(), 0..memory.len()); 1 << 20])
    }

    #[test]
    fn large_request_runs_concurrently_and_ends_on_cancel() {
        let (loader, wakes, load) = start_loader();
        let memory = load_unlimited(&LoadTask::Scratch(1 << 20)).unwrap().memory;
        let large = load(1, endless_request(&memory));
        let watch = Arc::clone(&large.watch);
        loader.request(large);
        loader.request(load(2, LoadTask::File("/nonexistent".into())));
        wakes.recv().unwrap();
        assert_eq!(loader.poll().map(|finished| finished.id), Some(2));
        watch.cancel();
        wakes.recv().unwrap();
        let finished = loader.poll().unwrap();
        assert_eq!((finished.id, finished.result.unwrap_err()), (1, "cancelled".to_owned()));
    }

    #[test]
    fn dropping_the_loader_cancels_every_request() {
        let (loader, wakes, load) = start_loader();
        let memory = load_unlimited(&LoadTask::Scratch(1 << 20)).unwrap().memory;
        loader.request(load(1, endless_request(&memory)));
        drop(loader);
        // The result is lost, but the wake-up shows that the request ended.
        wakes.recv().unwrap();
    }

    #[test]
    fn each_kind_of_large_request_ends_when_it_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [1; 100]).unwrap();
        let memory = load_unlimited(&LoadTask::Scratch(4096)).unwrap().memory;
        let file = config::Backing::File { path: path.clone(), fsync: config::Fsync::Never };
        let object = config::Backing::SharedMemory { object: "cancelled".into() };
        let save = LoadTask::Save { memory: memory.clone(), len: 4096, path };
        let regions = [file, object, config::Backing::Anonymous, config::Backing::Hugepages];
        let regions = regions.map(|backing| LoadTask::Region(section(backing, Some(4096))));
        let others = [save, LoadTask::Scratch(1), LoadTask::Source(1), endless_request(&memory)];
        for wanted in regions.into_iter().chain(others) {
            let watch = Watch::default();
            watch.cancel();
            let refused = load(&wanted, &Budget::unlimited(), &Directories::root(), &watch);
            let refused = refused.unwrap_err();
            assert!(refused.contains("cancelled"), "{refused}");
        }
    }

    #[test]
    fn free_result_follows_release_of_memory() {
        let (loader, wakes, load) = start_loader();
        let budget = Budget::unlimited();
        let made = anonymous(LARGE_REQUEST, true, &budget, &Watch::default()).unwrap();
        loader.request(load(1, LoadTask::Free(made.memory)));
        wakes.recv().unwrap();
        assert_eq!(budget.info().jobs, 0);
    }
}
