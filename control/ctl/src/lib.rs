//! `ddpctl`: command-line client of the appliance's API, with `put --kernel` and `serve-kernel` for hosts without an
//! appliance.
//!
//! Output is tables by default, and the API's JSON with `--json`. All output except progress bars is written to the two
//! writers of [`run`], so that tests see the same output as a shell.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod capture;
mod config;
mod drain;
mod exit;
mod explain;
mod generate;
mod host;
mod input;
mod interrupt;
pub mod kernel;
mod put;
mod run;
mod section;
mod serve;
mod show;
mod streams;
mod top;
mod url;
mod values;
mod verbs;
mod why;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;
use serde::Serialize;
use serde_json::json;

use api::{
    AssociationInfo, Client, ClientError, ConnectSpec, Done, Event, EventPage, IpsecPolicyInfo,
    IpsecSaInfo, JobInfo, ListenerInfo, LogInfo, MpaChoice, PortInfo, ProgramInfo, RdmapChoice,
    RegionInfo, SendSpec, Sent, Severity, Stats, Status, StreamInfo, Via, WorkerInfo, path_segment,
    unknown_name,
};

use ::config::Transport;
pub use args::{Args, Command};
pub use exit::Exit;
pub use host::{Host, HostError};
use standard::{self, Stdout};
pub use url::{Peer, RegionOffset, Url, UrlError};

use self::streams::Selection;
use args::{
    Associations, Connect, ConnectOptions, Events, Ipsec, Jobs, Listeners, MpaArgs, MpaRev,
    Programs, RegionAdd, Regions, Send, SendTo, Streams,
};
use exit::Failure;

/// Minimum of the client's time limits: silence of the appliance, and the whole command.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// Maximum silence of the appliance without --timeout.
const DEFAULT_SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the command line of this process.
pub fn main() -> std::process::ExitCode {
    let terminal = standard::is_capable(&io::stderr());
    let exit = run(std::env::args_os(), &mut Stdout::open(), &mut io::stderr(), terminal);
    if let Some(signal) = exit.signal() {
        standard::end_by_signal(signal);
    }
    std::process::ExitCode::from(exit as u8)
}

/// Runs a command line. `terminal`: true if a progress bar may be drawn on the process's standard error.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    terminal: bool,
) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // An invalid command line may still request errors in JSON.
    let json = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    // `LAB_PROCESS` is not a command of `Args`, so that help and completions do not list it.
    if arguments.get(1).is_some_and(|command| command == run::LAB_PROCESS) {
        return match run::lab_process(&arguments[1..]) {
            Ok(()) => Exit::Success,
            Err(failure) => print_failure(failure, json, err),
        };
    }
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return print_usage(&error, json, out, err),
    };
    let (json, timeout, started) = (args.json, args.timeout, Instant::now());
    let mut output = Output { out, err, json, progress: terminal && !json };
    match dispatch(args, &mut output).and_then(|()| Ok(output.out.flush()?)) {
        Ok(()) => Exit::Success,
        Err(failure) => {
            let failure = match timeout {
                Some(timeout) => failure.with_timeout_applied(timeout, started.elapsed()),
                None => failure,
            };
            print_failure(failure, json, output.err)
        }
    }
}

/// Creates a client for a command. `--timeout` limits the whole command, except for commands that run until they are
/// stopped: for these, it limits only the time without an answer from the appliance.
fn open_client(args: &Args) -> Result<Client, Failure> {
    let silence = args.timeout.unwrap_or(DEFAULT_SILENCE_TIMEOUT).max(MIN_TIMEOUT);
    let client = Client::new(&args.socket)?.with_timeout(silence);
    let is_endless = match &args.command {
        Command::Top(_) | Command::Capture(_) => true,
        Command::Events(events) => events.follow,
        _ => false,
    };
    Ok(match args.timeout {
        Some(timeout) if !is_endless => client.with_deadline(timeout.max(MIN_TIMEOUT)),
        _ => client,
    })
}

