//! SCTP packets of a dialogue, built from lines and compared with them. The encoding follows the text of the
//! specifications byte by byte, and deliberately shares no code with the stack under test.
//!
//! TSNs are relative to the initial TSN of the sender of the DATA chunks. Verification tags are correct unless a line
//! sets others.

use std::fmt::Write as _;

use crate::messages::{data_flags, message_kind, ppid, user_message};
use crate::received_packet::{COMMON_HEADER_LEN, Chunk, ReceivedPacket, be16, be32};
use crate::script::{Args, ChunkLine, PacketLine, number};
use crate::streams::parse_bytes;

/// Chunk types by their names in scripts (RFC 9260 §3.2).
const KINDS: [(&str, u8); 15] = [
    ("DATA", 0),
    ("INIT", 1),
    ("INIT_ACK", 2),
    ("SACK", 3),
    ("HEARTBEAT", 4),
    ("HEARTBEAT_ACK", 5),
    ("ABORT", 6),
    ("SHUTDOWN", 7),
    ("SHUTDOWN_ACK", 8),
    ("ERROR", 9),
    ("COOKIE_ECHO", 10),
    ("COOKIE_ACK", 11),
    ("SHUTDOWN_COMPLETE", 14),
    ("PAD", 0x84),
    // Any other type: `CHUNK type=N flags-byte=N hex=DIGITS`.
    ("CHUNK", 0xff),
];
const ADAPTATION: u16 = 0xc006;
const STATE_COOKIE: u16 = 7;
const HEARTBEAT_INFO: u16 = 1;

/// State of the association on both sides: ports, tags, initial TSNs, cookie.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Port of the script's side.
    pub peer_port: u16,
    /// Port of the stack.
    pub stack_port: u16,
    /// Verification tag of the stack's packets, chosen by the script.
    pub peer_tag: u32,
    /// Initial TSN of the script's side.
    pub peer_tsn: u32,
    /// Verification tag of the script's packets, chosen by the stack.
    pub stack_tag: u32,
    /// The stack's initial TSN.
    pub stack_tsn: u32,
    /// Last cookie that the stack has sent.
    cookie: Vec<u8>,
    /// Heartbeat information of the stack's last HEARTBEAT, then of the script's last HEARTBEAT.
    heartbeats: [Vec<u8>; 2],
    /// Tag of the script's last packet. A reply with the T bit reflects this tag (RFC 9260 §8.5.1).
    last_tag: u32,
}

fn chunk_kind(name: &str) -> Result<u8, String> {
    let found = KINDS.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| *kind).ok_or_else(|| format!("`{name}` is not a chunk type"))
}

fn chunk_name(kind: u8) -> String {
    let found = KINDS.iter().find(|(_, known)| *known == kind);
    found.map_or_else(|| format!("CHUNK type={kind}"), |(name, _)| (*name).to_owned())
}

/// Parses a number that may be negative: `cum=-1` is the TSN before the first.
fn parse_relative(text: &str) -> Result<u32, String> {
    match text.strip_prefix('-') {
        Some(digits) => Ok((number(digits)? as u32).wrapping_neg()),
        None => Ok(number(text)? as u32),
    }
}

impl Conversation {
    /// Creates the state before the first packet.
    pub fn new(peer_port: u16, stack_port: u16, peer_tag: u32, peer_tsn: u32) -> Conversation {
        Conversation {
            peer_port,
            stack_port,
            peer_tag,
            peer_tsn,
            stack_tag: 0,
            stack_tsn: 0,
            cookie: Vec::new(),
            heartbeats: [Vec::new(), Vec::new()],
            last_tag: 0,
        }
    }

    // --- packets of the script ---

