//! RFC 5043 messages for the user data of DATA chunks. This encoder follows the RFC and shares no code with the stack.

use crate::script::{Args, number};
use crate::streams::{parse_bytes, pattern_bytes};

/// Function codes by name (RFC 5043 §5.2.3, RFC 6581 §7).
const FUNCTIONS: [(&str, u16); 7] = [
    ("initiate", 1),
    ("accept", 2),
    ("reject", 3),
    ("terminate", 4),
    ("enhanced-initiate", 5),
    ("enhanced-accept", 6),
    ("enhanced-reject", 7),
];

/// Returns the flags of a DATA chunk from the letters of `flags=`: `U`, `B`, `E`, `I`. Default: `UBE`, unordered and
/// unfragmented.
pub(crate) fn data_flags(args: &Args) -> Result<u8, String> {
    let letters = args.get("flags").unwrap_or("UBE");
    let bit = |c| match c {
        'E' => Ok(1),
        'B' => Ok(2),
        'U' => Ok(4),
        'I' => Ok(8),
        '-' => Ok(0),
        other => Err(format!("`{other}` is none of U B E I")),
    };
    letters.chars().try_fold(0, |flags, c| Ok(flags | bit(c)?))
}

pub(crate) fn message_kind(args: &Args) -> Option<&str> {
    let known = |argument: &str| {
        matches!(argument, "tagged" | "untagged" | "function")
            || FUNCTIONS.iter().any(|(name, _)| *name == argument)
    };
    args.positional(0).filter(|word| known(word))
}

pub(crate) fn ppid(args: &Args) -> u64 {
    match message_kind(args) {
        Some("tagged" | "untagged") | None => 16,
        Some(_) => 17,
    }
}

/// Encodes the user message of a line (RFC 5043 §5.2): the DDP-SSN, then the content. Without a message kind, `hex=` or
/// `len=` describes the whole user data, without a DDP-SSN. `None` if the line has no content.
pub(crate) fn user_message(args: &Args) -> Result<Option<Vec<u8>>, String> {
    args.check_known_keys(&[
        "tsn",
        "sid",
        "sseq",
        "ppid",
        "flags",
        "n",
        "hex",
        "len",
        "tagged",
        "untagged",
        "function",
        "initiate",
        "accept",
        "reject",
        "terminate",
        "enhanced-initiate",
        "enhanced-accept",
        "enhanced-reject",
        "code",
        "pd",
        "reads",
        "ver",
        "last",
        "rsvd",
        "stag",
        "to",
        "qn",
        "msn",
        "mo",
        "length",
        "flags-byte",
        "I",
    ])?;
    let mut message = (args.number("n", 0)? as u16).to_be_bytes().to_vec();
    let version = args.number("ver", 1)? as u8;
    let last = args.number("last", 1)? != 0;
    let len = args.number("len", 0)? as usize;
    let Some(kind) = message_kind(args) else {
        return match (args.get("hex"), args.has("len")) {
            (Some(digits), _) => Ok(Some(parse_bytes(&format!("hex:{digits}"))?)),
            (None, true) => Ok(Some(vec![0; len])),
            (None, false) => Ok(None),
        };
    };
    match kind {
        "tagged" => {
            let to = args.number("to", 0)?;
            let (rsvd, stag) = (args.number("rsvd", 0)? as u8, args.number("stag", 16)? as u32);
            message.extend(oracle::tagged(version, last, rsvd, stag, to, &pattern_bytes(to, len)));
        }
        "untagged" => {
            let mo = args.number("mo", 0)? as u32;
            let payload = match args.get("hex") {
                Some(digits) => parse_bytes(&format!("hex:{digits}"))?,
                None => pattern_bytes(mo.into(), len),
            };
            let (qn, msn) = (args.number("qn", 0)? as u32, args.number("msn", 1)? as u32);
            message.extend(oracle::untagged(version, last, [0; 5], qn, msn, mo, &payload));
        }
        name => {
            let known = FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, code)| *code);
            let code = known.map_or_else(|| args.number("code", 0).map(|n| n as u16), Ok)?;
            message.extend(code.to_be_bytes());
            if let Some(reads) = args.get("reads") {
                // RFC 6581 §9: IRD first, then ORD.
                let (ird, ord) = reads.split_once('/').ok_or("reads=IRD/ORD")?;
                for depth in [ird, ord] {
                    message.extend((number(depth)? as u16).to_be_bytes());
                }
            }
            message.extend(args.get("pd").map_or(Ok(Vec::new()), parse_bytes)?);
        }
    }
    Ok(Some(message))
}
