//! The two byte streams of a dialogue, built from its pieces, and positions in them.

use std::collections::HashMap;

use crate::script::{Args, Direction, Piece, Script, ScriptError, Slice, number, switch};
use crate::segment::Segment;
use oracle::{Flaw, StartFrame, Stream};

/// Both byte streams of a dialogue, and the position of each piece in its stream.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    inbound: Stream,
    outbound: Stream,
    places: HashMap<String, Place>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    direction: Direction,
    start: usize,
    end: usize,
}

/// Returns the payload byte at `offset`: the TO of a tagged segment, the MO of an untagged segment. The byte depends on
/// the offset, so that misplaced bytes are detected.
pub fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8 ^ offset as u8
}

/// Returns `len` bytes of the pattern, starting at `offset`.
pub fn pattern_bytes(offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| pattern(offset.wrapping_add(i))).collect()
}

impl Streams {
    /// Builds the streams of `script`.
    ///
    /// # Errors
    /// The first invalid piece.
    pub fn build(script: &Script) -> Result<Streams, ScriptError> {
        let mut streams = Streams::default();
        for setting in &script.settings {
            let Some((way, key)) = setting.key.split_once('.') else { continue };
            let wrong = |what| ScriptError { line: setting.line, message: what };
            let stream = match way {
                "in" => &mut streams.inbound,
                "out" => &mut streams.outbound,
                other => return Err(wrong(format!("`{other}` is neither in nor out"))),
            };
            let on = switch(&setting.value).map_err(wrong)?;
            match key {
                "markers" => stream.markers = on,
                "crc" => stream.crc = on,
                "draft-pointers" => stream.draft_pointers = on,
                other => {
                    return Err(wrong(format!("`{other}` is not markers, crc or draft-pointers")));
                }
            }
        }
        for piece in &script.pieces {
            streams.add(piece).map_err(|what| ScriptError { line: piece.line, message: what })?;
        }
        Ok(streams)
    }

    fn add(&mut self, piece: &Piece) -> Result<(), String> {
        let stream = match piece.direction {
            Direction::In => &mut self.inbound,
            Direction::Out => &mut self.outbound,
        };
        let start = stream.len();
        append(stream, &piece.kind, &piece.args)?;
        let place = Place { direction: piece.direction, start, end: stream.len() };
        self.places.insert(piece.name.clone(), place);
        Ok(())
    }

    /// Returns the bytes of the stream from the peer to the stack under test.
    pub fn inbound(&self) -> &[u8] {
        self.inbound.bytes()
    }

    /// Returns the bytes of the stream from the stack under test to the peer.
    pub fn outbound(&self) -> &[u8] {
        self.outbound.bytes()
    }

    /// Returns the sequence number, relative to the initial sequence number, of the position `text`: a number, `NAME`
    /// or `NAME.end`, each with an optional `+N` or `-N`.
    ///
    /// # Errors
    /// The name is unknown, or the text has another form.
    pub fn position(&self, text: &str) -> Result<u32, String> {
        let cut = text.rfind(['+', '-']).filter(|&at| at > 0);
        let (base, offset) = match cut {
            Some(at) => (&text[..at], &text[at..]),
            None => (text, "+0"),
        };
        let base = match number(base) {
            Ok(n) => n as u32,
            Err(_) => {
                let (name, end) = match base.strip_suffix(".end") {
                    Some(name) => (name, true),
                    None => (base, false),
                };
                let place = self.place(name)?;
                // The SYN occupies sequence number 0 (RFC 9293 §3.4).
                1 + if end { place.end } else { place.start } as u32
            }
        };
        let amount = number(&offset[1..])? as u32;
        Ok(if offset.starts_with('-') {
            base.wrapping_sub(amount)
        } else {
            base.wrapping_add(amount)
        })
    }

    /// Concatenates adjacent slices. Returns the relative sequence number of the first byte, and the bytes.
    ///
    /// # Errors
    /// A name is unknown, a slice is outside its piece, or two slices are not adjacent.
    pub fn slices(&self, slices: &[Slice]) -> Result<(u32, Vec<u8>), String> {
        let mut bytes = Vec::new();
        let mut span: Option<(usize, usize)> = None;
        for slice in slices {
            let place = self.place(&slice.name)?;
            let from = place.start + slice.from;
            let to = slice.to.map_or(place.end, |to| place.start + to);
            if from > to || to > place.end {
                return Err(format!("`{}` has no bytes {from}..{to}", slice.name));
            }
            let (start, end) = span.unwrap_or((from, from));
            if from != end {
                return Err(format!(
                    "`{}` does not directly follow the preceding slice",
                    slice.name
                ));
            }
            span = Some((start, to));
            let stream = match place.direction {
                Direction::In => &self.inbound,
                Direction::Out => &self.outbound,
            };
            bytes.extend(&stream.bytes()[from..to]);
        }
        Ok((span.map_or(0, |(start, _)| 1 + start as u32), bytes))
    }

