//! Two ends in virtual time; a test delivers, drops or reorders their segments.

use super::*;

struct Pair {
    client: Tcp,
    server: Tcp,
    now: Instant,
}

/// Returns the events that `tcp` reports to its owner.
fn arrivals(tcp: &mut Tcp) -> Vec<Arrival> {
    std::iter::from_fn(|| tcp.poll_arrival()).collect()
}

fn payloads(parts: &[&[u8]]) -> Vec<Arrival> {
    parts.iter().map(|part| Arrival::Payload(part.to_vec())).collect()
}

impl Pair {
    fn new(client: Settings, server: Settings) -> Pair {
        let now = Instant::from_millis(10);
        // The sequence numbers of both ends wrap.
        let mut client = Tcp::connect(client, (1000, 7), u32::MAX - 3, now);
        let syn = client.poll_transmit().expect("SYN");
        let server = Tcp::accept(server, &syn, u32::MAX - 1, now);
        let mut pair = Pair { client, server, now };
        pair.exchange();
        assert!(pair.client.is_open() && pair.server.is_open());
        pair
    }

    /// Delivers segments in both directions until neither end has more to send.
    fn exchange(&mut self) {
        loop {
            let (from_client, from_server) =
                (self.client.poll_transmit(), self.server.poll_transmit());
            if from_client.is_none() && from_server.is_none() {
                break;
            }
            from_client.iter().for_each(|segment| self.server.input(self.now, segment));
            from_server.iter().for_each(|segment| self.client.input(self.now, segment));
        }
    }

    /// Drops the segments that the client transmits now. Returns their number.
    fn drop_sent(&mut self) -> usize {
        std::iter::from_fn(|| self.client.poll_transmit()).count()
    }

    /// Advances the time by `time`, handles a time-out of the client, and delivers all segments.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.handle_timeout(self.now);
        self.exchange();
    }
}

fn default_pair() -> Pair {
    Pair::new(Settings::default(), Settings::default())
}

#[test]
fn each_piece_is_one_segment() {
    let mut pair = default_pair();
    pair.client.send(0, b"one");
    pair.client.send(3, b"three");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"one", b"three"]));
    pair.client.finish(8);
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), [Arrival::Fin]);
    assert_eq!(pair.client.poll_timeout(), None, "the FIN is acknowledged");
}

#[test]
fn segment_behind_a_hole_waits() {
    let mut pair = default_pair();
    pair.client.send(3, b"def");
    pair.client.send(6, b"g");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), []);
    pair.client.send(0, b"abc");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"abc", b"def", b"g"]));
}

#[test]
fn bytes_that_came_before_are_removed() {
    let mut pair = default_pair();
    pair.client.send(0, b"abcd");
    pair.client.send(2, b"cdef");
    pair.client.send(0, b"ab");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"abcd", b"ef"]));
}

#[test]
fn lost_segment_is_retransmitted_with_its_boundaries() {
    let mut pair = default_pair();
    pair.client.send(0, b"abc");
    pair.client.send(3, b"def");
    assert_eq!(pair.drop_sent(), 2);
    pair.pass(MIN_RTO - Duration::from_millis(1));
    assert_eq!(arrivals(&mut pair.server), []);
    pair.pass(Duration::from_millis(1));
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"abc", b"def"]));
    assert_eq!(pair.client.poll_timeout(), None);
}

#[test]
fn segments_to_lose_are_neither_acknowledged_nor_delivered() {
    let mut pair = default_pair();
    pair.server.lose(1);
    pair.client.send(0, b"abc");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), []);
    pair.pass(MIN_RTO);
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"abc"]));
}

#[test]
fn segments_beyond_the_window_wait() {
    let mut pair = default_pair();
    let bytes = vec![7; usize::from(WINDOW) + 1];
    assert!(pair.client.send(0, &bytes));
    let in_flight: usize = std::iter::from_fn(|| pair.client.poll_transmit())
        .map(|segment| {
            pair.server.input(pair.now, &segment);
            segment.payload.len()
        })
        .sum();
    assert!(in_flight <= usize::from(WINDOW), "{in_flight}");
    pair.exchange();
    let received = arrivals(&mut pair.server);
    let total: usize = received
        .iter()
        .map(|arrival| match arrival {
            Arrival::Payload(bytes) => bytes.len(),
            Arrival::Fin | Arrival::Reset => 0,
        })
        .sum();
    assert_eq!(total, bytes.len());
}

#[test]
fn timestamps_lower_the_emss_if_both_ends_use_them() {
    let with = Settings { timestamps: true, mss: 1000, ..Settings::default() };
    let without = Settings { mss: 1000, ..Settings::default() };
    assert_eq!(Pair::new(with, with).client.emss(), 988);
    assert_eq!(Pair::new(with, without).client.emss(), 1000);
    assert_eq!(Pair::new(without, with).server.emss(), 1000);
}

#[test]
fn lower_mss_cuts_segments_in_flight() {
    let mut pair = default_pair();
    pair.client.send(0, b"abcdef");
    assert_eq!(pair.drop_sent(), 1);
    pair.client.lower_mss(4);
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"abcd", b"ef"]));
}

#[test]
fn reset_within_the_window_ends_the_connection() {
    let mut pair = default_pair();
    pair.client.reset();
    let reset = pair.client.poll_transmit().expect("RST");
    assert_eq!(pair.client.poll_transmit(), None, "all bytes are acknowledged");
    let outside = Segment { seq: reset.seq.wrapping_sub(1), ..reset.clone() };
    pair.server.input(pair.now, &outside);
    assert_eq!(arrivals(&mut pair.server), []);
    pair.server.input(pair.now, &reset);
    assert_eq!(arrivals(&mut pair.server), [Arrival::Reset]);
    assert!(pair.server.is_closed());
}

#[test]
fn flawed_ends_do_what_their_flaw_says() {
    let flawed = Settings { ignores_holes: true, ..Settings::default() };
    let mut pair = Pair::new(Settings::default(), flawed);
    pair.client.send(3, b"def");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"def"]));

    let flawed = Settings { takes_repeats: true, ..Settings::default() };
    let mut pair = Pair::new(Settings::default(), flawed);
    pair.client.send(0, b"abc");
    pair.client.send(0, b"abc");
    pair.exchange();
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"abc", b"abc"]));

    let flawed = Settings { resegments: Some(2), ..Settings::default() };
    let mut pair = Pair::new(flawed, Settings::default());
    pair.client.send(0, b"abc");
    pair.drop_sent();
    pair.pass(MIN_RTO);
    assert_eq!(arrivals(&mut pair.server), payloads(&[b"ab", b"c"]));
}

proptest::proptest! {
    // A hostile device causes neither a panic of the tester nor unbounded memory use.
    #[test]
    fn any_segments_are_bounded(
        segments in proptest::collection::vec(
            (0u32..70_000, proptest::num::u32::ANY, 0u8..64, 0usize..1500),
            0..300,
        ),
    ) {
        let mut tcp = default_pair().client;
        for (offset, ack, flags, length) in segments {
            let segment = Segment {
                src_port: 7,
                dst_port: 1000,
                seq: u32::MAX.wrapping_add(offset),
                ack,
                flags: Flags(flags).without(Flags::RST),
                window: 1000,
                payload: vec![1; length],
                ..Segment::default()
            };
            tcp.input(Instant::from_millis(11), &segment);
            while tcp.poll_transmit().is_some() {}
            arrivals(&mut tcp);
            let kept: usize = tcp.received.behind_hole.values().map(Vec::len).sum();
            proptest::prop_assert!(kept <= usize::from(WINDOW));
        }
    }
}
