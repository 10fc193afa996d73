//! Input of a put whose data the client sends. The data arrive as the body of a request and pass to the job through a
//! pipe within the process.
//!
//! ```text
//!  client ---- body ----> handler ----> pipe(2) ----> job
//! ```
//!
//! If the body is truncated, the job fails.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::State;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{self, Sender};

use super::app::{App, PathParam, RouteResult};
use super::{ApiError, ErrorKind, Request};

/// Reading end of the pipe, which the job receives.
#[derive(Clone, Debug)]
pub struct Input {
    file: Arc<File>,
    complete: Arc<AtomicBool>,
}

impl Input {
    /// Returns the reading end as a nonblocking file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns true if the whole body was written into the pipe. Valid after the job has read to the end of the pipe.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }
}

/// Writing end of the pipe, for the request's body. If it is dropped before [`InputWriter::complete`], the input is
/// considered truncated.
#[derive(Debug)]
pub struct InputWriter {
    sender: Sender,
    complete: Arc<AtomicBool>,
}

impl InputWriter {
    /// Creates both ends of a pipe. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// An error of pipe(2), for example if the process has no descriptors left.
    pub fn pair() -> io::Result<(InputWriter, Input)> {
        let (sender, receiver) = pipe::pipe()?;
        let complete = Arc::<AtomicBool>::default();
        let file = Arc::new(File::from(receiver.into_nonblocking_fd()?));
        Ok((InputWriter { sender, complete: Arc::clone(&complete) }, Input { file, complete }))
    }

    /// Writes all bytes. Waits while the pipe is full.
    ///
    /// # Errors
    /// The job has closed its end.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sender.write_all(bytes).await
    }

    /// Marks the written bytes as the complete input.
    pub fn complete(self) {
        self.complete.store(true, Ordering::Release);
    }
}

/// Handles `POST /v1/jobs/{id}/input`. Answers after the last byte was written into the pipe.
pub(super) async fn input(
    State(app): State<App>,
    PathParam(id): PathParam<u64>,
    body: Body,
) -> RouteResult {
    let failed = |error| ApiError::unavailable(format!("no pipe for the input: {error}"));
    let (feed, input) = InputWriter::pair().map_err(failed)?;
    let taken = app.respond_ok(Request::Input { id, input }).await?;
    let mut closing = app.closing();
    tokio::select! {
        copied = copy_body(body, feed, id) => copied.map(|()| taken),
        _ = closing.wait_for(|&closing| closing) => {
            Err(ApiError::unavailable("the appliance is shutting down"))
        }
    }
}

async fn copy_body(mut body: Body, mut feed: InputWriter, id: u64) -> Result<(), ApiError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::bad_request(format!("the input of job {id} is incomplete: {error}"))
        })?;
        let Ok(bytes) = frame.into_data() else { continue };
        feed.write(&bytes).await.map_err(|_| {
            let message = format!("job {id} reads no more input: GET /v1/jobs/{id} tells why");
            ApiError::new(ErrorKind::Conflict, message)
        })?;
    }
    feed.complete();
    Ok(())
}
