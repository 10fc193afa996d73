//! SCTP dialogues in virtual time. The test acts as the host. The encoder for scripts builds the host's packets.

use dialogue::chunks::Conversation;
use dialogue::received_packet::ReceivedPacket;
use dialogue::script::{Action, Script};

use super::super::chunks::SctpCodec;
use super::super::*;
use super::PORTS;

const TAG: u32 = 0x0a0b_0c0d;

/// The tester, and a host that sends packets written as `<` lines.
struct TestDialogue {
    player: Player<SctpCodec>,
    host: Conversation,
    now: Instant,
}

/// Parses the action of a line.
fn action(line: &str) -> Action {
    let script = Script::parse(&format!("title x\nset stack sctp\n{line}\n")).expect("a line");
    script.steps[0].action.clone()
}

impl TestDialogue {
    fn new(text: &str) -> TestDialogue {
        let script = Script::parse(&format!("title x\nset stack sctp\n{text}")).expect("a script");
        let partner = SctpCodec::new(&script, TAG, PORTS).expect("good settings");
        let player = Player::new(script, partner, Tolerance::default());
        let host = Conversation::new(PORTS.1, PORTS.0, 0x7777, 500);
        let mut talk = TestDialogue { player, host, now: Instant::from_millis(5) };
        talk.player.handle_timeout(talk.now);
        talk
    }

    /// Delivers a packet of the host, written as in a `<` line.
    fn host_sends(&mut self, line: &str) {
        let bytes = self.build_packet(line);
        self.player.input(self.now, TransportPacket::Sctp(bytes)).expect("nothing is damaged");
    }

    fn build_packet(&mut self, line: &str) -> Vec<u8> {
        let Action::SendPacket(line) = action(&format!("0 < {line}")) else { panic!("{line}") };
        self.host.build_packet(&line).expect("a packet")
    }

    /// Checks that the next packet of the tester matches `line`, written as in a `>` line.
    fn assert_sent(&mut self, line: &str) {
        let sent = self.player.poll_transmit().expect("the script sends something");
        let TransportPacket::Sctp(bytes) = sent else { panic!("{sent:?}") };
        let Action::ExpectPacket(line) = action(&format!("0 > {line}")) else { panic!("{line}") };
        let packet = ReceivedPacket::parse(&bytes).expect("a packet");
        self.host.compare(&line, &packet).expect("as it must be");
    }

    fn open(&mut self) {
        self.assert_sent("INIT");
        self.host_sends("INIT_ACK");
        self.assert_sent("COOKIE_ECHO");
        self.host_sends("COOKIE_ACK");
    }

    fn wait(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        while let Some(time) = self.player.poll_timeout().filter(|&time| time <= until) {
            self.now = self.now.max(time);
            self.player.handle_timeout(self.now);
        }
        self.now = until;
    }

    fn assert_met(&mut self) -> PlaySummary {
        self.wait(2000);
        let outcome = self.player.outcome().expect("it is over").clone();
        outcome.expect("it came true")
    }

    fn assert_fails(&mut self) -> String {
        self.wait(20_000);
        let outcome = self.player.outcome().expect("it is over").clone();
        outcome.expect_err("it must not come true").message
    }
}

const OPEN: &str = "0 < INIT\n. > INIT_ACK\n. < COOKIE_ECHO\n. > COOKIE_ACK\n";

#[test]
fn association_is_opened_and_aborted_at_the_end() {
    let mut talk = TestDialogue::new(OPEN);
    assert!(talk.player.abort_packet().is_none(), "the host has not answered");
    talk.open();
    talk.assert_met();
    let abort = talk.player.abort_packet().expect("there is an association");
    talk.player.outgoing.push_back(abort);
    talk.assert_sent("ABORT");
}

