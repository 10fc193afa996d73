//! Reload of a changed configuration file.

use api::{ErrorKind, ReloadReport};

use super::super::core::reload::difference;
use super::*;

fn config(text: &str) -> Config {
    Document::parse(std::path::Path::new("t.toml"), text).unwrap().config
}

pub(super) const EXTRA_SECTIONS: &str = r#"
[[region]]
name = "extra"
size = "4 KiB"
access = "r"
[[listener]]
name = "second"
interface = "i"
port = 7472
regions = ["extra"]
"#;

impl Bench {
    pub(super) fn reload(&mut self, text: &str) -> Result<ReloadReport, ApiError> {
        std::fs::write(&self.file, text).unwrap();
        let mut pending = self.start_reload();
        // If there are additions, the answer follows when every worker has applied them; otherwise at once.
        let answered = pending.try_recv().unwrap_or_else(|_| {
            self.acknowledge();
            answer(&mut pending)
        });
        report(answered)
    }

    /// Starts a reload. Its commands are not acknowledged yet.
    pub(super) fn start_reload(&mut self) -> Pending {
        let pending = self.call(Request::Reload);
        self.load_all();
        pending
    }
}

fn report(answered: Result<Reply, ApiError>) -> Result<ReloadReport, ApiError> {
    match answered? {
        Reply::Reload(report) => Ok(report),
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_configurations_have_no_difference() {
    assert_eq!(difference(&config(BASIC), &config(BASIC)), Default::default());
}

#[test]
fn difference_classifies_every_section() {
    let changed = format!("{BASIC}{EXTRA_SECTIONS}")
        .replace("streams = 3", "streams = 30")
        .replace("size = \"64 KiB\"\naccess = \"rw\"", "size = \"32 KiB\"\naccess = \"rw\"")
        .replace("10.0.0.1/24", "10.0.0.2/24");
    let found = difference(&config(BASIC), &config(&changed));
    assert_eq!(found.regions_added.len(), 1);
    assert_eq!(found.listeners_added.len(), 1);
    assert_eq!(found.listeners_changed.len(), 1);
    assert!(found.needs_restart.iter().any(|s| s.contains("`common` is defined differently")));
    assert!(found.needs_restart.iter().any(|s| s.contains("[[interface]]")));
    let back = difference(&config(&changed), &config(BASIC));
    assert_eq!(
        (back.regions_removed, back.listeners_removed),
        (vec!["extra".into()], vec!["second".into()])
    );
    let limits = format!("{BASIC}\n[limits]\nstreams = 7\n");
    let found = difference(&config(BASIC), &config(&limits));
    assert!(found.limits_changed && found.needs_restart.is_empty());
    let limits = format!("{BASIC}\n[limits]\nneighbours = 70\n");
    assert_eq!(difference(&config(BASIC), &config(&limits)).needs_restart.len(), 1);
}

#[test]
fn reload_adds_and_removes_regions_and_listeners() {
    let mut bench = bench();
    let report = bench.reload(&format!("{BASIC}{EXTRA_SECTIONS}")).unwrap();
    assert_eq!(report.applied, ["region `extra` added", "listener `second` added"]);
    bench.acknowledge();
    assert!(
        bench.is_logged(
            |k| matches!(k, EventKind::ListenerAdded { listener } if listener == "second")
        )
    );
    let report = bench.reload(BASIC).unwrap();
    assert_eq!(report.applied, ["listener `second` removed", "region `extra` removed"]);
    bench.acknowledge();
    assert!(!bench.core.regions().contains_key("extra"));
    assert!(!bench.core.listeners().contains_key("second"));
    assert!(bench.reload(BASIC).unwrap().applied.is_empty());
}

#[test]
fn refused_reload_reports_all_reasons_without_effect() {
    let mut bench = bench_with(&format!("{BASIC}{EXTRA_SECTIONS}"));
    bench.accept_stream(1, "10.0.0.2");
    bench.acknowledge();
    let without_own = format!("{BASIC}{EXTRA_SECTIONS}")
        .replace("[[region]]\nname = \"own\"\nsize = \"64 KiB\"\naccess = \"w\"", "")
        .replace("[\"own\", \"common\"]", "[\"common\"]")
        .replace("name = \"extra\"\nsize", "name = \"another\"\nsize")
        .replace("[\"extra\"]", "[\"another\"]");
    let error = bench.reload(&without_own).unwrap_err();
    assert_eq!(error.error, ErrorKind::Conflict);
    assert_eq!(error.message, "region `own` cannot go: 1 streams use it");
    assert!(bench.all_commands().is_empty());
    assert!(
        bench.core.regions().contains_key("extra") && !bench.core.regions().contains_key("another")
    );
    bench.close_stream(1, CloseReason::PeerShutdown);
    bench.acknowledge();
    assert!(bench.reload(&without_own).is_ok());
}

#[test]
fn failed_allocation_refuses_the_whole_reload() {
    let mut bench = bench();
    let bad = format!("{BASIC}{EXTRA_SECTIONS}").replace(
        "name = \"extra\"\nsize = \"4 KiB\"",
        "name = \"extra\"\npath = \"/nonexistent/directory/file\"\nsize = \"4 KiB\"",
    );
    let error = bench.reload(&bad).unwrap_err();
    assert!(error.message.contains("region extra: cannot open"), "{}", error.message);
    assert!(bench.all_commands().is_empty());
    assert!(!bench.core.listeners().contains_key("second"));
    assert!(
        bench.reload(&format!("{BASIC}{EXTRA_SECTIONS}")).is_ok(),
        "the refused reload does not block the next"
    );
}

#[test]
fn reload_of_invalid_file_reports_all_errors() {
    let mut bench = bench();
    let error = bench.reload("name = 3\n").unwrap_err();
    assert_eq!(error.error, ErrorKind::BadRequest);
    assert!(error.message.contains("ddpd.toml"), "{}", error.message);
}

#[test]
fn listener_limits_change_without_worker_commands() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    bench.acknowledge();
    let report =
        bench.reload(&BASIC.replace("streams_per_peer = 2", "streams_per_peer = 1")).unwrap();
    assert_eq!(report.applied, ["listener `in` changed"]);
    assert!(bench.all_commands().is_empty());
    bench.request_stream(2, "10.0.0.2");
    let commands = bench.acknowledge();
    assert!(matches!(commands[..], [Command::Reject { .. }]), "{commands:?}");
}

#[test]
fn changed_port_replaces_listener_on_workers_in_order() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    bench.acknowledge();
    let old = bench.listener("in");
    std::fs::write(&bench.file, BASIC.replace("port = 7471", "port = 7473")).unwrap();
    let mut pending = bench.start_reload();
    let commands = bench.commands(0);
    let seen: Vec<Ticket> = commands.iter().filter_map(ticket).collect();
    seen.into_iter().for_each(|ticket| bench.acknowledge_ticket(ticket));
    assert!(is_unanswered(&mut pending), "the other worker does not listen yet");
    bench.acknowledge();
    assert!(answer(&mut pending).is_ok());
    assert!(matches!(commands[0], Command::RemoveListener { listener, .. } if listener == old));
    assert!(matches!(&commands[1], Command::AddListener { listener, .. } if listener.port == 7473));
    assert_ne!(bench.listener("in"), old);
    bench.close_stream(1, CloseReason::PeerShutdown);
    assert_eq!(bench.core.listeners()["in"].ledger().streams(), 0, "its streams are still counted");
}

