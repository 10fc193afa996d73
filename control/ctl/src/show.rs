//! Formats answers of the API as text for people: tables, lists of names with values, and one line per event. With
//! `--json`, `ddpctl` prints the answer itself instead.

mod ipsec;
mod streams;

use std::time::{Duration, UNIX_EPOCH};

use api::{
    Counters, Event, EventKind, JobInfo, ListenerInfo, MemoryInfo, PortInfo, ProgramInfo,
    RegionInfo, Sent, Stats, Status, WorkerInfo,
};
use bytesize::ByteSize;
use comfy_table::{Cell, CellAlignment, Table, presets};
use config::show_size;

use super::escape_unprintable;
use super::explain::{HINT, hint_on_notes};

pub(super) use ipsec::{ipsec_counters, ipsec_policies, ipsec_sas, named_counters};
pub(super) use streams::{
    association, associations, format_rate, format_time, stream, stream_cell, streams,
};

/// Returns a table without borders, with aligned columns; the text `none` if there are no rows.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|&cell| Cell::new(cell)));
    let mut empty = true;
    for row in rows {
        empty = false;
        table.add_row(row);
    }
    if empty {
        return String::from("none\n");
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trim(&table.to_string())
}

/// Returns a table with names on the left and values on the right.
fn format_pairs(rows: impl IntoIterator<Item = (String, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([Cell::new(name), Cell::new(value).set_alignment(CellAlignment::Left)]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trim(&table.to_string())
}

fn trim(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn yes_no(value: bool) -> String {
    if value { "yes".into() } else { "no".into() }
}

pub(super) fn format_bytes(value: u64) -> String {
    if value < 1024 { value.to_string() } else { ByteSize(value).display().iec().to_string() }
}

pub(super) fn text_or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

fn join_list(items: &[String]) -> String {
    if items.is_empty() { "-".into() } else { items.join(" ") }
}

/// Formats the address prefixes of admitted peers (`all` if empty), then the denied prefixes, each after a minus.
fn peers(allow: &[String], deny: &[String]) -> String {
    let allowed = if allow.is_empty() { "all".to_owned() } else { allow.join(" ") };
    deny.iter().fold(allowed, |shown, prefix| format!("{shown} -{prefix}"))
}

pub(super) fn format_seconds(value: f64) -> String {
    let whole = Duration::try_from_secs_f64(value.max(0.0).trunc()).unwrap_or(Duration::ZERO);
    humantime::format_duration(whole).to_string()
}

pub(super) fn status(status: &Status) -> String {
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let mut rows = vec![
        pair("appliance", status.name.clone()),
        pair("state", status.state.clone()),
        pair("uptime", format_seconds(status.uptime_seconds)),
        pair(
            "version",
            match &status.dpdk_version {
                Some(dpdk) => format!("{} ({dpdk})", status.version),
                None => status.version.clone(),
            },
        ),
        pair("process", status.pid.to_string()),
        pair("configuration", status.config.display().to_string()),
        pair("hugepages", yes_no(status.hugepages)),
        pair("memory", memory(&status.memory)),
        pair("workers", status.workers.to_string()),
        pair("ports", status.ports.to_string()),
        pair("regions", status.regions.to_string()),
        pair("listeners", status.listeners.to_string()),
        pair("streams", status.streams.to_string()),
    ];
    rows.extend(status.notes.iter().map(|note| pair("note", note.clone())));
    format_pairs(rows) + &hint_on_notes(&status.note_kinds)
}

/// Formats memory use and its limit, such as
/// `1 GiB of 3 GiB (75 % of RAM): regions 832 MiB, jobs 0 bytes, buffers and streams 192 MiB`.
fn memory(memory: &MemoryInfo) -> String {
    format!(
        "{} of {} ({}): regions {}, jobs {}, buffers and streams {}",
        format_bytes(memory.in_use),
        format_bytes(memory.ceiling),
        memory.source,
        format_bytes(memory.regions),
        format_bytes(memory.jobs),
        format_bytes(memory.workers)
    )
}

pub(super) fn ports(ports: &[PortInfo]) -> String {
    let mut text = table(
        &[
            "PORT", "KIND", "DEVICE", "DRIVER", "MAC", "LINK", "MTU", "QUEUES", "CHECKSUM",
            "STEERING",
        ],
        ports.iter().map(|port| {
            vec![
                port.name.clone(),
                port.kind.clone(),
                port.device.clone(),
                port.driver.clone(),
                port.mac.clone(),
                link(port),
                port.mtu.to_string(),
                port.queues.to_string(),
                port.checksum.clone(),
                port.steering.clone(),
            ]
        }),
    );
    let interfaces = ports
        .iter()
        .flat_map(|port| port.interfaces.iter().map(move |interface| (port, interface)));
    let rows = interfaces.clone().map(|(port, interface)| {
        vec![
            interface.name.clone(),
            port.name.clone(),
            text_or_dash(interface.vlan),
            interface.mtu.to_string(),
            join_list(&interface.addresses),
        ]
    });
    text += "\n";
    text += &table(&["INTERFACE", "PORT", "VLAN", "MTU", "ADDRESSES"], rows);
    let lists = interfaces.clone().map(|(_, interface)| interface);
    let lists: Vec<Vec<String>> = lists
        .filter(|interface| !(interface.allow.is_empty() && interface.deny.is_empty()))
        .map(|interface| vec![interface.name.clone(), peers(&interface.allow, &interface.deny)])
        .collect();
    if !lists.is_empty() {
        text += "\n";
        text += &table(&["INTERFACE", "PEERS"], lists);
    }
    let neighbours: Vec<Vec<String>> = interfaces
        .flat_map(|(_, interface)| {
            interface.neighbours.iter().map(|neighbour| {
                vec![
                    neighbour.address.clone(),
                    interface.name.clone(),
                    text_or_dash(neighbour.mac.as_ref()),
                    neighbour.state.clone(),
                ]
            })
        })
        .collect();
    if !neighbours.is_empty() {
        text += "\n";
        text += &table(&["NEIGHBOUR", "INTERFACE", "MAC", "STATE"], neighbours);
    }
    text
}

/// Returns the link state and speed of a port.
pub(super) fn link(port: &PortInfo) -> String {
    match (port.up, port.speed_mbps) {
        (false, _) => "down".into(),
        (true, None) => "up".into(),
        (true, Some(mbps)) => format!("up {mbps} Mbit/s"),
    }
}

/// Formats a fraction of 1 as a percentage.
pub(super) fn format_percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

pub(super) fn workers(workers: &[WorkerInfo]) -> String {
    table(
        &["WORKER", "CORE", "IDLE", "STREAMS", "BUSY"],
        workers.iter().map(|worker| {
            vec![
                worker.id.to_string(),
                text_or_dash(worker.core),
                worker.idle.clone(),
                worker.streams.to_string(),
                text_or_dash(worker.busy.map(format_percent)),
            ]
        }),
    )
}

pub(super) fn regions(regions: &[RegionInfo]) -> String {
    table(
        &[
            "REGION", "SIZE", "ACCESS", "SHARED", "STAG", "BASE TO", "BACKING", "BOUND TO", "HELD",
            "IDLE", "LOCKED", "PLACED", "MESSAGES",
        ],
        regions.iter().map(|region| {
            let backing = match &region.path {
                Some(path) => format!("{} {path}", region.backing),
                None => region.backing.clone(),
            };
            let access = match region.preparing {
                Some(percent) => format!("preparing {percent} %"),
                None => region.access.clone(),
            };
            vec![
                region.name.clone(),
                show_size(region.size),
                access,
                yes_no(region.shared),
                region.stag.clone(),
                region.base_to.clone(),
                backing,
                text_or_dash(region.bound_to),
                text_or_dash(region.held_for.map(format_seconds)),
                text_or_dash(region.idle_for.map(format_seconds)),
                yes_no(region.locked),
                format_bytes(region.placed),
                region.messages.to_string(),
            ]
        }),
    )
}

pub(super) fn listeners(listeners: &[ListenerInfo]) -> String {
    table(
        &[
            "LISTENER",
            "ADDRESSES",
            "OVER",
            "ULP",
            "REV",
            "MARKERS",
            "CRC",
            "REGIONS",
            "QUEUES",
            "PEERS",
            "STREAMS",
            "ACCEPTED",
            "REFUSED",
        ],
        listeners.iter().map(|listener| {
            let revisions: Vec<String> = listener.revisions.iter().map(u8::to_string).collect();
            let queues: Vec<String> = listener
                .queues
                .iter()
                .map(|queue| {
                    let (qn, to) = (queue.qn, &queue.deliver_to);
                    format!("{qn}:{}x{}>{to}", queue.buffers, queue.buffer_size)
                })
                .collect();
            vec![
                listener.name.clone(),
                join_list(&listener.addresses),
                listener.transport.as_str().into(),
                listener.ulp.clone(),
                revisions.join(","),
                yes_no(listener.markers),
                yes_no(listener.crc),
                join_list(&listener.regions),
                join_list(&queues),
                peers(&listener.allow, &listener.deny),
                format!("{}/{}", listener.streams, listener.max_streams),
                listener.accepted.to_string(),
                listener.refused.to_string(),
            ]
        }),
    )
}

pub(super) fn stats(stats: &Stats, all: bool) -> String {
    let mut text = String::new();
    let mut section = |title: String, counters: &Counters| {
        let shown: Vec<(String, String)> = counters
            .iter()
            .filter(|&(_, &value)| all || value > 0)
            .map(|(name, value)| (format!("  {name}"), value.to_string()))
            .collect();
        if !shown.is_empty() {
            text += &format!("{title}\n{}", format_pairs(shown));
        }
    };
    section("now".into(), &stats.gauges);
    for worker in &stats.workers {
        section(format!("worker {}: now", worker.worker), &worker.gauges);
        section(format!("worker {}", worker.worker), &worker.counters);
        section(format!("worker {}: dropped", worker.worker), &worker.drops);
        section(format!("worker {}: protocol errors", worker.worker), &worker.errors);
        section(format!("worker {}: ended streams", worker.worker), &worker.ends);
    }
    for port in &stats.ports {
        section(format!("port {}", port.port), &port.counters);
    }
    let failed = stats.handshakes.iter().map(|failed| {
        let of = if failed.listener.is_empty() { "no listener" } else { &failed.listener };
        (format!("{of}: {}, {}", failed.stage, failed.reason).into(), failed.count)
    });
    section("failed handshakes".into(), &failed.collect());
    section("control".into(), &stats.control);
    if stats.workers.iter().any(|worker| worker.drops.values().any(|&count| count > 0)) {
        text += "\n";
        text += HINT;
    }
    if text.is_empty() { "everything is 0 (--all shows it)\n".into() } else { text }
}

pub(super) fn programs(programs: &[ProgramInfo]) -> String {
    table(
        &["PROGRAM", "NAME", "UID", "PID", "STATE", "QPS", "CONNECTED", "REGIONS", "MEMORY"],
        programs.iter().map(|program| {
            vec![
                program.id.to_string(),
                program.name.clone(),
                program.uid.to_string(),
                program.pid.to_string(),
                program.state.clone(),
                program.queue_pairs.to_string(),
                program.connections.to_string(),
                program.memory_regions.to_string(),
                format_bytes(program.memory),
            ]
        }),
    )
}

pub(super) fn program(program: &ProgramInfo) -> String {
    let list = programs(std::slice::from_ref(program));
    let listeners = match program.listeners.is_empty() {
        true => "none".to_owned(),
        false => program.listeners.join(", "),
    };
    format!(
        "{list}completion queues {}, registered {}, listeners: {listeners}\n",
        program.completion_queues,
        format_bytes(program.registered),
    )
}

pub(super) fn jobs(jobs: &[JobInfo]) -> String {
    table(
        &["JOB", "KIND", "STATE", "DONE", "OF", "SECONDS", "PEER", "FILE OR REGION", "ERROR"],
        jobs.iter().map(|job| {
            vec![
                job.id.to_string(),
                job.kind.clone(),
                format!("{:?}", job.state).to_lowercase(),
                format_bytes(job.acknowledged),
                format_bytes(job.total),
                format!("{:.3}", job.seconds),
                job.remote.clone(),
                file_or_region(job),
                text_or_dash(job.error.as_ref()),
            ]
        }),
    )
}

fn file_or_region(job: &JobInfo) -> String {
    match &job.region {
        Some(region) => region.clone(),
        None if job.kind == "put" && job.file.as_os_str().is_empty() => "standard input".into(),
        None => job.file.display().to_string(),
    }
}

pub(super) fn sent(sent: &Sent) -> String {
    match &sent.reply {
        Some(reply) => escape_unprintable(reply),
        None => {
            let state = if sent.confirmed { "confirmed, " } else { "" };
            format!("{} bytes sent, {state}acknowledged in {} us", sent.bytes, sent.time_us)
        }
    }
}

/// Formats an event on one line: time, sequence number, kind, and the members of the kind.
pub(super) fn event(event: &Event) -> String {
    let time = UNIX_EPOCH + Duration::from_micros(event.time_us);
    let time = humantime::format_rfc3339_millis(time);
    let mut line = format!("{time} {:>6} ", event.seq);
    match serde_json::to_value(&event.kind) {
        Ok(serde_json::Value::Object(members)) => {
            line += members.get("event").and_then(|kind| kind.as_str()).unwrap_or("?");
            for (name, value) in members.iter().filter(|(name, _)| *name != "event") {
                match value {
                    serde_json::Value::Null => {}
                    _ if name == "data" => line += &message_data(&event.kind),
                    serde_json::Value::String(text) => line += &format!(" {name}={text}"),
                    other => line += &format!(" {name}={other}"),
                }
            }
        }
        _ => line += "?",
    }
    line
}

fn message_data(kind: &EventKind) -> String {
    match kind {
        EventKind::Message { data, .. } => format!(" data={:?}", escape_unprintable(data)),
        _ => String::new(),
    }
}
