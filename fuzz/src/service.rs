//! Fuzz target for the services of RDMAP listeners (`ulp = "rdmap"`) that parse received messages: the servers for
//! rping and for perftest.
//!
//! Input: one byte (bit 0: 1 rping, 0 perftest), then records
//!
//! ```text
//!   action (1)  bits 0, 1: stream
//!               bits 2 to 4: 0, 1 a Send with the record's bytes arrives
//!                            2 a Write arrives, with the first byte as its length
//!                            3 a Read completes
//!                            4 a Write completes
//!                            5 the stream opens; first byte: bit 0 the peer's address, bit 1 the peer issues Reads
//!                            6 the stream ends
//!                            7 the time advances by 100 ms times the first byte
//!   length (1)
//!   bytes (length)
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use config::ServiceKind;
use control::service::{AcceptedStream, Action, Actions, Input, Service, Slot};
use ddp::{Stag, StreamId};

/// Length of each stream's memory, in bytes. The service must stay within it.
const SLOT: u64 = 8192;
/// Maximum number of actions that one record may cause, over all streams.
const ACTIONS: usize = 16;

pub(crate) fn service(data: &[u8]) {
    let Some((&config, mut records)) = data.split_first() else { return };
    let kind = if config & 1 != 0 { ServiceKind::Rping } else { ServiceKind::Perftest };
    let mut host = Host {
        service: Service::new(kind, 64),
        now: Instant::now(),
        open_streams: BTreeSet::new(),
        next_ids: [0, 1, 2, 3],
    };
    while let Some((&[action, len], rest)) = records.split_first_chunk::<2>() {
        let (bytes, next) = rest.split_at(usize::from(len).min(rest.len()));
        records = next;
        host.input_record(action, bytes);
    }
    let mut out = Actions::new();
    for stream in host.open_streams {
        host.service.on_closed(stream, host.now, &mut out);
    }
    assert_eq!(host.service.sessions(), 0, "sessions of streams that have ended");
    assert_eq!(host.service.poll_timeout(), None, "a timer of streams that have ended");
}

struct Host {
    service: Service,
    now: Instant,
    open_streams: BTreeSet<StreamId>,
    /// Identifiers of the four streams that a record can select. Each stream is open, or not opened yet. The
    /// identifier of a closed stream is replaced.
    next_ids: [u64; 4],
}

impl Host {
    fn input_record(&mut self, action: u8, bytes: &[u8]) {
        let place = usize::from(action & 3);
        let stream = StreamId(self.next_ids[place]);
        let first = bytes.first().copied().unwrap_or(0);
        let mut out = Actions::new();
        let input = match action >> 2 & 7 {
            0 | 1 => Input::Received(bytes.to_vec()),
            2 => Input::Written { len: u64::from(first) },
            3 => Input::ReadDone,
            4 => Input::WriteDone,
            5 => {
                if self.open_streams.insert(stream) {
                    let slot = Slot { stag: Stag(5 + place as u32), to: 4096, len: SLOT };
                    let peer = IpAddr::from([10, 0, 0, first & 1]);
                    let arrival = AcceptedStream { peer, slot: Some(slot), reads: first & 2 != 0 };
                    self.service.on_opened(stream, arrival);
                }
                return;
            }
            6 => return self.close(stream),
            _ => {
                self.now += Duration::from_millis(100) * u32::from(first);
                if self.service.poll_timeout().is_some_and(|at| at <= self.now) {
                    self.service.handle_timeout(self.now, &mut out);
                }
                return self.execute(out);
            }
        };
        // The stream need not be open: a worker's report may arrive after the stream's end.
        self.service.input(stream, input, self.now, &mut out);
        self.execute(out);
    }

    fn close(&mut self, stream: StreamId) {
        let mut out = Actions::new();
        if self.open_streams.remove(&stream) {
            self.next_ids[(stream.0 % 4) as usize] += 4;
            self.service.on_closed(stream, self.now, &mut out);
        }
        self.execute(out);
    }

    fn execute(&mut self, out: Actions) {
        assert!(out.len() <= ACTIONS, "{} actions", out.len());
        assert!(self.service.sessions() <= self.open_streams.len());
        let mut ended = Vec::new();
        for (stream, action) in out {
            assert!(self.open_streams.contains(&stream), "{action:?} on a stream that is not open");
            match action {
                Action::Write { len, .. } | Action::Read { len, .. } => {
                    assert!(u64::from(len) <= SLOT, "{len} bytes of a slot of {SLOT}");
                }
                Action::Send { bytes, .. } => assert!(bytes.len() <= 256),
                Action::WriteBytes { bytes, .. } => assert!(bytes.len() as u64 <= SLOT),
                Action::End(why) => {
                    assert!(!why.is_empty());
                    ended.push(stream);
                }
                Action::RepostBuffer | Action::AllowSend => {}
            }
        }
        for stream in ended {
            self.close(stream);
        }
    }
}
