//! Log of the newest frames on the lossy cable and of their outcomes. For a failed stream, the log yields the stream's
//! frames and its longest outage.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Maximum number of recorded frames: about half a minute at the rate of a soak.
const CAPACITY: usize = 1 << 17;
/// Recorded bytes of a frame: Ethernet, IPv6 and TCP headers without options.
const HEAD_LEN: usize = 74;

/// Outcome of a frame on the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Delivered unchanged.
    Carried,
    /// Delivered with a flipped bit, which a checksum detects.
    Damaged,
    /// Not delivered.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    at: Instant,
    /// Index of the cable end that received the frame: 0 is the target's, 1 the peer's.
    from: usize,
    outcome: Outcome,
    head: [u8; HEAD_LEN],
    len: usize,
}

/// Record of the newest frames, at most [`CAPACITY`].
#[derive(Debug, Default)]
pub(crate) struct FrameLog {
    frames: VecDeque<Frame>,
}

/// Summary of the selected frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Frames delivered unchanged.
    pub(crate) carried: usize,
    /// Frames lost or damaged.
    pub(crate) lost: usize,
    /// Longest outage: from the first lost or damaged frame to the next frame delivered unchanged, or to the newest
    /// recorded frame.
    pub(crate) longest_outage: Duration,
    /// Longest run of lost or damaged frames in one direction.
    pub(crate) longest_loss_run: usize,
    /// One line for each frame, oldest first.
    pub(crate) lines: Vec<String>,
}

impl FrameLog {
    /// Records a frame received at cable end `from` (0 or 1), with outcome `end`.
    pub(crate) fn record(&mut self, at: Instant, from: usize, frame: &[u8], end: Outcome) {
        if self.frames.len() >= CAPACITY {
            self.frames.pop_front();
        }
        let mut head = [0; HEAD_LEN];
        let kept = frame.len().min(HEAD_LEN);
        head[..kept].copy_from_slice(&frame[..kept]);
        self.frames.push_back(Frame { at, from, outcome: end, head, len: frame.len() });
    }

    /// Summarises the frames since `began` whose source and destination `wanted` accepts. The lines, but not the
    /// counts, also include all ARP and ICMPv6 messages.
    pub(crate) fn summary_since(
        &self,
        began: Instant,
        wanted: impl Fn(SocketAddr, SocketAddr) -> bool,
    ) -> Summary {
        let mut done = Summary::default();
        let (mut cut, mut row) = (None, [0; 2]);
        for frame in &self.frames {
            if frame.at < began {
                continue;
            }
            let (what, counts) = match describe(&frame.head) {
                Some(Description::Transport(ends, what)) if wanted(ends.0, ends.1) => (what, true),
                Some(Description::Resolution(what)) => (what, false),
                _ => continue,
            };
            match frame.outcome {
                _ if !counts => {}
                Outcome::Carried => {
                    done.carried += 1;
                    row[frame.from] = 0;
                    let took = cut.take().map(|at| frame.at.saturating_duration_since(at));
                    done.longest_outage = done.longest_outage.max(took.unwrap_or_default());
                }
                Outcome::Damaged | Outcome::Lost => {
                    done.lost += 1;
                    row[frame.from] += 1;
                    cut.get_or_insert(frame.at);
                }
            }
            done.longest_loss_run = done.longest_loss_run.max(row[frame.from]);
            let after = frame.at.saturating_duration_since(began).as_secs_f64();
            let end = match frame.outcome {
                Outcome::Carried => "",
                Outcome::Damaged => " DAMAGED",
                Outcome::Lost => " LOST",
            };
            let len = frame.len;
            let arrow = ["from the target", "to the target"][frame.from];
            done.lines.push(format!("{after:10.6} s {arrow:15} {what}, {len} bytes{end}"));
        }
        if let (Some(cut), Some(last)) = (cut, self.frames.back()) {
            done.longest_outage = done.longest_outage.max(last.at.saturating_duration_since(cut));
        }
        done
    }
}

enum Description {
    /// Source and destination, and a description of the packet.
    Transport((SocketAddr, SocketAddr), String),
    /// Description of an ARP or ICMPv6 message.
    Resolution(String),
}

