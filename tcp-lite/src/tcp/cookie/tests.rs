//! SYN cookies (RFC 4987 §3.6): content, validity and authenticity.

use proptest::prelude::*;

use super::*;
use crate::tcp::tests::upper::{Batch, Upper};
use crate::tcp::{Event, State};

const LOCAL_MSS: u16 = 1460;
const ROOM: u64 = 16 * 1024;
const OFFER: SynAckOffer = SynAckOffer { mss: LOCAL_MSS, room: ROOM };

fn tuple(port: u16) -> FourTuple {
    FourTuple { local: ([10, 0, 0, 1], 4791).into(), remote: ([10, 0, 0, 2], port).into() }
}

fn syn(options: Options) -> Segment<'static> {
    let (seq, flags) = (SeqNumber(77), Flags::SYN.with(Flags::ECE).with(Flags::CWR));
    Segment { src_port: 5, dst_port: 4791, seq, flags, window: 9000, options, ..Segment::default() }
}

fn all_options(val: u32) -> Options {
    Options {
        mss: Some(1400),
        window_scale: Some(9),
        sack_permitted: true,
        timestamps: Some(Timestamps { val, ecr: 0 }),
        ..Options::default()
    }
}

struct Host {
    cookies: SynCookies,
    config: Arc<Config>,
}

impl Host {
    fn new(secret: u8, config: Config) -> Host {
        Host {
            cookies: SynCookies::new([secret; 16], IsnGenerator::new([!secret; 16])),
            config: Arc::new(config),
        }
    }

    /// Returns the encoded SYN-ACK that answers `syn` from peer port `port`.
    fn answer(&self, port: u16, syn: &Segment<'_>, now: Instant) -> Vec<u8> {
        let mut batch = Batch::new(1);
        assert!(self.cookies.answer(&self.config, &tuple(port), OFFER, syn, now, &mut batch));
        batch.segments.pop().unwrap()
    }

    fn check(&self, port: u16, ack: &Segment<'_>, now: Instant) -> Option<Cookie> {
        self.cookies.check(&self.config, &tuple(port), ack, now)
    }
}