fn print_failure(failure: Failure, json: bool, err: &mut dyn Write) -> Exit {
    let text = match (json, &failure.hint) {
        (true, _) => serde_json::to_string(&failure).unwrap_or(failure.message),
        (false, Some(hint)) => format!("ddpctl: {}\nhint: {hint}", failure.message),
        (false, None) => format!("ddpctl: {}", failure.message),
    };
    // A failed write is ignored: without a writable standard error nothing can be reported.
    drop(writeln!(err, "{text}"));
    failure.exit
}

fn print_usage(error: &clap::Error, json: bool, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    if error.use_stderr() && json {
        let text = error.to_string();
        let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        print_failure(Failure::new(Exit::Usage, message), json, err)
    } else if error.use_stderr() {
        // A failed write is ignored: standard error may be closed, and the exit code still reports the error.
        drop(write!(err, "{error}"));
        Exit::Usage
    } else {
        match write!(out, "{error}").and_then(|()| out.flush()) {
            Ok(()) => Exit::Success,
            Err(error) => print_failure(error.into(), json, err),
        }
    }
}

/// Destination and format of answers.
struct Output<'w> {
    out: &'w mut dyn Write,
    /// Standard error, for messages that must not be mixed with an answer's bytes.
    err: &'w mut dyn Write,
    json: bool,
    progress: bool,
}

impl Output<'_> {
    /// Prints one answer: as JSON with `--json`, else as the text that `human` returns.
    fn print_answer<T: Serialize>(
        &mut self,
        value: &T,
        human: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            serde_json::to_writer(&mut *self.out, value)?;
            writeln!(self.out)?;
        } else {
            let text = human(value);
            self.out.write_all(text.as_bytes())?;
            if !text.is_empty() && !text.ends_with('\n') {
                writeln!(self.out)?;
            }
        }
        Ok(())
    }

    /// Prints a sentence, or with `--json` an empty object.
    fn print_done(&mut self, sentence: String) -> Result<(), Failure> {
        self.print_answer(&Done {}, |_| sentence)
    }
}

fn dispatch(args: Args, output: &mut Output<'_>) -> Result<(), Failure> {
    let (made, timeout) = (open_client(&args), args.timeout);
    let client = || made;
    match args.command {
        Command::Completions { shell, program } => {
            generate::completions(shell, program, output.out)
        }
        Command::Man { directory } => generate::man(&directory),
        Command::ServeKernel(serve) => serve::serve(serve, output),
        Command::Put(put) if put.kernel => put::put_by_kernel(put, timeout, output),
        Command::Put(put) => put::put_by_appliance(put, &client()?, output),
        Command::Status => {
            output.print_answer(&client()?.get::<Status>("/v1/status")?, show::status)
        }
        Command::Ports => output
            .print_answer(&client()?.get::<Vec<PortInfo>>("/v1/ports")?, |list| show::ports(list)),
        Command::Workers => output
            .print_answer(&client()?.get::<Vec<WorkerInfo>>("/v1/workers")?, |list| {
                show::workers(list)
            }),
        Command::Regions { command } => regions(command, &client()?, output),
        Command::Listeners { command } => listeners(command, &client()?, output),
        Command::Ipsec(command) => ipsec(&command, &client()?, output),
        Command::Associations { command } => associations(command, &client()?, output),
        Command::Streams { command } => streams(command, &client()?, output),
        Command::Top(command) => top::top(&command, client()?, output),
        Command::Stats { all } => output
            .print_answer(&client()?.get::<Stats>("/v1/stats")?, |stats| show::stats(stats, all)),
        Command::Events(command) => events(&command, &client()?, output),
        Command::Explain { names } => explain::explain(&names, client, output),
        Command::Why { what, pcapng } => why::explain(&what, pcapng.as_deref(), &client()?, output),
        Command::Capture(command) => capture::capture(&command, &client()?, output),
        Command::Connect(command) => connect(command, &client()?, output),
        Command::Send(command) => send(command, &client()?, output),
        Command::Get(get) => verbs::get(get, &client()?, output),
        Command::Ping(ping) => verbs::ping(ping, &client()?, output),
        Command::Bench(command) => bench::bench(command, &client()?, output),
        Command::FetchAdd(command) => verbs::fetch_add(command, &client()?, output),
        Command::CompareSwap(command) => verbs::compare_swap(command, &client()?, output),
        Command::Programs { command } => programs(command, &client()?, output),
        Command::Jobs { command } => jobs(command, &client()?, output),
        Command::Drain { wait } => drain::drain(wait, &client()?, output),
        Command::Undrain => drain::undrain(&client()?, output),
        Command::Reload { dry_run } => config::reload_config(dry_run, &client()?, output),
        Command::Config(command) => config::config(command, &client()?, output),
        Command::Log { filter } => log(filter, &client()?, output),
        Command::Run(command) => run::run(&command),
        Command::Metrics => Ok(output.out.write_all(client()?.text("/v1/metrics")?.as_bytes())?),
    }
}

