//! All cases of the program, and their selection.

use std::path::Path;

use crate::case::{Case, File, Unseen, parse};

/// Case files built into the program. A new file must be added to the list in `FILES`.
macro_rules! files {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../cases/", $name, ".case")))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "mpa/startup",
    "mpa/enhanced",
    "mpa/draft",
    "mpa/framing",
    "mpa/markers",
    "mpa/private-data",
    "mpa/segments",
    "mpa/teardown",
    "mpa/unseen",
    "ddp/tagged",
    "ddp/untagged",
    "ddp/messages",
    "ddp/errors",
    "ddp/order",
    "ddp/bare",
    "ddp/unseen",
    "rdmap/operations",
    "rdmap/terminate",
    "rdmap/messages",
    "rdmap/reads",
    "rdmap/atomics",
    "rdmap/immediate",
    "rdmap/unseen",
    "rdmap/invalidate",
    "rdmap/order",
    "sctp/active",
    "sctp/association",
    "sctp/sessions",
    "sctp/sequence",
];

/// Cases and the requirements without a case.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// Test cases in the order of the files.
    pub cases: Vec<Case>,
    /// Requirements that a peer cannot observe on the wire.
    pub unseen: Vec<Unseen>,
}

impl Catalogue {
    /// Reads the cases of the program.
    ///
    /// # Errors
    /// A built-in file does not follow the format of case files.
    pub fn built_in() -> Result<Catalogue, String> {
        let mut all = Catalogue::default();
        for (group, text) in FILES {
            all.add(parse(group, text)?)?;
        }
        Ok(all)
    }

    /// Adds the cases of a file. The group of the cases is `DIRECTORY/FILE` without extension.
    ///
    /// # Errors
    /// The file cannot be read, or does not follow the format of case files.
    pub fn add_file(&mut self, path: &Path) -> Result<(), String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("cases");
        let directory =
            path.parent().and_then(Path::file_name).and_then(|s| s.to_str()).unwrap_or("more");
        self.add(parse(&format!("{directory}/{stem}"), &text)?)
    }

    fn add(&mut self, file: File) -> Result<(), String> {
        for case in file.cases {
            if self.cases.iter().any(|c| c.id == case.id) {
                return Err(format!("two cases have the id {}", case.id));
            }
            self.cases.push(case);
        }
        for unseen in file.unseen {
            let same = |id: &String| *id == unseen.id;
            if self.cases.iter().any(|c| same(&c.id)) || self.unseen.iter().any(|u| same(&u.id)) {
                return Err(format!("{} is the id of two entries", unseen.id));
            }
            self.unseen.push(unseen);
        }
        Ok(())
    }

    /// Keeps the selected cases, or all without a selection. A selection is an id, the start of an id up to a `/`, `.`
    /// or `-`, or a file.
    ///
    /// # Errors
    /// A selection names no case.
    pub fn select(&mut self, selections: &[String]) -> Result<(), String> {
        if let Some(none) = selections.iter().find(|s| !self.cases.iter().any(|c| selects(s, c))) {
            return Err(format!("`{none}` names no case; `iwspec --list` shows all"));
        }
        if !selections.is_empty() {
            self.cases.retain(|c| selections.iter().any(|s| selects(s, c)));
        }
        Ok(())
    }
}

fn selects(selection: &str, case: &Case) -> bool {
    let within = |name: &str| {
        name.strip_prefix(selection)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.', '-']))
    };
    within(&case.id) || within(&case.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_file_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let mut found = 0;
        for directory in std::fs::read_dir(&root).expect("cases") {
            for file in std::fs::read_dir(directory.expect("entry").path()).expect("directory") {
                let path = file.expect("entry").path();
                let name = path.strip_prefix(&root).expect("below").with_extension("");
                assert!(
                    FILES.iter().any(|(group, _)| Path::new(group) == name),
                    "{} is not in FILES",
                    name.display()
                );
                found += 1;
            }
        }
        assert_eq!(found, FILES.len());
    }

    #[test]
    fn selections_name_ids_sections_and_files() {
        let all = Catalogue::built_in().expect("good files");
        let count = |s: &str| {
            let mut some = all.clone();
            some.select(&[s.into()]).map(|()| some.cases.len())
        };
        assert_eq!(
            count("mpa").expect("a layer")
                + count("ddp").expect("a layer")
                + count("rdmap").expect("a layer")
                + count("sctp").expect("a layer"),
            all.cases.len()
        );
        assert_eq!(count(&all.cases[0].id), Ok(1));
        assert!(count("mpa/startup").expect("a file") > 1);
        assert!(count("mpa/7.1.1").expect("a section") > 1);
        assert!(count("mp").is_err());
    }
}