/// RFC 9293 §3.8.4: keepalive is off, except for streams with an exclusive region, which a vanished peer would occupy.
#[test]
fn changed_regions_update_keepalive_on_workers() {
    let shared_only = BASIC.replace(r#"["own", "common"]"#, r#"["common"]"#);
    let extra = EXTRA_SECTIONS.split("[[listener]]").next().unwrap();
    let with_extra =
        format!("{shared_only}{extra}").replace(r#"["common"]"#, r#"["common", "extra"]"#);
    let mut bench = bench_with(&shared_only);
    let mut sent = |text: &str| {
        std::fs::write(&bench.file, text).unwrap();
        let mut pending = bench.start_reload();
        let commands = bench.commands(0);
        let keepalive = commands.iter().find_map(|command| match command {
            Command::AddListener { listener, .. } => match &listener.endpoint {
                EndpointConfig::Tcp(endpoint) => Some(endpoint.tcp.keepalive.is_some()),
                EndpointConfig::Sctp(_) => None,
            },
            _ => None,
        });
        let tickets: Vec<Ticket> = commands.iter().filter_map(ticket).collect();
        tickets.into_iter().for_each(|ticket| bench.acknowledge_ticket(ticket));
        bench.acknowledge();
        report(pending.try_recv().unwrap()).unwrap();
        keepalive
    };
    assert_eq!(sent(BASIC), Some(true), "an exclusive region is added");
    assert_eq!(sent(&shared_only), Some(false), "the exclusive region is removed");
    assert_eq!(sent(&with_extra), None, "a read-only region is added: no change");
}

#[test]
fn reload_keeps_api_additions() {
    let mut bench = bench();
    let mut section = bench.core.regions()["common"].section().clone();
    section.name = "api".into();
    let mut pending = bench.call(Request::AddRegion(section));
    bench.load_all();
    bench.acknowledge();
    assert!(answer(&mut pending).is_ok());
    bench.reload(BASIC).unwrap();
    assert!(bench.core.regions().contains_key("api"));
}

#[test]
fn reload_with_too_many_streams_is_refused_by_key() {
    let mut bench = bench();
    let error = bench.reload(&format!("{BASIC}\n[limits]\nstreams = 1000000\n")).unwrap_err();
    let keys = "limits.memory and limits.streams of the file: ";
    assert!(error.message.contains(keys), "{error}");
}

// Each of the two regions fits alone. The simulated host has 4 GiB.
#[test]
fn reload_with_regions_over_ceiling_is_refused_early() {
    let region =
        |name: &str| format!("[[region]]\nname = \"{name}\"\nsize = \"2 GiB\"\naccess = \"r\"\n");
    let mut bench = bench();
    std::fs::write(&bench.file, format!("{BASIC}{}{}", region("one"), region("two"))).unwrap();
    let mut pending = bench.call(Request::Reload);
    assert!(bench.core.poll_load().is_none());
    let error = answer(&mut pending).unwrap_err();
    assert!(error.message.contains("the file's 2 new regions: 4 GiB asked for, "), "{error}");
    assert!(error.message.contains(" of 3 GiB in use"), "{error}");
}

#[test]
fn reload_changes_ceiling_but_not_below_bytes_in_use() {
    let mut bench = bench();
    let limits = |size: &str| format!("{BASIC}\n[limits]\nmemory = \"{size}\"\n");
    let report = bench.reload(&limits("1 GiB")).unwrap();
    assert!(
        report.applied.contains(&"limits.memory changed".into()) && report.needs_restart.is_empty()
    );
    assert_eq!(bench.budget.info().ceiling, 1 << 30);
    let error = bench.reload(&limits("1 MiB")).unwrap_err();
    assert!(error.message.contains(" of 1 MiB in use (regions 128 KiB"), "{error}");
    assert_eq!(bench.budget.info().ceiling, 1 << 30);
}

/// Returns the listeners whose peers are updated, each with true if 10.0.0.9 is admitted.
fn peers_set(commands: &[Command]) -> Vec<(ListenerId, bool)> {
    let update = |command: &Command| match command {
        Command::SetPeers { listener, peers, .. } => {
            Some((*listener, peers.check("10.0.0.9".parse().unwrap()).is_ok()))
        }
        _ => None,
    };
    commands.iter().filter_map(update).collect()
}

// No listener is restarted, so streams and handshakes of admitted peers continue.
#[test]
fn peer_filters_change_in_place_after_all_workers_answer() {
    let mut bench = bench();
    let id = bench.listener("in");
    let denied = "deny = [\"10.0.0.9/32\"]\n";
    for (at, sentence) in
        [("[[listener]]\n", "listener `in` changed"), ("[[interface]]\n", "interface.deny changed")]
    {
        let text = BASIC.replacen(at, &format!("{at}{denied}"), 1);
        std::fs::write(&bench.file, &text).unwrap();
        let mut pending = bench.start_reload();
        let commands = bench.commands(0);
        assert_eq!((commands.len(), peers_set(&commands)), (1, vec![(id, false)]), "{at}");
        commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
        assert!(is_unanswered(&mut pending), "the other worker still admits the peer");
        bench.acknowledge();
        let report = report(answer(&mut pending)).unwrap();
        assert_eq!((report.applied, report.needs_restart), (vec![sentence.to_owned()], vec![]));
        assert!(bench.reload(&text).unwrap().applied.is_empty());
        std::fs::write(&bench.file, BASIC).unwrap();
        let mut pending = bench.start_reload();
        let commands = bench.commands(0);
        assert_eq!(peers_set(&commands), [(id, true)], "{at}");
        commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
        bench.acknowledge();
        assert!(answer(&mut pending).is_ok());
    }
    assert_eq!(bench.listener("in"), id);
}
