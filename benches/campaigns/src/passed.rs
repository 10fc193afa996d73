//! Record of the newest frames on the lossy cable and their outcome. It explains a failed stream:
//! the frames of its conversation, and the longest time without one delivered.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Bound of the recorded frames: half a minute at the rate of a soak.
const KEPT: usize = 1 << 17;
/// Recorded bytes of a frame: up to the end of a TCP header over IPv6.
const HEAD: usize = 74;

/// Outcome of a frame on the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
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
    /// Index of the end at which the frame was received.
    from: usize,
    end: End,
    head: [u8; HEAD],
    len: usize,
}

/// Record of the newest frames, at most [`KEPT`].
#[derive(Debug, Default)]
pub(crate) struct Passed {
    frames: VecDeque<Frame>,
}

/// Outcome of a conversation's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Frames delivered unchanged.
    pub(crate) carried: usize,
    /// Frames lost or damaged.
    pub(crate) lost: usize,
    /// Longest outage: from the first lost or damaged frame to the next one delivered unchanged, or
    /// to the newest recorded frame.
    pub(crate) longest_cut: Duration,
    /// Longest run of lost or damaged frames in one direction.
    pub(crate) most_in_a_row: usize,
    /// One line for each frame, oldest first.
    pub(crate) lines: Vec<String>,
}

impl Passed {
    /// Records a frame received at end `from`.
    pub(crate) fn note(&mut self, at: Instant, from: usize, frame: &[u8], end: End) {
        if self.frames.len() >= KEPT {
            self.frames.pop_front();
        }
        let mut head = [0; HEAD];
        let kept = frame.len().min(HEAD);
        head[..kept].copy_from_slice(&frame[..kept]);
        self.frames.push_back(Frame { at, from, end, head, len: frame.len() });
    }

    /// Returns the outcome of the frames since `began` of conversations that `wanted` selects by
    /// source and destination. The lines include address resolution.
    pub(crate) fn since(
        &self,
        began: Instant,
        wanted: impl Fn(SocketAddr, SocketAddr) -> bool,
    ) -> Done {
        let mut done = Done::default();
        let (mut cut, mut row) = (None, [0; 2]);
        for frame in &self.frames {
            if frame.at < began {
                continue;
            }
            let (what, counts) = match about(&frame.head) {
                Some(About::Conversation(ends, what)) if wanted(ends.0, ends.1) => (what, true),
                Some(About::Resolution(what)) => (what, false),
                _ => continue,
            };
            match frame.end {
                _ if !counts => {}
                End::Carried => {
                    done.carried += 1;
                    row[frame.from] = 0;
                    let took = cut.take().map(|at| frame.at.saturating_duration_since(at));
                    done.longest_cut = done.longest_cut.max(took.unwrap_or_default());
                }
                End::Damaged | End::Lost => {
                    done.lost += 1;
                    row[frame.from] += 1;
                    cut.get_or_insert(frame.at);
                }
            }
            done.most_in_a_row = done.most_in_a_row.max(row[frame.from]);
            let after = frame.at.saturating_duration_since(began).as_secs_f64();
            let end = match frame.end {
                End::Carried => "",
                End::Damaged => " DAMAGED",
                End::Lost => " LOST",
            };
            let len = frame.len;
            let arrow = ["from the target", "to the target"][frame.from];
            done.lines.push(format!("{after:10.6} s {arrow:15} {what}, {len} bytes{end}"));
        }
        if let (Some(cut), Some(last)) = (cut, self.frames.back()) {
            done.longest_cut = done.longest_cut.max(last.at.saturating_duration_since(cut));
        }
        done
    }
}

enum About {
    /// Source and destination, and a description of the packet.
    Conversation((SocketAddr, SocketAddr), String),
    /// Description of an ARP or neighbour discovery message.
    Resolution(String),
}

fn about(frame: &[u8]) -> Option<About> {
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
            return Some(About::Resolution(text));
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
        58 => return Some(About::Resolution(format!("{from} > {to} ICMPv6 {}", inner.first()?))),
        _ => return None,
    };
    Some(About::Conversation(ends, text))
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

    const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 4)), 40000);
    const THERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 7473);

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
    fn a_cut_is_from_the_first_frame_that_is_lost_to_the_next_one_that_is_carried() {
        let began = Instant::now();
        let after = |ms: u64| began + Duration::from_millis(ms);
        let of_us = |from: SocketAddr, to: SocketAddr| from == HERE || to == HERE;
        let other = SocketAddr::new(HERE.ip(), 40001);
        let mut passed = Passed::default();
        passed.note(after(0), 1, &syn(HERE, THERE, 2), End::Lost);
        passed.note(after(10), 1, &syn(other, THERE, 2), End::Carried);
        passed.note(after(1000), 1, &syn(HERE, THERE, 2), End::Damaged);
        assert_eq!(passed.since(began, of_us).longest_cut, Duration::from_secs(1));
        passed.note(after(3000), 1, &syn(HERE, THERE, 2), End::Carried);
        passed.note(after(3001), 0, &syn(THERE, HERE, 0x12), End::Carried);
        let done = passed.since(began, of_us);
        assert_eq!((done.carried, done.lost, done.most_in_a_row), (2, 2, 2));
        assert_eq!(done.longest_cut, Duration::from_secs(3));
        assert!(done.lines[0].ends_with(
            "to the target   10.77.0.4:40000 > 10.77.0.1:7473 TCP 1 2 SYN, 60 bytes LOST"
        ));
        assert!(done.lines[3].contains("SYN ACK"), "{}", done.lines[3]);
        // Frames before `began` belong to another stream.
        assert_eq!(passed.since(after(2000), of_us).lost, 0);
    }

    #[test]
    fn the_oldest_frames_are_forgotten() {
        let began = Instant::now();
        let mut passed = Passed::default();
        for _ in 0..=KEPT {
            passed.note(began, 1, &syn(HERE, THERE, 2), End::Lost);
        }
        assert_eq!(passed.frames.len(), KEPT);
        // Truncated frames are not read beyond their end.
        for len in 0..60 {
            passed.note(began, 0, &syn(THERE, HERE, 2)[..len], End::Lost);
        }
        assert!(passed.since(began, |_, _| true).lost >= KEPT - 60);
    }
}
