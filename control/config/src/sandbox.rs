//! `[management.sandbox]`: the restrictions of the process.

use std::path::PathBuf;

use super::keys::section;
use super::reader::Section;
use super::rule::{Rule, Shape};
use super::values::{parse_path, quoted, word_rule};

/// Maximum number of directories in the list.
const MAX_DIRECTORIES: usize = 256;

/// Mode of the sandbox, the same for all appliances of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxMode {
    /// All restrictions that the kernel supports.
    On,
    /// No restrictions.
    Off,
}

impl SandboxMode {
    const WORDS: [(&'static str, SandboxMode); 2] =
        [("on", SandboxMode::On), ("off", SandboxMode::Off)];
}

section! {
    /// `[management.sandbox]`: restrictions of the process.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SandboxSection in "management.sandbox" {
        /// `"on"`: at its start the process gives up all access that the configuration does not need: capabilities,
        /// files (Landlock), system calls (seccomp), new privileges. Restrictions that the kernel lacks are skipped and
        /// logged. All appliances of a process must have the same mode.
        mode: SandboxMode = word_rule(&SandboxMode::WORDS), or SandboxMode::Off;
        /// Absolute paths of existing directories whose files the process may read, write and create. `files.paths`,
        /// and the directories of the files and sockets that the configuration names, are always permitted.
        paths: Vec<PathBuf> = directories_rule(), or Vec::new();
    }
}

pub(super) fn read_sandbox(management: &mut Section<'_, '_>) -> SandboxSection {
    let mut section = management.table("sandbox");
    let sandbox = SandboxSection::read(&mut section);
    section.finish();
    sandbox
}

fn directories_rule() -> Rule<Vec<PathBuf>> {
    let shape = Shape::List(Box::new(Shape::Text("an absolute path")));
    let show = |paths: &Vec<PathBuf>| {
        let shown: Vec<String> = paths.iter().map(|path| quoted(&path.to_string_lossy())).collect();
        format!("[{}]", shown.join(", "))
    };
    Rule::new(shape, show, |value| {
        let items = value.as_array().ok_or("is no list: write absolute paths in [ ]")?;
        if items.len() > MAX_DIRECTORIES {
            return Err(format!(
                "has {} paths, but must have at most {MAX_DIRECTORIES}",
                items.len()
            ));
        }
        let one = |item: &_| match parse_path(item)? {
            path if path.is_absolute() => Ok(path),
            path => Err(format!("has \"{}\", but must have absolute paths", path.display())),
        };
        items.iter().map(|item| one(item.get_ref())).collect()
    })
}
