//! Dialogues with perftest clients, in virtual time.

use super::*;

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));

/// A service, its pending actions and a virtual clock.
struct Bench {
    perftest: Perftest,
    out: Actions,
    now: Instant,
}

impl Bench {
    fn new() -> Bench {
        Bench { perftest: Perftest::new(4096), out: Actions::new(), now: Instant::now() }
    }

    /// Opens stream `id`. `reads`: true if the peer announced that it will issue Reads.
    fn open(&mut self, id: u64, peer: IpAddr, reads: bool) {
        let slot = Slot { stag: Stag(id as u32), to: id << 32, len: 1 << 20 };
        self.perftest.on_opened(StreamId(id), AcceptedStream { peer, slot: Some(slot), reads });
    }

    /// Passes an input to the service. Returns the resulting actions, each with its stream.
    fn input(&mut self, id: u64, input: Input) -> Vec<(u64, Action)> {
        self.perftest.input(StreamId(id), input, self.now, &mut self.out);
        self.take()
    }

    fn send(&mut self, id: u64, bytes: &[u8]) -> Vec<(u64, Action)> {
        self.input(id, Input::Received(bytes.to_vec()))
    }

    /// Removes and returns the pending actions, each with its stream.
    fn take(&mut self) -> Vec<(u64, Action)> {
        self.out.drain(..).map(|(id, action)| (id.0, action)).collect()
    }

    /// Sends the first five control messages. Returns the actions of the fifth.
    fn greet(&mut self, control: u64) -> Vec<(u64, Action)> {
        for message in [&version()[..], &[0; 4], &[0; 4], b"3\0"] {
            assert_eq!(self.send(control, message), [reply(control, message)]);
        }
        self.send(control, &[0; MEMORY_MESSAGE_LEN])
    }

    /// Sets up a client with control stream 1 and data stream 2, up to control message 9.
    fn set_up(&mut self, reads: bool, vaddr: u64) {
        self.open(1, HOST, false);
        assert_eq!(self.greet(1), [reply(1, &[0; MEMORY_MESSAGE_LEN])]);
        self.open(2, HOST, reads);
        assert_eq!(self.send(1, &[0; MEMORY_MESSAGE_LEN]), [reply(1, &[0; MEMORY_MESSAGE_LEN])]);
        for _ in 7..10 {
            let answer = self.send(1, &client(vaddr));
            let slot = Slot { stag: Stag(2), to: 2 << 32, len: 1 << 20 };
            assert_eq!(answer, [reply(1, &memory_message(client(vaddr), slot))]);
        }
    }

    fn advance(&mut self, time: Duration) -> Vec<(u64, Action)> {
        self.now += time;
        self.perftest.handle_timeout(self.now, &mut self.out);
        self.take()
    }
}

fn version() -> Vec<u8> {
    let mut bytes = b"6.06".to_vec();
    bytes.resize(VERSION_MESSAGE_LEN, 0);
    bytes
}

fn client(vaddr: u64) -> Vec<u8> {
    memory_message(vec![0; MEMORY_MESSAGE_LEN], Slot { stag: Stag(0x700), to: vaddr, len: 0 })
}

fn reply(id: u64, bytes: &[u8]) -> (u64, Action) {
    (id, Action::Send { bytes: bytes.to_vec(), answers: true })
}

fn write(id: u64, bytes: Vec<u8>, to: u64) -> (u64, Action) {
    (id, Action::WriteBytes { bytes, destination: RemoteBuffer { stag: Stag(0x700), to } })
}

#[test]
fn write_bandwidth_test_uses_only_the_control_stream() {
    let mut bench = Bench::new();
    bench.set_up(false, 0x10000);
    assert_eq!(bench.input(2, Input::Written { len: 64 }), []);
    assert_eq!(bench.send(1, &client(0x10000)).len(), 1);
    assert_eq!(bench.perftest.poll_timeout(), None, "the client has sent Writes");
    assert_eq!(bench.send(1, &[5; 8]), [reply(1, &[5; 8])]);
    let mut out = Actions::new();
    bench.perftest.on_closed(StreamId(1), bench.now, &mut out);
    assert!(matches!(out.pop_front(), Some((StreamId(2), Action::End(_)))));
    bench.perftest.on_closed(StreamId(2), bench.now, &mut out);
    assert_eq!(bench.perftest.sessions(), 0);
}

#[test]
fn reading_client_receives_no_writes() {
    let mut bench = Bench::new();
    bench.set_up(true, 0x10000);
    bench.send(1, &client(0x10000));
    assert_eq!(bench.perftest.poll_timeout(), None);
}

#[test]
fn send_bandwidth_test_gets_one_credit_write_at_a_time() {
    let mut bench = Bench::new();
    bench.set_up(false, 0x10004);
    let give_back = (2, Action::RepostBuffer);
    let credit = |n: u32| write(2, n.to_le_bytes().to_vec(), 0x10004);
    assert_eq!(bench.send(2, &[1; 100]), [give_back.clone(), credit(1)]);
    assert_eq!(bench.send(2, &[1; 100]), std::slice::from_ref(&give_back));
    assert_eq!(bench.send(2, &[1; 100]), [give_back]);
    assert_eq!(bench.input(2, Input::WriteDone), [credit(3)]);
    assert_eq!(bench.input(2, Input::WriteDone), []);
}

#[test]
fn send_latency_test_echoes_each_send() {
    let mut bench = Bench::new();
    bench.set_up(false, 0x10000);
    bench.send(1, &client(0x10000));
    assert_eq!(bench.send(2, &[7; 9]), [reply(2, &[7; 9])]);
    assert_eq!(bench.advance(WRITE_LATENCY_IDLE), [], "the client was not silent");
}

