//! The log of the process on standard error or in systemd's journal: filter and format. The filter can be changed at
//! run time. All appliances of a process share the log.

use std::sync::OnceLock;

use config::LogFormat;
use standard::has_colours;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::log_limit::LogLimit;

/// Handle that changes the filter of the installed log.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Installs the log of the process.
///
/// # Errors
/// The filter is invalid, journald is missing, or a log has been started already. The error is one sentence.
pub fn start(filter: &str, format: LogFormat) -> Result<(), String> {
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let lines = || fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(filter).with(LogLimit);
    let started = match format {
        LogFormat::Text => {
            registry.with(lines().with_ansi(has_colours(&std::io::stderr()))).try_init()
        }
        LogFormat::Json => {
            registry.with(lines().json().flatten_event(true).with_current_span(false)).try_init()
        }
        LogFormat::Journald => {
            let journald = tracing_journald::layer().map_err(|error| {
                format!(
                    "management.log_format: systemd's journal cannot be written to: {error}; use \"text\" or \"json\""
                )
            })?;
            registry.with(journald.with_syslog_identifier("ddpd".to_owned())).try_init()
        }
    };
    started.map_err(|error| format!("the log cannot be started: {error}"))?;
    // `FILTER` is still empty, because `try_init` succeeds only once.
    let _ = FILTER.set(handle);
    Ok(())
}

/// Replaces the log filter. Without an installed log it only validates `filter`.
///
/// # Errors
/// `filter` is not a valid filter expression. The error is one sentence.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let filter = parse(filter)?;
    match FILTER.get() {
        Some(handle) => handle.reload(filter).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(filter)
        .map_err(|error| format!("management.log: {filter:?} is no log filter: {error}"))
}
