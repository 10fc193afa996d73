//! Tests of `[management.access]` and `[management.audit]`.

use super::super::*;
use super::{MINIMAL, parse};

const OVERFLOW: OverflowIds = OverflowIds { uid: 65_534, gid: 65_533 };

fn management_section(sections: &str) -> ManagementSection {
    let document = parse(&format!("{MINIMAL}\n{sections}")).unwrap();
    document.config.management
}

/// Returns the error of a file with these sections, without the file's name and line.
fn error(sections: &str) -> String {
    let error = parse(&format!("{MINIMAL}\n{sections}")).unwrap_err();
    error.split_once(": ").unwrap().1.to_owned()
}

#[test]
fn roles_and_audit_are_off_by_default() {
    let management = management_section("");
    assert!(!management.access.is_configured());
    assert_eq!(management.access.resolve_ids(OVERFLOW), Ok(AccessIds::default()));
    let AuditSection { file, max_size, keep } = management.audit;
    assert_eq!((file, max_size, keep), (None, 16 << 20, 4));
}

#[test]
fn members_are_user_or_group_names_or_ids() {
    let text = "[management.access]\nview = [\"group:7\", \"user:root\", \"user:8\"]\noperate = [\"group:root\"]\n\
                admin = [\"user:9\"]\nsocket_group = \"root\"";
    let access = management_section(text).access;
    assert!(access.is_configured());
    let ids = access.resolve_ids(OVERFLOW).unwrap();
    let list = |users: &[u32], groups: &[u32]| MemberIds {
        users: users.iter().copied().collect(),
        groups: groups.iter().copied().collect(),
    };
    assert_eq!(ids.view, list(&[0, 8], &[7]));
    assert_eq!(ids.operate, list(&[], &[0]));
    assert_eq!((ids.admin, ids.socket_group), (list(&[9], &[]), Some(0)));
}

#[test]
fn invalid_member_error_names_key() {
    for (line, expected) in [
        (
            "view = [\"bob\"]",
            "view: has \"bob\", but a member must be \"user:NAME\" or \"group:NAME\"",
        ),
        (
            "operate = [\"user:\"]",
            "operate: has \"user:\", but a member must be \"user:NAME\" or \"group:NAME\"",
        ),
        ("admin = \"user:bob\"", "admin: is no list: write \"user:NAME\" or \"group:NAME\" in [ ]"),
        (
            "admin = [\"role:bob\"]",
            "admin: has \"role:bob\", but a member must be \"user:NAME\" or \"group:NAME\"",
        ),
        (
            "socket_group = \"g\"",
            "socket_group: has no effect while view, operate and admin are empty: remove it, or list members",
        ),
    ] {
        let error = error(&format!("[management.access]\n{line}"));
        assert_eq!(error, format!("management.access.{expected}"));
    }
    let many = vec!["\"user:1\""; 257].join(", ");
    let error = error(&format!("[management.access]\nview = [{many}]"));
    assert!(error.contains("has 257 members, but must have at most 256"), "{error}");
}

#[test]
fn bad_audit_files_name_the_key() {
    for (line, expected) in [
        ("file = \"audit.jsonl\"", "file: is \"audit.jsonl\", but must be an absolute path"),
        ("max_size = 1", "max_size: is 1 bytes, but must be from 64 KiB to 1 TiB"),
        ("keep = 0", "keep: is 0, but must be from 1 to 100"),
    ] {
        let error = error(&format!("[management.audit]\n{line}"));
        assert_eq!(error, format!("management.audit.{expected}"));
    }
}

#[test]
fn unknown_accounts_are_refused() {
    let text = "[management.access]\nview = [\"user:nobody here\", \"user:65534\"]\noperate = [\"group:65533\"]\n\
                admin = [\"user:99999999999\", \"user:4294967295\"]\nsocket_group = \"no such\"";
    let errors = management_section(text).access.resolve_ids(OVERFLOW).unwrap_err();
    let no_name = |what: &str, id: u32| {
        format!(
            "{what} {id} has the number {id}, which stands for accounts that the kernel cannot name: choose another"
        )
    };
    let not_here = |what: &str, name: &str| {
        format!("there is no {what} \"{name}\" on this machine: see getent, or write its number")
    };
    let expected = [
        ("view", not_here("user", "nobody here")),
        ("view", no_name("user", 65_534)),
        ("operate", no_name("group", 65_533)),
        ("admin", "user 99999999999 is no number of 32 bits".to_owned()),
        ("admin", no_name("user", u32::MAX)),
        ("socket_group", not_here("group", "no such")),
    ];
    assert_eq!(errors, expected);
}

#[test]
fn check_reports_unknown_accounts_with_line() {
    let text =
        format!("{MINIMAL}\n[management.access]\nview = []\nadmin = [\"user:nobody here\"]\n");
    let found = parse(&text).unwrap().check_machine(&|_, _| Ok(None));
    let line = text.lines().position(|line| line.starts_with("admin")).unwrap() + 1;
    let expected = format!("t.toml:{line}: management.access.admin: there is no user");
    let has = |finding: &MachineFinding| matches!(finding, MachineFinding::Error(e) if e.to_string().starts_with(&expected));
    assert!(found.iter().any(has), "{expected}: {found:?}");
    let text = format!("{MINIMAL}\n[management.audit]\nfile = \"/nonexistent/audit\"\n");
    let found = parse(&text).unwrap().check_machine(&|_, _| Ok(None));
    let expected =
        "management.audit.file: its directory /nonexistent does not exist: mkdir -p /nonexistent";
    let has = |finding: &MachineFinding| matches!(finding, MachineFinding::Error(e) if e.to_string().ends_with(expected));
    assert!(found.iter().any(has), "{found:?}");
}

#[test]
fn overflow_ids_are_read_from_kernel() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(OverflowIds::read_from(dir.path()), OverflowIds { uid: 65_534, gid: 65_534 });
    std::fs::write(dir.path().join("overflowuid"), "7\n").unwrap();
    std::fs::write(dir.path().join("overflowgid"), "8\n").unwrap();
    assert_eq!(OverflowIds::read_from(dir.path()), OverflowIds { uid: 7, gid: 8 });
}

#[test]
fn shared_audit_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let file = dir.path().join(format!("{name}.toml"));
        let text = format!(
            "{MINIMAL}\n[management]\nsocket = \"/{name}\"\n[management.audit]\nfile = \"/a\"\n"
        );
        std::fs::write(&file, text).unwrap();
        file
    };
    let errors = load_all(&[file("a"), file("b")]).map(|_| ()).unwrap_err().to_string();
    assert!(
        errors.contains("management.audit.file: /a: another appliance has this file"),
        "{errors}"
    );
}