fn log(filter: Option<String>, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let info: LogInfo = match filter {
        Some(filter) => client.post("/v1/log", &serde_json::json!({ "filter": filter }))?,
        None => client.get("/v1/log")?,
    };
    output.print_answer(&info, |log| {
        let LogInfo { filter, format, suppressed } = log;
        format!("filter {filter}, written as {format}, {suppressed} lines suppressed\n")
    })
}

fn regions(
    command: Option<Regions>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    match command.unwrap_or(Regions::List) {
        Regions::List => output
            .print_answer(&client.list::<RegionInfo>("/v1/regions")?, |list| show::regions(list)),
        Regions::Add(add) => {
            let body = match &add.file {
                Some(file) => section::section_body(file, "region")?,
                None => region_body(&add)?,
            };
            let region: RegionInfo = client.post("/v1/regions", &body)?;
            output.print_answer(&region, |region| show::regions(std::slice::from_ref(region)))
        }
        Regions::Read { name, offset, length, output: file } => {
            let copied = read_region(client, &name, offset, length, &file, output.out)?;
            if file.as_os_str() == "-" {
                return Ok(());
            }
            let file = file.display().to_string();
            output.print_answer(&json!({ "region": name, "bytes": copied, "file": file }), |_| {
                format!("{copied} bytes of region \"{name}\" are in {file}\n")
            })
        }
        Regions::SetAccess { name, access } => {
            let path = format!("/v1/regions/{}/access", path_segment(&name));
            let region: RegionInfo = client.post(&path, &json!({ "access": access }))?;
            output.print_answer(&region, |region| show::regions(std::slice::from_ref(region)))
        }
        Regions::Remove { name, force } => {
            let path = format!("/v1/regions/{}?force={force}", path_segment(&name));
            client.delete::<Done>(&path)?;
            output.print_done(format!("region \"{name}\" is removed: no byte can be placed in it"))
        }
    }
}

