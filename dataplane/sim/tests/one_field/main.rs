//! Conversations in which one field of one message is wrong. The headers are those of MPA, SCTP, its adaptation layer,
//! DDP and RDMAP. Each field takes these values: 0, the maximum, the legal value plus and minus one, and each
//! single-bit change of it. The CRC is computed over the changed bytes, so that it does not hide the wrong field.
//!
//! Checks for each value: the endpoint does not panic, and writes only to memory that the peer may write. When the peer
//! closes, the stream ends with a reason and its buffers are returned. A Terminate has the error numbers of the reason.
//! A second stream of the same worker continues.
//!
//! `tcp.txt` and `sctp.txt` have one line per conversation, field and outcome. A field with several outcomes has the
//! hexadecimal values of each.
//!
//! | outcome | |
//! |---|---|
//! | `harmless` | same effect as the legal value |
//! | `goes on` | the message has another meaning, or is dropped; the last message is delivered |
//! | `waits, ...` | the last message is not delivered; the stream ends with this reason when the peer ends it |
//! | a reason, layer/type/code | the stream ended; `told`: the peer received a Terminate or last message with these numbers |
//!
//! The first three outcomes need an entry in [`REASONS`]. `ONE_FIELD_BLESS=1` rewrites the files. Check changes in them
//! against the RFCs.

#![allow(clippy::print_stdout)]

mod association;
mod connection;
mod fields;
mod sctp;
mod table;
mod tcp;

use table::Table;

#[test]
fn single_wrong_field_has_the_outcome_of_the_rfcs() {
    let mut tcp = Table::default();
    tcp::run(&mut tcp);
    compare("tcp.txt", &tcp);
    let mut sctp = Table::default();
    sctp::run(&mut sctp);
    compare("sctp.txt", &sctp);
    let mut used = vec![false; REASONS.len()];
    check_reasons(&tcp.lines(), &mut used);
    check_reasons(&sctp.lines(), &mut used);
    let unused = REASONS.iter().zip(used).filter(|(_, used)| !used).map(|(why, _)| why.2);
    assert_eq!(unused.collect::<Vec<_>>(), [""; 0], "unused reasons");
}

