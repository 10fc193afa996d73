//! Dialogues of segments as text, modelled on packetdrill, in virtual time.
//!
//! One step per line: the time in seconds, then
//!
//! ```text
//!   < FLAGS SEQ:END(LEN) [ack N] win W [<OPTIONS>] [! REASON]   a segment arrives; REASON if it is dropped
//!   <+ ...                                                      the same, inside a burst: no answer yet
//!   > FLAGS SEQ:END(LEN) [ack N] [win W] [<OPTIONS>]            the connection sends; `win` and options that are not
//!                                                               given are not compared, but SACK blocks must be given
//!   write N | close | abort | mtu N | room N | batch N          actions of the owner; `mtu` sets the path's MSS
//!   record N                                                    the upper layer sends records of N bytes
//!   take all | take A:B | take none                             part of each span that the upper layer accepts
//!   state NAME | event NAME | got N | spans A:B ... | acked N | emss N | cwnd N | timer TIME   expected values
//!   idle                                                        nothing: time passes
//! ```
//!
//! Flags are `S F R P . U`, with `.` for ACK. Sequence numbers are relative: the SYN is 0, the first byte 1. Both
//! initial sequence numbers are just below 2^32, so that they wrap. Timers that are due at or before the time of a step
//! expire first, each at its own time. Every segment that the connection sends must be expected by a step.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::upper::{Batch, Take, Upper};
use crate::tcp::{
    AckConfig, Config, Connection, DropReason, Extensions, Flags, FourTuple, Options,
    PathMtuConfig, Segment, SeqNumber, Timestamps,
};
use base::Instant;

pub(super) const OUR_ISS: u32 = u32::MAX - 1500;
pub(super) const PEER_ISS: u32 = u32::MAX - 700;

pub(super) struct Script {
    pub(super) conn: Connection,
    pub(super) up: Upper,
    now: Instant,
    sent: VecDeque<(Instant, String)>,
    batch_limit: usize,
    line: String,
    ts_base: Option<u32>,
}

/// Returns a configuration with a small receive window and without timestamps, for readable dialogues.
pub(super) fn config() -> Config {
    Config {
        extensions: Extensions { sack: true, timestamps: false, ecn: false, window_scale: false },
        receive_window: 10_000,
        acks: AckConfig { delay: Duration::from_millis(40), ..AckConfig::default() },
        path_mtu: PathMtuConfig { probing: false, ..PathMtuConfig::default() },
        tail_loss_probe: false, // only the dialogues for tail loss probes enable it
        ..Config::default()
    }
}

/// Returns `config` changed by `change`.
pub(super) fn config_with(mut config: Config, change: impl FnOnce(&mut Config)) -> Config {
    change(&mut config);
    config
}

pub(super) fn tuple() -> FourTuple {
    FourTuple { local: ([10, 0, 0, 1], 4000).into(), remote: ([10, 0, 0, 2], 5000).into() }
}

/// Runs `steps` on an actively opened connection. The first step expects its SYN.
pub(super) fn active(config: Config, steps: &str) -> Script {
    let iss = SeqNumber(OUR_ISS);
    let conn = Connection::connect(Arc::new(config), tuple(), iss, 1000, Instant::ZERO);
    let mut script = Script::new(conn);
    script.poll();
    script.run(steps);
    script
}

/// Runs `steps` on a connection that is passively opened by `syn`, a segment in the notation of scripts.
pub(super) fn passive(config: Config, syn: &str, steps: &str) -> Script {
    let iss = SeqNumber(OUR_ISS);
    let bytes = parse(syn, 0);
    let syn = Segment::parse(&bytes).unwrap();
    let conn = Connection::accept(Arc::new(config), tuple(), iss, 1000, &syn, Instant::ZERO);
    let mut script = Script::new(conn);
    script.poll();
    script.run(steps);
    script
}

