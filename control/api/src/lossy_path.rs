//! Serialisation of paths in answers. JSON is UTF-8, so invalid sequences in a path are replaced by U+FFFD. Requests
//! cannot contain such paths.

use std::path::Path;

use serde::Serializer;

pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
