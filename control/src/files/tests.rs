//! Writes of regions and messages to files: ranges, syncs by policy, retries, and faults.

use std::sync::Mutex;

use super::*;

mod reopen;

/// A region whose memory is a vector.
#[derive(Clone, Debug)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    fn new(len: usize) -> Self {
        Bytes(Arc::new(Mutex::new(vec![0; len])))
    }
}

impl RegionMemory for Bytes {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn read(&self, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..out.len()]);
    }
    fn is_stable(&self) -> bool {
        false
    }
}

fn writer() -> Writer<Bytes> {
    Writer::start("files-test", || ()).unwrap()
}

fn report(writer: &Writer<Bytes>) -> Report {
    writer.reports.recv_timeout(Duration::from_secs(20)).expect("a report")
}

/// Waits for the file's closing report.
fn wait_closed(writer: &Writer<Bytes>, id: FileId) -> (FileStats, Result<(), String>) {
    loop {
        if let Report::Closed { file, stats, result } = report(writer)
            && file == id
        {
            return (stats, result);
        }
    }
}

fn scratch(dir: &tempfile::TempDir, name: &str) -> (PathBuf, File) {
    let path = dir.path().join(name);
    let file = File::options().create(true).truncate(false).write(true).read(true).open(&path);
    (path, file.unwrap())
}

#[test]
fn only_delivered_ranges_are_written_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = scratch(&dir, "region");
    let memory = Bytes::new(3 << 20);
    let mut writer = writer();
    let id = writer.open_region(path.clone(), file, memory.clone(), Fsync::Never);
    memory.write(0, &vec![1; 3 << 20]);
    writer.mark_dirty(id, 10, 2 << 20);
    writer.mark_dirty(id, (3 << 20) - 5, 5);
    writer.close(id);
    let (stats, result) = wait_closed(&writer, id);
    assert_eq!(result, Ok(()));
    assert_eq!((stats.written, stats.syncs), ((2 << 20) + 5, 0));
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes.len(), 3 << 20);
    let expected = |i: usize| u8::from((10..10 + (2 << 20)).contains(&i) || i >= (3 << 20) - 5);
    assert!(bytes.iter().enumerate().all(|(i, &o)| o == expected(i)));
}

#[test]
fn fsync_message_syncs_after_every_write() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = scratch(&dir, "region");
    let mut writer = writer();
    let id = writer.open_region(path, file, Bytes::new(100), Fsync::Message);
    for round in 1..=3 {
        writer.mark_dirty(id, 0, 50);
        assert!(matches!(report(&writer), Report::Synced { file } if file == id));
        assert_eq!(writer.stats(id).unwrap().syncs, round);
    }
}

#[test]
fn large_writes_are_synced_in_steps_that_count_as_progress() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer();
    let len = 80 << 20;
    // 80 chunks of 1 MiB are written. With `Close` there are three syncs: after 32 MiB, after 64 MiB, and at the end.
    for (name, fsync, steps) in [("never", Fsync::Never, 80), ("close", Fsync::Close, 83)] {
        let (path, file) = scratch(&dir, name);
        let before = writer.progress();
        let id = writer.open_region(path, file, Bytes::new(len), fsync);
        writer.mark_dirty(id, 0, len as u64);
        writer.close(id);
        let (stats, result) = wait_closed(&writer, id);
        assert_eq!((stats.written, result), (len as u64, Ok(())));
        assert_eq!(writer.progress() - before, steps, "{name}");
    }
}

#[test]
fn fsync_interval_syncs_later_and_fsync_never_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer();
    let (path, file) = scratch(&dir, "never");
    let never = writer.open_region(path, file, Bytes::new(100), Fsync::Never);
    let (path, file) = scratch(&dir, "interval");
    let policy = Fsync::Interval(Duration::from_millis(1));
    let interval = writer.open_region(path, file, Bytes::new(100), policy);
    writer.mark_dirty(never, 0, 100);
    writer.mark_dirty(interval, 0, 100);
    assert!(matches!(report(&writer), Report::Synced { file } if file == interval));
    writer.close(never);
    assert_eq!(wait_closed(&writer, never).0.syncs, 0);
}

#[test]
fn closing_before_the_interval_has_passed_still_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = scratch(&dir, "region");
    let mut writer = writer();
    let policy = Fsync::Interval(Duration::from_secs(3600));
    let id = writer.open_region(path, file, Bytes::new(100), policy);
    writer.mark_dirty(id, 0, 100);
    writer.close(id);
    let (stats, result) = wait_closed(&writer, id);
    assert_eq!((stats.syncs, result), (1, Ok(())));
}

#[test]
fn fsync_close_syncs_only_after_a_stream_close() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = scratch(&dir, "region");
    let mut writer = writer();
    let id = writer.open_region(path, file, Bytes::new(100), Fsync::Close);
    writer.on_stream_closed(id);
    writer.mark_dirty(id, 0, 50);
    writer.on_stream_closed(id);
    assert!(matches!(report(&writer), Report::Synced { file } if file == id));
    writer.on_stream_closed(id);
    writer.close(id);
    assert_eq!(
        wait_closed(&writer, id).0.syncs,
        1,
        "neither the first nor the last job had bytes to sync"
    );
}