    /// Encodes the packet of a `<` line.
    ///
    /// # Errors
    /// The invalid part of the line.
    pub fn build_packet(&mut self, line: &PacketLine) -> Result<Vec<u8>, String> {
        line.args.check_known_keys(&["tag", "sport", "dport", "crc", "cut"])?;
        let first = line.chunks.first().map(|chunk| chunk.kind.as_str());
        let mut body = Vec::new();
        for chunk in &line.chunks {
            body.extend(self.build_chunk(chunk).map_err(|e| format!("{}: {e}", chunk.kind))?);
        }
        let tag = match line.args.get("tag") {
            // RFC 9260 §8.5.1 A: the packet of an INIT has a tag of zero.
            None if first == Some("INIT") => 0,
            None | Some("stack") => self.stack_tag,
            Some("peer") => self.peer_tag,
            Some("wrong") => self.stack_tag ^ 0x0101_0101,
            Some(text) => number(text)? as u32,
        };
        self.last_tag = tag;
        let mut packet = Vec::new();
        let port = |key, default: u16| line.args.number(key, default.into());
        packet.extend((port("sport", self.peer_port)? as u16).to_be_bytes());
        packet.extend((port("dport", self.stack_port)? as u16).to_be_bytes());
        packet.extend(tag.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(body);
        let cut = line.args.number("cut", 0)? as usize;
        packet.truncate(packet.len().saturating_sub(cut));
        let crc = oracle::crc32c(&packet) ^ u32::from(line.args.get("crc") == Some("bad"));
        packet[8..12].copy_from_slice(&crc.to_le_bytes());
        Ok(packet)
    }

    fn build_chunk(&mut self, line: &ChunkLine) -> Result<Vec<u8>, String> {
        let args = &line.args;
        let mut kind = chunk_kind(&line.kind)?;
        let mut flags = u8::from(args.has("T"));
        let value = match line.kind.as_str() {
            "INIT" | "INIT_ACK" => self.build_init(&line.kind, args)?,
            "DATA" => {
                flags = data_flags(args)?;
                self.build_data(args)?
            }
            "SACK" => self.build_sack(args)?,
            "HEARTBEAT" => {
                let info = args.get("info").map_or(Ok(vec![1, 2, 3, 4]), parse_bytes)?;
                self.heartbeats[1] = parameter(HEARTBEAT_INFO, &info);
                self.heartbeats[1].clone()
            }
            "HEARTBEAT_ACK" => match args.get("info") {
                Some(info) => parameter(HEARTBEAT_INFO, &parse_bytes(info)?),
                None => self.heartbeats[0].clone(),
            },
            "ABORT" | "ERROR" => causes(args)?,
            "SHUTDOWN" => {
                let cumulative = parse_relative(args.get("cum").unwrap_or("-1"))?;
                self.stack_tsn.wrapping_add(cumulative).to_be_bytes().to_vec()
            }
            "COOKIE_ECHO" => match args.get("cookie") {
                None => self.cookie.clone(),
                Some("damaged") => {
                    let mut cookie = self.cookie.clone();
                    let middle = cookie.len() / 2;
                    if let Some(byte) = cookie.get_mut(middle) {
                        *byte ^= 0x10;
                    }
                    cookie
                }
                Some(text) => parse_bytes(text)?,
            },
            "SHUTDOWN_ACK" | "COOKIE_ACK" | "SHUTDOWN_COMPLETE" => Vec::new(),
            _ => {
                kind = args.number("type", kind.into())? as u8;
                args.get("hex")
                    .map_or(Ok(Vec::new()), |digits| parse_bytes(&format!("hex:{digits}")))?
            }
        };
        flags = args.number("flags-byte", flags.into())? as u8;
        let length = args.number("length", value.len() as u64 + 4)? as u16;
        let mut chunk = vec![kind, flags];
        chunk.extend(length.to_be_bytes());
        chunk.extend(value);
        chunk.resize(chunk.len().next_multiple_of(4), 0);
        Ok(chunk)
    }

    fn build_init(&mut self, kind: &str, args: &Args) -> Result<Vec<u8>, String> {
        args.check_known_keys(&[
            "itag",
            "tsn",
            "os",
            "is",
            "arwnd",
            "adapt",
            "cookie",
            "param",
            "keep",
            "length",
            "flags-byte",
        ])?;
        let tag = args.number("itag", self.peer_tag.into())? as u32;
        let tsn = args.number("tsn", self.peer_tsn.into())? as u32;
        if !args.has("keep") {
            (self.peer_tag, self.peer_tsn) = (tag, tsn);
        }
        let mut value = tag.to_be_bytes().to_vec();
        value.extend((args.number("arwnd", 100_000)? as u32).to_be_bytes());
        value.extend((args.number("os", 16)? as u16).to_be_bytes());
        value.extend((args.number("is", 16)? as u16).to_be_bytes());
        value.extend(tsn.to_be_bytes());
        if kind == "INIT_ACK" && args.get("cookie") != Some("none") {
            let cookie = args.get("cookie").map_or(Ok(b"a cookie".to_vec()), parse_bytes)?;
            value.extend(parameter(STATE_COOKIE, &cookie));
        }
        // RFC 5043 §5.1: the default is the adaptation indication of DDP.
        if args.get("adapt") != Some("none") {
            let indication = args.number("adapt", 1)? as u32;
            value.extend(parameter(ADAPTATION, &indication.to_be_bytes()));
        }
        for (_, text) in args.pairs().filter(|(key, _)| *key == "param") {
            let (number_of, digits) = text.split_once(':').unwrap_or((text, ""));
            let content = parse_bytes(&format!("hex:{digits}"))?;
            value.extend(parameter(number(number_of)? as u16, &content));
        }
        Ok(value)
    }

    fn build_data(&self, args: &Args) -> Result<Vec<u8>, String> {
        let message = user_message(args)?.ok_or("the DATA chunk has no content")?;
        let tsn = self.peer_tsn.wrapping_add(parse_relative(args.get("tsn").ok_or("tsn=")?)?);
        let mut value = tsn.to_be_bytes().to_vec();
        value.extend((args.number("sid", 0)? as u16).to_be_bytes());
        value.extend((args.number("sseq", 0)? as u16).to_be_bytes());
        value.extend((args.number("ppid", ppid(args))? as u32).to_be_bytes());
        value.extend(message);
        Ok(value)
    }

    fn build_sack(&self, args: &Args) -> Result<Vec<u8>, String> {
        args.check_known_keys(&[
            "cum",
            "arwnd",
            "gap",
            "dup",
            "length",
            "flags-byte",
            "gaps",
            "dups",
        ])?;
        let cumulative = parse_relative(args.get("cum").ok_or("cum=")?)?;
        let gaps = parse_blocks(args.get("gap"))?;
        let dups = parse_list(args.get("dup"))?;
        let mut value = self.stack_tsn.wrapping_add(cumulative).to_be_bytes().to_vec();
        value.extend((args.number("arwnd", 100_000)? as u32).to_be_bytes());
        value.extend((args.number("gaps", gaps.len() as u64)? as u16).to_be_bytes());
        value.extend((args.number("dups", dups.len() as u64)? as u16).to_be_bytes());
        for (from, to) in gaps {
            // RFC 9260 §3.3.4: gap ack blocks are offsets from the cumulative TSN.
            for tsn in [from, to] {
                value.extend((tsn.wrapping_sub(cumulative) as u16).to_be_bytes());
            }
        }
        for tsn in dups {
            value.extend(self.stack_tsn.wrapping_add(tsn).to_be_bytes());
        }
        Ok(value)
    }

    // --- packets of the stack ---

    /// Compares a packet of the stack with a `>` line, and records its tag, TSN and cookie.
    ///
    /// # Errors
    /// The first difference, or the invalid part of the line.
    pub fn compare(&mut self, line: &PacketLine, got: &ReceivedPacket) -> Result<(), String> {
        line.args.check_known_keys(&["tag", "sport", "dport"])?;
        let (source, destination) = got.ports;
        let port = |key, default: u16| line.args.number(key, default.into());
        let expected = (port("sport", self.stack_port)?, port("dport", self.peer_port)?);
        check_equal("ports", expected, (source.into(), destination.into()))?;
        let first = got.chunks.first().map(|chunk| chunk.kind);
        let tag = match line.args.get("tag") {
            None if first == Some(1) => 0,
            None if got.chunks.iter().any(|c| matches!(c.kind, 6 | 14) && c.flags & 1 != 0) => {
                // RFC 9260 §8.5.1: with the T bit, a packet reflects the tag of the packet that it answers.
                self.last_tag
            }
            None | Some("peer") => self.peer_tag,
            Some(text) => number(text)? as u32,
        };
        check_equal("verification tag", tag, got.tag)?;
        let names = |kinds: &mut dyn Iterator<Item = String>| kinds.collect::<Vec<_>>().join(" | ");
        let expected = names(&mut line.chunks.iter().map(|chunk| chunk.kind.clone()));
        let seen = names(&mut got.chunks.iter().map(|chunk| chunk_name(chunk.kind)));
        let other = line.chunks.len() != got.chunks.len()
            || line.chunks.iter().zip(&got.chunks).any(|(line, got)| {
                line.kind != "CHUNK" && chunk_kind(&line.kind).ok() != Some(got.kind)
            });
        if other {
            return Err(format!("expected {expected}, seen {seen}"));
        }
        for (line, got) in line.chunks.iter().zip(&got.chunks) {
            self.compare_chunk(line, got).map_err(|e| format!("{}: {e}", line.kind))?;
        }
        Ok(())
    }

    fn compare_chunk(&mut self, line: &ChunkLine, got: &Chunk) -> Result<(), String> {
        let args = &line.args;
        match line.kind.as_str() {
            "INIT" | "INIT_ACK" => self.compare_init(args, got),
            "DATA" => self.compare_data(args, got),
            "SACK" => self.compare_sack(args, got),
            "HEARTBEAT" => {
                self.heartbeats[0] = got.value.clone();
                Ok(())
            }
            "HEARTBEAT_ACK" => check_equal("information", &self.heartbeats[1], &got.value),
            "ABORT" | "ERROR" => {
                args.check_known_keys(&["T", "cause"])?;
                if line.kind == "ABORT" {
                    check_equal("T bit", args.has("T"), got.flags & 1 != 0)?;
                }
                let seen = cause_codes(&got.value);
                let mut wanted = Vec::new();
                for (_, text) in args.pairs().filter(|(key, _)| *key == "cause") {
                    wanted.push(number(text.split(':').next().unwrap_or(text))? as u16);
                }
                if wanted.is_empty() { Ok(()) } else { check_equal("causes", wanted, seen) }
            }
            "SHUTDOWN" => match args.get("cum") {
                None => Ok(()),
                Some(text) => check_equal(
                    "cumulative TSN",
                    parse_relative(text)?,
                    be32(&got.value).wrapping_sub(self.peer_tsn),
                ),
            },
            "SHUTDOWN_COMPLETE" => check_equal("T bit", args.has("T"), got.flags & 1 != 0),
            "COOKIE_ECHO" => match args.get("cookie") {
                None => Ok(()),
                Some(text) => check_equal("cookie", parse_bytes(text)?, got.value.clone()),
            },
            "CHUNK" => check_equal("type", args.number("type", 0xff)? as u8, got.kind),
            "PAD" => check_equal("length", args.number("len", 0)?, got.value.len() as u64),
            _ => Ok(()),
        }
    }

    fn compare_init(&mut self, args: &Args, got: &Chunk) -> Result<(), String> {
        args.check_known_keys(&["os", "is", "arwnd", "adapt", "param", "keep", "tag"])?;
        if got.value.len() < 16 {
            return Err("it is too short".into());
        }
        let value = &got.value;
        for (key, seen) in [
            ("os", u64::from(be16(&value[8..]))),
            ("is", be16(&value[10..]).into()),
            ("arwnd", be32(&value[4..]).into()),
        ] {
            if args.has(key) {
                check_equal(key, args.number(key, 0)?, seen)?;
            }
        }
        let (tag, tsn) = (be32(value), be32(&value[12..]));
        let parameters = parameters(&value[16..])?;
        let find = |number| parameters.iter().find(|(n, _)| *n == number).map(|(_, v)| v);
        if args.has("adapt") {
            let seen = find(ADAPTATION).map(|v| u64::from(be32(v)));
            check_equal("adaptation indication", Some(args.number("adapt", 1)?), seen)?;
        }
        for (_, text) in args.pairs().filter(|(key, _)| *key == "param") {
            let wanted = number(text)? as u16;
            find(wanted).ok_or_else(|| format!("parameter {wanted:#06x} is missing"))?;
        }
        if tag == 0 {
            return Err("an Initiate Tag of 0".into());
        }
        if let Some(cookie) = find(STATE_COOKIE) {
            self.cookie = cookie.clone();
        }
        if !args.has("keep") {
            (self.stack_tag, self.stack_tsn) = (tag, tsn);
        }
        Ok(())
    }

    fn compare_data(&self, args: &Args, got: &Chunk) -> Result<(), String> {
        if got.value.len() < 12 {
            return Err("it is too short".into());
        }
        let (header, message) = got.value.split_at(12);
        // RFC 5043 §10: all messages are unordered. The stack may set the I bit on any chunk.
        check_equal("flags", data_flags(args)? & 7, got.flags & 7)?;
        if args.has("I") {
            check_equal("I bit", true, got.flags & 8 != 0)?;
        }
        if let Some(text) = args.get("tsn") {
            let seen = be32(header).wrapping_sub(self.stack_tsn);
            check_equal("TSN", parse_relative(text)? as i32, seen as i32)?;
        }
        check_equal("stream", args.number("sid", 0)?, be16(&header[4..]).into())?;
        let Some(wanted) = user_message(args)? else { return Ok(()) };
        check_equal("PPID", args.number("ppid", ppid(args))?, be32(&header[8..]).into())?;
        if args.has("len") && message_kind(args).is_none() && !args.has("hex") {
            return check_equal("bytes", wanted.len(), message.len());
        }
        check_equal("bytes of the message", wanted, message.to_vec())
    }

    fn compare_sack(&self, args: &Args, got: &Chunk) -> Result<(), String> {
        args.check_known_keys(&["cum", "arwnd", "gap", "dup"])?;
        if got.value.len() < 12 {
            return Err("it is too short".into());
        }
        let (head, mut rest) = got.value.split_at(12);
        let cumulative = be32(head).wrapping_sub(self.peer_tsn);
        if let Some(text) = args.get("cum") {
            check_equal("cumulative TSN", parse_relative(text)? as i32, cumulative as i32)?;
        }
        if args.has("arwnd") {
            check_equal("a_rwnd", args.number("arwnd", 0)?, be32(&head[4..]).into())?;
        }
        let (gaps, dups) = (be16(&head[8..]), be16(&head[10..]));
        if rest.len() != 4 * usize::from(gaps) + 4 * usize::from(dups) {
            return Err("its length does not match its two lists".into());
        }
        let mut seen_gaps = Vec::new();
        for _ in 0..gaps {
            let tsn = |at: usize| cumulative.wrapping_add(be16(&rest[at..]).into());
            seen_gaps.push((tsn(0), tsn(2)));
            rest = &rest[4..];
        }
        let seen_dups: Vec<u32> =
            rest.chunks_exact(4).map(|tsn| be32(tsn).wrapping_sub(self.peer_tsn)).collect();
        check_equal("gap blocks", parse_blocks(args.get("gap"))?, seen_gaps)?;
        check_equal("duplicates", parse_list(args.get("dup"))?, seen_dups)
    }

    /// Formats a packet of the stack for the transcript.
    pub fn show(&self, got: &ReceivedPacket) -> String {
        let mut text = format!("tag={:#010x}", got.tag);
        for chunk in &got.chunks {
            let value = &chunk.value;
            let _ = write!(text, " | {}", chunk_name(chunk.kind));
            match chunk.kind {
                0 if value.len() >= 12 => {
                    let tsn = be32(value).wrapping_sub(self.stack_tsn) as i32;
                    let (sid, ppid, flags) = (be16(&value[4..]), be32(&value[8..]), chunk.flags);
                    let (len, head) = (value.len() - 12, &value[12..value.len().min(32)]);
                    let _ = write!(
                        text,
                        " tsn={tsn} sid={sid} ppid={ppid} flags={flags:#x} {len} bytes {head:02x?}"
                    );
                }
                3 if value.len() >= 12 => {
                    let cumulative = be32(value).wrapping_sub(self.peer_tsn) as i32;
                    let (arwnd, lists) = (be32(&value[4..]), &value[8..]);
                    let _ = write!(text, " cum={cumulative} arwnd={arwnd} {lists:02x?}");
                }
                6 | 9 => {
                    let codes = cause_codes(value);
                    let _ = write!(text, " T={} causes {codes:?}", chunk.flags & 1);
                }
                _ => {
                    let _ = write!(text, " flags={:#x} {} bytes", chunk.flags, value.len());
                }
            }
        }
        text
    }
}

fn check_equal<T: PartialEq + core::fmt::Debug>(
    name: &str,
    expected: T,
    seen: T,
) -> Result<(), String> {
    if expected == seen {
        Ok(())
    } else {
        Err(format!("{name}: expected {expected:?}, seen {seen:?}"))
    }
}

/// Encodes a parameter or cause with header and padding (RFC 9260 §3.2.1).
fn parameter(number: u16, value: &[u8]) -> Vec<u8> {
    let mut out = number.to_be_bytes().to_vec();
    out.extend((value.len() as u16 + 4).to_be_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn parameters(mut bytes: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, String> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let length = usize::from(be16(&bytes[2..]));
        let padded = length.next_multiple_of(4).min(bytes.len());
        if length < 4 || length > bytes.len() {
            return Err(format!("a parameter of {length} bytes in {}", bytes.len()));
        }
        found.push((be16(bytes), bytes[4..length].to_vec()));
        bytes = &bytes[padded..];
    }
    if bytes.is_empty() { Ok(found) } else { Err("bytes behind the parameters".into()) }
}

fn cause_codes(value: &[u8]) -> Vec<u16> {
    parameters(value).unwrap_or_default().into_iter().map(|(code, _)| code).collect()
}

fn causes(args: &Args) -> Result<Vec<u8>, String> {
    let mut value = Vec::new();
    for (_, text) in args.pairs().filter(|(key, _)| *key == "cause") {
        let (code, digits) = text.split_once(':').unwrap_or((text, ""));
        value.extend(parameter(number(code)? as u16, &parse_bytes(&format!("hex:{digits}"))?));
    }
    Ok(value)
}

/// Parses ranges such as `2-3,5-5`.
fn parse_blocks(text: Option<&str>) -> Result<Vec<(u32, u32)>, String> {
    let Some(text) = text else { return Ok(Vec::new()) };
    text.split(',')
        .map(|block| {
            let (from, to) = block.split_once('-').unwrap_or((block, block));
            Ok((parse_relative(from)?, parse_relative(to)?))
        })
        .collect()
}

fn parse_list(text: Option<&str>) -> Result<Vec<u32>, String> {
    text.map_or(Ok(Vec::new()), |text| text.split(',').map(parse_relative).collect())
}

/// Formats a packet, which may be truncated: its tag, and type, length and main fields of each chunk. `None` if the
/// packet is shorter than the common header.
pub fn summarize(bytes: &[u8]) -> Option<String> {
    let mut text = format!("tag={:#010x}", be32(bytes.get(4..8)?));
    let mut rest = bytes.get(COMMON_HEADER_LEN..)?;
    while rest.len() >= 4 {
        let length = usize::from(be16(&rest[2..])).max(4);
        let _ = write!(text, " | {} {length}", chunk_name(rest[0]));
        let value = &rest[4..length.min(rest.len())];
        if value.len() >= 4 && matches!(rest[0], 0 | 3 | 7) {
            let _ = write!(text, " tsn={}", be32(value));
        }
        if rest[0] == 0 && value.len() >= 6 {
            let _ = write!(text, " sid={}", be16(&value[4..]));
        }
        if rest[0] == 3 && value.len() > 12 {
            let _ = write!(text, " {:02x?}", &value[8..]);
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(text)
}