#[test]
fn foreign_packets_are_ignored_and_damaged_packets_fail() {
    let mut talk = TestDialogue::new(OPEN);
    talk.assert_sent("INIT");
    let mut other = talk.build_packet("packet dport=9 | INIT_ACK");
    assert_eq!(talk.player.input(talk.now, TransportPacket::Sctp(other.clone())), Ok(()));
    assert!(talk.player.arrived.is_empty());
    other[20] ^= 1;
    assert!(talk.player.input(talk.now, TransportPacket::Sctp(other)).is_err());
}

// RFC 5043 §5.2.3; docs/protocol.md, section 2: the host's Accept advertises a region. The player replaces STag 16 and
// adds the base TO in tagged segments.
#[test]
fn accept_private_data_retargets_the_script() {
    let mut talk = TestDialogue::new(&format!(
        "{OPEN}. < DATA tsn=0 n=0 initiate\n. do accept\n. > SACK cum=0 | DATA tsn=0 n=0 accept\n\
         . < SACK cum=0 | DATA tsn=1 n=1 tagged to=3 len=1\n. < DATA tsn=2 n=2 tagged stag=77 to=3 len=1\n"
    ));
    talk.open();
    talk.assert_sent("DATA tsn=0 n=0 initiate");
    let advert = "4444504101000001010203040102000000000000000001000000000000000009";
    talk.host_sends(&format!("SACK cum=0 | DATA tsn=0 n=0 accept pd=hex:{advert}696e"));
    talk.assert_sent("SACK cum=0 | DATA tsn=1");
    talk.assert_sent("DATA tsn=2");
    let pieces = talk.player.script.steps.iter().rev().take(2).map(|step| match &step.action {
        Action::SendPacket(line) => line.chunks.last().expect("a chunk").args.to_string(),
        other => panic!("{other:?}"),
    });
    let pieces: Vec<String> = pieces.collect();
    assert_eq!(pieces[0], "tsn=2 n=2 tagged stag=77 to=3 len=1");
    assert_eq!(pieces[1], "tsn=1 n=1 tagged to=259 len=1 stag=16909060");
    talk.assert_met();
}

#[test]
fn extra_sacks_and_retransmissions_are_skipped() {
    let text = format!(
        "{OPEN}. < DATA tsn=0 n=0 initiate\n. do accept\n. > DATA tsn=0 n=0 accept\n\
         . < DATA tsn=1 n=1 tagged to=0 len=9\n1 < DATA tsn=2 n=2 tagged to=9 len=9\n. > SACK cum=2\n"
    );
    let mut talk = TestDialogue::new(&text);
    talk.open();
    talk.assert_sent("DATA tsn=0 n=0 initiate");
    talk.host_sends("SACK cum=0");
    talk.host_sends("DATA tsn=0 n=0 accept");
    talk.assert_sent("DATA tsn=1 n=1 tagged to=0 len=9");
    talk.host_sends("SACK cum=1");
    talk.wait(500);
    talk.host_sends("DATA tsn=0 n=0 accept");
    talk.wait(500);
    talk.assert_sent("DATA tsn=2 n=2 tagged to=9 len=9");
    talk.host_sends("SACK cum=2");
    let played = talk.assert_met();
    assert_eq!((played.extra_acks, played.retransmissions), (2, 1));
    // DATA that no line expects fails the dialogue.
    let mut talk = TestDialogue::new(&text);
    talk.open();
    talk.host_sends("SACK cum=0");
    talk.host_sends("DATA tsn=0 n=0 accept");
    talk.host_sends("DATA tsn=1 n=1 terminate");
    assert!(talk.assert_fails().starts_with("unexpected"));
}

// RFC 9260 §6.2: a SACK is delayed by less than half a second.
#[test]
fn delayed_sack_may_take_half_a_second() {
    let text = format!("{OPEN}. < DATA tsn=0 n=0 terminate\n+0.04 > SACK cum=0\n");
    let play = |millis| {
        let mut talk = TestDialogue::new(&text);
        talk.open();
        talk.wait(millis);
        talk.host_sends("SACK cum=0");
        talk
    };
    play(0).assert_met();
    play(500).assert_met();
    play(521).assert_fails();
}