#[test]
fn messages_are_appended_in_order_with_their_framing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let file = File::options().create(true).append(true).open(&path).unwrap();
    let mut writer = writer();
    let id = writer.open_log(path.clone(), file, Fsync::Message);
    assert!(writer.append(id, frame(b"hello"), 70));
    assert!(writer.append(id, frame(b""), 80));
    let mut tags = Vec::new();
    while tags.len() < 2 {
        if let Report::Appended { tag } = report(&writer) {
            tags.push(tag);
        }
    }
    assert_eq!(tags, [70, 80]);
    let expected = b"\0\0\0\x05hello\0\0\0\0";
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    writer.close(id);
    let (stats, _) = wait_closed(&writer, id);
    assert_eq!(stats.appended, expected.len() as u64);
    assert!(!writer.append(id, vec![1], 1), "closed");
}

#[test]
fn full_disk_is_reported_with_bytes_lost_at_close() {
    let mut writer = writer();
    let path = PathBuf::from("/dev/full");
    let file = File::options().write(true).open(&path).unwrap();
    let id = writer.open_log(path, file, Fsync::Never);
    assert!(writer.append(id, vec![1; 10], 1));
    let Report::Failed { reason, .. } = report(&writer) else { panic!("not a failure") };
    assert!(reason.starts_with("cannot write /dev/full: "), "{reason}");
    writer.close(id);
    let (stats, result) = wait_closed(&writer, id);
    assert!(result.unwrap_err().contains("/dev/full"));
    assert_eq!((stats.appended, stats.errors), (0, 2));
}

/// Writes to `/proc/self/comm` succeed, and syncs fail.
#[test]
fn message_whose_sync_fails_is_not_reported_as_appended() {
    let path = PathBuf::from("/proc/self/comm");
    let open = || File::options().write(true).open(&path).unwrap();
    let mut writer = writer();
    let id = writer.open_log(path.clone(), open(), Fsync::Message);
    assert!(writer.append(id, b"test".to_vec(), 7));
    let first = report(&writer);
    assert!(matches!(first, Report::Failed { durable: true, .. }), "{first:?}");
    writer.close(id);
    let last = report(&writer);
    assert!(matches!(last, Report::Closed { result: Err(_), .. }), "{last:?}");
    // Without syncs, the message is reported.
    let id = writer.open_log(path.clone(), open(), Fsync::Never);
    assert!(writer.append(id, b"test".to_vec(), 8));
    assert!(matches!(report(&writer), Report::Appended { tag: 8 }));
}

#[test]
fn failed_range_is_retried_without_delaying_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = scratch(&dir, "read-only");
    let mut writer = writer();
    let bad = writer.open_region(
        path.clone(),
        File::open(&path).unwrap(),
        Bytes::new(10),
        Fsync::Message,
    );
    let (path, file) = scratch(&dir, "good");
    let good = writer.open_region(path, file, Bytes::new(10), Fsync::Message);
    writer.mark_dirty(bad, 0, 10);
    assert!(matches!(report(&writer), Report::Failed { file, .. } if file == bad));
    writer.mark_dirty(good, 0, 10);
    assert!(matches!(report(&writer), Report::Synced { file } if file == good));
    writer.close(bad);
    let (stats, result) = wait_closed(&writer, bad);
    assert_eq!((stats.written, stats.syncs, result.is_err()), (0, 0, true));
}

#[test]
fn drop_writes_remaining_data() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = scratch(&dir, "region");
    let memory = Bytes::new(100);
    memory.write(0, &[9; 100]);
    let mut writer = writer();
    let id = writer.open_region(path.clone(), file, memory, Fsync::Never);
    writer.mark_dirty(id, 0, 100);
    drop(writer);
    assert_eq!(std::fs::read(path).unwrap(), [9; 100]);
}

/// A full pipe simulates a full disk: writes fail until the pipe is read.
#[test]
fn recovered_write_is_reported_once() {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    let (mut read, write) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(write.as_fd(), true).unwrap();
    let mut file = File::from(std::os::fd::OwnedFd::from(write));
    while std::io::Write::write(&mut file, &[0; 4096]).is_ok() {}
    let mut writer = writer();
    let id = writer.open_log("pipe".into(), file, Fsync::Never);
    assert!(writer.append(id, vec![1; 10], 7));
    assert!(matches!(report(&writer), Report::Failed { file, durable: false, .. } if file == id));
    read.read_exact(&mut [0; 8192]).unwrap();
    assert!(matches!(report(&writer), Report::Recovered { file } if file == id));
    assert!(matches!(report(&writer), Report::Appended { tag: 7 }));
}