/// Returns the segment with which an honest peer acknowledges `answer`, with TSval `stamp`.
fn reply<'a>(answer: &[u8], stamp: u32, payload: &'a [u8]) -> Segment<'a> {
    let answer = Segment::parse(answer).unwrap();
    let timestamps = answer.options.timestamps.map(|s| Timestamps { val: stamp, ecr: s.val });
    Segment {
        src_port: answer.dst_port,
        dst_port: answer.src_port,
        seq: answer.ack,
        ack: answer.seq.add(1),
        flags: Flags::ACK,
        window: 500,
        options: Options { timestamps, ..Options::default() },
        payload,
        ce: false,
        text_crc: None,
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

#[test]
fn offered_options_survive_in_the_timestamp() {
    let host = Host::new(1, Config::default());
    let bytes = host.answer(5, &syn(all_options(1000)), at(70_123));
    let answer = Segment::parse(&bytes).unwrap();
    assert_eq!(answer.flags, Flags::SYN.with(Flags::ACK).with(Flags::ECE));
    assert_eq!((answer.ack, answer.options.mss), (SeqNumber(78), Some(LOCAL_MSS)));
    assert_eq!(answer.options.window_scale, Some(host.config.window_shift()));
    assert!(answer.options.sack_permitted);
    assert_eq!(answer.options.timestamps.unwrap().ecr, 1000);

    let first: Vec<u8> = (0..12).map(Upper::byte).collect();
    let ack = reply(&bytes, 1001, &first);
    let cookie = host.check(5, &ack, at(70_200)).unwrap();
    let mut conn =
        Connection::accept_cookie(host.config.clone(), tuple(5), OFFER, &cookie, at(70_200));
    let mut up = Upper::default();
    conn.input(at(70_200), &ack, &mut up).unwrap();
    // The acknowledgement carries 12 bytes of data.
    assert_eq!(conn.state(), State::Established);
    assert_eq!(conn.poll_event(), Some(Event::Connected));
    assert_eq!(up.in_order, 12);
    let info = conn.info();
    assert!(info.sack && info.timestamps && info.ecn);
    assert_eq!(info.send_window_shift, Some(9));
    assert_eq!(info.send_window, 500 << 9);
    // The MSS of 1400 is rounded down to 1380, a value of the table. Timestamps take 12 bytes of it.
    assert_eq!(info.emss, 1380 - 12);
    assert_eq!(info.srtt, None, "the round trip of the SYN was not measured");
    // RFC 7323 §3.2: TSval is not less than the TSval of the SYN-ACK.
    let mut batch = Batch::new(4);
    conn.poll_transmit(at(70_200), &mut up, &mut batch);
    conn.handle_timeout(at(71_000), &mut up);
    conn.poll_transmit(at(71_000), &mut up, &mut batch);
    let next = Segment::parse(&batch.segments[0]).unwrap();
    let (first, later) = (answer.options.timestamps.unwrap(), next.options.timestamps.unwrap());
    assert!(!SeqNumber(later.val).before(SeqNumber(first.val)));
    assert_eq!(later.ecr, 1001);
}

#[test]
fn without_timestamps_only_the_mss_survives() {
    let host = Host::new(1, Config::default());
    let plain = Options { timestamps: None, ..all_options(0) };
    let bytes = host.answer(5, &syn(plain), at(0));
    let answer = Segment::parse(&bytes).unwrap();
    // RFC 7323 §2.2, RFC 2018 §2, RFC 3168 §6.1.1: options that cannot be preserved are not accepted.
    assert_eq!(answer.options, Options { mss: Some(LOCAL_MSS), ..Options::default() });
    assert_eq!(answer.flags, Flags::SYN.with(Flags::ACK));
    let cookie = host.check(5, &reply(&bytes, 0, b""), at(0)).unwrap();
    assert_eq!(
        (cookie.mss, cookie.window_scale, cookie.sack, cookie.ecn),
        (1380, None, false, false)
    );
}

#[test]
fn cookie_is_valid_in_its_period_and_the_next() {
    let host = Host::new(1, Config::default());
    let bytes = host.answer(5, &syn(all_options(7)), at(63_000));
    for (ms, good) in [(63_000, true), (64_000, true), (127_999, true), (128_000, false)] {
        let ack = reply(&bytes, 8, b"");
        assert_eq!(host.check(5, &ack, at(ms)).is_some(), good, "{ms}");
    }
    // The two bits of the period repeat after 256 s, but the key has changed.
    assert_eq!(host.check(5, &reply(&bytes, 8, b""), at(63_000 + 256_000)), None);
}

#[test]
fn a_cookie_of_another_connection_is_refused() {
    let host = Host::new(1, Config::default());
    let bytes = host.answer(5, &syn(all_options(7)), at(0));
    let ack = reply(&bytes, 8, b"");
    assert!(host.check(5, &ack, at(10)).is_some());
    assert_eq!(host.check(6, &ack, at(10)), None, "another peer");
    assert_eq!(Host::new(2, Config::default()).check(5, &ack, at(10)), None, "another secret");
    let other = Segment { seq: ack.seq.add(1), ..ack.clone() };
    assert_eq!(host.check(5, &other, at(10)), None, "another initial number of the peer");
    for bit in 0..32 {
        let other = Segment { ack: SeqNumber(ack.ack.0 ^ 1 << bit), ..ack.clone() };
        assert_eq!(host.check(5, &other, at(10)), None, "bit {bit}");
    }
    let mut early = ack.clone();
    early.options.timestamps = Some(Timestamps { val: 8, ecr: 0x4000_0000 });
    assert_eq!(host.check(5, &early, at(10)), None, "an echo of a timestamp that was never sent");
    assert!(!format!("{:?}", host.cookies).contains('1'));
}

#[test]
fn cookie_syn_ack_is_no_longer_than_the_syn() {
    let host = Host::new(1, Config::default());
    let syn = syn(all_options(7));
    assert!(host.answer(5, &syn, at(0)).len() <= syn.wire_len());
    let mut full = Batch::new(0);
    assert!(!host.cookies.answer(&host.config, &tuple(5), OFFER, &syn, at(0), &mut full));
}

proptest! {
    #[test]
    fn cookie_timestamp_keeps_options_and_never_runs_ahead(
        clock: u32,
        scale in proptest::option::of(0u8..15),
        sack: bool,
        ecn: bool,
    ) {
        let kept = PreservedOptions { window_scale: scale, sack, ecn };
        let stamp = kept.encode(clock);
        prop_assert_eq!(PreservedOptions::decode(stamp), kept);
        prop_assert!(clock.wrapping_sub(stamp) < 64);
    }

    // RFC 4987 §3.6: random sequence numbers and timestamps open no connection.
    #[test]
    fn guessed_cookie_is_refused(seq: u32, ack: u32, val: u32, ecr: u32) {
        let host = Host::new(9, Config::default());
        let timestamps = Some(Timestamps { val, ecr });
        let seg = Segment {
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: Flags::ACK,
            options: Options { timestamps, ..Options::default() },
            ..Segment::default()
        };
        prop_assert_eq!(host.check(5, &seg, at(1_000_000)), None);
    }
}

// RFC 7323 §5.4, RFC 6191 §2: a new incarnation with the same four-tuple has later timestamps, whether it is opened
// actively, passively or by a cookie. Otherwise a peer in TIME-WAIT would refuse the SYN.
#[test]
fn later_incarnation_has_later_timestamps() {
    let isn = IsnGenerator::new([7; 16]);
    let cookies = SynCookies::new([9; 16], isn.clone());
    let config = Arc::new(Config::default());
    let val = |batch: &Batch| {
        let seg = Segment::parse(&batch.segments[0]).expect("a SYN");
        SeqNumber(seg.options.timestamps.expect("offered").val)
    };
    for port in 1..200 {
        let (tuple, syn) = (tuple(port), syn(all_options(7)));
        let mut last: Option<SeqNumber> = None;
        for (n, ms) in [1000, 61_000, 61_001, 200_000].into_iter().enumerate() {
            let (now, mut batch) = (at(ms), Batch::new(1));
            let start = isn.generate(&tuple, now);
            let conn = match n {
                0 | 2 => Some(Connection::accept(config.clone(), tuple, start, 1460, &syn, now)),
                1 => Some(Connection::connect(config.clone(), tuple, start, 1460, now)),
                _ => None,
            };
            match conn {
                Some(mut conn) => conn.poll_transmit(now, &mut Upper::default(), &mut batch),
                None => {
                    assert!(cookies.answer(&config, &tuple, OFFER, &syn, now, &mut batch))
                }
            }
            let val = val(&batch);
            assert!(last.is_none_or(|last| val.after(last)), "{port}: {last:?}, {val:?}");
            last = Some(val);
        }
    }
}
