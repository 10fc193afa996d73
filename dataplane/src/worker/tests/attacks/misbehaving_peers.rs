//! Peers that violate TCP on their own streams. Other streams are not affected.

use tcp_lite::tcp::{Flags, SeqNumber};

use super::*;

/// Number of bytes that the victim sends to the attacker during the attack.
const BAIT_LEN: usize = 8 << 20;

/// Applies `change` to the TCP segment of a frame from the attacker to the victim, and corrects length and checksums.
/// Other frames are returned unchanged.
pub(super) fn rewrite_segment(
    frame: &TestFrame,
    change: impl FnOnce(&mut Segment<'_>),
) -> TestFrame {
    let Some((at, ip)) = tcp_offsets(&frame.0) else { return frame.clone() };
    let bytes = frame.0[at..].to_vec();
    let Ok(mut segment) = Segment::parse(&bytes) else { return frame.clone() };
    change(&mut segment);
    let mut out = frame.0[..at].to_vec();
    out.resize(at + segment.wire_len(), 0);
    segment.emit(&mut out[at..]);
    let len = (out.len() - ip) as u16;
    out[ip + 2..ip + 4].copy_from_slice(&len.to_be_bytes());
    out[ip + 10..ip + 12].fill(0);
    let sum = !checksum::sum(&out[ip..at]);
    out[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    let sum = checksum::segment(v4(3), v4(2), TCP, &out[at..]);
    out[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    TestFrame::new(out)
}

/// Returns true for an ACK without text.
fn is_ack(frame: &TestFrame) -> bool {
    tcp_offsets(&frame.0).is_some_and(|(at, _)| {
        Segment::parse(&frame.0[at..]).is_ok_and(|s| s.flags == Flags::ACK && s.payload.is_empty())
    })
}

/// Runs the attack: the victim sends to the attacker. `mangle` rewrites the frames that the attacker sends once its
/// stream is open, or with `from_the_start` all of them, including the SYN.
fn run_misbehaving_peer(
    from_the_start: bool,
    mut mangle: impl FnMut(TestFrame) -> Vec<TestFrame> + 'static,
) -> Scene {
    let make = || {
        let mut scene = Scene::new(Limits::default());
        let sink = scene.net.hosts[ATTACKER].region(SINK.0, BAIT_LEN, Access::REMOTE_WRITE);
        assert_eq!(sink.len(), BAIT_LEN as u64);
        scene
    };
    let bait = |scene: &mut Scene| {
        let source = scene.net.hosts[VICTIM].region(SOURCE.0, BAIT_LEN, Access::NONE);
        let ticket = scene.net.hosts[ATTACKER].connect(0, (v4(2), PORT).into());
        let mut stream = None;
        for _ in 0..500 {
            scene.step();
            let incoming = |e: &Event| match e {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            };
            if let Some(there) = scene.net.hosts[VICTIM].take_event(incoming) {
                scene.net.accept(VICTIM, there);
                stream = Some(there);
            }
        }
        let established = |e: &Event| match e {
            Event::Established { ticket: t, stream, .. } => (*t == Some(ticket)).then_some(*stream),
            _ => None,
        };
        let here = scene.net.hosts[ATTACKER].take_event(established).expect("a stream");
        // RFC 5044 §7.1.2 (4): the responder must not send before the initiator's first FPDU.
        scene.net.hosts[ATTACKER].send(here, b"go on");
        for _ in 0..50 {
            scene.step();
        }
        let there = stream.expect("the victim's end");
        scene.net.hosts[VICTIM].write(there, (SOURCE, &source), SINK, BAIT_LEN as u32);
    };
    // A run with a compliant attacker, for comparison.
    let mut scene = make();
    bait(&mut scene);
    let alone = scene.transfer(no_attack);
    let mut scene = make();
    let mut armed = from_the_start;
    let arm = std::rc::Rc::new(std::cell::Cell::new(armed));
    let trigger = arm.clone();
    scene.mangle = Box::new(move |from, frame| {
        armed |= trigger.get();
        if from != ATTACKER || !armed || tcp_offsets(&frame.0).is_none() {
            return vec![frame];
        }
        mangle(frame)
    });
    bait(&mut scene);
    arm.set(true);
    let attacked = scene.transfer(no_attack);
    assert!(attacked * 9 <= alone * 10, "{attacked:?} instead of {alone:?}");
    scene
}

/// Returns state and statistics of the victim's end of the attacker's stream.
fn attacker_stream_info(scene: &Scene) -> (tcp::Info, tcp::Stats) {
    let stream =
        scene.net.hosts[VICTIM].cores[0].stream_of_peer(v4(3)).expect("the attacker's stream");
    (stream.connection().info(), stream.stats().tcp)
}

#[test]
fn optimistic_acks_of_a_peer_acknowledge_no_unsent_data() {
    // Each acknowledgement is 64 MiB beyond the received data: it covers data that was never sent.
    let scene = run_misbehaving_peer(false, |frame| {
        vec![rewrite_segment(&frame, |s| s.ack = SeqNumber(s.ack.0.wrapping_add(64 << 20)))]
    });
    let (_, stats) = attacker_stream_info(&scene);
    assert!(scene.count("bad_ack") > 0);
    assert!(stats.bytes_acknowledged <= stats.bytes_out);
}

#[test]
fn split_acks_grow_cwnd_by_bytes_only() {
    // RFC 3465 §1: five acknowledgements instead of one. The congestion window grows by acknowledged bytes, not by the
    // number of acknowledgements.
    let mut last = None;
    let scene = run_misbehaving_peer(false, move |frame| {
        let mut ack = 0;
        rewrite_segment(&frame, |s| ack = s.ack.0);
        let from = last.replace(ack).unwrap_or(ack);
        let part = ack.wrapping_sub(from) / 5;
        let at = |n: u32| if n == 5 { ack } else { from.wrapping_add(part * n) };
        (1..=5).map(|n| rewrite_segment(&frame, |s| s.ack = SeqNumber(at(n)))).collect()
    });
    let (info, stats) = attacker_stream_info(&scene);
    assert!(info.cwnd <= 14_600 + 2 * stats.bytes_acknowledged, "{info:?}");
}

#[test]
fn sack_block_storm_does_not_slow_other_streams() {
    let mut n = 0u32;
    let scene = run_misbehaving_peer(false, move |frame| {
        if !is_ack(&frame) {
            return vec![frame];
        }
        let storm = (0..RATE).map(|_| {
            rewrite_segment(&frame, |s| {
                s.options.sack.clear();
                for _ in 0..3 {
                    n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Blocks of at most two bytes, in the first 1 MiB from SEG.ACK on; some are empty or beyond
                    // SND.NXT.
                    let left = s.ack.0.wrapping_add(n >> 12);
                    let block = (SeqNumber(left), SeqNumber(left.wrapping_add(n % 3)));
                    s.options.sack.push(block);
                }
            })
        });
        storm.collect()
    });
    attacker_stream_info(&scene);
}

#[test]
fn reneged_sack_blocks_do_not_stop_the_transfer() {
    // RFC 2018 §8: every other ACK reports a SACK block that the next ACK withdraws. The sender frees data only by
    // cumulative acknowledgement.
    let mut n = 0;
    let scene = run_misbehaving_peer(false, move |frame| {
        n += 1;
        vec![rewrite_segment(&frame, |s| {
            if is_bare(s) && n % 2 == 0 {
                s.options.sack.clear();
                let left = s.ack.0.wrapping_add(3000);
                s.options.sack.push((SeqNumber(left), SeqNumber(left.wrapping_add(3000))));
            }
        })]
    });
    assert!(attacker_stream_info(&scene).1.bytes_acknowledged > 0);
}

fn is_bare(segment: &Segment<'_>) -> bool {
    segment.flags == Flags::ACK && segment.payload.is_empty()
}

#[test]
fn tiny_peer_mss_is_raised_to_the_minimum() {
    let scene = run_misbehaving_peer(true, |frame| {
        vec![rewrite_segment(&frame, |s| s.options.mss = s.options.mss.map(|_| 1))]
    });
    let (info, _) = attacker_stream_info(&scene);
    assert_eq!(info.emss, 48 - 12, "the minimum accepted MSS");
}

#[test]
fn one_byte_windows_trigger_sender_sws_avoidance() {
    // RFC 9293 §3.8.6.2.1: the sender avoids sending single bytes (silly window syndrome).
    let scene = run_misbehaving_peer(false, |frame| {
        vec![rewrite_segment(&frame, |s| {
            s.window = if s.flags.has(Flags::SYN) { s.window } else { 1 }
        })]
    });
    let (info, stats) = attacker_stream_info(&scene);
    assert!(stats.segments_out < 3000, "{info:?} {stats:?}");
}

#[test]
fn permanent_zero_window_is_probed_with_backoff() {
    let scene =
        run_misbehaving_peer(false, |frame| vec![rewrite_segment(&frame, |s| s.window = 0)]);
    let (info, stats) = attacker_stream_info(&scene);
    assert_eq!(info.send_window, 0);
    // RFC 9293 §3.8.6.1: the window is probed at increasing intervals.
    assert!(stats.segments_out < 3000, "{stats:?}");
}
