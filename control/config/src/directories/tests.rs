//! Files are opened, created and written only below the permitted directories.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;

use super::*;

const ALL: [OpenPurpose; 4] =
    [OpenPurpose::Read, OpenPurpose::ReadWrite, OpenPurpose::Append, OpenPurpose::Replace];

/// Directories `in` and `out`; files are allowed below `in`.
struct Tree {
    dir: tempfile::TempDir,
    only: Directories,
}

impl Tree {
    fn new() -> Tree {
        let dir = tempfile::tempdir().unwrap();
        for made in ["in/sub", "out"] {
            std::fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        std::fs::write(dir.path().join("out/secret"), "secret").unwrap();
        let only = Directories::from_key(&[dir.path().join("in")]);
        Tree { dir, only }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn refused(&self, path: &Path) {
        for usage in ALL {
            for result in [self.only.open(path, usage).map(drop), self.only.admit(path)] {
                let Err(PathError::Outside(message)) = result else {
                    panic!("{path:?} {usage:?}: {result:?}")
                };
                let below = format!("below {}", self.path("in").display());
                assert!(message.contains(&below), "{message}");
            }
        }
        assert_eq!(std::fs::read_to_string(self.path("out/secret")).unwrap(), "secret");
        assert_eq!(std::fs::read_dir(self.path("out")).unwrap().count(), 1);
    }
}

#[test]
fn files_below_directories_are_created_written_and_read() {
    let tree = Tree::new();
    let path = tree.path("in/sub/f");
    let mut file = tree.only.open(&path, OpenPurpose::Append).unwrap();
    file.write_all(b"one").unwrap();
    tree.only.open(&path, OpenPurpose::Append).unwrap().write_all(b"two").unwrap();
    let mut text = String::new();
    tree.only.open(&path, OpenPurpose::Read).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "onetwo");
    assert_eq!(tree.only.open(&path, OpenPurpose::ReadWrite).unwrap().metadata().unwrap().len(), 6);
    assert_eq!(tree.only.open(&path, OpenPurpose::Replace).unwrap().metadata().unwrap().len(), 0);
    assert_eq!(tree.only.admit(&tree.path("in/not-there")), Ok(()));
}

#[test]
fn missing_directory_of_a_new_file_is_named() {
    let tree = Tree::new();
    let (path, parent) = (tree.path("in/none/f"), tree.path("in/none").display().to_string());
    let error = |usage| tree.only.open(&path, usage).unwrap_err().to_string();
    let remedy = format!(": its directory {parent} does not exist: mkdir -p {parent}");
    for usage in [OpenPurpose::ReadWrite, OpenPurpose::Append, OpenPurpose::Replace] {
        assert!(error(usage).ends_with(&remedy), "{}", error(usage));
    }
    let refused = tree.only.parent(&path).unwrap_err().to_string();
    assert!(refused.ends_with(&remedy), "{refused}");
    // A failed read has no remedy, because creating the missing directory would not help.
    assert!(error(OpenPurpose::Read).contains("No such file or directory"));
}

#[test]
fn paths_outside_directories_are_refused() {
    let tree = Tree::new();
    for path in
        ["out/secret", "out/new", "in", "in/", "in/f/", "in/../out/secret", "in/sub/../f", "inner"]
    {
        tree.refused(&tree.path(path));
    }
    for path in ["", "relative", "/etc/shadow", "/proc/self/mem", "../x", "/"] {
        tree.refused(Path::new(path));
    }
}

#[test]
fn symlinks_below_directories_are_not_followed() {
    let tree = Tree::new();
    symlink(tree.path("out/secret"), tree.path("in/link")).unwrap();
    symlink(tree.path("out/new"), tree.path("in/dangling")).unwrap();
    symlink(tree.path("out"), tree.path("in/parent")).unwrap();
    symlink("sub", tree.path("in/own")).unwrap();
    for path in ["in/link", "in/dangling", "in/parent/secret", "in/parent/new", "in/own/f"] {
        tree.refused(&tree.path(path));
        let refused = tree.only.admit(&tree.path(path)).unwrap_err();
        let parent = tree.only.parent(&tree.path(path)).map(drop);
        assert!(refused.to_string().contains("is or passes a symbolic link"), "{refused}");
        // The name itself may be a link, which is replaced, not followed.
        assert_eq!(parent.is_err(), path.matches('/').count() == 2, "{path}: {parent:?}");
    }
}

#[test]
fn directory_replaced_by_symlink_is_refused() {
    let tree = Tree::new();
    tree.only.open(&tree.path("in/sub/f"), OpenPurpose::Append).unwrap();
    std::fs::rename(tree.path("in/sub"), tree.path("in/moved")).unwrap();
    symlink(tree.path("out"), tree.path("in/sub")).unwrap();
    tree.refused(&tree.path("in/sub/f"));
}

#[test]
fn special_files_are_refused_without_blocking() {
    let tree = Tree::new();
    let fifo = tree.path("in/fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    assert!(tree.only.open(&fifo, OpenPurpose::Read).is_ok());
    for path in [&fifo, &tree.path("in/sub")] {
        for usage in [OpenPurpose::ReadWrite, OpenPurpose::Append, OpenPurpose::Replace] {
            let result = tree.only.open(path, usage);
            assert!(matches!(result, Err(PathError::Failed(_))), "{path:?} {usage:?} {result:?}");
        }
    }
    let devices = Directories::from_key(&["/dev".into()]);
    let refused = devices.open(Path::new("/dev/full"), OpenPurpose::Append).unwrap_err();
    assert_eq!(refused, PathError::Failed("/dev/full is not an ordinary file".into()));
    let nul = tree.path("in/a\0b");
    assert!(matches!(tree.only.open(&nul, OpenPurpose::Append), Err(PathError::Failed(_))));
}

#[test]
fn empty_directory_list_refuses_all() {
    let tree = Tree::new();
    let none = Directories::from_key(&[]);
    let refused = none.open(&tree.path("in/f"), OpenPurpose::Append).unwrap_err();
    assert!(refused.to_string().ends_with("files.paths is empty"), "{refused}");
}

/// Returns the default directories with these configured files. The own directory is the tests' replacement of
/// /var/lib/ddpd.
fn by_default(named: &[&Path]) -> Directories {
    Directories::default_for(named.iter().copied())
}

#[test]
fn default_directories_contain_the_configured_files() {
    let tree = Tree::new();
    let named = tree.path("in/named");
    let files = by_default(&[&named]);
    for file in ["in/named", "in/other", "in/sub/f"] {
        files.open(&tree.path(file), OpenPurpose::Append).unwrap();
    }
    for file in ["out/secret", "out/new", "f", "in/../out/secret"] {
        let refused = files.open(&tree.path(file), OpenPurpose::Append).unwrap_err();
        let below = format!(
            "ddpd may open only files below /var/lib/ddpd or {} (files.paths is not set)",
            tree.path("in").display()
        );
        assert!(refused.to_string().ends_with(&below), "{refused}");
        assert!(matches!(refused, PathError::Outside(_)));
    }
    symlink(tree.path("out/secret"), tree.path("in/link")).unwrap();
    let linked = by_default(&[&tree.path("in/link")]);
    assert!(linked.open(&tree.path("in/link"), OpenPurpose::ReadWrite).is_err());
    // Configured paths may contain `..`.
    let up = tree.path("in/../out/made");
    by_default(&[&up]).open(&up, OpenPurpose::Append).unwrap();
    assert!(tree.path("out/made").exists());
}

#[test]
fn file_in_dev_or_root_admits_only_itself() {
    let (full, root) = (Path::new("/dev/full"), Path::new("/tmp/../named-by-a-test"));
    let files = by_default(&[full, root]);
    assert_eq!(files.paths, [PathBuf::from(STATE_DIRECTORY)]);
    assert!(files.open(full, OpenPurpose::Append).is_ok());
    assert_eq!(files.admit(root), Ok(()));
    for (path, usage) in [
        ("/dev/null", OpenPurpose::Append),
        ("/dev/shm/x", OpenPurpose::Replace),
        ("/x", OpenPurpose::Append),
    ] {
        let refused = files.open(Path::new(path), usage).unwrap_err();
        assert!(matches!(refused, PathError::Outside(_)), "{path}: {refused}");
    }
    // A device cannot hold a region.
    let refused = files.open(full, OpenPurpose::ReadWrite).unwrap_err();
    assert_eq!(refused, PathError::Failed("/dev/full is not an ordinary file".into()));
}

#[test]
fn only_empty_file_is_removed() {
    let tree = Tree::new();
    let parent = |path: &str| tree.only.parent(&tree.path(path));
    let (empty, full, none) = (parent("in/empty"), parent("in/sub/full"), parent("in/none"));
    std::fs::write(tree.path("in/empty"), "").unwrap();
    std::fs::write(tree.path("in/sub/full"), "bytes").unwrap();
    assert!(empty.as_ref().unwrap().exists().unwrap());
    assert!(!none.as_ref().unwrap().exists().unwrap());
    for parent in [empty, full, none] {
        parent.unwrap().remove_if_empty().unwrap();
    }
    assert!(!tree.path("in/empty").exists() && tree.path("in/sub/full").exists());
    symlink(tree.path("out"), tree.path("in/link")).unwrap();
    for path in ["out/x", "in/link/x", "in/../out/x"] {
        assert!(matches!(parent(path), Err(PathError::Outside(_))), "{path}");
    }
}

#[test]
fn own_directory_is_first_state_directory() {
    for (given, first) in [
        ("/var/lib/ddpd-a", Some("/var/lib/ddpd-a")),
        ("/var/lib/a:/var/lib/b", Some("/var/lib/a")),
        ("", None),
        ("lib/a", None),
    ] {
        assert_eq!(first_path(given.as_ref()), first.map(PathBuf::from), "{given}");
    }
}
