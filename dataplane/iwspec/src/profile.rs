//! Known deviations of a device, from a TOML file. A known failure does not change the exit code.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Content of a profile file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name of the device, for reports.
    #[serde(default)]
    pub name: String,
    /// Known deviations, at most one per case.
    #[serde(default, rename = "deviation")]
    pub deviations: Vec<Deviation>,
}

/// A known deviation: a case that the device fails.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// Identifier of the case, such as `mpa/7.1.1-4`.
    pub case: String,
    /// Actual behaviour of the device.
    pub because: String,
    /// Source line, packet or document that proves the behaviour.
    pub source: String,
    /// True if the case must not run, because it stops the device.
    #[serde(default)]
    pub skip: bool,
    /// True if the device deviates in some executions only, because the result depends on the device's timing. The case
    /// is then reported as known after a pass, too.
    #[serde(default)]
    pub intermittent: bool,
}

/// Directory of the packaged profiles, relative to the directory of the program.
const PACKAGED: &str = "../share/iwspec/profiles";

impl Profile {
    /// Reads the profile in the file `name`, or the packaged profile of this name.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub fn find(name: &Path) -> Result<Profile, String> {
        let program = std::env::current_exe().unwrap_or_default();
        Profile::read(&locate(name, &program))
    }

    /// Reads and checks a profile file.
    ///
    /// # Errors
    /// The file cannot be read, has an unknown key, or names a case twice.
    pub fn read(path: &Path) -> Result<Profile, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Profile::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn parse(text: &str) -> Result<Profile, String> {
        let profile: Profile = toml::from_str(text).map_err(|e| e.to_string())?;
        for (at, d) in profile.deviations.iter().enumerate() {
            if profile.deviations[..at].iter().any(|other| other.case == d.case) {
                return Err(format!("the case {} is named twice", d.case));
            }
        }
        Ok(profile)
    }

    /// Checks that every deviation names a case.
    ///
    /// # Errors
    /// The first unknown case.
    pub fn check<'a>(&self, ids: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
        match self.deviations.iter().find(|d| !ids.clone().any(|id| id == d.case)) {
            Some(d) => Err(format!("the profile names the case {}, which does not exist", d.case)),
            None => Ok(()),
        }
    }

    /// Returns the reason for which a case must not run; `None` if it may run.
    pub fn skips(&self, id: &str) -> Option<&str> {
        self.deviations.iter().find(|d| d.skip && d.case == id).map(|d| d.because.as_str())
    }

    /// Returns the known deviation of a case; `None` if there is none.
    pub fn explanation(&self, id: &str) -> Option<&Deviation> {
        self.deviations.iter().find(|d| d.case == id)
    }
}

/// Returns `name` if it is a path or a file, otherwise the path of the packaged profile `name`, relative to the file
/// `program`.
fn locate(name: &Path, program: &Path) -> PathBuf {
    if name.components().count() > 1 || name.is_file() {
        return name.into();
    }
    let directory = program.parent().unwrap_or(Path::new("/")).join(PACKAGED);
    directory.join(name).with_extension("toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_without_directory_is_that_of_the_package() {
        let program = Path::new("/usr/bin/iwspec");
        let packaged = Path::new("/usr/bin/../share/iwspec/profiles/siw.toml");
        assert_eq!(locate(Path::new("siw"), program), packaged);
        assert_eq!(locate(Path::new("./siw"), program), Path::new("./siw"));
        // Tests run in the crate's directory, so this file exists.
        assert_eq!(locate(Path::new("Cargo.toml"), program), Path::new("Cargo.toml"));
    }

    const GOOD: &str =
        "name = \"x\"\n[[deviation]]\ncase = \"a/1\"\nbecause = \"b\"\nsource = \"c\"\n";

    #[test]
    fn profile_is_parsed_and_checked() {
        let p = Profile::parse(GOOD).expect("good");
        assert_eq!(p.explanation("a/1").map(|d| d.because.as_str()), Some("b"));
        assert_eq!(p.explanation("a/2"), None);
        assert_eq!(p.skips("a/1"), None);
        let p = Profile::parse(&format!("{GOOD}skip = true\n")).expect("good");
        assert_eq!(p.skips("a/1"), Some("b"));
        let p = Profile::parse(&format!("{GOOD}intermittent = true\n")).expect("good");
        assert!(p.explanation("a/1").is_some_and(|d| d.intermittent && !d.skip));
        assert!(p.check(["a/1"].into_iter()).is_ok());
        assert!(p.check(["a/2"].into_iter()).is_err());
        assert!(Profile::parse(&format!("{GOOD}more = 1\n")).is_err());
        assert!(Profile::parse(&GOOD.replace("source = \"c\"\n", "")).is_err());
        assert!(Profile::parse(&format!("{GOOD}{}", &GOOD[11..])).is_err());
    }
}
