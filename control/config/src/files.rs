//! Reads `[files]`: allowed directories for files of regions, queues and jobs.

use std::path::PathBuf;

use super::keys::{Key, section};
use super::reader::Section;
use super::rule::{Parsed, Rule, Shape};
use super::values::{parse_path, quoted};

/// Maximum number of directories.
const MAX_PATHS: usize = 64;

section! {
    /// `[files]`: allowed directories.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct FilesSection in "files" {
        /// Directories that must contain the files of regions, queues, `put` and `get`, whether this file or the API
        /// names them. Below a directory, a path must not contain `..` or a symbolic link. Relative directories are
        /// relative to the working directory in which ddpd was started. Without the key: `/var/lib/ddpd` (for a systemd
        /// service its `StateDirectory=`) and the directories of the files of regions and queues that this file names,
        /// except `/` and `/dev`. `POST /v1/config/save` also writes only below these directories, or to this file.
        paths: Option<Vec<PathBuf>> = paths_rule().optional(), or None;
    }
}

pub(super) fn read_files(mut section: Section<'_, '_>) -> FilesSection {
    let files = FilesSection::read(&mut section);
    section.finish();
    files
}

pub(super) fn files_keys() -> Vec<Key> {
    FilesSection::keys()
}

fn paths_rule() -> Rule<Vec<PathBuf>> {
    let shape = Shape::List(Box::new(Shape::Text("a directory")));
    let show = |paths: &Vec<PathBuf>| {
        let shown: Vec<String> = paths.iter().map(|p| quoted(&p.to_string_lossy())).collect();
        format!("[{}]", shown.join(", "))
    };
    Rule::new(shape, show, |value| {
        let Some(items) = value.as_array() else {
            return Err("is no list: write [\"/var/lib/ddpd\"]".to_owned());
        };
        if items.len() > MAX_PATHS {
            return Err(format!(
                "has {} directories, but may have at most {MAX_PATHS}",
                items.len()
            ));
        }
        items.iter().map(|item| parse_path(item.get_ref()).and_then(parse_directory)).collect()
    })
}

fn parse_directory(path: PathBuf) -> Parsed<PathBuf> {
    let up = path.components().any(|part| part == std::path::Component::ParentDir);
    if path.as_os_str().is_empty() || up {
        let shown = path.display().to_string();
        return Err(format!(
            "has \"{}\", but a directory must be named without ..",
            shown.escape_debug()
        ));
    }
    Ok(path)
}
