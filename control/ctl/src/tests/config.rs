//! Tests of `ddpctl config`, of `ddpctl reload`, and of sections in TOML files.

use serde_json::json;

use super::*;

#[test]
fn config_show_prints_toml_with_origins() {
    let fake = Fake::start();
    assert_eq!(
        fake.run_ok(&["config", "show"]),
        "[[region]]\n\
         name = \"inbox\"                         # api: POST /v1/regions\n\
         base_to = 4096                         # api: POST /v1/regions\n\n\
         [tcp]\n\
         user_timeout = \"1m\"                    # /etc/ddpd.toml:12\n\
         sack = true                            # default\n"
    );
    let changed = fake.run_ok(&["config", "show", "tcp", "--changed"]);
    assert_eq!(changed, "[tcp]\nuser_timeout = \"1m\"                    # /etc/ddpd.toml:12\n");
    let json = fake.run_json(&["config", "show", "tcp"]);
    let key = json!({"key": "user_timeout", "value": "1m", "origin": "file", "line": 12});
    assert_eq!(json["sections"][0]["keys"][0], key);
    assert_eq!(json["sections"][0]["keys"][1]["origin"], "default");
    let none = fake.run_ctl(&["config", "show", "udp"]);
    assert_eq!(
        (none.exit, none.err.as_str()),
        (Exit::Usage, "ddpctl: there is no section \"udp\" in the running configuration\n")
    );
}

#[test]
fn config_diff_exit_code_reports_difference() {
    let fake = Fake::start();
    let ran = fake.run_ctl(&["config", "diff"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(
        ran.out,
        "[tcp] user_timeout: runs \"1m\", /etc/ddpd.toml has nothing (a restart applies the file)\n\
         [[region]] inbox is running and not in /etc/ddpd.toml (by the API; a reload leaves it)\n"
    );
    assert_eq!(
        ran.err,
        "ddpctl: the running configuration and /etc/ddpd.toml differ in 2 places\n"
    );
    let ran = fake.run_ctl(&["--json", "config", "diff"]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((ran.exit, &error["error"]), (Exit::Failed, &json!("differs")));
    let out: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(out["differences"][0]["when"], "restart");
}

#[test]
fn refused_dry_run_sets_exit_code() {
    let fake = Fake::start();
    let ran = fake.run_ctl(&["reload", "--dry-run"]);
    assert_eq!(
        ran.out,
        "now: region `new` added\nstays: region `x` was added by the API: it stays\n\
         refused: region `old` cannot go: 2 streams use it\n"
    );
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(ran.err, "ddpctl: a reload would be refused, and nothing applied\n");
}

#[test]
fn config_save_overwrites_only_on_request() {
    let fake = Fake::start();
    let file = fake.dir().join("saved.toml");
    let name = file.to_str().unwrap();
    let said = fake.run_ok(&["config", "save", name]);
    let text = format!("# {name}\n");
    assert_eq!(
        said,
        format!("the running configuration is saved in {name}, {} bytes\n", text.len())
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    std::fs::write(&file, "ours").unwrap();
    let ran = fake.run_ctl(&["config", "save", name]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(
        ran.err.contains("is there already: name another file, or overwrite it"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "ours");
    fake.run_ok(&["config", "save", name, "--overwrite"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn sections_are_added_as_toml() {
    let fake = Fake::start();
    let file = fake.dir().join("section.toml");
    let name = file.to_str().unwrap();
    std::fs::write(
        &file,
        "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7\nregions = [\"inbox\"]\n\
         [listener.limits]\nstreams = 5\n[[listener.queue]]\nqn = 3\ndeliver_to = \"file\"\npath = \"log\"\n",
    )
    .unwrap();
    fake.run_ok(&["listeners", "add", name]);
    let seen = fake.last_request();
    let seen = seen.as_str().unwrap();
    let log = std::path::absolute("log").unwrap();
    for part in ["streams: 5", "qn: 3", &format!("path: {log:?}")] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    std::fs::write(&file, "name = \"r\"\nsize = \"1 MiB\"\naccess = \"r\"\n").unwrap();
    let region = fake.run_json(&["regions", "add", "--file", name]);
    assert_eq!((&region["name"], &region["size"]), (&json!("r"), &json!(1 << 20)));
    for (text, error) in [
        ("name = ", "line 1 is not TOML: "),
        (
            "[[region]]\nname = \"a\"\n[[region]]\nname = \"b\"\n",
            "has 2 [[region]] sections: give it one",
        ),
        (
            "[tcp]\nsack = false\n[[region]]\nname = \"a\"\n",
            "has \"tcp\" beside its [[region]]: only",
        ),
        (
            "[region]\nname = \"a\"\n",
            "has a \"region\" that is no section: begin it with [[region]]",
        ),
        (
            "[[region]]\nname = \"a\"\nsiez = 1\n",
            "region.siez: is not a known key: did you mean `size`?",
        ),
        ("{\"name\"", "is not JSON: "),
    ] {
        std::fs::write(&file, text).unwrap();
        let ran = fake.run_ctl(&["regions", "add", "--file", name]);
        assert_eq!(ran.exit, Exit::Usage, "{text}");
        assert!(ran.err.contains(error), "{text}: {}", ran.err);
    }
    let both = fake.run_ctl(&["regions", "add", "x", "--file", name]);
    assert_eq!(both.exit, Exit::Usage);
}
