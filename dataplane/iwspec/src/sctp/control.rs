//! Session control messages (RFC 5043 §5.2.3), and their enhanced forms (RFC 6581 §7).

use super::Chunk;
use crate::message::{Kind, Message};
use crate::value::{Arguments, MAX_DATA, Variables, payload};

/// Offset from the function code of a plain form to that of its enhanced form.
const ENHANCED: u16 = 4;

/// Builds the message of a `send` line without its DDP-SSN.
///
/// # Errors
/// An argument cannot be computed.
pub fn encode(kind: Kind, arguments: &Arguments, variables: &Variables) -> Result<Vec<u8>, String> {
    let number = |key: &str, default: u64| arguments.number(key, default, variables);
    let enhanced = number("enhanced", 0)? != 0;
    let plain = match kind {
        Kind::Initiate => 1,
        Kind::Accept => 2,
        Kind::Reject => 3,
        Kind::End => 4,
        _ => 0,
    };
    let default = if enhanced { plain + ENHANCED } else { plain };
    let mut out = (number("function", default.into())? as u16).to_be_bytes().to_vec();
    if arguments.get("ird").is_some() || arguments.get("ord").is_some() {
        // RFC 6581 §9: order of the fields is A, B, IRD, C, D, ORD.
        let flags = number("flags", 0)?;
        let ird = number("ird", 0)? & 0x3fff | flags >> 2 << 14;
        let ord = number("ord", 0)? & 0x3fff | (flags & 3) << 14;
        out.extend((ird as u16).to_be_bytes());
        out.extend((ord as u16).to_be_bytes());
    }
    let length = number("len", 0)?.min(MAX_DATA) as usize;
    out.extend(payload(arguments.get("data").unwrap_or("pattern"), length, 0, variables)?);
    Ok(out)
}

/// Decodes a session control message. `None` if it is too short.
pub fn decode(chunk: &Chunk) -> Option<Message> {
    let function = u16::from_be_bytes(*chunk.data.get(2..4)?.first_chunk()?);
    let mut data = &chunk.data[4..];
    let enhanced = (5..=7).contains(&function);
    let mut fields = vec![
        ("function", u64::from(function)),
        ("enhanced", u64::from(enhanced)),
        ("len", data.len() as u64),
    ];
    if enhanced && let Some((words, rest)) = data.split_first_chunk::<4>() {
        let (ird, ord) =
            (u16::from_be_bytes([words[0], words[1]]), u16::from_be_bytes([words[2], words[3]]));
        fields.extend([
            ("ird", u64::from(ird & 0x3fff)),
            ("ord", u64::from(ord & 0x3fff)),
            ("flags", u64::from(ird >> 14 << 2 | ord >> 14)),
        ]);
        data = rest;
    }
    let kind = match function {
        1 | 5 => Kind::Initiate,
        2 | 6 => Kind::Accept,
        3 | 7 => Kind::Reject,
        4 => Kind::End,
        _ => Kind::Control,
    };
    Some(Message { kind, fields, data: data.to_vec(), raw: chunk.data.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_messages_are_decoded() {
        let none = Variables::new();
        let message = |kind: Kind, words: &str| {
            let arguments = Arguments::parse(words.split_whitespace()).expect("good");
            let mut data = vec![0, 3];
            data.extend(encode(kind, &arguments, &none).expect("computed"));
            decode(&Chunk { stream: 0, ppid: 17, unordered: true, whole: true, data })
        };
        let m = message(Kind::Initiate, "data=hex:0102").expect("long enough");
        assert_eq!((m.kind, m.raw, m.data), (Kind::Initiate, vec![0, 3, 0, 1, 1, 2], vec![1, 2]));
        let m = message(Kind::Accept, "enhanced=on ird=5 ord=6 flags=9").expect("long enough");
        assert_eq!(m.raw, [0, 3, 0, 6, 0x80, 5, 0x40, 6]);
        assert_eq!((m.field("ird"), m.field("ord"), m.field("flags")), (Some(5), Some(6), Some(9)));
        assert_eq!(message(Kind::Control, "function=99").expect("long").kind, Kind::Control);
        let short =
            Chunk { stream: 0, ppid: 17, unordered: true, whole: true, data: vec![0, 0, 0] };
        assert_eq!(decode(&short), None);
    }
}
