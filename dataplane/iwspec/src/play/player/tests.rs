//! TCP dialogues in virtual time. The test acts as the host.

mod sctp;

use dialogue::segment::{Flags, Segment};

use super::segments::TcpCodec;
use super::*;

pub(super) const PORTS: (u16, u16) = (50_000, 7);
const ISS: u32 = 0xffff_fff0;

struct TestDialogue {
    player: Player<TcpCodec>,
    now: Instant,
}

impl TestDialogue {
    fn new(text: &str) -> TestDialogue {
        let script = Script::parse(&format!("title x\n{text}")).expect("good script");
        let partner = TcpCodec::new(&script, 1000, PORTS).expect("good script");
        let player = Player::new(script, partner, Tolerance::default());
        let mut talk = TestDialogue { player, now: Instant::from_millis(5) };
        talk.player.handle_timeout(talk.now);
        talk
    }

    /// Delivers a segment of the host. `seq` and `ack` are relative to the initial sequence numbers of host and tester.
    fn host_sends(&mut self, flags: &str, seq: u32, ack: u32, payload: &[u8]) {
        let segment = Segment {
            src_port: PORTS.1,
            dst_port: PORTS.0,
            seq: ISS.wrapping_add(seq),
            ack: 1000 + ack,
            flags: Flags::from_letters(flags).expect("flags"),
            window: 500,
            payload: payload.to_vec(),
            ..Segment::default()
        };
        self.player.input(self.now, TransportPacket::Tcp(segment)).expect("nothing is damaged");
    }

    fn next_sent(&mut self) -> Segment {
        let sent = self.player.poll_transmit().expect("the script sends something");
        let TransportPacket::Tcp(segment) = sent else { panic!("{sent:?}") };
        segment
    }

    fn wait(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        while let Some(time) = self.player.poll_timeout().filter(|&time| time <= until) {
            self.now = self.now.max(time);
            self.player.handle_timeout(self.now);
        }
        self.now = until;
    }

    fn open(&mut self) {
        assert_eq!(self.next_sent().flags, Flags::SYN);
        self.host_sends("SA", 0, 1, &[]);
        let ack = self.next_sent();
        assert_eq!((ack.seq, ack.ack), (1001, ISS.wrapping_add(1)));
    }

    fn assert_met(&mut self) -> PlaySummary {
        self.wait(1000);
        let outcome = self.player.outcome().expect("it is over").clone();
        outcome.expect("it came true")
    }

    fn assert_fails(&mut self) -> String {
        self.wait(20_000);
        let outcome = self.player.outcome().expect("it is over").clone();
        outcome.expect_err("it must not come true").message
    }
}

const OPEN: &str = "set stack tcp\n0 < S mss=1460\n. > SA\n. < A\n";

#[test]
fn numbers_are_relative_to_the_hosts_iss() {
    let mut talk = TestDialogue::new(
        "set stack tcp\nin a = pattern 9\n0 < S\n. > SA\n. < A\n0.1 < PA data=a\n. > A\n. check x=y\n",
    );
    talk.open();
    talk.wait(99);
    assert_eq!(talk.player.poll_transmit(), None, "not before its time");
    talk.wait(1);
    assert_eq!(talk.next_sent().seq, 1001);
    talk.host_sends("A", 1, 10, &[]);
    assert_eq!(
        talk.assert_met(),
        PlaySummary { skipped_lines: 1, extra_acks: 0, retransmissions: 0 }
    );
    let Some(TransportPacket::Tcp(reset)) = talk.player.abort_packet() else {
        panic!("the host has a connection");
    };
    assert_eq!((reset.seq, reset.flags), (1010, Flags::RST));
}

#[test]
fn packet_outside_its_time_range_fails() {
    let text = format!("{OPEN}+1 > FA\n");
    let play = |millis| {
        let mut talk = TestDialogue::new(&text);
        talk.open();
        talk.wait(millis);
        talk.host_sends("FA", 1, 1, &[]);
        talk
    };
    play(781).assert_met();
    play(1219).assert_met();
    assert!(play(779).assert_fails().starts_with("sent at"));
    assert!(play(1221).assert_fails().starts_with("the host sends nothing"));
}

// RFC 9293 §3.8.6.3 MUST-40: an acknowledgement is delayed by less than half a second.
#[test]
fn delayed_ack_may_take_half_a_second() {
    let text = "set stack tcp\nin a = pattern 9\n0 < S\n. > SA\n. < A\n. < A data=a\n+0.04 > A\n";
    let play = |millis| {
        let mut talk = TestDialogue::new(text);
        talk.open();
        talk.wait(millis);
        talk.host_sends("A", 1, 10, &[]);
        talk
    };
    play(0).assert_met();
    play(500).assert_met();
    play(521).assert_fails();
}