/// Runs `steps` on an established connection with timestamps. The peer's TSval is 8 at 0.1 s. The effective MSS is 988.
pub(super) fn timestamped(steps: &str) -> Script {
    let config = config_with(config(), |c| c.extensions.timestamps = true);
    let syn = "S 0:0(0) win 20000 <mss 1000,sackOK,TS val 7 ecr 0>";
    let begin = "0.00 > S. 0:0(0) ack 1
         0.10 < . 1:1(0) ack 1 win 20000 <TS val 8 ecr 0>";
    let mut script = passive(config, syn, begin);
    script.run(steps);
    script
}

/// Runs `steps` on an established connection: MSS 1000, SACK as configured, the peer's window 20,000.
pub(super) fn established(config: Config, steps: &str) -> Script {
    let sack = if config.extensions.sack { ",sackOK" } else { "" };
    let mut script = passive(
        config,
        &format!("S 0:0(0) win 20000 <mss 1000{sack}>"),
        "0 > S. 0:0(0) ack 1
         0 < . 1:1(0) ack 1 win 20000
         0 state ESTABLISHED
         0 event Connected",
    );
    script.run(steps);
    script
}

impl Script {
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    fn new(conn: Connection) -> Script {
        Script {
            conn,
            up: Upper::default(),
            now: Instant::ZERO,
            sent: VecDeque::new(),
            batch_limit: usize::MAX,
            line: String::new(),
            ts_base: None,
        }
    }

