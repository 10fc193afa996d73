//! Reloading the configuration file, and writing one.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::routes::{Answer, App, Json, Params};
use super::{ApiError, Reply, Request, Saved};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reload {
    /// Nothing is changed: the answer is what would be.
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn reload(State(app): State<App>, Params(query): Params<Reload>) -> Answer {
    app.ok(if query.dry_run { Request::TryReload } else { Request::Reload }).await
}

/// Where the running configuration is written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Save {
    /// Absolute path.
    #[schemars(with = "super::shape::AbsolutePath")]
    file: PathBuf,
    /// A file that is there is replaced.
    #[serde(default)]
    overwrite: bool,
}

pub(super) async fn save(State(app): State<App>, Json(save): Json<Save>) -> Answer {
    let Save { file, overwrite } = save;
    if !file.is_absolute() {
        let message = format!("file: {} must be an absolute path", file.display());
        return Err(ApiError::bad_request(message));
    }
    let Reply::Text(text) = app.ask(Request::ConfigText(file.clone())).await? else {
        return Err(ApiError::internal("the control thread did not answer with a text"));
    };
    let written = tokio::task::spawn_blocking(move || {
        write(&file, &text, overwrite).map(|()| Saved { file, bytes: text.len() as u64 })
    });
    let saved = written.await.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(axum::response::IntoResponse::into_response(axum::Json(saved)))
}

/// Writes a file whole or not at all: its name is given to bytes that are on the disk already. A new one is for its
/// owner alone, because it may have secrets in it; a replaced one keeps its mode.
fn write(file: &Path, text: &str, overwrite: bool) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| {
        ApiError::conflict(format!("{}: cannot be written: {error}", file.display()))
    };
    let exists = || {
        ApiError::conflict(format!(
            "{}: is there already: name another file, or overwrite it (ddpctl config save --overwrite)",
            file.display()
        ))
    };
    // What a link names is replaced, not the link.
    let (target, mode) = match std::fs::canonicalize(file) {
        Ok(_) if !overwrite => return Err(exists()),
        Ok(target) => {
            let metadata = std::fs::metadata(&target).map_err(failed)?;
            if !metadata.is_file() {
                let message = format!("{}: is no ordinary file: name another", file.display());
                return Err(ApiError::bad_request(message));
            }
            (target, metadata.permissions())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            (file.to_owned(), Permissions::from_mode(0o600))
        }
        Err(error) => return Err(failed(error)),
    };
    let directory = target.parent().unwrap_or(Path::new("/"));
    let mut new =
        tempfile::Builder::new().prefix(".ddpd-").tempfile_in(directory).map_err(failed)?;
    new.as_file().set_permissions(mode).map_err(failed)?;
    new.write_all(text.as_bytes()).map_err(failed)?;
    new.as_file().sync_all().map_err(failed)?;
    match overwrite {
        true => new.persist(&target).map(drop).map_err(|error| failed(error.error))?,
        false => {
            new.persist_noclobber(&target).map(drop).map_err(|error| match error.error.kind() {
                ErrorKind::AlreadyExists => exists(),
                _ => failed(error.error),
            })?
        }
    }
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_and_never_over_another_without_being_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new.toml");
        write(&file, "one", false).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        let mode = |file: &Path| std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        let refused = write(&file, "two", false).unwrap_err();
        assert!(refused.message.contains("is there already: name another file"), "{refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link.toml");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "three", true).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "three");
        assert_eq!(mode(&file), 0o640, "a replaced file keeps its mode");
        assert!(link.is_symlink());
        assert!(write(dir.path(), "x", true).unwrap_err().message.contains("no ordinary file"));
        let refused = write(Path::new("/nonexistent/x"), "x", false).unwrap_err();
        assert!(refused.message.contains("cannot be written: "), "{refused}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }
}