/// Copies bytes of a region to `file`, or to `out` if `file` is `-`. Returns the number of bytes copied. `length`:
/// `None` for all bytes from `offset` to the region's end.
fn read_region(
    client: &Client,
    name: &str,
    offset: u64,
    length: Option<u64>,
    file: &Path,
    out: &mut dyn Write,
) -> Result<u64, Failure> {
    /// Maximum bytes per request, set by the API.
    const MAX_READ: u64 = 16 << 20;
    let regions: Vec<RegionInfo> = client.list("/v1/regions")?;
    let region = regions.iter().find(|region| region.name == name);
    let size = region.map(|region| region.size).ok_or_else(|| {
        let known = regions.iter().map(|region| region.name.as_str());
        Failure::from(ClientError::Refused(unknown_name("region", name, known)))
    })?;
    let end = length.map_or(size, |length| offset.saturating_add(length));
    if offset > end || end > size {
        let message = format!("region \"{name}\" has {size} bytes: ask for a part of them");
        return Err(Failure::new(Exit::Usage, message));
    }
    let failed = |error: io::Error| match input::is_stream(file) {
        true => error.into(),
        false => Failure::new(Exit::Failed, format!("{}: {error}", file.display())),
    };
    let mut sink: Box<dyn Write + '_> = match file.as_os_str() == "-" {
        true => Box::new(out),
        false => Box::new(std::fs::File::create(file).map_err(failed)?),
    };
    let mut at = offset;
    while at < end {
        let length = (end - at).min(MAX_READ);
        let name = path_segment(name);
        let path = format!("/v1/regions/{name}/data?offset={at}&length={length}");
        let bytes = client.bytes(&path)?;
        sink.write_all(&bytes).map_err(failed)?;
        at += length;
    }
    sink.flush().map_err(failed)?;
    Ok(end - offset)
}

/// Builds the request body with the keys of `[[region]]`. A path becomes absolute, because the appliance has another
/// working directory.
fn region_body(add: &RegionAdd) -> Result<serde_json::Value, Failure> {
    let path = add.path.as_deref().map(input::absolute_utf8_path).transpose()?;
    Ok(json!({
        "name": add.name, "size": add.size, "access": add.access, "backing": add.backing,
        "path": path, "fsync": add.fsync, "object": add.object, "base_to": add.base_to,
        "shared": add.shared,
    }))
}

fn listeners(
    command: Option<Listeners>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    match command.unwrap_or(Listeners::List) {
        Listeners::List => {
            let list = client.list::<ListenerInfo>("/v1/listeners")?;
            output.print_answer(&list, |list| show::listeners(list))
        }
        Listeners::Add { file, option } => {
            let file = file.or(option).unwrap_or_else(|| "-".into());
            let body = section::section_body(&file, "listener")?;
            let listener: ListenerInfo = client.post("/v1/listeners", &body)?;
            output
                .print_answer(&listener, |listener| show::listeners(std::slice::from_ref(listener)))
        }
        Listeners::Remove { name } => {
            client.delete::<Done>(&format!("/v1/listeners/{}", path_segment(&name)))?;
            output.print_done(format!("listener \"{name}\" is removed; its streams stay"))
        }
    }
}

fn ipsec(command: &Ipsec, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    match command {
        Ipsec::Sas => {
            let list = client.get::<Vec<IpsecSaInfo>>("/v1/ipsec/sas")?;
            output.print_answer(&list, |list| show::ipsec_sas(list))
        }
        Ipsec::Policies => {
            let list = client.get::<Vec<IpsecPolicyInfo>>("/v1/ipsec/policies")?;
            output.print_answer(&list, |list| show::ipsec_policies(list))
        }
        Ipsec::Counters => {
            let counters = show::ipsec_counters(&client.get::<Stats>("/v1/stats")?);
            output.print_answer(&counters, show::named_counters)
        }
    }
}

fn associations(
    command: Option<Associations>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    match command.unwrap_or(Associations::List) {
        Associations::List => {
            let list = client.get::<Vec<AssociationInfo>>("/v1/associations")?;
            output.print_answer(&list, |list| show::associations(list))
        }
        Associations::Show { id } => {
            let one = client.get::<AssociationInfo>(&format!("/v1/associations/{id}"))?;
            output.print_answer(&one, show::association)
        }
    }
}

