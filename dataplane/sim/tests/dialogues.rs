//! Runs every packet dialogue in `dialogues/`. Each of its directories must be listed in the index of
//! `dialogues/README.md`.

use std::fs;
use std::path::Path;

use sim::dialogue;

#[test]
fn every_dialogue_is_met() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("dialogues");
    let files = dialogue::files(&directory).expect("the directory is readable");
    // Lower bound of the number of files, so that an empty or wrong directory fails the test.
    assert!(files.len() >= 300, "only {} dialogues found", files.len());
    let mut failures = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).expect("a dialogue is readable");
        if let Err(error) = dialogue::play(&text) {
            let name = file.strip_prefix(&directory).unwrap_or(file);
            failures.push(format!("{}: {error}", name.display()));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} dialogues failed\n{}",
        failures.len(),
        files.len(),
        failures.join("\n")
    );
}

#[test]
fn every_dialogue_directory_is_a_specification_in_the_index() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("dialogues");
    let readme = fs::read_to_string(directory.join("README.md")).expect("a README");
    let rows: Vec<Vec<&str>> = readme
        .lines()
        .filter(|line| line.starts_with("| `rfc") || line.starts_with("| `draft"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let mut found = 0;
    for entry in fs::read_dir(&directory).expect("the directory is readable") {
        let entry = entry.expect("the directory is readable");
        if !entry.path().is_dir() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let row = rows.iter().find(|row| row[1] == format!("`{name}`"));
        let section = row.unwrap_or_else(|| panic!("{name} is not in the index"))[3];
        let number = name.split('-').next().unwrap_or_default().trim_start_matches("rfc");
        assert!(
            name.starts_with("draft-") || section.starts_with(&format!("RFC {number} §")),
            "{name}: {section} is not its section"
        );
        found += 1;
    }
    assert_eq!(found, rows.len(), "the index has rows without a directory");
}
