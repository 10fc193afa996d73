//! Helpers of RDMAP tests: a listener with a service, a stream to a peer, and posted operations.

use api::{ConnectSpec, UlpChoice};
use ddp::enhanced::{Agreement, Depths, Readiness};
use ddp::rdmap::{Outcome, WorkRequest};

use super::*;

/// The stream that [`connected_bench`] opens.
pub(super) const OPENED: StreamId = StreamId(5);

/// Returns a bench with the regions `scratch` and `own` of 64 KiB, and a listener `in` with these keys. A service that
/// uses `scratch` has four slots of 16 KiB, one per stream.
pub(super) fn serving_bench(keys: &str) -> Bench {
    let text = format!(
        r#"
[[region]]
name = "scratch"
size = "64 KiB"
access = "rw"
shared = true
[[region]]
name = "own"
size = "64 KiB"
access = "rw"
[[listener]]
name = "in"
interface = "i"
port = 7471
ulp = "rdmap"
{keys}
[listener.limits]
streams = 4
streams_per_peer = 4
pending = 4
"#
    );
    bench_with(&(host!().to_owned() + &text))
}

pub(super) fn rdmap_spec() -> ConnectSpec {
    ConnectSpec { ulp: UlpChoice::Rdmap, ..ConnectSpec::to_remote(remote("10.0.0.9")) }
}

/// Returns the advertisement of a peer's region: 1 KiB from TO 4096, with these rights (`r`, `w`, `a`).
pub(super) fn offer(name: &str, rights: &str) -> Advertised {
    Advertised {
        name: name.into(),
        stag: 77,
        base_to: 4096,
        len: 1024,
        remote_read: rights.contains('r'),
        remote_write: rights.contains('w'),
        remote_atomic: rights.contains('a'),
        busy: false,
    }
}

/// Establishes the pending active open as [`OPENED`]. The peer advertises `offers`.
pub(super) fn establish(bench: &mut Bench, offers: &[Advertised]) {
    establish_with_reads(bench, offers, false);
}

/// Establishes the pending active open, with an agreement on IRD and ORD (RFC 6581 §9) if `agreed`.
pub(super) fn establish_with_reads(bench: &mut Bench, offers: &[Advertised], agreed: bool) {
    let commands = bench.all_commands();
    let ticket = commands.iter().find_map(|command| match command {
        Command::Connect(connect) => Some(connect.ticket),
        _ => None,
    });
    assert!(ticket.is_some(), "{commands:?}");
    let StreamParams::Tcp(mut params) = PARAMS else { panic!("not TCP") };
    let depths = Depths { ird: 4, ord: 4 };
    let readiness = Readiness::ClientServer;
    params.agreed = agreed.then_some(Agreement { depths, peer: depths, readiness });
    bench.establish_stream_with(OPENED.0, "10.0.0.9", ticket, offers, StreamParams::Tcp(params));
}

/// Returns a bench with an established stream [`OPENED`].
pub(super) fn connected_bench(offers: &[Advertised]) -> Bench {
    let mut bench = bench();
    let _pending = bench.call(Request::Connect(rdmap_spec()));
    establish(&mut bench, offers);
    for command in bench.all_commands() {
        if let Command::ListStreams { ticket, .. } = command {
            bench.report_list(ticket, vec![], true);
        }
    }
    bench
}

/// Returns the posted operations with their tickets, in order.
pub(super) fn posts(commands: &[Command]) -> Vec<(&WorkRequest<Memory>, Ticket)> {
    let posts = commands.iter().filter_map(|command| match command {
        Command::PostRdmap { request, ticket, .. } => Some((request, *ticket)),
        _ => None,
    });
    posts.collect()
}

pub(super) fn send_bytes(request: &WorkRequest<Memory>) -> &[u8] {
    match request {
        WorkRequest::Send { source: ddp::Source::Bytes(bytes), .. } => bytes,
        _ => panic!("{request:?}"),
    }
}

pub(super) fn removed_stags(commands: &[Command]) -> Vec<ddp::Stag> {
    let stags = commands.iter().filter_map(|command| match command {
        Command::RemoveStag { stag, .. } => Some(*stag),
        _ => None,
    });
    stags.collect()
}

/// Returns the closes of a stream: true for an abort.
pub(super) fn closes(commands: &[Command], id: StreamId) -> Vec<bool> {
    let closes = commands.iter().filter_map(|command| match command {
        Command::Close { stream, abort } if *stream == id => Some(*abort),
        _ => None,
    });
    closes.collect()
}

impl Bench {
    pub(super) fn complete_post(&mut self, id: StreamId, ticket: Ticket, outcome: Outcome) {
        self.event(Event::Completed { stream: id, ticket, outcome });
    }

    /// Delivers a Send of the peer.
    pub(super) fn receive_send(&mut self, id: StreamId, data: &[u8]) {
        let data = data.to_vec();
        self.event(Event::Received { stream: id, data, solicited: false, invalidated: None });
    }

    /// Acknowledges all commands that are answered by `Done`. Returns all commands.
    pub(super) fn acknowledge_all(&mut self) -> Vec<Command> {
        let mut all = Vec::new();
        loop {
            self.core.finish_turn(self.now);
            let commands = self.all_commands();
            if commands.is_empty() {
                return all;
            }
            for command in &commands {
                if let Some(ticket) = ticket(command) {
                    self.acknowledge_ticket(ticket);
                }
            }
            all.extend(commands);
        }
    }
}
