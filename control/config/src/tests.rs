//! Tests: valid files give the expected values, and invalid files give exactly the expected errors.

mod encoding;
mod invalid;
mod machine;
mod management;
mod programs;
mod rdmap;
mod reference;
mod schema;
mod to_tables;
mod valid;

use std::path::Path;

use super::Document;

/// A minimal valid file, to which tests add sections.
const MINIMAL: &str = r#"
[[port]]
name = "p"
kind = "ring"
link = "l"

[[interface]]
name = "lan"
port = "p"
addresses = ["10.0.0.1/24", "fd00::1/64"]
"#;

fn parse(text: &str) -> Result<Document, String> {
    Document::parse(Path::new("t.toml"), text).map_err(|errors| errors.to_string())
}

fn with(rest: &str) -> String {
    format!("{rest}\n{MINIMAL}")
}
