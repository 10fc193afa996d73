//! Plays every dialogue below `dialogues/`.

use std::fs;
use std::path::Path;

use sim::dialogue;

#[test]
fn every_dialogue_comes_true() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("dialogues");
    let files = dialogue::files(&directory).expect("the directory is readable");
    // A floor, so that a misplaced directory does not pass for success.
    assert!(files.len() >= 110, "only {} dialogues found", files.len());
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