/// A peer chooses its messages' lengths, and may write repeatedly: the number of answers in flight must be bounded.
#[test]
fn write_latency_answers_in_flight_are_bounded() {
    let measured = || {
        let mut bench = Bench::new();
        bench.set_up(false, 0x10000);
        bench.send(1, &client(0x10000));
        assert_eq!(bench.advance(WRITE_LATENCY_IDLE).len(), 2);
        bench
    };
    let ends = |actions: Vec<(u64, Action)>| matches!(actions[..], [(2, Action::End(_))]);
    let mut bench = measured();
    assert!(!ends(bench.input(2, Input::Written { len: 1 << 20 })), "the whole slot");
    bench.input(2, Input::WriteDone);
    assert!(ends(bench.input(2, Input::Written { len: (1 << 20) + 1 })));
    assert!(ends(measured().input(2, Input::Written { len: u64::MAX })));
    let mut bench = measured();
    let unanswered = (0..100).find(|_| ends(bench.input(2, Input::Written { len: 4 })));
    assert_eq!(unanswered, Some(3), "the client acknowledges nothing");
}

#[test]
fn write_latency_test_starts_after_silence() {
    let mut bench = Bench::new();
    bench.set_up(false, 0x10000);
    bench.send(1, &client(0x10000));
    assert_eq!(bench.advance(WRITE_LATENCY_IDLE - Duration::from_micros(1)), []);
    let first = bench.advance(Duration::from_micros(1));
    assert_eq!(first, [(2, Action::AllowSend), write(2, vec![1; 4096], 0x10000)]);
    for round in 2..300u32 {
        let mut bytes = vec![0, 0, 0];
        bytes.push(round as u8);
        assert_eq!(bench.input(2, Input::Written { len: 4 }), [write(2, bytes, 0x10000)]);
        assert_eq!(bench.input(2, Input::WriteDone), []);
    }
    assert_eq!(bench.perftest.poll_timeout(), None);
}

#[test]
fn clients_of_one_host_open_data_streams_sequentially() {
    let mut bench = Bench::new();
    bench.open(1, HOST, false);
    bench.open(2, HOST, false);
    bench.open(3, OTHER, false);
    assert_eq!(bench.greet(1).len(), 1);
    assert_eq!(bench.greet(2), [], "the answer waits for the first client");
    assert_eq!(bench.greet(3).len(), 1, "another host does not wait");
    bench.open(11, HOST, false);
    // A third client begins before the first one reports its data stream open.
    bench.open(4, HOST, false);
    assert_eq!(bench.send(1, &[0; MEMORY_MESSAGE_LEN]), [], "two streams could be its data stream");
    let answers = bench.send(4, &version());
    let expected = [
        reply(4, &version()),
        reply(1, &[0; MEMORY_MESSAGE_LEN]),
        reply(2, &[0; MEMORY_MESSAGE_LEN]),
    ];
    assert_eq!(answers, expected);
    bench.open(12, HOST, false);
    assert_eq!(bench.send(2, &[0; MEMORY_MESSAGE_LEN]), [reply(2, &[0; MEMORY_MESSAGE_LEN])]);
    let slot = |id: u64| Slot { stag: Stag(id as u32), to: id << 32, len: 1 << 20 };
    assert_eq!(bench.send(1, &client(0)), [reply(1, &memory_message(client(0), slot(11)))]);
    assert_eq!(bench.send(2, &client(0)), [reply(2, &memory_message(client(0), slot(12)))]);
}

#[test]
fn closed_client_lets_the_next_client_open() {
    let mut bench = Bench::new();
    bench.open(1, HOST, false);
    bench.open(2, HOST, false);
    assert_eq!(bench.greet(1).len(), 1);
    assert_eq!(bench.greet(2), []);
    let mut out = Actions::new();
    bench.perftest.on_closed(StreamId(1), bench.now, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(bench.perftest.sessions(), 1);
}

#[test]
fn idle_client_delays_others_of_its_host_at_most_ten_seconds() {
    let mut bench = Bench::new();
    // Stream 20 sends nothing. A stream opened before the answer to message 5 is not a candidate for the data stream.
    bench.open(20, HOST, false);
    bench.open(1, HOST, false);
    bench.open(2, HOST, false);
    assert_eq!(bench.greet(1).len(), 1);
    assert_eq!(bench.greet(2), [], "the first client opens its data stream");
    assert_eq!(bench.advance(OPENING_TIMEOUT - Duration::from_micros(1)), []);
    assert_eq!(bench.perftest.poll_timeout(), Some(bench.now + Duration::from_micros(1)));
    let late = bench.advance(Duration::from_micros(1));
    assert!(
        matches!(&late[..], [(1, Action::End(_)), answer] if *answer == reply(2, &[0; MEMORY_MESSAGE_LEN]))
    );
    bench.open(12, HOST, false);
    assert_eq!(bench.send(2, &[0; MEMORY_MESSAGE_LEN]), [reply(2, &[0; MEMORY_MESSAGE_LEN])]);
    assert_eq!(bench.perftest.poll_timeout(), None);
}

#[test]
fn non_perftest_message_ends_its_stream() {
    let ends = |actions: Vec<(u64, Action)>| matches!(actions[..], [(1, Action::End(_))]);
    let mut bench = Bench::new();
    bench.open(1, HOST, false);
    assert!(ends(bench.send(1, b"GET / HTTP/1.1\r\n")));
    let mut bench = Bench::new();
    bench.open(1, HOST, false);
    bench.greet(1);
    assert!(ends(bench.send(1, &[0; MEMORY_MESSAGE_LEN])), "the client has no data stream");
    assert!(
        !is_version(&[0; VERSION_MESSAGE_LEN]) && !is_version(b"6.06") && is_version(&version())
    );
}
