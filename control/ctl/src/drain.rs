//! `drain` and `undrain`: refuse new streams, and accept them again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use api::{Client, Status};
use base::plural::counted_are;
use serde_json::json;

use super::Output;
use super::exit::{Exit, Failure};

/// Interval between two queries of the number of remaining streams.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Refuses new streams and jobs. `wait`: maximum number of seconds to wait until no stream is left; `None` to return
/// at once.
pub(super) fn drain(
    wait: Option<u64>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut status: Status = client.post("/v1/drain", &json!({}))?;
    if let Some(seconds) = wait {
        let wait = Duration::from_secs(seconds);
        while status.streams_left.is_some_and(|left| left > 0) && started.elapsed() < wait {
            sleep(POLL_INTERVAL.min(wait.saturating_sub(started.elapsed())));
            status = client.get("/v1/status")?;
        }
    }
    let Some(left) = status.streams_left else {
        let message = "another client has ended the drain: new streams are accepted again";
        return Err(Failure::new(Exit::Failed, message));
    };
    if let Some(seconds) = wait
        && left > 0
    {
        let message = format!(
            "{} left after {seconds} s: the appliance drains on",
            counted_are(left, "stream")
        );
        let hint = "ddpctl streams list shows them, ddpctl streams close ends one";
        return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint.into())));
    }
    output.print_answer(&status, |_| {
        format!("new streams and jobs are refused; {} left\n", counted_are(left, "stream"))
    })
}

pub(super) fn undrain(client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let status: Status = client.post("/v1/undrain", &json!({}))?;
    output.print_answer(&status, |_| "new streams and jobs are taken again\n".into())
}
