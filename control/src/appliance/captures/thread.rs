//! The thread of a capture: takes frames from the rings, encodes them as pcapng and sends the bytes to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use api::CaptureSink;
use dataplane::capture::{Reader, Record};

use super::file::{CaptureFile, CaptureParams};
use super::nanos_since_1970;

/// Interval between polls of empty rings.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of frames taken from each ring before they are sorted by time.
const BATCH: usize = 1024;
/// Number of encoded bytes above which a chunk is sent to the client before the rest of the batch is encoded.
const CHUNK: usize = 64 << 10;

/// Starts the thread. The thread ends when the workers have removed all taps and the rings are empty. It sets
/// `finished` when it needs no further frames.
pub(super) fn start(
    params: CaptureParams,
    readers: Vec<Reader>,
    sink: CaptureSink,
    finished: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    let run = move || {
        let file = CaptureFile::new(params);
        let capture = Capture { readers, sink: Some(sink), file, delivered: 0, finished };
        capture.run();
    };
    std::thread::Builder::new().name("capture".into()).spawn(run)
}

struct Capture {
    readers: Vec<Reader>,
    /// `None` after the client has disconnected.
    sink: Option<CaptureSink>,
    file: CaptureFile,
    /// Number of frames in the file.
    delivered: u64,
    finished: Arc<AtomicBool>,
}

impl Capture {
    fn run(mut self) {
        self.send_chunk(0);
        loop {
            // `over` is determined before `take`, because a worker may write its last frames and remove its tap between
            // the two calls.
            let over = self.readers.iter().all(Reader::is_finished);
            let taken = self.take();
            self.send_chunk(0);
            if over && taken == 0 {
                break;
            }
            if taken == 0 {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        let sum = |count: fn(&Reader) -> u64| self.readers.iter().map(count).sum();
        let (seen, lost) = (sum(|r| r.counters().seen()), sum(|r| r.counters().lost()));
        self.file.end(nanos_since_1970(), seen, lost, self.delivered);
        self.send_chunk(0);
    }

    /// Moves up to [`BATCH`] frames of each ring to the file, sorted by time within this call. Returns the number of
    /// frames taken.
    fn take(&mut self) -> usize {
        let mut records: Vec<Record> = Vec::new();
        for reader in &mut self.readers {
            records.extend(std::iter::from_fn(|| reader.next_record()).take(BATCH));
        }
        let taken = records.len();
        records.sort_by_key(|record| record.time);
        for record in records {
            // The rings are emptied even if no further frame is needed.
            if self.finished.load(Ordering::Relaxed) {
                continue;
            }
            if self.file.add(&record) {
                self.delivered += 1;
            } else {
                self.finished.store(true, Ordering::Release);
            }
            self.send_chunk(CHUNK);
        }
        taken
    }

    /// Sends the encoded bytes to the client if they are more than `min_bytes`. Finishes the capture if the client has
    /// disconnected.
    fn send_chunk(&mut self, min_bytes: usize) {
        let Some(sink) = &self.sink else { return self.file.discard() };
        let part = if self.file.len() > min_bytes { self.file.take() } else { Vec::new() };
        let is_disconnected = sink.is_closed() || (!part.is_empty() && !sink.send(part));
        if is_disconnected {
            self.sink = None;
            self.finished.store(true, Ordering::Release);
        }
    }
}