    fn place(&self, name: &str) -> Result<Place, String> {
        self.places.get(name).copied().ok_or_else(|| format!("no piece is named `{name}`"))
    }

    /// Returns the names of the outbound pieces in a segment, for error messages.
    pub fn describe(&self, relative_seq: u32, segment: &Segment) -> String {
        let from = (relative_seq as usize).wrapping_sub(1);
        let to = from.saturating_add(segment.payload.len());
        let mut names: Vec<(usize, &str)> = self
            .places
            .iter()
            .filter(|(_, p)| p.direction == Direction::Out && p.start < to && from < p.end)
            .map(|(name, p)| (p.start, name.as_str()))
            .collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join("+")
    }
}

fn append(stream: &mut Stream, kind: &str, args: &Args) -> Result<(), String> {
    match kind {
        "request" => stream.raw(&start_frame(StartFrame::REQUEST, args)?.bytes()),
        "reply" => stream.raw(&start_frame(StartFrame::REPLY, args)?.bytes()),
        "startkey" => stream.raw(&start_key(args)?),
        "hex" => stream.raw(&parse_hex(args.positional(0).ok_or("hex BYTES")?)?),
        "text" => stream.raw(args.positional(0).ok_or("text WORD")?.as_bytes()),
        "pattern" => stream.raw(&pattern_bytes(
            stream.len() as u64,
            parse_length(args.positional(0).ok_or("pattern N")?)?,
        )),
        "zeros" => stream.raw(&vec![0; parse_length(args.positional(0).ok_or("zeros N")?)?]),
        "tagged" => {
            args.check_known_keys(&["ver", "last", "rsvd", "stag", "to", "len", "flaw"])?;
            let to = args.number("to", 0)?;
            let payload = pattern_bytes(to, args.number("len", 0)? as usize);
            let ulpdu = oracle::tagged(
                args.number("ver", 1)? as u8,
                args.switch("last", true)?,
                args.number("rsvd", 0)? as u8,
                args.number("stag", 0)? as u32,
                to,
                &payload,
            );
            stream.fpdu(&ulpdu, parse_flaw(args)?);
        }
        "untagged" => {
            args.check_known_keys(&[
                "ver", "last", "rsvd", "qn", "msn", "mo", "len", "hex", "flaw",
            ])?;
            let mo = args.number("mo", 0)?;
            let payload = match args.get("hex") {
                Some(text) => parse_hex(text)?,
                None => pattern_bytes(mo, args.number("len", 0)? as usize),
            };
            let rsvd = args.number("rsvd", 0)?.to_be_bytes();
            let ulpdu = oracle::untagged(
                args.number("ver", 1)? as u8,
                args.switch("last", true)?,
                [rsvd[3], rsvd[4], rsvd[5], rsvd[6], rsvd[7]],
                args.number("qn", 0)? as u32,
                args.number("msn", 1)? as u32,
                mo as u32,
                &payload,
            );
            stream.fpdu(&ulpdu, parse_flaw(args)?);
        }
        "fpdu" => {
            stream.fpdu(&parse_hex(args.positional(0).ok_or("fpdu BYTES")?)?, parse_flaw(args)?)
        }
        other => return Err(format!("`{other}` is no kind of piece")),
    }
    Ok(())
}

fn start_frame(key: [u8; 16], args: &Args) -> Result<StartFrame, String> {
    args.check_known_keys(&[
        "rev", "markers", "crc", "reject", "reserved", "enhanced", "pd", "pdlen",
    ])?;
    let mut private_data = Vec::new();
    let mut reserved = args.number("reserved", 0)? as u8;
    if let Some(text) = args.get("enhanced") {
        // RFC 6581 §6: S is the highest of the bits that RFC 5044 reserves.
        reserved |= 0x10;
        private_data.extend(parse_enhanced(text)?);
    }
    private_data.extend(args.get("pd").map_or(Ok(Vec::new()), parse_bytes)?);
    let claimed_length = match args.get("pdlen") {
        Some(text) => Some(number(text)? as u16),
        None => None,
    };
    Ok(StartFrame {
        key,
        markers: args.switch("markers", false)?,
        crc: args.switch("crc", true)?,
        reject: args.switch("reject", false)?,
        reserved,
        revision: args.number("rev", 1)? as u8,
        claimed_length,
        private_data,
    })
}

