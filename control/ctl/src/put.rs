//! `put`: writes a file into a peer's region, through the appliance or over kernel sockets.

use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use api::{Client, ClientError, JobInfo, JobState, PutSpec, RemotePlace, UlpChoice, Via};
use bytesize::ByteSize;
use config::Transport;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use tcp_lite::mpa::Revision;

use super::args::{MpaArgs, MpaRev, Put};
use super::exit::{Exit, Failure};
use super::host::Host;
use super::input::{self, FileReader, Upload};
use super::interrupt::Interrupt;
use super::{Output, connect_spec};
use crate::kernel;

/// Options for watching a transfer.
pub(super) struct WatchOptions {
    /// True to return at once without watching.
    pub detach: bool,
    /// True if the transfer reads from the peer.
    pub is_get: bool,
    /// Destination region; `None` for a file.
    pub destination_region: Option<String>,
    /// Name of the source in the summary, if the job has no file name.
    pub name: String,
}

/// Maximum time without progress over kernel sockets if --timeout is not given.
const KERNEL_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum wait for the appliance's answer to the cancellation of a job after --timeout has expired.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval between two queries of the appliance's job.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Summary of a transfer, with the same members for `appliance` and `kernel`. Members that do not apply are null.
#[derive(Debug, Serialize)]
struct Summary {
    /// Stack that carried the transfer: `appliance` or `kernel`.
    via: &'static str,
    file: String,
    peer: String,
    bytes: u64,
    seconds: f64,
    gbit_per_s: f64,
    /// Number of the appliance's job; null for `kernel`.
    job: Option<u64>,
    stag: Option<String>,
    to: Option<String>,
    mpa: Option<serde_json::Value>,
    fpdus: Option<u64>,
    stream_bytes: Option<u64>,
}

