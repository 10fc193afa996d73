//! Files that are moved, removed or replaced while they are written, and flushes.

use config::directories::Directories;

use super::*;

/// Returns a writer that reopens moved files.
fn reopening_writer() -> Writer<Bytes> {
    let writer = writer();
    writer.reopen_moved_files(Arc::new(Directories::root()));
    writer
}

fn log(writer: &mut Writer<Bytes>, path: &std::path::Path, fsync: Fsync) -> FileId {
    let file = File::options().create(true).append(true).open(path).unwrap();
    writer.open_log(path.to_owned(), file, fsync)
}

/// Skips reports until `pick` accepts a report.
fn wait<T>(writer: &Writer<Bytes>, mut pick: impl FnMut(&Report) -> Option<T>) -> T {
    loop {
        if let Some(found) = pick(&report(writer)) {
            return found;
        }
    }
}

fn append(writer: &Writer<Bytes>, id: FileId, message: &[u8]) {
    assert!(writer.append(id, message.to_vec(), 7));
    wait(writer, |report| matches!(report, Report::Appended { tag: 7 }).then_some(()));
}

fn flush_and_wait(writer: &Writer<Bytes>, id: FileId, tag: u64) -> Result<(), String> {
    assert!(writer.flush(id, tag));
    wait(writer, |report| match report {
        Report::Flushed { tag: t, result } if *t == tag => Some(result.clone()),
        _ => None,
    })
}

#[test]
fn rotated_or_removed_log_is_reopened_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
    let mut writer = reopening_writer();
    let id = log(&mut writer, &path, Fsync::Close);
    append(&writer, id, b"one");
    std::fs::rename(&path, &moved).unwrap();
    append(&writer, id, b"two");
    assert_eq!(
        (std::fs::read(&moved).unwrap(), std::fs::read(&path).unwrap()),
        (b"one".into(), b"two".into())
    );
    std::fs::remove_file(&path).unwrap();
    append(&writer, id, b"three");
    assert_eq!(std::fs::read(&path).unwrap(), b"three");
    // Another program has created a file with that name.
    std::fs::rename(&path, &moved).unwrap();
    std::fs::write(&path, b"new ").unwrap();
    append(&writer, id, b"four");
    assert_eq!(std::fs::read(&path).unwrap(), b"new four");
}

#[test]
fn reload_recreates_moved_file_without_new_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut writer = reopening_writer();
    let id = log(&mut writer, &path, Fsync::Close);
    append(&writer, id, b"one");
    std::fs::remove_file(&path).unwrap();
    writer.reopen_moved_files(Arc::new(Directories::root()));
    let opened = wait(&writer, |report| match report {
        Report::Reopened { path } => Some(path.clone()),
        _ => None,
    });
    assert_eq!((opened, std::fs::read(&path).unwrap()), (path, Vec::new()));
}

#[test]
fn region_with_moved_file_is_rewritten_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = scratch(&dir, "region");
    let memory = Bytes::new(100);
    let mut writer = reopening_writer();
    let id = writer.open_region(path.clone(), file, memory.clone(), Fsync::Message);
    memory.write(0, &[3; 100]);
    writer.mark_dirty(id, 0, 100);
    assert_eq!(flush_and_wait(&writer, id, 1), Ok(()));
    std::fs::rename(&path, dir.path().join("region.1")).unwrap();
    memory.write(10, &[4; 5]);
    writer.mark_dirty(id, 10, 5);
    assert_eq!(flush_and_wait(&writer, id, 2), Ok(()));
    let mut expected = [3; 100];
    expected[10..15].fill(4);
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn failed_reopen_is_reported_and_keeps_messages() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("log");
    let mut writer = reopening_writer();
    let id = log(&mut writer, &path, Fsync::Close);
    append(&writer, id, b"one");
    std::fs::rename(&inner, dir.path().join("outer")).unwrap();
    assert!(writer.append(id, b"two".to_vec(), 8));
    let reason = wait(&writer, |report| match report {
        Report::Failed { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(
        reason.contains("cannot open") && reason.contains("does not exist: mkdir -p"),
        "{reason}"
    );
    std::fs::create_dir(&inner).unwrap();
    wait(&writer, |report| matches!(report, Report::Appended { tag: 8 }).then_some(()));
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
}

#[test]
fn flush_follows_earlier_data_and_syncs_by_policy() {
    let hour = Fsync::Interval(Duration::from_secs(3600));
    let dir = tempfile::tempdir().unwrap();
    for (fsync, syncs) in [(Fsync::Never, 0), (hour, 0), (Fsync::Close, 1), (Fsync::Message, 1)] {
        let (path, file) = scratch(&dir, "region");
        let memory = Bytes::new(100);
        memory.write(0, &[5; 100]);
        let mut writer = reopening_writer();
        let id = writer.open_region(path.clone(), file, memory, fsync);
        writer.mark_dirty(id, 0, 100);
        assert_eq!(flush_and_wait(&writer, id, 1), Ok(()));
        assert_eq!(std::fs::read(&path).unwrap(), [5; 100]);
        assert_eq!(writer.stats(id).unwrap().syncs, syncs, "{fsync:?}");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(!writer().flush(FileId(99), 1), "unknown");
}

#[test]
fn flush_fails_on_full_disk_and_succeeds_on_device() {
    for (path, expected) in [("/dev/full", false), ("/dev/null", true)] {
        let mut writer = reopening_writer();
        let id = log(&mut writer, std::path::Path::new(path), Fsync::Close);
        assert!(writer.append(id, vec![1; 10], 1));
        let result = flush_and_wait(&writer, id, 2);
        assert_eq!(result.is_ok(), expected, "{result:?}");
    }
}
