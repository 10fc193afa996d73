//! Reads `[[region]]` and `[[listener]]`, from a file or from the body of an API request.
//!
//! Each section is checked on its own; `check` compares the sections of a file.

use std::time::Duration;

use ddp::Access;
use ddp::advert::MAX_PRIVATE_DATA;
use toml::de::DeValue;

use super::access;
use super::errors::SectionSpan;
use super::peers::read_peers;
use super::rdmap;
use super::reader::Section;
use super::rule::ParseValue;
use super::tables as key;
use super::types::*;
use super::values::*;
use crate::transport::Transport;

pub(super) fn read_region(mut section: Section<'_, '_>) -> (Option<RegionSection>, SectionSpan) {
    let name =
        section.required("name", "give the region a name, such as name = \"inbox\"", parse_name);
    let backing = read_backing(&mut section);
    let size = read_region_size(&mut section, backing.as_ref());
    let base_to = section.or_default("base_to", 0, u64_or_string);
    if size.is_some_and(|size| base_to.checked_add(size - 1).is_none()) {
        section.report("base_to", "plus `size` is beyond 2^64: lower one of them");
    }
    let access = read_access(&mut section);
    if access.is_some_and(|access| access.atomic()) && !base_to.is_multiple_of(8) {
        section.report("base_to", "must be a multiple of 8 where atomics are allowed");
    }
    let shared = section.or_default("shared", false, key::region::shared());
    // One stream can read the data of another only if peers have both rights.
    let readable =
        access.is_some_and(|access| access.remote_read() && access.remote_write()) && !shared;
    let clear_between_peers = section.or_default("clear_between_peers", readable, boolean_rule());
    if clear_between_peers && !readable && access.is_some() {
        section.report(
            "clear_between_peers",
            "needs a region that is not `shared` and open to remote reads and writes: remove it",
        );
    }
    let region = name.zip(backing).zip(access).map(|((name, backing), access)| RegionSection {
        name,
        size,
        backing,
        base_to,
        remote_write: access.remote_write(),
        remote_read: access.remote_read(),
        remote_atomic: access.atomic(),
        shared,
        clear_between_peers,
    });
    (region, section.finish())
}

/// Reads the rights: one word, or a list of rights.
fn read_access(section: &mut Section<'_, '_>) -> Option<Access> {
    if !section.is_list("access") {
        let remedy = format!("write what peers may do: {}", access::ACCESS_CHOICES);
        return section.required("access", &remedy, word_rule(&access::ACCESS_WORDS));
    }
    let words = [
        ("remote-read", Access::REMOTE_READ),
        ("remote-write", Access::REMOTE_WRITE),
        ("atomic", Access::ATOMIC),
    ];
    let given = section.list("access", word_rule(&words));
    let all = given.into_iter().fold(Access::NONE, |all, one| all | one);
    // An atomic operation changes memory and returns the old value, so it requires both other rights.
    if all.atomic() && !(all.remote_read() && all.remote_write()) {
        section.report(
            "access",
            "has \"atomic\", which needs \"remote-read\" and \"remote-write\" too",
        );
    }
    Some(all)
}

fn read_region_size(section: &mut Section<'_, '_>, backing: Option<&Backing>) -> Option<u64> {
    let parse = key::region::size();
    if matches!(backing, Some(Backing::File { .. })) {
        return section.optional("size", parse);
    }
    section.required("size", "write the region's size, such as size = \"64 MiB\"", parse)
}

fn read_backing(section: &mut Section<'_, '_>) -> Option<Backing> {
    let words = ["anonymous", "hugepages", "shared-memory", "file"].map(|word| (word, word));
    let default = if section.contains("path") { "file" } else { "anonymous" };
    let word = match section.contains("backing") {
        true => section.optional("backing", word_rule(&words)),
        false => section.optional("backing", word_rule(&words)).or(Some(default)),
    };
    let Some(word) = word else {
        section.mark_known(&["object", "path", "fsync"]);
        return None;
    };
    let backing = match word {
        "anonymous" => Some(Backing::Anonymous),
        "hugepages" => Some(Backing::Hugepages),
        "shared-memory" => section
            .required("object", "name the object that local programs open", parse_name)
            .map(|object| Backing::SharedMemory { object }),
        _ => {
            let path = section.required("path", "name the file", parse_path);
            let fsync = section.or_default("fsync", Fsync::Close, parse_fsync);
            path.map(|path| Backing::File { path, fsync })
        }
    };
    let reason = format!("for backing \"{word}\"");
    if word != "shared-memory" {
        section.refuse_keys(&["object"], &reason);
    }
    if word != "file" {
        section.refuse_keys(&["path", "fsync"], &reason);
    }
    backing
}

