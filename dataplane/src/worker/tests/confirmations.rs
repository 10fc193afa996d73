//! Only the control thread confirms a peer's data if confirmations are held (docs/protocol.md §6). Tested over both
//! transports and with both ULPs.

use std::sync::Arc;
use std::time::Duration;

use ddp::rdmap::{self, Outcome, WorkRequest};
use ddp::{Cookie, ERROR_QUEUE, EndpointPolicy, Source, Stag, StreamId, TaggedOffset};
use tcp_lite::endpoint::{EndpointConfig, UlpConfig, UlpKind};

use super::test_host::*;
use crate::api::{self, CloseReason, Command, Event, Ticket};

const PORT: u16 = 4793;
/// A duration shorter than the peer's teardown time-out.
const SHORT_WAIT: Duration = Duration::from_secs(2);

/// A stream from the first host to the second, whose control thread confirms received data.
struct HeldStream {
    net: Net,
    ulp: UlpKind,
    here: StreamId,
    there: StreamId,
}

/// Opens a stream for each combination of transport and ULP.
fn all_streams() -> impl Iterator<Item = HeldStream> {
    all_streams_with(EndpointPolicy::default())
}

fn all_streams_with(policy: EndpointPolicy) -> impl Iterator<Item = HeldStream> {
    let tcp = EndpointConfig { policy, ..EndpointConfig::default() };
    let mut sctp = super::sctp::config();
    Arc::make_mut(&mut sctp.endpoint).policy = policy;
    let transports: [api::EndpointConfig; 2] = [tcp.into(), sctp.into()];
    transports.into_iter().flat_map(|transport| {
        [UlpKind::Ddp, UlpKind::Rdmap].map(|ulp| HeldStream::open(transport.clone(), ulp))
    })
}

impl HeldStream {
    fn open(transport: api::EndpointConfig, ulp: UlpKind) -> HeldStream {
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        net.hosts[1].listen_as(PORT, 10, 10, transport.clone());
        net.hosts[1].closes_after_peer = false;
        let mut config: UlpConfig = match ulp {
            UlpKind::Ddp => stream_config().into(),
            UlpKind::Rdmap => rdmap::Config::default().into(),
        };
        config.set_hold_confirmations();
        let (here, there) = net.open_ulp((0, 0), 1, (v4(2), PORT).into(), transport, config);
        let mut held = HeldStream { net, ulp, here, there };
        held.send();
        held
    }

    /// Sends a message from the first host and waits until the second has received it.
    fn send(&mut self) {
        match self.ulp {
            UlpKind::Ddp => {
                self.net.hosts[0].send(self.here, b"message");
            }
            UlpKind::Rdmap => {
                let source = Source::Bytes(b"message".as_slice().into());
                self.post(WorkRequest::send(source, Cookie::user(0)));
            }
        }
        self.net.run_until("the message", |net| {
            net.hosts[1].take_event(|event| {
                matches!(event, Event::Untagged { .. } | Event::Received { .. }).then_some(())
            })
        });
    }

    fn post(&mut self, request: WorkRequest<crate::memory::Memory>) -> Ticket {
        let (stream, region) = (self.here, None);
        self.net.hosts[0].command(0, |ticket| Command::PostRdmap {
            stream,
            request,
            region,
            ticket,
        })
    }

    fn close(&mut self) {
        let stream = self.here;
        self.net.hosts[0].command(0, |_| Command::Close { stream, abort: false });
        self.net.run_until("the peer's close", |net| {
            net.hosts[1].take_event(|event| matches!(event, Event::PeerClosed { .. }).then_some(()))
        });
    }

    fn read_zero_bytes(&mut self) -> Ticket {
        self.post(WorkRequest::Read {
            sink_stag: Stag(0),
            sink_to: TaggedOffset(0),
            source_stag: Stag(0),
            source_to: TaggedOffset(0),
            len: 0,
            cookie: Cookie::user(0),
        })
    }

    fn command_receiver(&mut self, command: impl FnOnce(StreamId) -> Command) {
        let command = command(self.there);
        self.net.hosts[1].command(0, |_| command);
    }

