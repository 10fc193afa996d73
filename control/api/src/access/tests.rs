//! Tests of the roles: callers of each role make every call over a real socket. The tests replace the credentials of
//! connections to act as other users.

mod audit;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use config::{AccessIds, Member, MemberIds, OverflowIds};
use serde_json::Value;

use super::*;
use crate::fake::Fake;
use crate::routes::route_table;
use crate::tests::json_request;

const OVERFLOW: OverflowIds = OverflowIds { uid: 65_534, gid: 65_533 };
const OWN_UID: u32 = 900;

fn ids(users: &[u32], groups: &[u32]) -> MemberIds {
    MemberIds { users: users.iter().copied().collect(), groups: groups.iter().copied().collect() }
}

/// Returns roles: user 1 and group 11 have view, 2 and 12 operate, 3 and 13 admin.
fn roles() -> Roles {
    let ids = AccessIds {
        view: ids(&[1], &[11, OVERFLOW.gid]),
        operate: ids(&[2], &[12]),
        admin: ids(&[3, OVERFLOW.uid], &[13]),
        socket_group: None,
    };
    Roles { own_uid: OWN_UID, overflow: OVERFLOW, ids, configured: true }
}

fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: 100, pid: 4321, groups: vec![100, 101] }
}

/// Returns users with the roles none, view, operate, admin.
fn users() -> [(Credentials, Option<Role>); 4] {
    let [view, operate, admin] = Role::ALL.map(Some);
    [(user(5), None), (user(1), view), (user(2), operate), (user(3), admin)]
}

/// A server with these roles and an audit file.
struct Appliance {
    fake: Option<Fake>,
    tally: Arc<AccessTally>,
    pretend: peer::CredentialOverride,
    dir: tempfile::TempDir,
}

impl Appliance {
    fn start() -> Appliance {
        let dir = tempfile::tempdir().unwrap();
        let tally = Arc::<AccessTally>::default();
        let file = dir.path().join("audit.jsonl");
        let section = AuditSection { file: Some(file.clone()), max_size: 1 << 20, keep: 1 };
        let audit = Audit::open(&file, &section, Arc::clone(&tally)).unwrap();
        let access = Access::from_parts(roles(), Some(audit.into()), Arc::clone(&tally));
        let pretend = Arc::clone(&access.pretend);
        Appliance { fake: Some(Fake::start_for(access)), tally, pretend, dir }
    }

    fn request(&self, who: &Credentials, method: &str, path: &str, body: &str) -> (u16, Value) {
        *self.pretend.lock().unwrap() = Some(who.clone());
        json_request(self.fake.as_ref().unwrap(), method, path, body)
    }

