//! Streams whose peer has closed its sending direction. They are closed once all received messages are answered (RFC
//! 5041 §6.2.1).

use ddp::rdmap::Outcome;
use ddp::{Msn, Qn};

use super::rdmap::{closes, posts, serving_bench};
use super::*;

const FIRST_STREAM: StreamId = StreamId(1);

fn peer_closes(bench: &mut Bench) -> Vec<Command> {
    bench.event(Event::PeerClosed { stream: FIRST_STREAM, incomplete: false });
    bench.all_commands()
}

fn untagged(data: &[u8]) -> Event {
    let (qn, msn) = (Qn(0), Msn(1));
    Event::Untagged { stream: FIRST_STREAM, qn, msn, data: data.to_vec(), rsvd_ulp: [0; 5] }
}

/// Returns a bench with a bare DDP listener whose queue has these keys, and an established stream.
fn with_queue(keys: &str) -> Bench {
    let queue = "[[listener.queue]]\nqn = 0\nbuffers = 4\nbuffer_size = \"1 KiB\"\n";
    let mut bench = bench_with(&format!("{BASIC}{queue}{keys}"));
    bench.accept_stream(1, "10.0.0.2");
    bench.all_commands();
    bench
}

#[test]
fn idle_half_closed_stream_closes_at_once() {
    let mut bench = with_queue("deliver_to = \"events\"");
    bench.event(untagged(b"news"));
    assert_eq!(closes(&peer_closes(&mut bench), FIRST_STREAM), [false]);
}

#[test]
fn ddp_echo_is_acknowledged_before_the_close() {
    let mut bench = with_queue("deliver_to = \"echo\"");
    bench.event(untagged(b"one"));
    bench.event(untagged(b"two"));
    let commands = peer_closes(&mut bench);
    assert!(closes(&commands, FIRST_STREAM).is_empty(), "{commands:?}");
    let tickets: Vec<Ticket> = commands
        .iter()
        .filter_map(|command| match command {
            Command::Post { ticket, .. } => Some(*ticket),
            _ => None,
        })
        .collect();
    assert_eq!(tickets.len(), 2);
    bench.event(Event::Sent { stream: FIRST_STREAM, ticket: tickets[0] });
    assert!(closes(&bench.all_commands(), FIRST_STREAM).is_empty());
    bench.event(Event::Sent { stream: FIRST_STREAM, ticket: tickets[1] });
    assert_eq!(closes(&bench.all_commands(), FIRST_STREAM), [false]);
}

#[test]
fn rdmap_echo_is_acknowledged_before_the_close() {
    let queue = "\n[[listener.queue]]\nqn = 0\ndeliver_to = \"echo\"";
    let mut bench = serving_bench(&format!("regions = [\"scratch\"]{queue}"));
    bench.accept_stream(1, "10.0.0.2");
    bench.receive_send(FIRST_STREAM, b"hello");
    let commands = peer_closes(&mut bench);
    assert!(closes(&commands, FIRST_STREAM).is_empty(), "{commands:?}");
    bench.complete_post(FIRST_STREAM, posts(&commands)[0].1, Outcome::Sent);
    assert_eq!(closes(&bench.all_commands(), FIRST_STREAM), [false]);
}

/// The close tells the client that the file contains its message.
#[test]
fn message_for_a_file_is_written_before_the_close() {
    let mut bench = with_queue("deliver_to = \"file\"\npath = \"DIR/queue\"");
    bench.event(untagged(b"line"));
    let mut commands = peer_closes(&mut bench);
    assert!(closes(&commands, FIRST_STREAM).is_empty(), "before the writer's report");
    let deadline = Instant::now() + Duration::from_secs(30);
    while closes(&commands, FIRST_STREAM).is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
        bench.core.handle_reports();
        commands = bench.all_commands();
    }
    assert_eq!(std::fs::read(bench.dir.path().join("queue")).unwrap(), b"\0\0\0\x04line");
}

/// The stream's close waits for rping's Write and Send, not for its Read, which the peer can no longer answer.
#[test]
fn service_answers_are_acknowledged_before_the_close() {
    let rping = |bench: &mut Bench| {
        bench.request_stream(1, "10.0.0.2");
        bench.acknowledge_all();
        bench.establish_stream(1, "10.0.0.2", None, &[]);
        let place = [&1000u64.to_be_bytes()[..], &9u32.to_be_bytes(), &64u32.to_be_bytes()];
        bench.receive_send(FIRST_STREAM, &place.concat());
        let commands = bench.all_commands();
        (posts(&commands)[0].1, place.concat())
    };
    let listener = "service = \"rping\"\nregions = [\"scratch\"]";
    let mut bench = serving_bench(listener);
    rping(&mut bench);
    assert_eq!(closes(&peer_closes(&mut bench), FIRST_STREAM), [false]);

    let mut bench = serving_bench(listener);
    let (read, place) = rping(&mut bench);
    bench.complete_post(FIRST_STREAM, read, Outcome::Read { len: 64 });
    bench.receive_send(FIRST_STREAM, &place);
    let commands = peer_closes(&mut bench);
    let tickets: Vec<Ticket> = posts(&commands).iter().map(|(_, ticket)| *ticket).collect();
    assert_eq!((tickets.len(), closes(&commands, FIRST_STREAM).len()), (3, 0));
    for ticket in tickets {
        assert!(closes(&bench.all_commands(), FIRST_STREAM).is_empty());
        bench.complete_post(FIRST_STREAM, ticket, Outcome::Sent);
    }
    assert_eq!(closes(&bench.all_commands(), FIRST_STREAM), [false]);
}
