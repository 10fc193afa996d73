//! Converts one TOML section to the body of a request.

use std::path::Path;

use config::text;
use serde_json::Value;

use super::exit::{Exit, Failure};
use super::input;

/// Keys whose values are paths on the appliance's host. Relative paths are relative to the working directory of
/// `ddpctl`.
const PATH_KEYS: [&str; 1] = ["path"];

/// Returns the keys of the only `[[section]]` in a file, or in the standard input (`-`). The header may be omitted.
/// JSON is also accepted.
pub(super) fn section_body(file: &Path, section: &str) -> Result<Value, Failure> {
    let bytes = input::read_file(file)?;
    let shown = input::display_name(file);
    let wrong = |message: String| Failure::new(Exit::Usage, format!("{shown}: {message}"));
    let text = text::decode(&bytes).map_err(wrong)?;
    let mut value = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text)
            .map_err(|e| Failure::new(Exit::Usage, format!("{shown} is not JSON: {e}")))?,
        false => section_from_toml(text, section).map_err(wrong)?,
    };
    make_paths_absolute(&mut value)?;
    Ok(value)
}

fn section_from_toml(text: &str, section: &str) -> Result<Value, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {at} is not TOML: {}", error.message())
    })?;
    let mut value = serde_json::to_value(table).map_err(|error| error.to_string())?;
    let Some(list) = value.get_mut(section) else { return Ok(value) };
    let one = match list.as_array_mut().map(|list| (list.len(), list.pop())) {
        Some((1, Some(one))) => one,
        Some((number, _)) => {
            return Err(format!("has {number} [[{section}]] sections: give it one"));
        }
        None => {
            return Err(format!(
                "has a \"{section}\" that is no section: begin it with [[{section}]]"
            ));
        }
    };
    let others: Vec<&String> = value
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys())
        .filter(|k| *k != section)
        .collect();
    match others.as_slice() {
        [] => Ok(one),
        [other, ..] => Err(format!(
            "has \"{other}\" beside its [[{section}]]: only that one section is added, remove the others"
        )),
    }
}

/// Makes the paths of [`PATH_KEYS`] absolute, because the appliance has another working directory.
fn make_paths_absolute(value: &mut Value) -> Result<(), Failure> {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(path)
                        if PATH_KEYS.contains(&key.as_str()) && !path.is_empty() =>
                    {
                        *path = input::absolute_utf8_path(Path::new(path))?
                            .to_string_lossy()
                            .into_owned();
                    }
                    other => make_paths_absolute(other)?,
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(make_paths_absolute),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_is_read_with_or_without_byte_order_mark() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.toml");
        for text in [
            "name = \"in\"\n",
            "\u{feff}[[region]]\r\nname = \"in\"\r\n",
            "\u{feff}{\"name\":\"in\"}",
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(
                section_body(&file, "region").unwrap(),
                serde_json::json!({ "name": "in" }),
                "{text}"
            );
        }
        std::fs::write(&file, b"\xfe\xff\0n").unwrap();
        let refused = section_body(&file, "region").unwrap_err();
        let sentence =
            "is UTF-16, big-endian, but must be UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW";
        assert_eq!(refused.message, format!("{}: {sentence}", file.display()));
    }
}
