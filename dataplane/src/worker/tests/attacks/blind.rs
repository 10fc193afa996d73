//! Off-path attackers who know the addresses and ports of a stream and the approximate position of its window, but not
//! the exact sequence numbers (RFC 5961).

use tcp_lite::tcp::{Flags, Options, SeqNumber};

use super::*;

/// Returns segments in the client's name, inside the victim's window but not at its left edge.
fn spoofed_segments(
    scene: &Scene,
    make: impl Fn(&Scene, usize, Segment<'static>) -> Segment<'static>,
) -> Vec<TestFrame> {
    let LastSegment { port, seq, ack, stamps: timestamps } = scene.last_segment;
    let segment = |n: usize| {
        let inside = 20_000 + scene.noise(n) % 40_000;
        let segment = Segment {
            src_port: port,
            dst_port: PORT,
            seq: SeqNumber(seq.wrapping_add(inside)),
            ack: SeqNumber(ack),
            window: 500,
            options: Options { timestamps, ..Options::default() },
            ..Segment::default()
        };
        make(scene, n, segment)
    };
    (0..RATE).map(|n| scene.forge(v4(1), &segment(n))).collect()
}

/// Returns the number of challenge ACKs that the victim has sent on the client's stream.
fn challenge_acks(scene: &Scene) -> u64 {
    let mut streams = scene.net.hosts[VICTIM].cores[0].streams();
    streams.next().expect("the client's stream").stats().tcp.challenge_acks
}

fn run_spoofed_attack(make: impl Fn(&Scene, usize, Segment<'static>) -> Segment<'static>) -> Scene {
    let attack = |scene: &mut Scene| spoofed_segments(scene, &make);
    let (scene, time) = run_under_attack(|| Scene::new(Limits::default()), attack);
    // RFC 5961 §7: at most ten challenge ACKs per second.
    let max_challenges = 10 * (time.as_secs() + 1);
    assert!((1..=max_challenges).contains(&challenge_acks(&scene)), "{}", challenge_acks(&scene));
    assert_eq!(scene.count("streams"), 1);
    scene
}

#[test]
fn blind_resets_are_challenged_and_stream_survives() {
    let scene = run_spoofed_attack(|_, _, s| Segment { flags: Flags::RST, ..s });
    assert!(scene.count("blind_reset") > 1000);
}

#[test]
fn blind_syns_are_challenged_and_stream_survives() {
    let scene = run_spoofed_attack(|_, _, s| Segment { flags: Flags::SYN, ..s });
    assert!(scene.count("unexpected_syn") > 1000);
}

// RFC 5961 §5: a segment with text and an unacceptable acknowledgement is dropped.
#[test]
fn blind_data_with_bad_ack_is_dropped() {
    let scene = run_spoofed_attack(|scene, n, s| {
        let ack = SeqNumber(s.ack.0.wrapping_add(0x4000_0000 + scene.noise(n) % 0x4000_0000));
        Segment { flags: Flags::ACK, ack, payload: &[0x5a; 900], ..s }
    });
    assert!(scene.count("bad_ack") > 1000);
}

#[test]
fn blind_optimistic_acks_are_dropped() {
    let scene = run_spoofed_attack(|_, n, s| Segment {
        flags: Flags::ACK,
        ack: SeqNumber(s.ack.0.wrapping_add(1 + n as u32)),
        ..s
    });
    assert!(scene.count("bad_ack") > 1000);
}

// RFC 5961 §7, CVE-2016-5696: an attack on one stream exhausts only that stream's challenge ACKs.
#[test]
fn exhausted_challenge_acks_do_not_limit_other_streams() {
    let mut scene = Scene::new(Limits::default());
    let (other, _) = scene.net.open(ATTACKER, 0, VICTIM, (v4(2), PORT).into());
    let port = scene.net.hosts[ATTACKER].cores[0].streams().next().expect("the other stream");
    let port = port.connection().ports().0;
    scene.transfer(|scene| spoofed_segments(scene, |_, _, s| Segment { flags: Flags::RST, ..s }));
    let used = challenge_acks(&scene);
    assert!(used >= 10);
    // A SYN with the ports of the other stream, as if its peer had restarted and lost the stream.
    let syn = Segment { src_port: port, dst_port: PORT, flags: Flags::SYN, ..Segment::default() };
    let frame = scene.forge(v4(3), &syn);
    scene.net.hosts[VICTIM].deliver(frame);
    scene.step();
    let each = scene.net.hosts[VICTIM].cores[0].streams().map(|s| s.stats().tcp.challenge_acks);
    assert_eq!(each.sum::<u64>(), used + 1, "the SYN is challenged at once");
    let ticket = scene.net.hosts[ATTACKER].send(other, b"and lives on");
    scene.net.wait_sent(ATTACKER, ticket);
}

#[test]
fn random_spoofed_segments_do_not_slow_the_stream() {
    // Arbitrary sequence numbers and flags: a flood without knowledge of the stream.
    let attack = |scene: &mut Scene| {
        let segment = |n: usize| Segment {
            src_port: scene.last_segment.port,
            dst_port: PORT,
            seq: SeqNumber(scene.noise(n)),
            ack: SeqNumber(scene.noise(n + 50)),
            flags: Flags(scene.noise(n + 90) as u8),
            window: scene.noise(n + 70) as u16,
            payload: &[7; 300],
            ..Segment::default()
        };
        (0..RATE).map(|n| scene.forge(v4(1), &segment(n))).collect()
    };
    let (scene, _) = run_under_attack(|| Scene::new(Limits::default()), attack);
    assert_eq!(scene.count("streams"), 1);
}