    /// Stops the server. Returns the lines of its audit file, then the lines of the file of calls without effect.
    fn audit_lines(mut self) -> Vec<Value> {
        drop(self.fake.take());
        let files = ["audit.jsonl", "audit.jsonl.refused"];
        files.iter().flat_map(|name| lines(&self.dir.path().join(name))).collect()
    }
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns a path that matches the pattern of a call.
fn example(path: &str) -> String {
    path.replace("{name}", "inbox").replace("{id}", "1").replace("{what}", "1")
}

#[test]
fn roles_permit_their_calls_and_refusals_are_audited() {
    let appliance = Appliance::start();
    let mut expected = Vec::new();
    for (who, role) in users() {
        for call in route_table() {
            let (method, path) = (call.method.as_str(), example(call.path));
            // Most calls answer 400, because the body is `{}`. Only 403 means that the role is refused.
            let (status, answer) = appliance.request(&who, method, &path, "{}");
            let allowed = role >= Some(call.role);
            assert_eq!(status != 403, allowed, "{method} {path} as {role:?}: {answer}");
            if !allowed {
                assert_eq!(answer["error"], "forbidden");
                let needed = call.role.as_str();
                let has = role.map_or("none", Role::as_str);
                let sentence =
                    format!("{method} {path} takes the role {needed}; uid {} has {has}", who.uid);
                assert_eq!(answer["message"], sentence);
                let key = format!("management.access.{needed} = [\"user:{}\"]", who.uid);
                assert!(answer["hint"].as_str().unwrap().contains(&key), "{answer}");
            }
            if !allowed || call.role > Role::View {
                expected.push((
                    role_name(role).to_owned(),
                    method.to_owned(),
                    path,
                    u64::from(status),
                ));
            }
        }
    }
    let refused = appliance.tally.refused();
    let all = route_table().len() as u64;
    let beyond = |role| route_table().iter().filter(|call| call.role > role).count() as u64;
    assert_eq!(refused["none"], all);
    assert_eq!((refused["view"], refused["operate"]), (beyond(Role::View), beyond(Role::Operate)));
    assert_eq!((appliance.tally.lines_lost(), appliance.tally.lines_omitted()), (0, 0));
    // `audit_lines` returns the calls without effect last, because they are in a separate file.
    expected.sort_by_key(|(.., status)| (400..500).contains(status));
    let recorded: Vec<_> = appliance
        .audit_lines()
        .into_iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            (text("role"), text("method"), text("path"), line["status"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(recorded, expected);
}

#[test]
fn host_files_require_admin_role() {
    let appliance = Appliance::start();
    let via = r#""via":{"stream":"0000000000000007"},"source":{"region":{"name":"box"}}"#;
    let listener = r#"{"name":"l","interface":"lan","port":1,"ulp":"ddp","regions":["inbox"]"#;
    let put = r#""via":{"stream":"0000000000000007"},"target":{"region":{"name":"box"}}"#;
    let with = [
        ("/v1/regions", r#"{"name":"f","access":"r","path":"/etc/shadow"}"#.to_owned(), "path"),
        ("/v1/get", format!(r#"{{{via},"sink":{{"file":"/etc/shadow"}}}}"#), "sink.file"),
        (
            "/v1/listeners",
            format!(
                r#"{listener},"queue":[{{"qn":0,"buffers":4,"buffer_size":"16 KiB","deliver_to":"file","path":"/root/x"}}]}}"#
            ),
            "queue.path",
        ),
        ("/v1/put", format!(r#"{{{put},"file":"/etc/shadow"}}"#), "file"),
    ];
    let without = [
        ("/v1/regions", r#"{"name":"new","access":"rw","size":"64 KiB"}"#.to_owned()),
        ("/v1/get", format!(r#"{{{via},"sink":{{"region":{{"name":"inbox"}}}}}}"#)),
        ("/v1/listeners", format!("{listener}}}")),
        ("/v1/put", format!("{{{put}}}")),
    ];
    for (path, body, key) in &with {
        let (status, answer) = appliance.request(&user(2), "POST", path, body);
        assert_eq!(status, 403, "{path}: {answer}");
        let expected = format!(
            "{key}: to name a file of the appliance's host takes the role admin; uid 2 has operate"
        );
        assert_eq!(answer["message"], expected);
    }
    for (path, body) in &without {
        let (status, answer) = appliance.request(&user(2), "POST", path, body);
        assert!(status < 300, "{path}: {status} {answer}");
    }
    for (path, body, _) in &with {
        let (status, answer) = appliance.request(&user(3), "POST", path, body);
        assert!(status < 300, "{path}: {status} {answer}");
    }
    assert_eq!(appliance.tally.refused()["operate"], 4);
    let statuses: Vec<_> =
        appliance.audit_lines().iter().map(|l| l["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses[8..], [403; 4]);
    assert!(statuses[..6].iter().all(|status| *status < 300), "{statuses:?}");
}

#[test]
fn caller_without_role_gets_403_for_unknown_paths() {
    let appliance = Appliance::start();
    for (method, path) in [("GET", "/v1/nothing"), ("PUT", "/v1/status"), ("HEAD", "/v1/status")] {
        assert_eq!(appliance.request(&user(5), method, path, "").0, 403, "{method} {path}");
    }
    assert_eq!(appliance.request(&user(1), "GET", "/v1/nothing", "").0, 404);
    assert_eq!(appliance.request(&user(1), "PUT", "/v1/status", "").0, 405);
    // The handler of GET answers HEAD, which therefore requires the same role.
    assert_eq!(appliance.request(&user(1), "HEAD", "/v1/status", "").0, 200);
    assert_eq!(appliance.request(&user(1), "HEAD", "/v1/ports/p0/capture", "").0, 403);
}

#[test]
fn documented_calls_and_roles_match_route_table() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let place = |path: &str| {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "*" } else { part });
        parts.collect::<Vec<_>>().join("/")
    };
    let table: BTreeSet<_> = route_table()
        .iter()
        .map(|c| (c.method.to_string(), place(c.path), c.role.as_str().to_owned()))
        .collect();
    let is_parameter = |part: &str| part.len() > 1 && part.bytes().all(|b| b.is_ascii_uppercase());
    let mut documented = BTreeSet::new();
    for row in text.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Some(method) = cells.get(1).and_then(|cell| cell.split_once(" `/v1")) else { continue };
        let path = method.1.split(['`', '?']).next().unwrap();
        let parts: Vec<&str> =
            path.split('/').map(|part| if is_parameter(part) { "*" } else { part }).collect();
        let path = format!("/v1{}", parts.join("/"));
        documented.insert((method.0.to_owned(), path, cells[2].trim_matches('`').to_owned()));
    }
    assert_eq!(documented, table);
}

#[test]
fn role_follows_from_user_or_any_group() {
    let roles = roles();
    let role = |uid, gid, groups: &[u32]| {
        roles.role_of(&Credentials { uid, gid, pid: 1, groups: groups.to_vec() })
    };
    assert_eq!(role(1, 100, &[]), Some(Role::View));
    assert_eq!(role(5, 11, &[]), Some(Role::View));
    assert_eq!(role(5, 100, &[7, 12]), Some(Role::Operate));
    assert_eq!(role(1, 100, &[12, 13]), Some(Role::Admin), "the highest role");
    assert_eq!(role(5, 100, &[7]), None);
    assert_eq!(role(0, 100, &[]), Some(Role::Admin));
    assert_eq!(role(OWN_UID, 100, &[]), Some(Role::Admin));
    let owner_only = Roles { ids: AccessIds::default(), ..roles.clone() };
    assert_eq!(owner_only.role_of(&user(1)), None);
    assert_eq!(owner_only.role_of(&user(OWN_UID)), Some(Role::Admin));
}

#[test]
fn a_member_of_a_group_gets_its_role_over_the_socket() {
    let appliance = Appliance::start();
    let member = Credentials { groups: vec![12], ..user(5) };
    assert_eq!(appliance.request(&member, "DELETE", "/v1/regions/inbox", "").0, 200);
    assert_eq!(appliance.request(&member, "POST", "/v1/reload", "").0, 403);
}

#[test]
fn overflow_user_is_always_refused() {
    // The overflow user has no role although it is in an admin group and is the user of the process.
    let roles = Roles { own_uid: OVERFLOW.uid, ..roles() };
    let overflow = Credentials { uid: OVERFLOW.uid, gid: 13, pid: 0, groups: vec![13] };
    assert_eq!(roles.role_of(&overflow), None);
    // The overflow group has no role either.
    assert_eq!(roles.role_of(&Credentials { gid: OVERFLOW.gid, ..user(5) }), None);
    let appliance = Appliance::start();
    assert_eq!(appliance.request(&overflow, "GET", "/v1/status", "").0, 403);
    assert_eq!(appliance.audit_lines()[0]["uid"], OVERFLOW.uid);
}

/// This test does not replace the kernel's credentials.
#[test]
fn caller_is_identified_by_socket_credentials() {
    let appliance = Appliance::start();
    let fake = appliance.fake.as_ref().unwrap();
    let (status, _) = json_request(fake, "DELETE", "/v1/regions/inbox", "");
    let line = appliance.audit_lines().remove(0);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!((&line["uid"], &line["gid"]), (&uid.into(), &gid.into()));
    assert_eq!(line["pid"], std::process::id());
    // Root is always an admin. Any other user that runs the tests has no role in this configuration.
    assert_eq!(status, if uid == 0 { 200 } else { 403 });
}

#[test]
fn socket_is_group_accessible_if_any_role_is_configured() {
    let gid = rustix::process::getegid().as_raw();
    let section = AccessSection {
        view: vec![Member::User("12345".into())],
        socket_group: Some(gid.to_string()),
        ..AccessSection::default()
    };
    let access = Access::open(&section, &no_audit()).unwrap();
    let fake = Fake::start_for(access);
    let metadata = std::fs::metadata(fake.socket()).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, gid));
    assert_eq!(json_request(&fake, "GET", "/v1/status", "").0, 200, "the owner is an admin");
}

fn no_audit() -> AuditSection {
    AuditSection { file: None, max_size: 1 << 20, keep: 1 }
}

#[test]
fn unknown_group_or_audit_file_error_names_key() {
    let nobody = AccessSection {
        operate: vec![Member::Group("no such group".into())],
        ..AccessSection::default()
    };
    let error = Access::open(&nobody, &no_audit()).unwrap_err().to_string();
    assert!(
        error.starts_with("management.access.operate: there is no group \"no such group\""),
        "{error}"
    );
    let nowhere = AuditSection { file: Some("/nonexistent/audit".into()), ..no_audit() };
    let error = Access::open(&AccessSection::default(), &nowhere).unwrap_err().to_string();
    assert!(
        error.starts_with("management.audit.file: /nonexistent/audit cannot be opened: "),
        "{error}"
    );
}