    pub(super) fn run(&mut self, steps: &str) {
        for line in steps.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            self.line = line.to_owned();
            let (time, step) = line.split_once(char::is_whitespace).expect("time and step");
            let seconds: f64 = time.parse().unwrap_or_else(|_| panic!("time in `{line}`"));
            self.advance(Instant::from_micros((seconds * 1e6).round() as u64));
            self.step(step.trim());
        }
        self.assert_no_unexpected_output();
    }

    fn advance(&mut self, to: Instant) {
        assert!(to >= self.now, "time runs backwards: {}", self.line);
        while let Some(at) = self.conn.poll_timeout().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            self.conn.handle_timeout(self.now, &mut self.up);
            self.poll();
        }
        self.now = to;
    }

    fn poll(&mut self) {
        let mut batch = Batch::new(self.batch_limit);
        self.conn.poll_transmit(self.now, &mut self.up, &mut batch);
        for bytes in batch.segments {
            let text = self.describe(&bytes);
            self.sent.push_back((self.now, text));
        }
    }

    fn assert_no_unexpected_output(&self) {
        assert!(self.sent.is_empty(), "before `{}` sent {:#?}", self.line, self.sent);
    }

    fn step(&mut self, step: &str) {
        let (word, rest) = step.split_once(char::is_whitespace).unwrap_or((step, ""));
        let rest = rest.trim();
        if word == ">" {
            return self.expect(rest);
        }
        let asks = ["state", "event", "got", "spans", "acked", "emss", "cwnd", "timer"];
        if !asks.contains(&word) {
            self.assert_no_unexpected_output();
        }
        let number = || rest.parse::<u64>().unwrap_or_else(|_| panic!("number in `{}`", self.line));
        match word {
            "<" | "<+" => self.arrive(rest, word == "<"),
            "write" => self.up.len += number(),
            "record" => self.up.record = number() as usize,
            "close" => self.conn.close(),
            "abort" => self.conn.abort(self.now),
            "mtu" => self.conn.set_path_mss(self.now, number() as u16),
            "room" => self.up.room = number(),
            "batch" => self.batch_limit = number() as usize,
            "take" => self.up.take = parse_take(rest),
            "state" => assert_eq!(self.conn.state().name(), rest, "`{}`", self.line),
            "event" => {
                let event = self.conn.poll_event().map(|e| format!("{e:?}"));
                assert_eq!(event.as_deref().unwrap_or("none"), rest, "`{}`", self.line);
            }
            "got" => assert_eq!(self.up.in_order, number(), "`{}`", self.line),
            "spans" => assert_eq!(self.up.take_spans(), rest, "`{}`", self.line),
            "acked" => assert_eq!(self.up.acked, number(), "`{}`", self.line),
            "emss" => assert_eq!(self.up.emss, number() as usize, "`{}`", self.line),
            "cwnd" => assert_eq!(self.conn.info().cwnd, number(), "`{}`", self.line),
            "timer" => assert_eq!(timer(self.conn.poll_timeout()), rest, "`{}`", self.line),
            "idle" => {}
            _ => panic!("unknown step `{}`", self.line),
        }
        if matches!(word, "write" | "close" | "abort" | "mtu" | "room" | "batch") {
            self.poll();
        }
    }

    fn expect(&mut self, expected: &str) {
        let Some((at, sent)) = self.sent.pop_front() else { panic!("not sent: `{}`", self.line) };
        assert_eq!(at, self.now, "time of `{sent}`, expected `{}`", self.line);
        let mut sent = sent;
        let expected = match expected.strip_suffix("<>") {
            Some(expected) => expected.trim(), // `<>`: the segment must have no options
            None if !expected.contains('<') && !sent.contains("sack ") => {
                sent = sent.split('<').next().expect("first part").trim().to_owned();
                expected
            }
            None => expected,
        };
        if !expected.contains(" win ") {
            let words: Vec<_> = sent.split(' ').collect();
            let win = words.iter().position(|w| *w == "win").unwrap();
            sent = [&words[..win], &words[win + 2..]].concat().join(" ");
        }
        assert_eq!(sent, expected, "at `{}`", self.line);
    }

    fn arrive(&mut self, text: &str, answer: bool) {
        let (text, reason) =
            text.split_once('!').map_or((text, None), |(t, r)| (t, Some(r.trim())));
        let bytes = parse(text.trim(), self.ts_base.unwrap_or(0));
        let seg = Segment::parse(&bytes).unwrap();
        let result = self.conn.input(self.now, &seg, &mut self.up);
        let result = result.err().map(|r: DropReason| format!("{r:?}"));
        assert_eq!(result.as_deref(), reason, "`{}`", self.line);
        if answer {
            self.poll();
        }
    }

    fn describe(&mut self, bytes: &[u8]) -> String {
        let seg = Segment::parse(bytes).expect("we send well-formed segments");
        assert_eq!((seg.src_port, seg.dst_port), (4000, 5000));
        let seq = seg.seq.0.wrapping_sub(OUR_ISS);
        let offset = u64::from(seq).wrapping_sub(1);
        for (i, byte) in seg.payload.iter().enumerate() {
            assert_eq!(*byte, Upper::byte(offset + i as u64), "payload of {}", self.line);
        }
        let mut text = flags_text(seg.flags);
        let seq = seq as i32;
        let _ = write!(text, " {seq}:{}({})", seq + seg.payload.len() as i32, seg.payload.len());
        if seg.flags.has(Flags::ACK) {
            let _ = write!(text, " ack {}", seg.ack.0.wrapping_sub(PEER_ISS));
        }
        let _ = write!(text, " win {}", seg.window);
        let options = self.options_text(&seg.options);
        if !options.is_empty() {
            let _ = write!(text, " <{options}>");
        }
        text
    }

    fn options_text(&mut self, options: &Options) -> String {
        let mut list = Vec::new();
        list.extend(options.mss.map(|mss| format!("mss {mss}")));
        list.extend(options.sack_permitted.then(|| "sackOK".to_owned()));
        list.extend(options.timestamps.map(|stamps| {
            let base = *self.ts_base.get_or_insert(stamps.val);
            format!("TS val {} ecr {}", stamps.val.wrapping_sub(base), stamps.ecr)
        }));
        list.extend(options.window_scale.map(|shift| format!("wscale {shift}")));
        if !options.sack.is_empty() {
            let relative = |n: SeqNumber| n.0.wrapping_sub(PEER_ISS);
            let blocks: Vec<_> = options
                .sack
                .iter()
                .map(|(l, r)| format!("{}:{}", relative(*l), relative(*r)))
                .collect();
            list.push(format!("sack {}", blocks.join(" ")));
        }
        list.join(",")
    }
}