/// Parses `IRD/ORD` or `IRD/ORD/FLAGS` (RFC 6581 §9); FLAGS are letters from A to D.
fn parse_enhanced(text: &str) -> Result<[u8; 4], String> {
    let mut parts = text.split('/');
    let mut next = || parts.next().ok_or("enhanced=IRD/ORD/FLAGS");
    let (ird, ord) = (number(next()?)? as u16, number(next()?)? as u16);
    let flags = parts.next().unwrap_or("");
    let bit = |letter: char, bit: u16| if flags.contains(letter) { bit } else { 0 };
    let first = (ird | bit('A', 0x8000) | bit('B', 0x4000)).to_be_bytes();
    let second = (ord | bit('C', 0x8000) | bit('D', 0x4000)).to_be_bytes();
    Ok([first[0], first[1], second[0], second[1]])
}

/// Returns a Start Key of the draft (draft-culley-iwarp-mpa-03 §8.1.1): 15 bytes of key, then one byte with M, C,
/// reserved bits and revision.
fn start_key(args: &Args) -> Result<Vec<u8>, String> {
    args.check_known_keys(&["rev", "markers", "crc"])?;
    let mut out = b"MPA ident frame".to_vec();
    let flag = |on: bool, bit: u8| if on { 1u8 << bit } else { 0 };
    let markers = flag(args.switch("markers", false)?, 7);
    out.push(markers | flag(args.switch("crc", true)?, 6) | args.number("rev", 0)? as u8);
    Ok(out)
}

fn parse_flaw(args: &Args) -> Result<Flaw, String> {
    let Some(text) = args.get("flaw") else { return Ok(Flaw::None) };
    let (name, amount) = text.split_once(':').unwrap_or((text, "4"));
    let amount = number(amount)? as u16;
    match name {
        "crc" => Ok(Flaw::BadCrc),
        "pointer" => Ok(Flaw::BadPointer(amount)),
        "length" => Ok(Flaw::BadLength(amount)),
        other => Err(format!("`{other}` is none of crc, pointer, length")),
    }
}

/// Parses `hex:00ff`, `text:hello` or `zeros:12`.
pub fn parse_bytes(text: &str) -> Result<Vec<u8>, String> {
    match text.split_once(':') {
        Some(("hex", digits)) => parse_hex(digits),
        Some(("text", word)) => Ok(word.as_bytes().to_vec()),
        Some(("zeros", n)) => Ok(vec![0; parse_length(n)?]),
        _ => Err(format!("`{text}` is none of hex:DIGITS, text:WORD, zeros:N")),
    }
}

fn parse_length(text: &str) -> Result<usize, String> {
    number(text).map(|n| n as usize)
}

/// Decodes hexadecimal digits to bytes.
///
/// # Errors
/// The text is not an even number of digits.
pub fn parse_hex(digits: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("`{digits}` is not an even number of hexadecimal digits");
    if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
        return Err(wrong());
    }
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).map_err(|_| wrong()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(text: &str) -> Streams {
        Streams::build(&Script::parse(text).expect("good script")).expect("good pieces")
    }

    #[test]
    fn piece_names_resolve_to_sequence_numbers() {
        let s = streams("title x\nin a = zeros 20\nin b = zeros 10\nout c = zeros 5\n");
        assert_eq!(s.position("0"), Ok(0));
        assert_eq!(s.position("a"), Ok(1));
        assert_eq!(s.position("b"), Ok(21));
        assert_eq!(s.position("b.end"), Ok(31));
        assert_eq!(s.position("b+4"), Ok(25));
        assert_eq!(s.position("b.end-1"), Ok(30));
        assert_eq!(s.position("c.end"), Ok(6));
        assert!(s.position("d").is_err());
    }

    #[test]
    fn adjacent_slices_are_concatenated() {
        let s = streams("title x\nin a = hex 00010203\nin b = hex 0405\n");
        let slice = |name: &str, from, to| Slice { name: name.into(), from, to };
        let (seq, bytes) =
            s.slices(&[slice("a", 2, None), slice("b", 0, Some(1))]).expect("adjoin");
        assert_eq!((seq, bytes), (3, vec![2, 3, 4]));
        assert!(s.slices(&[slice("a", 0, Some(3)), slice("b", 0, None)]).is_err());
        assert!(s.slices(&[slice("b", 0, Some(3))]).is_err());
    }

    #[test]
    fn framing_lines_set_markers_and_crc() {
        let s = streams(
            "title x\nframing in markers=on crc=on\nin q = request markers=on\n\
             in f = tagged stag=1 to=0 len=4\n",
        );
        // 20 bytes of start frame; then marker, length, 14 bytes of header, 4 of payload, CRC.
        assert_eq!(s.position("f.end"), Ok(1 + 20 + 4 + 2 + 18 + 4));
    }
}
