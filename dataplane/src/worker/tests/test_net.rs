//! A wire that connects test hosts, in virtual time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use tcp_lite::endpoint::EndpointConfig;
use tcp_lite::endpoint::UlpConfig;

use super::test_host::*;
use crate::api::{self, Command, Event, Service, Ticket};
use crate::worker::Core;

/// Function that returns true if a frame is lost, given the sender's index and the frame.
type LossFn = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Hosts on a wire. A frame reaches all hosts except the sender. Each host accepts or drops the frame by the frame's
/// destination address.
pub(super) struct Net {
    pub(super) hosts: Vec<Host>,
    pub(super) now: Instant,
    /// Selects the frames that are lost.
    pub(super) is_lost: LossFn,
    /// Time by which `run_until` advances after a turn with work, zero by default.
    pub(super) turn_time: Duration,
}

impl Net {
    pub(super) fn new(plans: &[Plan]) -> Net {
        let hosts = plans.iter().map(Host::new).collect();
        let turn_time = Duration::ZERO;
        Net { hosts, now: START, is_lost: Box::new(|_, _| false), turn_time }
    }

    /// Loses no frame from now on. Returns a recording of the frames that this host sends.
    pub(super) fn record_frames_from(&mut self, host: usize) -> Rc<RefCell<Vec<Vec<u8>>>> {
        let sent = Rc::new(RefCell::new(Vec::new()));
        let seen = sent.clone();
        self.is_lost = Box::new(move |from, frame| {
            if from == host {
                seen.borrow_mut().push(frame.to_vec());
            }
            false
        });
        sent
    }

    /// Runs one turn of each worker, and delivers the frames in flight. Returns true if a worker, an event or a frame
    /// was processed.
    pub(super) fn turn(&mut self) -> bool {
        let mut busy = false;
        for host in &mut self.hosts {
            for core in &mut host.cores {
                busy |= core.turn(self.now);
            }
            host.assert_all_accounted();
            if host.takes_events {
                for (worker, handle) in host.handles.iter_mut().enumerate() {
                    while let Some(event) = handle.poll() {
                        busy = true;
                        if let Event::PeerClosed { stream, .. } = event
                            && host.closes_after_peer
                        {
                            // RFC 5041 §6.2.1: no answers remain to be sent, so this end may close.
                            handle.send(Command::Close { stream, abort: false }).unwrap();
                        }
                        host.events.push((worker, event));
                    }
                }
            }
        }
        for from in 0..self.hosts.len() {
            for frame in self.hosts[from].take_sent() {
                busy = true;
                if (self.is_lost)(from, &frame.0) {
                    continue;
                }
                for (to, host) in self.hosts.iter_mut().enumerate() {
                    if to != from {
                        host.deliver(frame.clone());
                    }
                }
            }
        }
        busy
    }

    /// Runs turns until `done` returns a value, and advances time to the next deadline while idle. Panics if no
    /// deadline remains.
    pub(super) fn run_until<T>(
        &mut self,
        awaited: &str,
        mut done: impl FnMut(&mut Net) -> Option<T>,
    ) -> T {
        for _ in 0..200_000 {
            if let Some(found) = done(self) {
                return found;
            }
            if !self.turn() {
                let cores = self.hosts.iter().flat_map(|h| &h.cores);
                match cores.filter_map(Core::next_deadline).min() {
                    Some(next) => self.now = next.max(self.now + Duration::from_micros(1)),
                    None => panic!("no deadline remains; waiting for {awaited}"),
                }
            } else {
                self.now += self.turn_time;
            }
        }
        panic!("too many turns; waiting for {awaited}");
    }

    /// Runs turns until this time has passed.
    pub(super) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            if !self.turn() {
                let cores = self.hosts.iter().flat_map(|h| &h.cores);
                let next = cores.filter_map(Core::next_deadline).min().unwrap_or(end);
                self.now = next.max(self.now + Duration::from_micros(10)).min(end);
            }
        }
    }

    /// Runs turns until no worker has work and no frame is in flight.
    pub(super) fn run_until_idle(&mut self) {
        while self.turn() {}
    }

    /// Opens a stream from a worker of one host to a listener of another. Returns the stream's id at each end.
    pub(super) fn open(
        &mut self,
        from: usize,
        worker: usize,
        to: usize,
        remote: SocketAddr,
    ) -> (StreamId, StreamId) {
        self.open_as(from, worker, to, remote, EndpointConfig::default())
    }

    pub(super) fn open_as(
        &mut self,
        from: usize,
        worker: usize,
        to: usize,
        remote: SocketAddr,
        endpoint: impl Into<api::EndpointConfig>,
    ) -> (StreamId, StreamId) {
        let ulp = stream_config().into();
        self.open_ulp((from, worker), to, remote, endpoint.into(), ulp)
    }

    /// Opens a stream with this ULP from a worker of one host to a listener of another. Returns the stream's id at each
    /// end.
    pub(super) fn open_ulp(
        &mut self,
        (from, worker): (usize, usize),
        to: usize,
        remote: SocketAddr,
        endpoint: api::EndpointConfig,
        ulp: UlpConfig,
    ) -> (StreamId, StreamId) {
        let ticket = self.hosts[from].connect_ulp(worker, remote, endpoint, ulp.clone());
        let there = self.run_until("a request", |net| {
            net.hosts[to].take_event(|e| match e {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            })
        });
        self.accept_ulp(to, there, ulp);
        let here = self.run_until("both ends", |net| {
            net.hosts[from].take_event(|e| match e {
                Event::Established { stream, ticket: t, .. } if *t == Some(ticket) => Some(*stream),
                Event::ConnectFailed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        });
        (here, there)
    }

    pub(super) fn accept(&mut self, host: usize, stream: StreamId) {
        self.accept_ulp(host, stream, stream_config().into());
    }

    fn accept_ulp(&mut self, host: usize, stream: StreamId, ulp: UlpConfig) {
        let (private_data, service) = (b"welcome".to_vec(), Service::Control);
        let accept = Command::Accept { stream, pd: PD, private_data, ulp, service };
        self.hosts[host].command(stream.worker().into(), |_| accept);
    }

    pub(super) fn wait_sent(&mut self, host: usize, ticket: Ticket) {
        self.run_until("an acknowledgement", |net| {
            net.hosts[host].take_event(|e| match e {
                Event::Sent { ticket: t, .. } if *t == ticket => Some(()),
                Event::PostFailed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        });
    }

    pub(super) fn wait_done(
        &mut self,
        host: usize,
        ticket: Ticket,
    ) -> Result<(), crate::api::CommandError> {
        self.run_until("an answer", |net| {
            net.hosts[host].take_event(|e| match e {
                Event::Done { ticket: t, result } if *t == ticket => Some(result.clone()),
                _ => None,
            })
        })
    }
}
