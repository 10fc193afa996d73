//! The thread of one capture: from the rings to pcapng to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use api::CaptureSink;
use dataplane::capture::{Reader, Record};

use super::file::{About, File};
use super::nanos_since_1970;

/// Interval between polls of empty rings.
const LOOK: Duration = Duration::from_millis(5);
/// Most frames that are taken from each ring before they are sorted by time.
const BATCH: usize = 1024;
/// Bytes of the file that are sent to the client in one part.
const PART: usize = 64 << 10;

/// Starts the thread. It ends when all readers are over. It sets `enough` when it takes no more
/// frames.
pub(super) fn start(
    about: About,
    readers: Vec<Reader>,
    sink: CaptureSink,
    enough: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    let run = move || {
        let file = File::new(about);
        let capture = Capture { readers, sink: Some(sink), file, delivered: 0, enough };
        capture.run();
    };
    std::thread::Builder::new().name("capture".into()).spawn(run)
}

struct Capture {
    readers: Vec<Reader>,
    /// `None` if the client has disconnected.
    sink: Option<CaptureSink>,
    file: File,
    /// Frames in the file.
    delivered: u64,
    enough: Arc<AtomicBool>,
}

impl Capture {
    fn run(mut self) {
        self.pass_on(0);
        loop {
            // Checked before `take`: a reader that ends later may still leave frames.
            let over = self.readers.iter().all(Reader::is_over);
            let taken = self.take();
            self.pass_on(0);
            if over && taken == 0 {
                break;
            }
            if taken == 0 {
                std::thread::sleep(LOOK);
            }
        }
        let sum = |count: fn(&Reader) -> u64| self.readers.iter().map(count).sum();
        let (seen, lost) = (sum(|r| r.counters().seen()), sum(|r| r.counters().lost()));
        self.file.end(nanos_since_1970(), seen, lost, self.delivered);
        self.pass_on(0);
    }

    /// Moves frames of all rings to the file. Returns their number.
    fn take(&mut self) -> usize {
        let mut records: Vec<Record> = Vec::new();
        for reader in &mut self.readers {
            records.extend(std::iter::from_fn(|| reader.next_record()).take(BATCH));
        }
        let taken = records.len();
        records.sort_by_key(|record| record.time);
        for record in records {
            // The rings are emptied even if no more frames are taken.
            if self.enough.load(Ordering::Relaxed) {
                continue;
            }
            if self.file.add(&record) {
                self.delivered += 1;
            } else {
                self.enough.store(true, Ordering::Release);
            }
            self.pass_on(PART);
        }
        taken
    }

    /// Sends the client the new part of the file if it exceeds `least` bytes. Detects that the
    /// client has disconnected.
    fn pass_on(&mut self, least: usize) {
        let Some(sink) = &self.sink else { return self.file.discard() };
        let part = if self.file.len() > least { self.file.take() } else { Vec::new() };
        let gone = sink.is_closed() || (!part.is_empty() && !sink.send(part));
        if gone {
            self.sink = None;
            self.enough.store(true, Ordering::Release);
        }
    }
}
