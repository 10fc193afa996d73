//! Tests: the JSON Schema of the configuration is valid, accepts valid files, and refuses the errors that a schema can
//! express.

use std::path::Path;

use serde_json::{Value, json};

use super::super::*;
use super::{MINIMAL, parse};

fn toml_to_json(text: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap()
}

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&file_schema(&keys())).unwrap()
}

fn sentences(validator: &jsonschema::Validator, text: &str) -> Vec<String> {
    let json = toml_to_json(text);
    validator
        .iter_errors(&json)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn schema_is_valid_draft_2020_12() {
    let schema = file_schema(&keys());
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    if let Err(error) = jsonschema::draft202012::meta::validate(&schema) {
        panic!("{}: {error}", error.instance_path());
    }
}

#[test]
fn example_configurations_match_schema() {
    let validator = validator();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let files = std::fs::read_dir(configs).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|f| f.extension().is_some_and(|end| end == "toml")).collect();
    assert!(files.len() >= 9, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(sentences(&validator, &text), [""; 0], "{}", file.display());
    }
}

/// In the reference file all keys are comments. Each key with a default is validated alone, in its section.
#[test]
fn reference_defaults_match_schema() {
    let validator = validator();
    let text = include_str!("../../../../docs/ddpd.reference.toml");
    assert_eq!(toml_to_json(text), json!({}), "all keys are comments");
    let mut header = String::new();
    let mut checked = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("# ")) {
        if line.starts_with('[') {
            header = line.to_owned();
        }
        let file = format!("{header}\n{line}\n");
        if line.contains(" = ") && toml::from_str::<toml::Table>(&file).is_ok() {
            // A sub-table such as `[listener.limits]` belongs to an element of the list `listener`, so the table is
            // wrapped in a list.
            let mut json = toml_to_json(&file);
            if header.contains('.') {
                let parent = header.trim_matches(['[', ']']).split('.').next().unwrap();
                if ["port", "interface", "listener"].contains(&parent) {
                    json[parent] = json!([json[parent]]);
                }
            }
            let wrong: Vec<String> = validator
                .iter_errors(&json)
                .map(|error| error.to_string())
                .filter(|sentence| !sentence.ends_with("is a required property"))
                .collect();
            assert_eq!(wrong, [""; 0], "{header} {line}");
            checked += 1;
        }
    }
    assert!(checked > 90, "only {checked} defaults were found");
}

/// The schema refuses the same errors as the program, if an error concerns a single key.
#[test]
fn schema_and_parser_refuse_the_same_errors() {
    let validator = validator();
    assert_eq!(sentences(&validator, MINIMAL), [""; 0]);
    let listener = "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 1\n";
    let region = "[[region]]\nname = \"r\"\naccess = \"w\"\nsize = 1\n";
    for good in [
        listener,
        region,
        "[tcp]\nmin_rto = \"5 ms\"\n",
        "[[region]]\nname='r'\naccess='w'\nsize='1.5 GiB'",
    ] {
        let text = format!("{MINIMAL}\n{good}");
        assert!(parse(&text).is_ok(), "{good}");
        assert_eq!(sentences(&validator, &text), [""; 0], "{good}");
    }
    let bad = [
        "colour = 1".to_owned(),
        "[tcp]\ncolour = 1".to_owned(),
        "[tcp]\nmin_rto = 5".to_owned(),
        "[tcp]\nmin_rto = \"soon\"".to_owned(),
        "[workers]\ncount = 0".to_owned(),
        "[workers]\ncount = \"1\"".to_owned(),
        "[workers]\nidle = \"sleepy\"".to_owned(),
        "[management]\nsocket = \"\"".to_owned(),
        "[management]\nbench = \"yes\"".to_owned(),
        listener.replace("port = 1", "port = 65536"),
        listener.replace("\"l\"", "\"-l\""),
        format!("{listener}transport = \"udp\""),
        format!("{listener}[[listener.queue]]\nbuffers = 1"),
        region.replace("size = 1", "size = 0"),
        region.replace("size = 1", "size = \"big\""),
        region.replace("access = \"w\"\n", ""),
        region.replace("name = \"r\"\n", ""),
    ];
    for bad in bad {
        // Top-level keys precede all tables.
        let text = if bad.starts_with('[') {
            format!("{MINIMAL}\n{bad}")
        } else {
            format!("{bad}\n{MINIMAL}")
        };
        assert!(parse(&text).is_err(), "the program takes {bad}");
        assert_ne!(sentences(&validator, &text), [""; 0], "the schema takes {bad}");
    }
}

/// Each key that the schema requires is also required by the program.
#[test]
fn schema_required_keys_match_parser() {
    let text = format!(
        "{MINIMAL}\n[[interface.routes]]\nto = \"198.51.100.0/24\"\nvia = \"192.0.2.254\"\n[[region]]\nname = \"r\"\n\
         access = \"w\"\nsize = 1\n[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 1\n[[listener.queue]]\nqn = 0\n\
         deliver_to = \"echo\"\n"
    );
    let whole: toml::Table = toml::from_str(&text).unwrap();
    let validator = validator();
    let mut seen = 0;
    let places =
        ["", "port", "interface", "interface.routes", "region", "listener", "listener.queue"];
    for section in places {
        let mut file = whole.clone();
        let mut names: Vec<String> = find_table(&mut file, section).keys().cloned().collect();
        // Sub-tables are sections of their own.
        names.retain(|name| !matches!(name.as_str(), "routes" | "queue" | "region" | "listener"));
        // Removes one key at a time from a section that is valid with all its keys.
        for name in names {
            let mut file = whole.clone();
            find_table(&mut file, section).remove(&name);
            let text = toml::to_string(&file).unwrap();
            let missing = |sentence: &String| sentence.ends_with("is a required property");
            if sentences(&validator, &text).iter().any(missing) {
                let refused = parse(&text).err().map(|errors| errors.to_string());
                let refused = refused.unwrap_or_else(|| panic!("{section}.{name} is not required"));
                assert!(refused.contains("is missing"), "{section}.{name}: {refused}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 15);
}

fn find_table<'t>(file: &'t mut toml::Table, section: &str) -> &'t mut toml::Table {
    section
        .split('.')
        .filter(|part| !part.is_empty())
        .fold(file, |table, part| table[part].as_array_mut().unwrap()[0].as_table_mut().unwrap())
}