    /// Closes the stream at the second host while it is open at the first, which does not close in return.
    fn close_receiver(&mut self) {
        self.net.hosts[0].closes_after_peer = false;
        self.command_receiver(|stream| Command::Close { stream, abort: false });
        self.net.run_until("the close of the second host", |net| {
            net.hosts[0].take_event(|event| matches!(event, Event::PeerClosed { .. }).then_some(()))
        });
    }

    fn confirm(&mut self) {
        self.command_receiver(|stream| Command::AnnounceClose { stream });
        self.net.run_until("all events", |net| {
            net.hosts[1].take_event(|event| matches!(event, Event::Confirming { .. }).then_some(()))
        });
    }

    /// Returns the reason with which the stream ended at the first host, if it has ended.
    fn take_end(&mut self) -> Option<CloseReason> {
        self.net.hosts[0].take_event(|event| match event {
            Event::Closed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }

    /// Returns true if the peer treats the end as a success: graceful, and without a last message (docs/protocol.md
    /// §6).
    fn ends_gracefully(&mut self) -> bool {
        let reason = self.wait_end();
        let last = self.net.hosts[0]
            .take_event(|e| matches!(e, Event::Untagged { qn: ERROR_QUEUE, .. }).then_some(()));
        reason.is_graceful() && last.is_none()
    }

    fn wait_end(&mut self) -> CloseReason {
        self.net.run_until("the end", |net| {
            net.hosts[0].take_event(|event| match event {
                Event::Closed { reason, .. } => Some(reason.clone()),
                _ => None,
            })
        })
    }
}

#[test]
fn graceful_end_waits_for_the_control_thread() {
    for mut held in all_streams() {
        held.close();
        held.net.advance(SHORT_WAIT);
        assert_eq!(held.take_end(), None);
        held.command_receiver(|stream| Command::Close { stream, abort: false });
        let reason = held.wait_end();
        assert!(reason.is_graceful(), "{reason:?}");
    }
}

#[test]
fn failed_ulp_sends_local_catastrophic_error() {
    for closed in [false, true] {
        for mut held in all_streams() {
            if closed {
                held.close();
            }
            held.command_receiver(|stream| Command::Fail { stream });
            let ulp = held.ulp;
            held.net.run_until("the error", |net| {
                net.hosts[0].take_event(|event| match event {
                    // docs/protocol.md §5: version 1, layer 1, type 0, code 0, no header.
                    Event::Untagged { qn, data, .. } => {
                        assert_eq!(
                            (*qn, &data[..]),
                            (ERROR_QUEUE, &[1, 0x10, 0, 0, 0, 0, 0, 0][..])
                        );
                        (ulp == UlpKind::Ddp).then_some(())
                    }
                    // RFC 5040 §4.8: layer 0, type 0, code 0.
                    Event::Terminated { by_peer: true, terminate, .. } => {
                        let code = (terminate.layer, terminate.error_type, terminate.code);
                        (ulp == UlpKind::Rdmap && code == (0, 0, 0)).then_some(())
                    }
                    _ => None,
                })
            });
            held.wait_end();
        }
    }
}

#[test]
fn held_zero_length_reads_are_answered_in_order_on_release() {
    for mut held in all_streams().filter(|held| held.ulp == UlpKind::Rdmap) {
        let tickets = [held.read_zero_bytes(), held.read_zero_bytes()];
        for ticket in tickets {
            held.net.run_until("the question", |net| {
                net.hosts[1]
                    .take_event(|event| matches!(event, Event::ReadHeld { .. }).then_some(()))
            });
            let answered = |net: &mut Net| {
                net.hosts[0].take_event(|event| match event {
                    Event::Completed { ticket, outcome: Outcome::Read { len: 0 }, .. } => {
                        Some(*ticket)
                    }
                    _ => None,
                })
            };
            held.net.advance(SHORT_WAIT);
            assert_eq!(answered(&mut held.net), None);
            held.command_receiver(|stream| Command::ReleaseRead { stream });
            assert_eq!(held.net.run_until("the answer", answered), ticket);
        }
    }
}

#[test]
fn a_drain_leaves_the_close_to_the_control_thread() {
    for mut held in all_streams() {
        held.net.hosts[1].command(0, |_| Command::Drain);
        held.net.advance(SHORT_WAIT);
        assert_eq!(held.take_end(), None);
        held.command_receiver(|stream| Command::Close { stream, abort: false });
        let reason = held.wait_end();
        assert!(reason.is_graceful(), "{reason:?}");
        held.net.run_until("the drain", |net| {
            net.hosts[1].take_event(|event| matches!(event, Event::Drained).then_some(()))
        });
    }
}

// docs/protocol.md §6: the acknowledgement of the peer's FIN would confirm data received after this end's close. The
// stream therefore ends with an error.
#[test]
fn data_after_local_close_ends_stream_with_error() {
    for sends in [false, true] {
        for mut held in all_streams() {
            held.close_receiver();
            if sends {
                held.send();
            }
            let stream = held.here;
            held.net.hosts[0].command(0, |_| Command::Close { stream, abort: false });
            assert_eq!(held.ends_gracefully(), !sends, "{:?}", held.ulp);
        }
    }
}

#[test]
fn our_close_waits_for_the_answer_to_a_held_read() {
    for mut held in all_streams().filter(|held| held.ulp == UlpKind::Rdmap) {
        held.net.hosts[0].closes_after_peer = false;
        let read_ticket = held.read_zero_bytes();
        held.net.run_until("the question", |net| {
            net.hosts[1].take_event(|event| matches!(event, Event::ReadHeld { .. }).then_some(()))
        });
        held.command_receiver(|stream| Command::Close { stream, abort: false });
        // Longer than the peer's teardown time-out.
        held.net.advance(4 * SHORT_WAIT);
        let closed = |net: &mut Net| {
            net.hosts[0].take_event(|event| matches!(event, Event::PeerClosed { .. }).then_some(()))
        };
        assert_eq!((held.take_end(), closed(&mut held.net)), (None, None));
        held.command_receiver(|stream| Command::ReleaseRead { stream });
        let answered = held.net.run_until("the answer", |net| {
            net.hosts[0].take_event(|event| match event {
                Event::Completed { ticket, outcome: Outcome::Read { len: 0 }, .. } => Some(*ticket),
                _ => None,
            })
        });
        assert_eq!(answered, read_ticket);
        held.net.run_until("the close", closed);
    }
}

#[test]
fn the_idle_time_out_is_left_to_the_control_thread() {
    let idle_timeout = Some(Duration::from_secs(1));
    for mut held in all_streams_with(EndpointPolicy { idle_timeout, ..EndpointPolicy::default() }) {
        let stream = held.net.run_until("the time-out", |net| {
            net.hosts[1].take_event(|event| match event {
                Event::Idle { stream } => Some(*stream),
                _ => None,
            })
        });
        assert_eq!(stream, held.there);
        held.net.advance(SHORT_WAIT);
        assert_eq!(held.take_end(), None);
        // The event is reported only once.
        let again = held.net.hosts[1].take_event(|e| matches!(e, Event::Idle { .. }).then_some(()));
        assert_eq!(again, None);
        held.command_receiver(|stream| Command::Close { stream, abort: false });
        let reason = held.net.run_until("the end", |net| {
            net.hosts[1].take_event(|event| match event {
                Event::Closed { reason, .. } => Some(reason.clone()),
                _ => None,
            })
        });
        assert!(reason.to_string().contains("silent"), "{reason}");
    }
}

#[test]
fn the_control_thread_bounds_the_wait_after_the_peers_close() {
    let minute = Duration::from_secs(60);
    for bounded_there in [false, true] {
        let policy = EndpointPolicy { teardown_timeout: 2 * minute, ..EndpointPolicy::default() };
        for mut held in all_streams_with(policy) {
            held.close();
            if bounded_there {
                held.confirm();
            }
            held.net.advance(minute);
            assert_eq!(held.take_end().is_none(), bounded_there, "{:?}", held.ulp);
        }
    }
}

// docs/protocol.md §6: this end's close would confirm data that arrived after the confirmation began. The stream
// therefore ends with an error.
#[test]
fn unconfirmed_data_turn_close_into_error() {
    for (sends, peer_closes) in [(false, false), (true, false), (true, true)] {
        for mut held in all_streams() {
            held.confirm();
            if sends {
                held.send();
            }
            if peer_closes {
                held.close();
            }
            held.command_receiver(|stream| Command::Close { stream, abort: false });
            assert_eq!(held.ends_gracefully(), !sends, "{:?}", held.ulp);
        }
    }
}