/// Reasons why a wrong value of a field does not end the stream at once: fields, outcomes (`harmless`, `goes on` or
/// `waits`), reason.
const REASONS: &[(&[&str], &[&str], &str)] = &[
    (&["DDP reserved"], &["harmless"], "not checked on receipt, RFC 5041 §4.1"),
    (&["RDMAP reserved"], &["harmless"], "not checked on receipt, RFC 5040 §4.1"),
    (
        &["Invalidate STag"],
        &["harmless"],
        "meaningful only in a Send with Invalidate, RFC 5040 §4.1",
    ),
    (&["RsvdULP"], &["goes on"], "for the ULP, RFC 5041 §4: passed on unchanged"),
    (
        &["L"],
        &["goes on", "waits"],
        "the next segment that fits continues the message, RFC 5041 §5.2",
    ),
    (
        &["opcode"],
        &["goes on"],
        "another message of the same queue with the same length, RFC 5040 §4.2",
    ),
    (&["TO", "atomic TO"], &["goes on"], "another place in the region, within its bounds"),
    (
        &["source TO"],
        &["harmless"],
        "other bytes of the region, with the same values, within its bounds",
    ),
    (&["read size"], &["goes on"], "within the region's bounds"),
    (
        &["sink STag", "sink TO", "request identifier"],
        &["harmless"],
        "for the requester: returned unchanged",
    ),
    (&["atomic opcode"], &["goes on"], "Compare and Swap in place of Fetch and Add"),
    (&["atomic reserved"], &["harmless"], "not checked on receipt, RFC 7306 §5.2.1"),
    (&["add or swap data"], &["goes on"], "an operand"),
    (
        &["add or swap mask", "compare data", "compare mask"],
        &["harmless"],
        "an operand that this addition does not use",
    ),
    (&["original remote data"], &["goes on"], "the result"),
    (&["terminate reserved"], &["harmless"], "not checked on receipt, RFC 5040 §4.8"),
    (&["PAD"], &["harmless"], "not checked on receipt, RFC 5044 §4.1"),
    (&["CRC"], &["harmless"], "not checked where both ends agreed to none, RFC 5044 §4.4"),
    (&["marker reserved"], &["harmless"], "not checked on receipt, RFC 5044 §4.2"),
    (&["FPDUPTR"], &["harmless"], "its two low bits are taken as zero, RFC 5044 §4.2"),
    (&["ULPDU_Length"], &["goes on"], "the pad is parsed as payload, undetected"),
    (
        &["ULPDU_Length", "PD_Length"],
        &["waits"],
        "more bytes may still come; the stream's end is error 1, RFC 5044 §8",
    ),
    (&["M", "C"], &["harmless"], "the peer's choice for each direction, RFC 5044 §7.1.1"),
    (&["R", "Res"], &["harmless"], "not checked in a request, RFC 5044 §7.1.1"),
    (
        &["S"],
        &["harmless"],
        "a reserved bit below revision 2; without it there is no enhanced data, RFC 6581 §6",
    ),
    (&["Rev"], &["harmless"], "another revision that the responder accepts"),
    (
        &["A", "B", "C (RTR)", "D"],
        &["harmless"],
        "further offers of the peer-to-peer model, not used, RFC 6581 §9.2",
    ),
    (
        &["IRD", "ORD"],
        &["harmless"],
        "a smaller or larger depth, within the limits of this end, RFC 6581 §9.1",
    ),
    (&["chunk flags"], &["harmless"], "reserved bits and I: not checked, RFC 9260 §3.2"),
    (
        &["chunk flags"],
        &["goes on", "waits"],
        "another part of an incomplete message, or a reflected tag: dropped",
    ),
    (
        &["chunk type"],
        &["harmless", "goes on", "waits"],
        "another chunk, unknown or not expected here, RFC 9260 §3.2",
    ),
    (
        &["chunk length"],
        &["harmless", "goes on", "waits"],
        "a shorter message, or dropped when it does not fit the packet, RFC 9260 §6.10",
    ),
    (&["verification tag"], &["harmless", "goes on", "waits"], "dropped silently, RFC 9260 §8.5"),
    (&["initiate tag"], &["harmless"], "the peer's choice"),
    (&["initiate tag"], &["waits"], "zero: dropped, RFC 9260 §3.3.2"),
    (
        &["a_rwnd", "inbound streams", "outbound streams"],
        &["harmless"],
        "the peer's limits, enough for one session",
    ),
    (
        &["initial TSN"],
        &["harmless", "waits"],
        "the first DATA has another TSN: a gap, or out of range",
    ),
    (
        &["TSN"],
        &["harmless", "goes on"],
        "beyond a gap, or in place of a lost chunk: the DDP-SSN determines the order, RFC 5043 §5.2",
    ),
    (&["TSN"], &["waits"], "a duplicate, or outside the window: dropped, RFC 9260 §6.2"),
    (
        &["stream identifier"],
        &["goes on", "waits"],
        "another session's, or an ERROR, RFC 9260 §6.5",
    ),
    (
        &["stream sequence number"],
        &["harmless"],
        "without meaning in an unordered chunk, RFC 9260 §6.6",
    ),
    (&["PPID"], &["goes on", "waits"], "a segment before the session, or no session's message"),
    (&["DDP-SSN"], &["goes on", "waits"], "an earlier segment is missing, RFC 5043 §5.2"),
    (&["function code"], &["goes on"], "an enhanced Initiate"),
    (&["function code"], &["waits"], "not an Initiate: no session, RFC 5043 §6.1"),
    (&["cumulative TSN"], &["harmless"], "an old acknowledgement, RFC 9260 §6.2.1"),
    (
        &["gaps", "duplicates"],
        &["harmless"],
        "does not fit the chunk: dropped, the next SACK counts",
    ),
    (&["cause", "cause length"], &["harmless", "goes on"], "at most reported to the operator"),
    (&["info type", "info length"], &["goes on"], "returned unchanged, or dropped"),
];

/// Checks that each outcome that does not end the stream at once has an entry in [`REASONS`]. Marks the entries used.
fn check_reasons(lines: &[String], used: &mut [bool]) {
    for line in lines {
        let parts: Vec<&str> = line.split(" | ").collect();
        let kind =
            ["harmless", "goes on", "waits"].into_iter().find(|kind| parts[2].starts_with(kind));
        let Some(kind) = kind else { continue };
        let index = REASONS
            .iter()
            .position(|(fields, kinds, _)| fields.contains(&parts[1]) && kinds.contains(&kind));
        let index = index.unwrap_or_else(|| panic!("{line}: no entry in REASONS"));
        used[index] = true;
    }
}

fn compare(name: &str, table: &Table) {
    let path = format!("{}/tests/one_field/{name}", env!("CARGO_MANIFEST_DIR"));
    let lines = table.lines();
    if std::env::var_os("ONE_FIELD_BLESS").is_some() {
        std::fs::write(&path, lines.join("\n") + "\n").expect("a writable file");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let expected: Vec<&str> = text.lines().collect();
    let unexpected: Vec<_> =
        lines.iter().filter(|line| !expected.contains(&line.as_str())).collect();
    let missing: Vec<_> =
        expected.iter().filter(|line| !lines.iter().any(|l| l == *line)).collect();
    assert!(
        unexpected.is_empty() && missing.is_empty(),
        "not expected: {unexpected:#?}\nexpected: {missing:#?}"
    );
    println!("{} conversations, {} outcomes", table.conversations, lines.len());
}