fn parse_fsync(value: &toml::de::DeValue<'_>) -> Result<Fsync, String> {
    match value.as_str() {
        Some("never") => Ok(Fsync::Never),
        Some("message") => Ok(Fsync::Message),
        Some("close") => Ok(Fsync::Close),
        Some(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
            let (min, max) = (Duration::from_millis(10), Duration::from_secs(86_400));
            duration_rule(min, max).parse(value).map(Fsync::Interval)
        }
        _ => Err("must be \"never\", \"message\", \"close\" or an interval such as \"5 s\"".into()),
    }
}

pub(super) fn read_listener(
    mut section: Section<'_, '_>,
) -> (Option<ListenerSection>, SectionSpan) {
    let name =
        section.required("name", "give the listener a name, such as name = \"ingest\"", parse_name);
    let interface =
        section.required("interface", "name the [[interface]] that it is on", parse_string);
    let address = section.optional("address", parse_host_ip);
    let port = section.required(
        "port",
        "write a TCP or SCTP port, such as port = 7471",
        key::listener::port(),
    );
    let transport = section.or_default("transport", Transport::Tcp, key::listener::transport());
    let dscp = section.optional("dscp", key::listener::dscp());
    let ttl = section.optional("ttl", key::listener::ttl());
    let peers = read_peers(&mut section);
    let require = section.or_default("require", None, key::listener::require());
    let mut ulp = rdmap::read_ulp(&mut section);
    if let (Transport::Sctp, Ulp::Rdmap(rdmap)) = (transport, &mut ulp) {
        // The kinds of peer differ only in MPA, which SCTP does not use.
        rdmap.peer = tcp_lite::mpa::Peer::Standard;
    }
    let mpa = match transport {
        Transport::Tcp => read_mpa(&mut section, &ulp),
        Transport::Sctp => refuse_mpa(&mut section),
    };
    let regions = section.list("regions", parse_string);
    let limits = read_listener_limits(section.table("limits"));
    let mut queues =
        read_queues(&mut section, ulp.rdmap().and_then(|r| r.service.default_delivery()));
    if let Ulp::Rdmap(section_of_rdmap) = &ulp {
        let (markers, limit) = (mpa.markers, mpa.private_data_limit);
        rdmap::check_rdmap_keys(&section, section_of_rdmap, markers, limit, &mut queues);
    }
    let listener = name.zip(interface).zip(port).map(|((name, interface), port)| ListenerSection {
        name,
        interface,
        address,
        port,
        transport,
        ip: IpFields { dscp, ttl },
        peers,
        require,
        ulp,
        mpa,
        regions,
        queues,
        limits,
    });
    (listener, section.finish())
}

/// Refuses the keys of MPA, which SCTP does not use. Reads the limit of private data, which also applies to SCTP.
fn refuse_mpa(section: &mut Section<'_, '_>) -> MpaSection {
    let max = u16::try_from(MAX_PRIVATE_DATA).unwrap_or(u16::MAX);
    let reason = "for transport \"sctp\"";
    section.refuse_keys(&["revisions", "markers", "crc"], reason);
    if section.contains("peer") {
        section.report("peer", format!("has no meaning {reason}: remove it"));
    }
    MpaSection {
        revision_0: false,
        revision_1: false,
        revision_2: false,
        markers: false,
        crc: false,
        private_data_limit: section.or_default("private_data_limit", max, integer_rule(0, max)),
    }
}

fn read_mpa(section: &mut Section<'_, '_>, ulp: &Ulp) -> MpaSection {
    let narrow = |limit: usize| u16::try_from(limit).unwrap_or(u16::MAX);
    let max = narrow(MAX_PRIVATE_DATA);
    let peer = ulp.rdmap().map_or(max, |rdmap| narrow(rdmap.peer.private_data_limit()));
    let [revision_0, revision_1, revision_2] = read_revisions(section, ulp);
    MpaSection {
        revision_0,
        revision_1,
        revision_2,
        // Common verbs peers such as siw do not support markers, and refuse peers that request them.
        markers: section.or_default("markers", *ulp == Ulp::Ddp, boolean_rule()),
        crc: section.or_default("crc", true, boolean_rule()),
        private_data_limit: section.or_default("private_data_limit", peer, integer_rule(0, max)),
    }
}

