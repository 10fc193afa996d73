//! Explained names are unique and found in each printed form, every kind of event is among them, and `docs/reasons.md`
//! contains all explanations.

use std::path::Path;

use schemars::schema_for;

use super::*;

fn names(found: &[Explained]) -> Vec<(Group, &str)> {
    found.iter().map(|explained| (explained.group, explained.name.as_str())).collect()
}

#[test]
fn checked_in_document_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reasons.md");
    let text = document();
    if std::env::var_os("DDPD_WRITE_REFERENCE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let have = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(have == text, "docs/reasons.md is old: run this test with DDPD_WRITE_REFERENCE=1");
}

#[test]
fn every_kind_of_event_has_its_name_in_json() {
    let schema = schema_for!(EventKind);
    let kinds = schema.as_value()["oneOf"].as_array().unwrap();
    let kinds: Vec<&str> =
        kinds.iter().map(|kind| kind["properties"]["event"]["const"].as_str().unwrap()).collect();
    let explained: Vec<&str> = EventKind::EXPLANATIONS.iter().map(|kind| kind.name).collect();
    assert_eq!(kinds, explained);
}

#[test]
fn every_name_is_once_in_its_group_and_is_explained_in_sentences() {
    let all = all();
    for (at, explained) in all.iter().enumerate() {
        let Explained { group, name, meaning, cause, remedy, .. } = explained;
        assert!(name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
        assert!(all[..at].iter().all(|e| (e.group, &e.name) != (*group, name)), "{name}");
        for sentence in [meaning, cause] {
            assert!(sentence.ends_with('.') && sentence.len() < 400, "{name}: {sentence}");
        }
        assert!(!remedy.is_empty() && remedy.len() < 400, "{name}: {remedy}");
        // A source line that ends with a space leaves two spaces where the lines of a text are joined.
        assert!(![meaning, cause, remedy].iter().any(|text| text.contains("  ")), "{name}");
    }
}

#[test]
fn names_are_found_as_they_are_printed() {
    let checksum = [(Group::Drop, "net_ip_checksum")];
    for text in [
        "ip_checksum",
        "net_ip_checksum",
        "reason=\"net_ip_checksum\"",
        "reason=net_ip_checksum",
        "ddpd_drops_total{worker=\"0\",reason=\"net_ip_checksum\"}",
        "dropped: net_ip_checksum",
    ] {
        assert_eq!(names(&find(text)), checksum, "{text}");
    }
    assert_eq!(names(&find("tcp_refused")), [(Group::TcpDrop, "tcp_refused")]);
    assert_eq!(
        names(&find("bad_header")),
        [(Group::TcpDrop, "tcp_bad_header"), (Group::SctpDrop, "sctp_bad_header")]
    );
    assert_eq!(
        names(&find("address_conflict")),
        [
            (Group::Drop, "net_address_conflict"),
            (Group::Note, "address_conflict"),
            (Group::Event, "address_conflict")
        ]
    );
    assert!(find("").is_empty() && find("dropped").is_empty());
}

#[test]
fn an_unknown_name_has_similar_ones() {
    assert_eq!(similar("ip_cheksum")[0], "net_ip_checksum");
    assert!(similar("checksum").contains(&"net_l4_checksum".to_owned()));
    assert!(similar("unprotected").contains(&"net_ipsec_unprotected".to_owned()));
    assert!(similar("something_else_altogether").is_empty());
}
