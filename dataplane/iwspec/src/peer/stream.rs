//! Main loop of a connection: start-up, FPDUs, and the end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connection::{Connection, End};
use super::numbers::llp;
use crate::device::Service;
use crate::message::Kind;

/// Limit for the tester's close after the peer's close.
const LINGER: Duration = Duration::from_secs(2);

impl Connection<'_> {
    /// Serves a connection as the MPA responder.
    pub(super) fn respond(mut self) {
        let result = self.startup_responder().and_then(|()| self.operate());
        self.close(result);
    }

    /// Serves a connection as the MPA initiator.
    pub(super) fn initiate(mut self) {
        let result = self.startup_initiator().and_then(|()| {
            if self.config.service == Service::Rping {
                self.announce();
            }
            if self.config.service == Service::Perftest {
                self.send(Kind::Send, "data=hex:362e3036000000000000000000000000");
            }
            if self.config.service == Service::Peer {
                self.send(Kind::Write, "stag=0 to=0 len=0");
            }
            self.flush()?;
            self.operate()
        });
        self.close(result);
    }

    fn operate(&mut self) -> Result<(), End> {
        loop {
            let Some(fpdu) = self.deframer.next(&self.input) else {
                if !self.input.is_empty() && self.behaves("whole-fpdus") {
                    self.input.clear();
                }
                if !self.input.is_empty() && self.behaves("deliver-partial") {
                    self.hold(Kind::Response, "stag=0 to=0".into());
                }
                self.release();
                self.flush()?;
                self.read_operation()?;
                continue;
            };
            self.input.drain(..fpdu.raw.len());
            if self.behaves("wait-for-segment") {
                self.input.clear();
            }
            let wrong_crc = self.crc && fpdu.crc != fpdu.computed_crc;
            let low = if self.makes("marker-low-bits-are-ignored") { 3 } else { 0 };
            let wrong_marker = fpdu.markers.iter().any(|m| m.pointer & !low != m.expected);
            self.current.clear();
            self.check("crc", wrong_crc, llp::CRC)?;
            self.check("marker", wrong_marker, llp::MARKER)?;
            self.first_fpdu = true;
            self.current = fpdu.ulpdu;
            self.segment()?;
        }
    }

    fn read_operation(&mut self) -> Result<(), End> {
        match self.read(Instant::now() + Duration::from_secs(60)) {
            Err(End::Closed) if !self.input.is_empty() => {
                self.current.clear();
                self.check("fin-in-fpdu", true, llp::CLOSED)?;
                Err(End::Closed)
            }
            result => result,
        }
    }

    fn close(&mut self, result: Result<(), End>) {
        if self.behaves("no-close") {
            while !self.stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if self.behaves("reset") {
            if let Some(stream) = self.stream.take() {
                stream.reset();
            }
            return;
        }
        if let Some(stream) = &mut self.stream {
            stream.finish();
        }
        if result == Err(End::Error) {
            // Reads until the tester closes: closing with unread bytes would reset the connection and lose the
            // Terminate.
            let limit = Instant::now() + LINGER;
            while self.read(limit).is_ok() {
                self.input.clear();
            }
        }
    }
}