fn parse_take(text: &str) -> Take {
    match text.split_once(':') {
        None if text == "all" => Take::All,
        None if text == "none" => Take::Part(0..0),
        None => panic!("take `{text}`"),
        Some((a, b)) => Take::Part(a.parse().unwrap()..b.parse().unwrap()),
    }
}

fn timer(at: Option<Instant>) -> String {
    at.map_or("none".to_owned(), |at| format!("{:.3}", at.as_micros() as f64 / 1e6))
}

fn flags_text(flags: Flags) -> String {
    let names = [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::ACK, '.'),
        (Flags::URG, 'U'),
    ];
    names.iter().filter(|(f, _)| flags.has(*f)).map(|(_, c)| *c).collect()
}

/// Encodes a segment of the peer, given in the notation of scripts.
fn parse(text: &str, ts_base: u32) -> Vec<u8> {
    let (head, options) = match text.split_once('<') {
        Some((head, options)) => (head, options.trim_end_matches('>')),
        None => (text, ""),
    };
    let words: Vec<&str> = head.split_whitespace().collect();
    let after = |name: &str| {
        words.iter().position(|w| *w == name).map(|i| words[i + 1].parse::<i64>().unwrap() as u32)
    };
    let flags = words[0].chars().fold(Flags::default(), |flags, c| {
        flags.with(match c {
            'S' => Flags::SYN,
            'F' => Flags::FIN,
            'R' => Flags::RST,
            'P' => Flags::PSH,
            '.' => Flags::ACK,
            'U' => Flags::URG,
            '-' => Flags::default(),
            _ => panic!("flag {c} in `{text}`"),
        })
    });
    let (start, rest) = words[1].split_once(':').expect("SEQ:END(LEN)");
    let start: i64 = start.parse().unwrap();
    let len: usize = rest.split_once('(').unwrap().1.trim_end_matches(')').parse().unwrap();
    let first = start - 1 + i64::from(flags.has(Flags::SYN));
    let payload: Vec<u8> = (0..len as i64).map(|i| Upper::byte((first + i) as u64)).collect();
    let seg = Segment {
        src_port: 5000,
        dst_port: 4000,
        seq: SeqNumber(PEER_ISS.wrapping_add(start as u32)),
        ack: SeqNumber(after("ack").map_or(0, |n| OUR_ISS.wrapping_add(n))),
        flags,
        window: after("win").unwrap_or(0) as u16,
        options: parse_options(options, ts_base),
        payload: &payload,
        ce: false,
        text_crc: None,
    };
    let mut bytes = vec![0; seg.wire_len()];
    seg.emit(&mut bytes);
    bytes
}

fn parse_options(text: &str, ts_base: u32) -> Options {
    let mut options = Options::default();
    for option in text.split(',').filter(|o| !o.is_empty()) {
        let words: Vec<&str> = option.split_whitespace().collect();
        match words.as_slice() {
            ["mss", n] => options.mss = Some(n.parse().unwrap()),
            ["sackOK"] => options.sack_permitted = true,
            ["wscale", n] => options.window_scale = Some(n.parse().unwrap()),
            ["TS", "val", val, "ecr", ecr] => {
                let ecr = ts_base.wrapping_add(ecr.parse().unwrap());
                options.timestamps = Some(Timestamps { val: val.parse().unwrap(), ecr });
            }
            ["sack", blocks @ ..] => {
                for block in blocks {
                    let (l, r) = block.split_once(':').unwrap();
                    let edge =
                        |n: &str| SeqNumber(OUR_ISS.wrapping_add(n.parse::<i64>().unwrap() as u32));
                    options.sack.push((edge(l), edge(r)));
                }
            }
            _ => panic!("option `{option}`"),
        }
    }
    options
}
