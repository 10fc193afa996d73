//! Paths in answers. JSON is UTF-8: in a path that is not, U+FFFD replaces each invalid sequence.
//! Requests accept no such path.

use std::path::Path;

use serde::Serializer;

pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