fn streams(
    command: Option<Streams>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    match command.unwrap_or_else(|| Streams::List(Selection::default())) {
        Streams::List(selection) => {
            let list = selection.filter_and_sort(client.list::<StreamInfo>("/v1/streams")?);
            output.print_answer(&list, |list| show::streams(list, selection.columns()))
        }
        Streams::Show { id } => output
            .print_answer(&client.get::<StreamInfo>(&format!("/v1/streams/{id}"))?, show::stream),
        Streams::Close { id, abort } => {
            client.delete::<Done>(&format!("/v1/streams/{id}?abort={abort}"))?;
            output.print_done(format!("stream {id} is closed"))
        }
    }
}

fn programs(
    command: Option<Programs>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let program: ProgramInfo = match command.unwrap_or(Programs::List) {
        Programs::List => {
            let list = client.get::<Vec<ProgramInfo>>("/v1/programs")?;
            return output.print_answer(&list, |list| show::programs(list));
        }
        Programs::Show { id } => client.get(&format!("/v1/programs/{id}"))?,
        Programs::Kill { id } => client.delete(&format!("/v1/programs/{id}"))?,
    };
    output.print_answer(&program, show::program)
}

fn jobs(command: Option<Jobs>, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let job: JobInfo = match command.unwrap_or(Jobs::List) {
        Jobs::List => {
            let list = client.get::<Vec<JobInfo>>("/v1/jobs")?;
            return output.print_answer(&list, |list| show::jobs(list));
        }
        Jobs::Show { id } => client.get(&format!("/v1/jobs/{id}"))?,
        Jobs::Cancel { id } => client.delete(&format!("/v1/jobs/{id}"))?,
    };
    output.print_answer(&job, |job| show::jobs(std::slice::from_ref(job)))
}

fn events(command: &Events, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let mut path = format!(
        "/v1/{}?after={}",
        if command.messages { "messages" } else { "events" },
        command.after
    );
    if command.severity > Severity::Info {
        path += &format!("&severity={}", command.severity.name());
    }
    if let Some(stream) = command.stream {
        path += &format!("&stream={stream}");
    }
    if let Some(listener) = &command.listener {
        path += &format!("&listener={}", path_segment(listener));
    }
    if let Some(since) = command.since {
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        path += &format!("&since_us={}", since.as_micros());
    }
    if let Some(queue) = command.queue {
        path += &format!("&queue={queue}");
    }
    let mut left = command.count.unwrap_or(u64::MAX);
    if command.follow {
        return follow(client, &path, left, output);
    }
    let mut after = command.after;
    let base = path.replacen(&format!("after={after}"), "", 1);
    while left > 0 {
        let limit = left.min(1000);
        let page: EventPage = client.get(&format!("{base}&after={after}&limit={limit}"))?;
        if page.lost > 0 && !output.json {
            writeln!(output.out, "({} earlier events were overwritten)", page.lost)?;
        }
        for event in &page.events {
            output.print_answer(event, show::event)?;
        }
        left -= page.events.len() as u64;
        if page.next == after || page.events.is_empty() {
            break;
        }
        after = page.next;
    }
    Ok(())
}

fn follow(
    client: &Client,
    path: &str,
    mut left: u64,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    standard::exit_when_reader_closes()?;
    let mut failure = None;
    client.follow(&format!("{path}&follow=true"), |line| {
        let result = follow_line(line, output);
        match result {
            Ok(is_event) => left -= u64::from(is_event),
            Err(error) => failure = Some(error),
        }
        Ok(failure.is_none() && left > 0)
    })?;
    failure.map_or(Ok(()), Err)
}

/// Prints a line of an event stream. Returns true if the line is an event.
fn follow_line(line: &str, output: &mut Output<'_>) -> Result<bool, Failure> {
    let value: serde_json::Value = serde_json::from_str(line)?;
    let is_event = value.get("event").is_some();
    if output.json {
        writeln!(output.out, "{line}")?;
    } else if is_event {
        output.print_answer(&serde_json::from_value::<Event>(value)?, show::event)?;
    } else {
        writeln!(output.out, "({} events were overwritten)", value["lost"])?;
    }
    output.out.flush()?;
    Ok(is_event)
}