/// Returns for each of the revisions 0, 1 and 2 whether it is accepted.
fn read_revisions(section: &mut Section<'_, '_>, ulp: &Ulp) -> [bool; 3] {
    let rdmap = *ulp != Ulp::Ddp;
    if !section.contains("revisions") {
        section.mark_known(&["revisions"]);
        return if rdmap { [false, true, true] } else { [true, true, false] };
    }
    let these = if rdmap { "write some of 0, 1 and 2" } else { "write 0, 1 or both" };
    let list = section.list("revisions", |value: &DeValue<'_>| {
        match integer_rule(0u8, u8::MAX).parse(value)? {
            revision @ (0 | 1) => Ok(revision),
            2 if rdmap => Ok(2),
            2 => Err(format!("2 is for ulp \"rdmap\" (it negotiates Reads): {these}")),
            other => Err(format!("{other} is no revision of MPA: {these}")),
        }
    });
    if section.is_empty_list("revisions") {
        section.report("revisions", format!("is empty, so no peer could connect: {these}"));
    }
    [0, 1, 2].map(|revision| list.contains(&revision))
}

fn read_listener_limits(mut section: Section<'_, '_>) -> ListenerLimits {
    let streams = section.or_default("streams", 64, key::listener_limits::streams());
    let limits = ListenerLimits {
        streams,
        streams_per_peer: section.or_default(
            "streams_per_peer",
            streams,
            key::listener_limits::streams_per_peer(),
        ),
        pending: section.or_default("pending", streams.min(64), key::listener_limits::pending()),
        startup_timeout: section.or_default(
            "startup_timeout",
            Duration::from_secs(5),
            key::listener_limits::startup_timeout(),
        ),
        idle_timeout: section
            .optional("idle_timeout", key::listener_limits::idle_timeout())
            .flatten(),
    };
    for (key, value) in [("streams_per_peer", limits.streams_per_peer), ("pending", limits.pending)]
    {
        if value > streams && section.contains(key) {
            section.report(key, format!("is {value}, more than `streams` ({streams}): lower it"));
        }
    }
    section.finish();
    limits
}

/// Reads the queues. `default`: the destination of messages if the file sets none.
fn read_queues(section: &mut Section<'_, '_>, default: Option<Delivery>) -> Vec<QueueSection> {
    let mut queues: Vec<QueueSection> = Vec::new();
    for mut table in section.tables("queue") {
        let qn = table.required("qn", "write the queue's number, such as qn = 0", key::queue::qn());
        let buffers = table.or_default("buffers", 16, key::queue::buffers());
        let buffer_size = table.or_default("buffer_size", 64 << 10, key::queue::buffer_size());
        let deliver_to = match &default {
            Some(default) => {
                table.refuse_keys(&["deliver_to", "path"], "for this service");
                Some(default.clone())
            }
            None => read_delivery(&mut table),
        };
        if let Some(qn) = qn.filter(|&qn| queues.iter().any(|queue| queue.qn == qn)) {
            table.report("qn", format!("{qn} is there twice in this listener: remove one"));
        }
        if let (Some(qn), Some(deliver_to)) = (qn, deliver_to) {
            queues.push(QueueSection { qn, buffers, buffer_size, deliver_to });
        }
        table.finish();
    }
    queues
}

fn read_delivery(table: &mut Section<'_, '_>) -> Option<Delivery> {
    let words = ["events", "file", "echo", "discard"].map(|word| (word, word));
    let word = table.required(
        "deliver_to",
        "write \"events\", \"file\", \"echo\" or \"discard\"",
        word_rule(&words),
    );
    if word == Some("file") {
        return table
            .required("path", "name the file that messages are appended to", parse_path)
            .map(|path| Delivery::File { path });
    }
    match word {
        Some(word) => table.refuse_keys(&["path"], &format!("for deliver_to \"{word}\"")),
        None => table.mark_known(&["path"]),
    }
    word.map(|word| match word {
        "events" => Delivery::Events,
        "echo" => Delivery::Echo,
        _ => Delivery::Discard,
    })
}