#[test]
fn extra_acks_with_progress_are_skipped() {
    let text = "set stack tcp\nin a = pattern 9\nin b = pattern 9\n0 < S\n. > SA\n. < A\n. < A data=a\n. < A data=b\n. > A ack=b.end\n";
    let mut talk = TestDialogue::new(text);
    talk.open();
    talk.host_sends("A", 1, 10, &[]);
    talk.host_sends("A", 1, 19, &[]);
    assert_eq!(talk.assert_met().extra_acks, 1);
    // An acknowledgement without new information, or of data that was never sent, fails the dialogue.
    for ack in [1, 20] {
        let mut talk = TestDialogue::new(text);
        talk.open();
        talk.host_sends("A", 1, ack, &[]);
        assert!(talk.assert_fails().starts_with("ack is"));
    }
}

#[test]
fn packet_during_quiet_fails() {
    let mut talk = TestDialogue::new(&format!("{OPEN}1 quiet\n"));
    talk.open();
    talk.host_sends("A", 1, 1, &[]);
    assert!(talk.assert_fails().starts_with("unexpected"));
    let mut talk = TestDialogue::new(&format!("{OPEN}1 quiet\n"));
    talk.open();
    talk.wait(1000);
    talk.assert_met();
}

#[test]
fn unacknowledged_segment_may_be_retransmitted() {
    let text = format!("out e = text hello\n{OPEN}. > PA data=e\n+1 < A ack=e\n2 quiet\n");
    let mut talk = TestDialogue::new(&text);
    talk.open();
    talk.host_sends("PA", 1, 1, b"hello");
    talk.wait(200);
    talk.host_sends("PA", 1, 1, b"hello");
    talk.wait(800);
    talk.host_sends("PA", 1, 1, b"hello");
    assert!(talk.assert_fails().starts_with("unexpected"), "quiet is quiet");
    assert_eq!(talk.player.summary.retransmissions, 1);
}

#[test]
fn packet_after_the_last_line_fails() {
    let mut talk = TestDialogue::new(OPEN);
    talk.open();
    talk.wait(10);
    talk.host_sends("RA", 1, 1, &[]);
    assert!(talk.assert_fails().starts_with("unexpected"));
}

#[test]
fn fin_may_arrive_after_its_data() {
    let text = format!("out last = text bye\n{OPEN}. > FPA data=last\n0.1 < FA\n. > A\n");
    let mut talk = TestDialogue::new(&text);
    talk.open();
    talk.host_sends("PA", 1, 1, b"bye");
    talk.host_sends("FA", 4, 1, &[]);
    talk.wait(100);
    assert_eq!(talk.next_sent().ack, ISS.wrapping_add(5));
    talk.host_sends("A", 5, 2, &[]);
    talk.assert_met();
    let mut talk = TestDialogue::new(&text);
    talk.open();
    talk.host_sends("PA", 1, 1, b"bye");
    talk.assert_fails();
}

// RFC 5044 §7.1.1; docs/protocol.md, section 2: the host's MPA Reply advertises a region. The player replaces STag 16
// and adds the base TO in tagged segments, and in the header that an expected Terminate quotes.
#[test]
fn mpa_reply_private_data_retargets_the_script() {
    let mut talk = TestDialogue::new(
        "set stack mpa\nin q = request crc=off\nout r = reply crc=off\nin f = tagged stag=16 to=3 len=1\n\
         out t = untagged qn=2 hex=0111000e00000018c10000000010000000000000000a\n\
         0 < S\n. > SA\n. < A\n. < PA data=q\n. do accept\n. > PA data=r\n. < A data=f\n. > A\n",
    );
    talk.open();
    assert_eq!(talk.next_sent().payload.len(), 20);
    let mut reply = b"MPA ID Rep Frame\x00\x01\x00\x22".to_vec();
    reply.extend(b"DDPA\x01\x00\x00\x01\x01\x02\x03\x04\x01\x02\x00\x00");
    reply.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    reply.extend(b"in");
    talk.host_sends("PA", 1, 21, &reply);
    let fpdu = talk.next_sent();
    assert_eq!(fpdu.ack, ISS.wrapping_add(1 + 54));
    assert_eq!(fpdu.payload[4..16], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 1, 3]);
    talk.host_sends("A", 55, 21 + fpdu.payload.len() as u32, &[]);
    talk.assert_met();
    let quote = talk.player.script.pieces[3].args.get("hex").map(str::to_owned);
    assert_eq!(quote.as_deref(), Some("0111000e00000018c10001020304000000000000010a"));
}

#[test]
fn tolerance_parses_percent_and_milliseconds() {
    let ms = Duration::from_millis;
    let read = |text: &str| text.parse::<Tolerance>().map(|t| (t.percent, t.floor));
    assert_eq!(read("20%+20ms"), Ok((20, ms(20))));
    assert_eq!(read("50ms"), Ok((0, ms(50))));
    assert!(read("20").is_err() && read("x%").is_err());
}