impl From<MpaArgs> for MpaChoice {
    fn from(mpa: MpaArgs) -> Self {
        let number = |revision| match revision {
            MpaRev::Zero | MpaRev::StartKey => 0,
            MpaRev::One => 1,
            MpaRev::Two => 2,
        };
        Self {
            revision: mpa.mpa_rev.map(number),
            start_key: mpa.mpa_rev == Some(MpaRev::StartKey),
            markers: mpa.markers,
            crc: mpa.crc,
        }
    }
}

/// Builds the request to open a stream. Resolves names on this host.
fn connect_spec(
    peer: &Peer,
    opening: ConnectOptions,
    regions: Vec<String>,
    client: &Client,
) -> Result<ConnectSpec, Failure> {
    let mut remotes = peer.resolve().map_err(|error| {
        Failure::new(Exit::Failed, format!("the address of {} is not known: {error}", peer.host))
    })?;
    // The pattern has no `..`, so the compiler reports a new option that is not handled here.
    let ConnectOptions {
        interface,
        udp_port,
        dscp,
        ttl,
        mpa,
        ird,
        ord,
        peer_kind,
        peer_to_peer,
        retry_rev1,
    } = opening;
    if udp_port.is_some() && peer.transport != Transport::Sctp {
        let message = "--udp-port is for SCTP in UDP: write sctp:// or rdmap+sctp://";
        return Err(Failure::new(Exit::Usage, message));
    }
    let interface = match (interface, peer.host.zone()) {
        (Some(name), Some(zone)) if name != zone => {
            let message =
                format!("--interface {name}, and the zone of {} is another one", peer.host);
            return Err(Failure::new(Exit::Usage, message));
        }
        (interface, zone) => interface.or_else(|| zone.map(str::to_owned)),
    };
    let (peer_kind, retry_revision_1) = (peer_kind, retry_rev1);
    let rdmap = RdmapChoice { ird, ord, peer: peer_kind, peer_to_peer, retry_revision_1 };
    let (transport, ulp, mpa) = (peer.transport, peer.ulp, mpa.into());
    let within_us =
        client.time_left().map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX));
    let alternatives = remotes.split_off(1);
    let to = ConnectSpec { alternatives, within_us, ..ConnectSpec::to_remote(remotes[0]) };
    Ok(ConnectSpec { interface, transport, udp_port, dscp, ttl, ulp, rdmap, mpa, regions, ..to })
}

fn connect(command: Connect, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let spec = connect_spec(&command.peer, command.opening, command.regions, client)?;
    output.print_answer(&client.post::<StreamInfo>("/v1/connect", &spec)?, show::stream)
}

fn send(command: Send, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let via = match command.to {
        SendTo::Stream(id) => Via::Stream(id),
        SendTo::Peer(peer) => {
            Via::Connect(connect_spec(&peer, command.opening, Vec::new(), client)?)
        }
    };
    let data = match command.text {
        Some(text) => text.into_bytes(),
        None => input::read_file(command.file.as_deref().unwrap_or(Path::new("-")))?,
    };
    let wait_reply_us = command.wait_reply.map_or(0, |time| time.as_micros().max(1));
    let wait_reply_us = u64::try_from(wait_reply_us).unwrap_or(u64::MAX);
    let spec = SendSpec { via, queue: command.queue, data, wait_reply_us };
    let sent: Sent = client.post("/v1/send", &spec)?;
    output.print_answer(&sent, show::sent)?;
    if sent.confirmed { Ok(()) } else { Err(Failure::unconfirmed(sent.bytes)) }
}

/// Formats bytes as text if they are UTF-8 without control characters (newlines and tabs are allowed), else as `0x` and
/// hexadecimal digits.
fn escape_unprintable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(|c| !c.is_control() || c == '\n' || c == '\t') => text.into(),
        _ => {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{}", digits.concat())
        }
    }
}