/// Makes the appliance send the file, and watches the job.
pub(super) fn put_by_appliance(
    put: Put,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let target = match (put_target(&put)?, put.stag.zip(put.to)) {
        (_, Some((stag, to))) => RemotePlace::Tagged { stag, to },
        (Some(region), None) => RemotePlace::Region { name: region.name, offset: region.offset },
        (None, None) => return Err(missing_target(put.url.peer.scheme())),
    };
    let via = match put.stream {
        Some(id) => Via::Stream(id),
        None => Via::Connect(connect_spec(&put.url.peer, put.opening, Vec::new(), client)?),
    };
    let name = input::display_name(&put.file);
    let (file, reader) = match input::select_reader(&put.file)? {
        FileReader::Appliance(file) => (Some(file), None),
        FileReader::Local(_) if put.detach => {
            let message = format!(
                "--detach needs a file or a FIFO with a path that is UTF-8: ddpctl itself reads {name}, until it ends"
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        FileReader::Local(reader) => (None, Some(reader)),
    };
    let transfer = WatchOptions {
        detach: put.detach,
        is_get: false,
        destination_region: None,
        name: name.clone(),
    };
    // The signal handlers are installed before the job is created, so that a signal leaves no job behind.
    let interrupt = Interrupt::watch()?;
    let job: Result<JobInfo, _> = client.post("/v1/put", &PutSpec { file, via, target });
    let job = job.map_err(|error| with_stdin_hint(error.into()))?;
    let upload = match reader {
        Some(reader) => Some(Upload::start(job.id, name, reader, client)?),
        None => None,
    };
    let watched = watch_job(job, client, output, transfer, &interrupt);
    // A read error of `ddpctl` truncates the input and thus fails the job, so it is reported as the cause.
    match upload.and_then(|upload| upload.failure()) {
        Some(failure) if watched.is_err() && interrupt.exit().is_none() => Err(failure),
        _ => watched,
    }
}

/// Adds a hint if the appliance has refused to open a file (`forbidden`): `ddpctl` may be able to read it.
fn with_stdin_hint(failure: Failure) -> Failure {
    if failure.error != "forbidden" {
        return failure;
    }
    let here = "ddpctl put - <FILE reads the file itself".to_owned();
    let hint = match &failure.hint {
        Some(hint) => format!("{here}; or {hint}"),
        None => here,
    };
    failure.with_hint(Some(hint))
}

/// Shows the progress of a job until its end. A signal or the end of the time limit cancels the job. With `detach`,
/// only prints the job.
pub(super) fn watch_job(
    mut job: JobInfo,
    client: &Client,
    output: &mut Output<'_>,
    transfer: WatchOptions,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    if transfer.detach {
        return output
            .print_answer(&job, |job| format!("job {} runs: ddpctl jobs show {0}\n", job.id));
    }
    let bar = progress_bar(output, job.total);
    while !job.state.is_finished() {
        if interrupt.exit().is_some() {
            job = client.delete(&format!("/v1/jobs/{}", job.id))?;
            break;
        }
        bar.set_length(job.total);
        bar.set_position(job.acknowledged);
        std::thread::sleep(POLL_INTERVAL);
        job = match client.get(&format!("/v1/jobs/{}", job.id)) {
            Err(ClientError::Late { .. }) => {
                bar.finish_and_clear();
                let done = format!("{} of {} bytes", job.acknowledged, job.total);
                return Err(cancel_after_timeout(&job, &done, client));
            }
            answer => answer?,
        };
    }
    bar.finish_and_clear();
    let finished = report_end(job, output, transfer);
    finished.map_err(|failure| failure.with_signal(interrupt.exit()))
}

/// Cancels a job after --timeout has expired, and returns the failure to report. `done`: the job's progress as text.
pub(super) fn cancel_after_timeout(job: &JobInfo, done: &str, client: &Client) -> Failure {
    let JobInfo { state, id, .. } = job;
    // A new client, because the deadline of `client` has expired.
    let cancelled = Client::new(client.socket())
        .map(|client| client.with_timeout(CANCEL_TIMEOUT))
        .is_ok_and(|client| client.delete::<JobInfo>(&format!("/v1/jobs/{id}")).is_ok());
    let what = match cancelled {
        true => format!("job {id} is cancelled"),
        false => format!("job {id} may go on: ddpctl jobs cancel {id}"),
    };
    let state = format!("{state:?}").to_lowercase();
    Failure::new(Exit::TimedOut, format!("after {done}: not done in time ({state}); {what}"))
}

fn report_end(
    job: JobInfo,
    output: &mut Output<'_>,
    transfer: WatchOptions,
) -> Result<(), Failure> {
    if job.state != JobState::Done {
        let exit = if job.refused { Exit::Refused } else { Exit::Failed };
        let reason = job.error.unwrap_or_else(|| "the job was cancelled".into());
        let (done, total) = (job.acknowledged, job.total);
        let failure = Failure::new(exit, format!("after {done} of {total} bytes: {reason}"));
        return Err(failure.with_hint(job.hint));
    }
    let summary = Summary {
        via: "appliance",
        file: match job.file.as_os_str().is_empty() {
            true => transfer.name,
            false => job.file.display().to_string(),
        },
        peer: job.remote,
        bytes: job.total,
        seconds: job.seconds,
        gbit_per_s: gbit_per_s(job.total, job.seconds),
        job: Some(job.id),
        stag: None,
        to: None,
        mpa: None,
        fpdus: None,
        stream_bytes: None,
    };
    let what =
        transfer.destination_region.map_or(summary.file.clone(), |name| format!("region {name}"));
    let direction = if transfer.is_get { "from" } else { "to" };
    output.print_answer(&summary, |summary| format_summary(summary, &what, direction))?;
    match job.confirmed {
        Some(false) => Err(Failure::unconfirmed(job.total)),
        _ => Ok(()),
    }
}

/// Sends the file over kernel sockets of this host.
pub(super) fn put_by_kernel(
    put: Put,
    timeout: Option<Duration>,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let target = match (put_target(&put)?, put.stag.zip(put.to)) {
        (_, Some((stag, to))) => kernel::Target::Stag { stag, to },
        (Some(region), None) => kernel::Target::Region { name: region.name, offset: region.offset },
        (None, None) => return Err(missing_target(put.url.peer.scheme())),
    };
    if let Host::Address(IpAddr::V6(address)) = put.url.peer.host
        && address.is_unicast_link_local()
    {
        let message = format!(
            "{address} is a link-local address: name this host's interface as its zone, such as [{address}%25eth0]"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let name = input::display_name(&put.file);
    let failed = |error: std::io::Error| input::unreadable(&put.file, &error);
    let (input, total): (Option<Box<dyn Read>>, _) = match input::is_stdin(&put.file) {
        true => (Some(Box::new(input::open_stdin()?)), 0),
        false => (None, std::fs::metadata(&put.file).map_err(failed)?.len()),
    };
    let request = kernel::PutRequest {
        file: match input {
            Some(_) => name.clone().into(),
            None => put.file.clone(),
        },
        host: put.url.peer.host.node(),
        port: put.url.peer.port,
        target,
        mpa: kernel_mpa(&put)?,
        timeout: timeout.unwrap_or(KERNEL_STALL_TIMEOUT),
        total_timeout: timeout,
        congestion: put.congestion,
    };
    let bar = progress_bar(output, total);
    let result = kernel::put(&request, input, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.sent.min(progress.total));
    });
    bar.finish_and_clear();
    let report = result?;
    let summary = Summary {
        via: "kernel",
        file: name,
        peer: report.peer.to_string(),
        bytes: report.bytes,
        seconds: report.elapsed.as_secs_f64(),
        gbit_per_s: report.gbit_per_s(),
        job: None,
        stag: Some(format!("{:#010x}", report.stag)),
        to: Some(report.to.to_string()),
        mpa: Some(parameters_json(&report.parameters)),
        fpdus: Some(report.fpdus),
        stream_bytes: Some(report.stream_bytes),
    };
    output.print_answer(&summary, |summary| format_summary(summary, &summary.file, "to"))
}

/// Returns the negotiated MPA parameters under the API's names.
pub(super) fn parameters_json(parameters: &kernel::NegotiatedParameters) -> serde_json::Value {
    json!({
        "revision": parameters.revision.number(),
        "start_key": parameters.revision == Revision::Draft,
        "markers_tx": parameters.markers_tx,
        "markers_rx": parameters.markers_rx,
        "crc": parameters.crc,
        "mulpdu": parameters.mulpdu,
    })
}

impl From<MpaRev> for Revision {
    fn from(revision: MpaRev) -> Self {
        match revision {
            MpaRev::Zero => Self::Zero,
            MpaRev::One => Self::One,
            MpaRev::Two => Self::Two,
            MpaRev::StartKey => Self::Draft,
        }
    }
}

/// Returns the MPA options for kernel sockets.
///
/// # Errors
/// The URL or the options require RDMAP, SCTP or MPA revision 2.
fn kernel_mpa(put: &Put) -> Result<kernel::MpaOptions, Failure> {
    let MpaArgs { mpa_rev, markers, crc } = put.opening.mpa;
    let revision = mpa_rev.unwrap_or(MpaRev::One);
    let plain = put.url.peer.ulp == UlpChoice::Ddp && put.url.peer.transport == Transport::Tcp;
    if !plain {
        let message = format!(
            "--kernel has bare DDP over TCP only: name a listener with ulp = \"ddp\" by tcp://, or leave out --kernel for {}",
            put.url.peer.scheme()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    if revision == MpaRev::Two {
        let message = "--kernel has no MPA revision 2: leave out --mpa-rev, or write 0 or 1";
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(kernel::MpaOptions { revision: revision.into(), markers: markers.unwrap_or(true), crc })
}

/// Returns the region of the URL, if any.
///
/// # Errors
/// The region is named together with an STag or with a Start Key, which carries no region names.
fn put_target(put: &Put) -> Result<Option<super::RegionOffset>, Failure> {
    match (&put.url.region, put.stag) {
        (Some(region), Some(_)) => Err(Failure::new(
            Exit::Usage,
            format!("region \"{}\" and --stag both name the place: leave one out", region.name),
        )),
        (Some(_), None) if put.opening.mpa.mpa_rev == Some(MpaRev::StartKey) => Err(Failure::new(
            Exit::Usage,
            "a Start Key carries no region names: name the place with --stag and --to, and write \
             tcp://HOST:PORT",
        )),
        (region, _) => Ok(region.clone()),
    }
}

/// Returns the error for a command with neither a region nor an STag. `scheme`: URL scheme for the suggestion.
pub(super) fn missing_target(scheme: &str) -> Failure {
    let sentence =
        format!("no region is named: write {scheme}HOST:PORT/REGION, or give --stag and --to");
    Failure::new(Exit::Usage, sentence)
}

fn progress_bar(output: &Output<'_>, total: u64) -> ProgressBar {
    if !output.progress {
        return ProgressBar::hidden();
    }
    let template = "{bar:32} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  \
                    {binary_bytes_per_sec}  {eta} left";
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn format_summary(summary: &Summary, what: &str, direction: &str) -> String {
    format!(
        "{what} {direction} {}: {} in {:.3} s, {:.3} Gbit/s\n",
        summary.peer,
        ByteSize(summary.bytes).display().iec(),
        summary.seconds,
        summary.gbit_per_s
    )
}

fn gbit_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8e-9 / seconds } else { 0.0 }
}
