//! Handlers of the calls that reload the configuration file or write the running configuration to a file.

use std::path::{Path, PathBuf};

use axum::extract::State;
use config::directories::{Directories, ParentDirectory, PathError, WriteError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::app::{App, Json, Params, RouteResult};
use super::{ApiError, Reply, Request, Saved};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reload {
    /// True: applies nothing, and returns the effect that a reload would have.
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn reload(State(app): State<App>, Params(query): Params<Reload>) -> RouteResult {
    app.respond_ok(if query.dry_run { Request::TryReload } else { Request::Reload }).await
}

/// Destination of the running configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Save {
    /// Absolute path of the file.
    #[schemars(with = "super::schema_shapes::AbsolutePath")]
    file: PathBuf,
    /// True: replaces an existing file. False: an existing file is a conflict.
    #[serde(default)]
    overwrite: bool,
}

pub(super) async fn save(State(app): State<App>, Json(save): Json<Save>) -> RouteResult {
    let Save { file, overwrite } = save;
    if !file.is_absolute() {
        let message = format!("file: {} must be an absolute path", file.display());
        return Err(ApiError::bad_request(message));
    }
    let Reply::Text { text, running, files } =
        app.request(Request::ConfigText(file.clone())).await?
    else {
        return Err(ApiError::internal("the control thread did not answer with a text"));
    };
    let written = tokio::task::spawn_blocking(move || {
        let parent = parent(&file, &running, &files)?;
        write(&file, &parent, &text, overwrite).map(|()| Saved { file, bytes: text.len() as u64 })
    });
    let saved = written.await.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(axum::response::IntoResponse::into_response(axum::Json(saved)))
}

/// Opens the directory of `file`, if a configuration may be written there. Allowed are the running configuration file
/// itself, after symbolic links are resolved, and files below the directories of `files.paths`.
fn parent(file: &Path, running: &Path, files: &Directories) -> Result<ParentDirectory, ApiError> {
    let real =
        |path: &Path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    if real(file).is_some_and(|file| Some(file) == real(running)) {
        return ParentDirectory::open(running).map_err(|error| {
            ApiError::conflict(format!("{}: cannot be written: {error}", file.display()))
        });
    }
    files.parent(file).map_err(|refused| match refused {
        PathError::Outside(message) => ApiError::forbidden(message),
        PathError::Failed(message) => ApiError::conflict(format!("cannot be written: {message}")),
    })
}

fn write(
    file: &Path,
    parent: &ParentDirectory,
    text: &str,
    overwrite: bool,
) -> Result<(), ApiError> {
    parent.write(text.as_bytes(), overwrite).map_err(|why| {
        let message = format!("{}: {why}", file.display());
        match why {
            WriteError::Exists => ApiError::conflict(format!(
                "{message}: name another file, or overwrite it (ddpctl config save --overwrite)"
            )),
            WriteError::NotAFile => ApiError::bad_request(message),
            WriteError::Mode { .. } | WriteError::Failed(_) => ApiError::conflict(message),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::ErrorKind;

    /// Saves `text` to `file`. The configuration allows files below `dir/in`, and the running file is
    /// `dir/running.toml`.
    fn save(dir: &Path, file: &Path, text: &str, overwrite: bool) -> Result<(), ApiError> {
        let files = Directories::from_key(&[dir.join("in")]);
        write(file, &parent(file, &dir.join("running.toml"), &files)?, text, overwrite)
    }

    fn read(file: &Path) -> String {
        std::fs::read_to_string(file).unwrap()
    }

    fn mode(file: &Path) -> u32 {
        std::fs::metadata(file).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn save_is_atomic_and_overwrites_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::create_dir(dir.join("in")).unwrap();
        let file = dir.join("in/new.toml");
        save(dir, &file, "one", false).unwrap();
        assert_eq!((read(&file).as_str(), mode(&file)), ("one", 0o600));
        let refused = save(dir, &file, "two", false).unwrap_err();
        assert!(refused.message.contains("is there already: name another file"), "{refused}");
        assert_eq!(read(&file), "one");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        save(dir, &file, "three", true).unwrap();
        assert_eq!((read(&file).as_str(), mode(&file)), ("three", 0o640));
        std::fs::create_dir(dir.join("in/sub")).unwrap();
        let refused = save(dir, &dir.join("in/sub"), "x", true).unwrap_err();
        assert!(refused.message.contains("no ordinary file"), "{refused}");
        let refused = save(dir, &dir.join("in/none/x"), "x", false).unwrap_err();
        assert!(refused.message.starts_with("cannot be written: "), "{refused}");
        save(dir, &dir.join("in/sub/x"), "x", false).unwrap();
        assert_eq!(std::fs::read_dir(dir.join("in")).unwrap().count(), 2, "no temporary file");
    }

    #[test]
    fn save_outside_directories_is_limited_to_running_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for made in ["in", "etc"] {
            std::fs::create_dir(dir.join(made)).unwrap();
        }
        let real = dir.join("etc/real.toml");
        std::fs::write(&real, "before").unwrap();
        // The running file may be a symbolic link. The save writes its target and keeps the link.
        symlink(&real, dir.join("running.toml")).unwrap();
        for (file, text) in [(dir.join("running.toml"), "one"), (real.clone(), "two")] {
            save(dir, &file, text, true).unwrap();
            assert_eq!(read(&real), text);
        }
        assert!(dir.join("running.toml").is_symlink());
        symlink(dir.join("etc"), dir.join("in/link")).unwrap();
        symlink(dir.join("etc/other.toml"), dir.join("in/other.toml")).unwrap();
        for file in ["etc/other.toml", "new.toml", "in/../new.toml", "in/link/other.toml"] {
            let refused = save(dir, &dir.join(file), "x", true).unwrap_err();
            assert_eq!(refused.error, ErrorKind::Forbidden, "{file}: {refused}");
            assert!(refused.message.contains("(files.paths)"), "{refused}");
        }
        let refused = save(dir, &dir.join("in/other.toml"), "x", true).unwrap_err();
        assert!(refused.message.contains("no ordinary file"), "{refused}");
        assert_eq!(std::fs::read_dir(dir.join("etc")).unwrap().count(), 1);
    }
}
