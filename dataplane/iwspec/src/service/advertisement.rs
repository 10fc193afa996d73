//! The advertisement of memory regions in the private data of ddpd and `iwspec-peer` (`docs/protocol.md` §2).

use crate::session::{Session, Stop};

/// Rights in the access field of an advertised region, one bit each.
const WRITE: u8 = 1;
const READ: u8 = 2;
const ATOMIC: u8 = 4;
/// Name of the region whose STag the tester may invalidate.
const OWN: &[u8] = b"own";

/// Sets the facts `write`, `read`, `both`, `source`, `inbox` and `atomic` from the first region of each kind. Sets
/// `own` from the region of this name, and `receive` from the bytes that `iwspec-peer` appends.
pub(super) fn read(session: &mut Session<'_>, data: &[u8]) -> Result<(), Stop> {
    let (regions, rest) =
        parse(data).map_err(|e| Stop::Inconclusive(format!("no advertisement of regions: {e}")))?;
    let wanted: [(&str, u8, u8); 6] = [
        ("write", WRITE, WRITE),
        ("read", READ, READ),
        ("both", READ | WRITE, READ | WRITE),
        ("source", READ | WRITE, READ),
        ("inbox", READ | WRITE, WRITE),
        ("atomic", ATOMIC, ATOMIC),
    ];
    for (name, mask, value) in wanted {
        if let Some(r) = regions.iter().find(|r| r.name != OWN && r.access & mask == value) {
            let (offset, length) = session.lane(r.length);
            super::set_memory(
                session,
                name,
                u64::from(r.stag),
                r.base.wrapping_add(offset),
                length,
            );
        }
    }
    if let Some(r) = regions.iter().find(|r| r.name == OWN) {
        super::set_memory(session, "own", u64::from(r.stag), r.base, r.length);
    }
    if let Some(&[a, b, c, d, e, f, g, h]) = rest.first_chunk() {
        session.set("receive.len", u64::from(u32::from_be_bytes([a, b, c, d])));
        session.set("receive.count", u64::from(u32::from_be_bytes([e, f, g, h])));
    }
    Ok(())
}

/// A region in the advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region<'a> {
    name: &'a [u8],
    stag: u32,
    access: u8,
    base: u64,
    length: u64,
}

/// Returns the advertised regions, and the bytes after the last entry.
fn parse(data: &[u8]) -> Result<(Vec<Region<'_>>, &[u8]), &'static str> {
    let head = data.get(..8).ok_or("shorter than 8 bytes")?;
    if &head[..5] != b"DDPA\x01" {
        return Err("another magic or version");
    }
    let count = u16::from_be_bytes([head[6], head[7]]);
    let mut rest = &data[8..];
    let mut regions = vec![];
    for _ in 0..count {
        let (entry, tail) = rest.split_first_chunk::<24>().ok_or("an entry is cut off")?;
        let (name, tail) = tail.split_at_checked(entry[5].into()).ok_or("a name is cut off")?;
        let long = |at: usize| entry[at..at + 8].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
        regions.push(Region {
            name,
            stag: u32::from_be_bytes([entry[0], entry[1], entry[2], entry[3]]),
            access: entry[4],
            base: long(8),
            length: long(16),
        });
        rest = tail;
    }
    Ok((regions, rest))
}

/// Encodes an advertisement for the reference peer.
pub(crate) fn build(regions: &[(u32, u8, u64, u64, &str)]) -> Vec<u8> {
    let mut out = b"DDPA\x01\x02".to_vec();
    out.extend((regions.len() as u16).to_be_bytes());
    for (stag, access, base, length, name) in regions {
        out.extend(stag.to_be_bytes());
        out.extend([*access, name.len() as u8, 0, 0]);
        out.extend(base.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(name.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn example_of_the_protocol_page_is_parsed() {
        let bytes = dialogue::streams::parse_hex(
            "444450410100000101020304010200001122334455667788000000000000100069 6e"
                .replace(' ', "")
                .as_str(),
        )
        .expect("digits");
        let region = Region {
            name: b"in",
            stag: 0x0102_0304,
            access: 1,
            base: 0x1122_3344_5566_7788,
            length: 4096,
        };
        assert_eq!(parse(&bytes), Ok((vec![region], &[][..])));
        assert!(parse(&bytes[..33]).is_err());
        let built = build(&[(0x0102_0304, 1, 0x1122_3344_5566_7788, 4096, "in")]);
        assert_eq!(parse(&[&built[..], b"tail"].concat()), Ok((vec![region], &b"tail"[..])));
    }

    proptest! {
        #[test]
        fn any_private_data_are_parsed_without_panic(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&tail);
            let _ = parse(&[b"DDPA\x01\x02", &tail[..]].concat());
        }
    }
}
