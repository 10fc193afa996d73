//! Requests that contain file names, and the directories that `files.paths` allows.

use api::{ErrorKind, GetSink, GetSpec, PutSpec, RemotePlace, StreamId, Via};
use config::{Backing, Fsync, listener_from_json, region_from_json};

use super::*;

fn confined_bench() -> Bench {
    let bench = bench_with(&format!("{BASIC}[files]\npaths = [\"DIR/in\"]\n"));
    std::fs::create_dir(bench.dir.path().join("in")).unwrap();
    std::os::unix::fs::symlink(bench.dir.path(), bench.dir.path().join("in/link")).unwrap();
    bench
}

/// Returns one request of each kind that contains a file name.
fn requests(file: &std::path::Path) -> [Request; 4] {
    let region = serde_json::json!({"name": "f", "size": 64, "access": "w", "path": file});
    let region = region_from_json(&region).unwrap();
    assert_eq!(region.backing, Backing::File { path: file.into(), fsync: Fsync::Close });
    let listener = serde_json::json!({
        "name": "q", "interface": "i", "port": 7999, "regions": [],
        "queue": [{"qn": 0, "deliver_to": "file", "path": file}],
    });
    let (via, place) = (Via::Stream(StreamId(1)), || RemotePlace::Tagged { stag: 1, to: 0 });
    let put = PutSpec { file: Some(file.into()), via: via.clone(), target: place() };
    let sink = GetSink::File(file.into());
    [
        Request::AddRegion(region),
        Request::AddListener(listener_from_json(&listener).unwrap()),
        Request::Put(put),
        Request::Get(GetSpec { via, source: place(), length: Some(1), sink }),
    ]
}

#[test]
fn file_outside_files_paths_is_refused_by_every_request() {
    let mut bench = confined_bench();
    for file in ["out", "in/link/out", "in/../out"] {
        let file = bench.dir.path().join(file);
        for request in requests(&file) {
            let error = answer(&mut bench.call(request)).unwrap_err();
            assert_eq!(error.error, ErrorKind::Forbidden, "{error}");
            assert!(error.message.contains("(files.paths)"), "{error}");
        }
        assert!(bench.core.poll_load().is_none());
    }
    assert!(!bench.dir.path().join("out").exists());
}

#[test]
fn file_below_files_paths_passes_the_path_check() {
    let mut bench = confined_bench();
    let file = bench.dir.path().join("in/f");
    for request in requests(&file) {
        if let Ok(Err(error)) = bench.call(request).try_recv() {
            assert_ne!(error.error, ErrorKind::Forbidden, "{error}");
        }
    }
    bench.load_all();
    assert!(file.exists());
}

#[test]
fn without_files_paths_only_configured_directories_are_open() {
    // This directory is outside the directory for temporary files, which replaces /var/lib/ddpd in tests.
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = place.path();
    let mut bench = bench();
    let refused = |bench: &mut Bench| {
        let error = answer(&mut bench.call(requests(&place.join("f")).into_iter().next().unwrap()));
        error.is_err_and(|error| error.error == ErrorKind::Forbidden)
    };
    assert!(refused(&mut bench));
    let region = |size: &str| {
        let path = place.join("named");
        format!("{BASIC}[[region]]\nname = \"named\"\npath = {path:?}\naccess = \"r\"\n{size}")
    };
    // The reload is refused, because the region has no size: the directory stays forbidden, and no file remains.
    assert!(bench.reload(&region("")).is_err());
    assert!(refused(&mut bench) && !place.join("named").exists());
    bench.reload(&region("size = 64\n")).unwrap();
    assert!(place.join("named").exists());
    let mut pending = bench.call(requests(&place.join("f")).into_iter().next().unwrap());
    bench.load_all();
    bench.acknowledge();
    answer(&mut pending).unwrap();
    assert!(place.join("f").exists());
}
