//! `config` and `reload`: the running configuration, its difference from the file, and the effect of a reload.

use std::path::PathBuf;

use api::{
    Client, ConfigDiff, ConfigInfo, Difference, KeyInfo, ReloadReport, Saved, SectionInfo,
    ValueOrigin, When,
};
use clap::Subcommand;
use config::{RenderedKey, json_to_toml, render_table, table_header};
use serde_json::{Value, json};

use super::exit::{Exit, Failure};
use super::{Output, input};

/// Subcommands of `ddpctl config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Show the running configuration as TOML. A comment after each key names the source of its value: line of the
    /// file, default, command line or API request. Secrets are shown as `…`
    Show {
        /// Only this section, such as tcp, region or listener.limits
        section: Option<String>,
        /// Only values that are not defaults
        #[arg(long)]
        changed: bool,
    },
    /// Show the differences between the running configuration and the current file; exit code 1 if there are any
    Diff,
    /// Save the running configuration to a file of the appliance's host; a restart with this file restores the same
    /// state. The file contains secrets; only its owner may read it
    Save {
        /// Path of the file, opened by the appliance
        file: PathBuf,
        /// Replace an existing file
        #[arg(long)]
        overwrite: bool,
    },
}

pub(super) fn config(
    command: Config,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    match command {
        Config::Show { section, changed } => {
            show_config(section.as_deref(), changed, client, output)
        }
        Config::Diff => diff_config(client, output),
        Config::Save { file, overwrite } => {
            let file = input::absolute_utf8_path(&file)?;
            let body = json!({ "file": file, "overwrite": overwrite });
            let saved: Saved = client.post("/v1/config/save", &body)?;
            output.print_answer(&saved, |saved| {
                format!(
                    "the running configuration is saved in {}, {} bytes\n",
                    saved.file.display(),
                    saved.bytes
                )
            })
        }
    }
}

fn show_config(
    wanted: Option<&str>,
    changed: bool,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let mut info: ConfigInfo = client.get("/v1/config")?;
    if let Some(wanted) = wanted {
        let below = format!("{wanted}.");
        info.sections.retain(|s| s.section == wanted || s.section.starts_with(&below));
        if info.sections.is_empty() {
            let message = format!("there is no section \"{wanted}\" in the running configuration");
            return Err(Failure::new(Exit::Usage, message));
        }
    }
    if changed {
        let default = |key: &KeyInfo| key.origin == ValueOrigin::Default;
        info.sections.iter_mut().for_each(|section| section.keys.retain(|key| !default(key)));
        info.sections.retain(|section| !section.keys.is_empty());
    }
    output.print_answer(&info, |info| {
        let mut text = String::new();
        info.sections.iter().for_each(|section| push_section(&mut text, section, info));
        text
    })
}

fn push_section(text: &mut String, section: &SectionInfo, info: &ConfigInfo) {
    let keys = section.keys.iter().map(|key| RenderedKey {
        name: &key.key,
        value: &key.value,
        comment: Some(format_origin(&key.origin, info)),
    });
    render_table(text, &section.section, keys);
}

fn format_origin(origin: &ValueOrigin, info: &ConfigInfo) -> String {
    match origin {
        ValueOrigin::File { line } => format!("{}:{line}", info.file.display()),
        ValueOrigin::Default => "default".into(),
        ValueOrigin::CommandLine => "command line".into(),
        ValueOrigin::Api { call } => format!("api: {call}"),
    }
}

fn diff_config(client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let diff: ConfigDiff = client.get("/v1/config/diff")?;
    output.print_answer(&diff, |diff| {
        diff.differences.iter().map(|one| format_difference(one, diff)).collect()
    })?;
    match diff.differences.len() {
        0 if output.json => Ok(()),
        0 => Ok(writeln!(
            output.out,
            "the running configuration is the one in {}",
            diff.file.display()
        )?),
        n => {
            let places = if n == 1 { "1 place".to_owned() } else { format!("{n} places") };
            let file = diff.file.display();
            let message = format!("the running configuration and {file} differ in {places}");
            Err(Failure { error: "differs", ..Failure::new(Exit::Failed, message) })
        }
    }
}

fn format_difference(one: &Difference, diff: &ConfigDiff) -> String {
    let mut what = table_header(&one.section);
    for name in &one.identity {
        what += &format!(" {name}");
    }
    let when = match one.when {
        When::Reload => "a reload applies the file",
        When::Restart => "a restart applies the file",
        When::Api => "by the API; a reload leaves it",
    };
    let line = one.line.map_or(String::new(), |line| format!(":{line}"));
    let file = format!("{}{line}", diff.file.display());
    match (&one.key, &one.running, &one.file) {
        (None, Some(_), _) => format!("{what} is running and not in {file} ({when})\n"),
        (None, None, _) => format!("{what} is in {file} and not running ({when})\n"),
        (Some(key), running, theirs) => {
            let shown = |value: &Option<Value>| {
                value.as_ref().and_then(json_to_toml).unwrap_or_else(|| "nothing".into())
            };
            format!(
                "{what} {key}: runs {}, {file} has {} ({when})\n",
                shown(running),
                shown(theirs)
            )
        }
    }
}

/// Reloads the file; with `dry_run` only reports the changes.
pub(super) fn reload_config(
    dry_run: bool,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let report: ReloadReport = client.post(&format!("/v1/reload?dry_run={dry_run}"), &json!({}))?;
    output.print_answer(&report, format_reload_report)?;
    match report.refused.len() {
        0 => Ok(()),
        _ => {
            let message = "a reload would be refused, and nothing applied";
            Err(Failure { error: "refused", ..Failure::new(Exit::Failed, message) })
        }
    }
}

fn format_reload_report(report: &ReloadReport) -> String {
    let applied = if report.dry_run { "now" } else { "applied" };
    let all = [
        (applied, &report.applied),
        ("needs a restart", &report.needs_restart),
        ("stays", &report.kept),
        ("refused", &report.refused),
    ];
    let lines: String = all
        .iter()
        .flat_map(|(what, sentences)| sentences.iter().map(move |s| format!("{what}: {s}\n")))
        .collect();
    if lines.is_empty() { "nothing changed\n".into() } else { lines }
}
