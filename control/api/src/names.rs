//! The error for an unknown object name. Its hint lists similar names.

use crate::ApiError;

/// Maximum number of names in the hint.
const MAX_SHOWN: usize = 8;
/// Maximum number of names compared with the unknown name. Bounds the time that the control thread spends on
/// comparisons.
const MAX_COMPARED: usize = 1024;
/// Maximum length of an unknown name that is compared with others, bytes. Valid names are not longer.
const MAX_LEN: usize = 64;

/// Returns the error (status 404) for an unknown name. `kind` is the singular noun of the objects, such as `region`.
/// The name of their `ddpctl` command is the plural.
pub fn unknown_name<'a>(
    kind: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> ApiError {
    let known: Vec<&str> = known.into_iter().take(MAX_COMPARED).collect();
    let similar = similar_names(name, &known);
    let hint = match (similar.len(), known.len()) {
        (_, 0) => format!("there are no {kind}s"),
        (0, 1..=MAX_SHOWN) => format!("the {kind}s are {}", known.join(", ")),
        (0, _) => format!("ddpctl {kind}s list shows all names"),
        _ => format!("similar names: {}", similar.join(", ")),
    };
    ApiError::not_found(format!("there is no {kind} `{name}`")).with_hint(Some(&hint))
}

/// Returns at most [`MAX_SHOWN`] names similar to `name`, the nearest first. A similar name contains `name`, or has an
/// edit distance of at most a third of the characters of `name` (at least 1).
fn similar_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    if name.is_empty() || name.len() > MAX_LEN {
        return Vec::new();
    }
    let limit = (name.chars().count() / 3).max(1);
    let distance = |known: &str| match known.contains(name) {
        true => 0,
        false => strsim::osa_distance(name, known),
    };
    let near = known.iter().map(|&known| (distance(known), known));
    let mut near: Vec<(usize, &str)> = near.filter(|(distance, _)| *distance <= limit).collect();
    near.sort_unstable();
    near.into_iter().map(|(_, known)| known).take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn hint(name: &str, known: &[&str]) -> String {
        let error = unknown_name("region", name, known.iter().copied());
        assert_eq!(error.error, ErrorKind::NotFound);
        assert_eq!(error.message, format!("there is no region `{name}`"));
        error.hint.unwrap()
    }

    #[test]
    fn hint_lists_similar_names_before_others() {
        assert_eq!(hint("inbx", &["outbox", "inbox"]), "similar names: inbox");
        assert_eq!(hint("in", &["inbox-b", "inbox-a", "out"]), "similar names: inbox-a, inbox-b");
        assert_eq!(hint("logs", &["inbox", "outbox"]), "the regions are inbox, outbox");
        assert_eq!(hint("inbox", &[]), "there are no regions");
    }

    #[test]
    fn hint_is_bounded() {
        let names: Vec<String> = (0..2000).map(|n| format!("r{n:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(hint("unlike", &names), "ddpctl regions list shows all names");
        assert_eq!(hint("r000", &names).matches(", ").count(), MAX_SHOWN - 1);
        assert_eq!(hint(&"r".repeat(4000), &names[..2]), "the regions are r0000, r0001");
    }
}