fn describe(frame: &[u8]) -> Option<Description> {
    let packet = frame.get(14..)?;
    let address = |at: usize| -> Option<IpAddr> {
        Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?).into())
    };
    let address6 = |at: usize| -> Option<IpAddr> {
        Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?).into())
    };
    let (protocol, from, to, inner) = match frame.get(12..14)? {
        [0x08, 0x06] => {
            let what = if packet.get(7) == Some(&1) { "request" } else { "reply" };
            let text = format!("ARP {what} {} for {}", address(14)?, address(24)?);
            return Some(Description::Resolution(text));
        }
        [0x08, 0x00] => {
            let header = usize::from(packet.first()? & 15) * 4;
            (*packet.get(9)?, address(12)?, address(16)?, packet.get(header..)?)
        }
        [0x86, 0xdd] => (*packet.get(6)?, address6(8)?, address6(24)?, packet.get(40..)?),
        _ => return None,
    };
    let number = |at: usize| -> Option<u32> {
        Some(u32::from_be_bytes(*inner.get(at..)?.first_chunk::<4>()?))
    };
    let ports = number(0)?;
    let ends = (SocketAddr::new(from, (ports >> 16) as u16), SocketAddr::new(to, ports as u16));
    let mut text = format!("{} > {} ", ends.0, ends.1);
    // Writing into a `String` cannot fail.
    let _ = match protocol {
        6 => write!(text, "TCP {} {} {}", number(4)?, number(8)?, flags(*inner.get(13)?)),
        132 => write!(text, "SCTP {} {}", chunk(*inner.get(12)?), number(16)?),
        58 => {
            return Some(Description::Resolution(format!(
                "{from} > {to} ICMPv6 {}",
                inner.first()?
            )));
        }
        _ => return None,
    };
    Some(Description::Transport(ends, text))
}

fn flags(flags: u8) -> String {
    ["FIN", "SYN", "RST", "PSH", "ACK"]
        .iter()
        .enumerate()
        .filter(|(bit, _)| flags >> bit & 1 == 1)
        .map(|(_, name)| *name)
        .collect::<Vec<_>>()
        .join(" ")
}

fn chunk(kind: u8) -> String {
    const NAMES: [&str; 12] = [
        "DATA",
        "INIT",
        "INIT ACK",
        "SACK",
        "HEARTBEAT",
        "HEARTBEAT ACK",
        "ABORT",
        "SHUTDOWN",
        "SHUTDOWN ACK",
        "ERROR",
        "COOKIE ECHO",
        "COOKIE ACK",
    ];
    NAMES.get(usize::from(kind)).map_or_else(|| format!("chunk {kind}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 4)), 40000);
    const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 7473);

    fn syn(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45]);
        frame.extend([0; 8]);
        frame.push(6);
        frame.extend([0; 2]);
        for end in [from, to] {
            let IpAddr::V4(address) = end.ip() else { panic!("IPv4") };
            frame.extend(address.octets());
        }
        frame.extend(from.port().to_be_bytes());
        frame.extend(to.port().to_be_bytes());
        frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags]);
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn outage_spans_first_lost_frame_to_next_carried_frame() {
        let began = Instant::now();
        let after = |ms: u64| began + Duration::from_millis(ms);
        let of_us = |from: SocketAddr, to: SocketAddr| from == LOCAL || to == LOCAL;
        let other = SocketAddr::new(LOCAL.ip(), 40001);
        let mut log = FrameLog::default();
        log.record(after(0), 1, &syn(LOCAL, REMOTE, 2), Outcome::Lost);
        log.record(after(10), 1, &syn(other, REMOTE, 2), Outcome::Carried);
        log.record(after(1000), 1, &syn(LOCAL, REMOTE, 2), Outcome::Damaged);
        assert_eq!(log.summary_since(began, of_us).longest_outage, Duration::from_secs(1));
        log.record(after(3000), 1, &syn(LOCAL, REMOTE, 2), Outcome::Carried);
        log.record(after(3001), 0, &syn(REMOTE, LOCAL, 0x12), Outcome::Carried);
        let done = log.summary_since(began, of_us);
        assert_eq!((done.carried, done.lost, done.longest_loss_run), (2, 2, 2));
        assert_eq!(done.longest_outage, Duration::from_secs(3));
        assert!(done.lines[0].ends_with(
            "to the target   10.77.0.4:40000 > 10.77.0.1:7473 TCP 1 2 SYN, 60 bytes LOST"
        ));
        assert!(done.lines[3].contains("SYN ACK"), "{}", done.lines[3]);
        // Frames before the time passed to `summary_since` are not counted: they belong to another stream.
        assert_eq!(log.summary_since(after(2000), of_us).lost, 0);
    }

    #[test]
    fn oldest_frames_are_evicted_at_capacity() {
        let began = Instant::now();
        let mut log = FrameLog::default();
        for _ in 0..=CAPACITY {
            log.record(began, 1, &syn(LOCAL, REMOTE, 2), Outcome::Lost);
        }
        assert_eq!(log.frames.len(), CAPACITY);
        // Truncated frames are not read beyond their end.
        for len in 0..60 {
            log.record(began, 0, &syn(REMOTE, LOCAL, 2)[..len], Outcome::Lost);
        }
        assert!(log.summary_since(began, |_, _| true).lost >= CAPACITY - 60);
    }
}
