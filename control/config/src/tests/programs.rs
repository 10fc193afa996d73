//! Tests of the section `[programs]`: defaults, bounds, members and changes.

use std::path::Path;

use super::super::*;
use super::{MINIMAL, parse};

#[test]
fn programs_attach_only_with_the_section() {
    assert_eq!(parse(MINIMAL).unwrap().config.programs, None);
    let config = parse(&format!("{MINIMAL}[programs]\n")).unwrap().config;
    let programs = config.programs.as_ref().unwrap();
    assert_eq!((programs.programs, programs.budget, programs.allow.len()), (64, 128, 0));
    let beside = Path::new(DEFAULT_SOCKET).with_file_name("programs.sock");
    assert_eq!(config.programs_socket(), Some(beside));
    let text = format!("{MINIMAL}[programs]\nsocket = \"/x/y\"\n");
    assert_eq!(parse(&text).unwrap().config.programs_socket(), Some("/x/y".into()));
}

#[test]
fn members_of_programs_are_resolved() {
    let overflow = OverflowIds { uid: 65_534, gid: 65_534 };
    let text = "[programs]\nallow = [\"user:root\", \"group:7\"]\nsocket_group = \"root\"\n";
    let config = parse(&format!("{MINIMAL}{text}")).unwrap().config;
    let (ids, group) = config.programs.unwrap().resolve_ids(overflow).unwrap();
    assert_eq!((ids.users, ids.groups, group), ([0].into(), [7].into(), Some(0)));
    let text = "[programs]\nallow = [\"user:65534\"]\n";
    let config = parse(&format!("{MINIMAL}{text}")).unwrap().config;
    assert_eq!(config.programs.unwrap().resolve_ids(overflow).unwrap_err().0, "allow");
}

#[test]
fn keys_of_programs_have_bounds() {
    for line in [
        "programs = 0",
        "queue_pairs = 16385",
        "posts = 32769",
        "completions = 1",
        "memory = \"1 KiB\"",
        "budget = 0",
        "socket_group = \"g\"",
        "unknown = 1",
    ] {
        let errors = parse(&format!("{MINIMAL}[programs]\n{line}\n")).unwrap_err();
        let key = line.split(' ').next().unwrap();
        assert!(errors.contains(&format!("programs.{key}")), "{line}: {errors}");
    }
}

#[test]
fn change_of_programs_needs_a_restart() {
    let without = parse(MINIMAL).unwrap().config;
    let with = parse(&format!("{MINIMAL}[programs]\n")).unwrap().config;
    let other = parse(&format!("{MINIMAL}[programs]\nposts = 1\n")).unwrap().config;
    assert_eq!(without.differences(&with, false), [("programs", vec!["socket"])]);
    assert_eq!(with.differences(&other, false), [("programs", vec!["posts"])]);
    assert!(
        with.differences(&other, true).is_empty() && without.differences(&with, true).is_empty()
    );
}
