//! Tests: the descriptors match the keys that are read, and the files generated from them are up to date.

use std::path::Path;

use super::super::*;
use super::MINIMAL;

/// The error for an unknown key lists the known keys of its section. These must be the keys that have a descriptor.
#[test]
fn every_parsed_key_is_described() {
    let ring = "kind = \"ring\"\nlink = \"l\"";
    let port = |keys: &str| MINIMAL.replace(ring, &format!("{ring}\n{keys}"));
    let queue = "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 1\nulp = \"rdmap\"\n";
    let of_tables = |section: &str| format!("{MINIMAL}\n{section}\nxyzzyxyzzy = 1\n");
    let files = [
        ("memory", of_tables("[memory]")),
        ("workers", of_tables("[workers]")),
        ("port", port("xyzzyxyzzy = 1")),
        ("port.impair", port("[port.impair]\nxyzzyxyzzy = 1")),
        ("port.impair.burst_loss", port("[port.impair.burst_loss]\nxyzzyxyzzy = 1")),
        ("interface", of_tables("")),
        ("interface.routes", of_tables("[[interface.routes]]")),
        ("region", of_tables("[[region]]\npath = \"f\"")),
        ("listener", of_tables(queue)),
        ("listener.limits", of_tables(&format!("{queue}[listener.limits]"))),
        ("listener.queue", of_tables(&format!("{queue}[[listener.queue]]"))),
        ("tcp", of_tables("[tcp]")),
        ("mpa", of_tables("[mpa]")),
        ("sctp", of_tables("[sctp]")),
        ("limits", of_tables("[limits]")),
        ("files", of_tables("[files]")),
        ("management", of_tables("[management]")),
        ("management.listen", of_tables("[management.listen]")),
        ("management.access", of_tables("[management.access]")),
        ("management.audit", of_tables("[management.audit]")),
        ("management.sandbox", of_tables("[management.sandbox]")),
    ];
    for (section, text) in files {
        let errors = Document::parse(Path::new("t.toml"), &text).unwrap_err().to_string();
        let marker =
            format!("{section}.xyzzyxyzzy: is not a known key: remove it; the keys here are ");
        let found = errors.lines().find_map(|line| line.split_once(&marker));
        let (_, listed) = found.unwrap_or_else(|| panic!("{section}: {errors}"));
        let mut listed: Vec<&str> = listed.split(", ").collect();
        let mut described: Vec<&str> =
            keys().iter().filter(|key| key.section == section).map(|key| key.name).collect();
        // The error also lists sub-tables, which have no descriptor.
        let tables = [
            "impair",
            "burst_loss",
            "routes",
            "limits",
            "queue",
            "listen",
            "access",
            "audit",
            "sandbox",
        ];
        listed.retain(|name| described.contains(name) || !tables.contains(name));
        listed.sort_unstable();
        described.sort_unstable();
        listed.dedup();
        assert_eq!(listed, described, "{section}");
    }
}

/// A section with every key at its documented default equals an empty section. The keys in `other` are omitted: most of
/// them are refused unless another key is set.
#[test]
fn documented_defaults_equal_empty_section() {
    let tables = ["memory", "tcp", "mpa", "sctp", "limits", "management"];
    for section in
        tables.into_iter().chain(["management.access", "management.audit", "management.sandbox"])
    {
        let all = keys();
        let with_default = all.iter().filter(|key| {
            let other =
                ["keepalive_interval", "keepalive_probes", "bad_crc_tries", "udp_encapsulation"];
            key.section == section && !key.default.is_empty() && !other.contains(&key.name)
        });
        let lines: Vec<String> =
            with_default.map(|key| format!("{} = {}", key.name, key.default)).collect();
        let text = format!("{MINIMAL}\n[{section}]\n{}\n", lines.join("\n"));
        let written = super::parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(written.config, super::parse(MINIMAL).unwrap().config, "{text}");
    }
}

/// `docs/ddpd.schema.json` and `docs/ddpd.reference.toml` equal the generated files.
#[test]
fn generated_reference_files_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let schema = format!("{:#}\n", file_schema(&keys()));
    for (name, text) in
        [("ddpd.schema.json", schema), ("ddpd.reference.toml", render_example(&keys()))]
    {
        let file = docs.join(name);
        if std::env::var_os("DDPD_WRITE_REFERENCE").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let have = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(have == text, "docs/{name} is old: run this test with DDPD_WRITE_REFERENCE=1");
    }
}

#[test]
fn man_page_has_every_key() {
    let page = render_man(&keys());
    for key in keys() {
        assert!(
            page.contains(&format!("\\fB{}\\fR", key.name.replace('-', "\\-"))),
            "{}",
            key.name
        );
        assert!(!key.help.is_empty() && key.help.ends_with('.'), "{}: {}", key.name, key.help);
    }
}
