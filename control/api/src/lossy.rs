//! Paths in answers. JSON is UTF-8: of a path that is not, each wrong sequence is U+FFFD. Requests take no such path.

use std::path::Path;

use serde::Serializer;

pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
