//! A reload is applied completely or not at all, and a dry run predicts its report.

use api::ReloadReport;
use dataplane::CommandError;

use super::reload::EXTRA_SECTIONS;
use super::*;

impl Bench {
    /// Returns the report of a dry run with this configuration.
    fn dry_run(&mut self, text: &str) -> ReloadReport {
        std::fs::write(&self.file, text).unwrap();
        let mut pending = self.call(Request::TryReload);
        assert!(self.core.poll_load().is_none() && self.all_commands().is_empty());
        match answer(&mut pending).unwrap() {
            Reply::Reload(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the refusals of a dry run. Checks that the reload itself is refused with the same sentences.
    fn dry_run_refusals(&mut self, text: &str) -> Vec<String> {
        let refused = self.dry_run(text).refused;
        assert_eq!(self.reload(text).unwrap_err().message, refused.join("\n"));
        assert!(self.all_commands().is_empty());
        refused
    }

    /// Acknowledges all commands, except that one worker refuses the first command that `refuses` selects.
    fn acknowledge_refusing(&mut self, refuses: impl Fn(&Command) -> bool) {
        let mut refused = false;
        loop {
            self.core.finish_turn(self.now);
            let commands = self.all_commands();
            if commands.is_empty() {
                break assert!(refused, "no command was refused");
            }
            for command in commands {
                let Some(ticket) = ticket(&command) else { continue };
                let refuse_this = !refused && refuses(&command);
                refused |= refuse_this;
                let result = if refuse_this { Err(CommandError::ListenerInUse) } else { Ok(()) };
                self.event(Event::Done { ticket, result });
            }
        }
    }

    /// Returns whether the region exists, and whether the listener exists.
    fn has_region_and_listener(&self, region: &str, listener: &str) -> (bool, bool) {
        let regions = self.core.regions();
        (regions.contains_key(region), self.core.listeners().contains_key(listener))
    }

    fn call_api(&mut self, request: Request) -> Reply {
        let mut pending = self.call(request);
        self.load_all();
        self.acknowledge();
        answer(&mut pending).unwrap()
    }
}

#[test]
fn refusal_by_one_worker_is_undone_on_all() {
    let limits = format!("{BASIC}{EXTRA_SECTIONS}\n[limits]\nstreams = 77\n")
        .replace("streams_per_peer = 2", "streams_per_peer = 1");
    for worker_refuses in [
        (|c: &Command| matches!(c, Command::AddListener { .. })) as fn(&Command) -> bool,
        |c: &Command| matches!(c, Command::AddStag { .. }),
    ] {
        let mut bench = bench();
        std::fs::write(&bench.file, &limits).unwrap();
        let mut pending = bench.start_reload();
        bench.acknowledge_refusing(worker_refuses);
        let error = answer(&mut pending).unwrap_err();
        assert!(error.message.contains("`second`") || error.message.contains("`extra`"), "{error}");
        assert!(error.message.ends_with("what was done of it is undone"), "{error}");
        assert_eq!(bench.has_region_and_listener("extra", "second"), (false, false));
        let limits_now = bench.core.env().context.config.limits.streams;
        assert_eq!(limits_now, 4096);
        assert_eq!(bench.core.listeners()["in"].section().limits.streams_per_peer, 2);
        // The refused value did not become the running value, so the same file still has the change.
        let report = bench.reload(&limits).unwrap();
        assert_eq!(
            report.applied,
            [
                "limits.streams changed",
                "region `extra` added",
                "listener `in` changed",
                "listener `second` added"
            ]
        );
        assert_eq!(bench.has_region_and_listener("extra", "second"), (true, true));
    }
}

#[test]
fn failed_listener_change_restores_the_old_listener() {
    let mut bench = bench();
    std::fs::write(&bench.file, BASIC.replace("port = 7471", "port = 7473")).unwrap();
    let mut pending = bench.start_reload();
    bench.acknowledge_refusing(
        |c| matches!(c, Command::AddListener { listener, .. } if listener.port == 7473),
    );
    let error = answer(&mut pending).unwrap_err();
    assert!(error.message.starts_with("listener `in`: the address and port"), "{error}");
    assert_eq!(bench.core.listeners()["in"].section().port, 7471);
    bench.accept_stream(1, "10.0.0.2");
    assert!(bench.reload(BASIC).unwrap().applied.is_empty());
}

#[test]
fn refused_reload_removes_its_new_file() {
    let mut bench = bench();
    let new = bench.dir.path().join("new");
    let region = format!("[[region]]\nname = \"f\"\npath = {new:?}\naccess = \"r\"\n");
    let text = format!("{BASIC}{EXTRA_SECTIONS}{region}");
    let error = bench.reload(&text).unwrap_err();
    assert!(error.message.contains("is empty: give the region a size"), "{error}");
    assert!(!new.exists(), "the file created for the region remains");
    assert_eq!(bench.has_region_and_listener("extra", "second"), (false, false));
}

#[test]
fn restart_note_stays_until_key_is_in_force() {
    let mut bench = bench();
    let changed =
        format!("{BASIC}{EXTRA_SECTIONS}\n[tcp]\nsack = false\n").replace("64 KiB", "32 KiB");
    let first = bench.reload(&changed).unwrap();
    assert_eq!(first.applied, ["region `extra` added", "listener `second` added"]);
    let sentences: Vec<_> = first.needs_restart.iter().map(|s| s.split(' ').next()).collect();
    assert_eq!(first.needs_restart.len(), 3, "{sentences:?}");
    let again = bench.reload(&changed).unwrap();
    assert_eq!((again.applied.len(), again.needs_restart), (0, first.needs_restart));
    assert_eq!(bench.core.regions()["common"].section().size, Some(64 << 10));
    let notes = bench.core.status(bench.now).notes;
    assert!(notes.iter().any(|n| n.contains("wait for a restart: 3;")), "{notes:?}");
    assert!(bench.reload(&format!("{BASIC}{EXTRA_SECTIONS}")).unwrap().needs_restart.is_empty());
    assert_eq!(bench.core.status(bench.now).notes, [""; 0]);
}

#[test]
fn dry_run_report_matches_the_reload() {
    let mut bench = bench();
    let text = format!("{BASIC}{EXTRA_SECTIONS}\n[tcp]\nsack = false\n[limits]\nregions = 9\n");
    let predicted = bench.dry_run(&text);
    assert!(predicted.dry_run && predicted.refused.is_empty());
    assert_eq!(predicted.applied.len(), 3);
    assert_eq!(bench.has_region_and_listener("extra", "second"), (false, false));
    let reported = bench.reload(&text).unwrap();
    assert_eq!(ReloadReport { dry_run: false, ..predicted }, reported);
    let refused = bench.dry_run("name = 3\n").refused;
    assert!(refused[0].contains("ddpd.toml:1: name: "), "{refused:?}");
}

#[test]
fn foreseeable_failures_refuse_the_reload_before_any_step() {
    let mut bench = bench_with(&format!("{BASIC}{EXTRA_SECTIONS}"));
    let own =
        EXTRA_SECTIONS.replace("extra", "api").replace("second", "api").replace("7472", "7480");
    let toml: toml::Table = toml::from_str(&own).unwrap();
    let json = serde_json::to_value(toml).unwrap();
    bench.call_api(Request::AddRegion(config::region_from_json(&json["region"][0]).unwrap()));
    bench.call_api(Request::AddListener(config::listener_from_json(&json["listener"][0]).unwrap()));
    bench.accept_stream(1, "10.0.0.2");
    bench.acknowledge();
    let base = format!("{BASIC}{EXTRA_SECTIONS}");
    // Changed files, each with a part of the expected refusal.
    let cases = [
        (
            base.replace("name = \"extra\"\nsize", "name = \"api\"\nsize").replace("[\"extra\"]", "[\"api\"]"),
            "there is already a region `api`",
        ),
        (base.replace("name = \"second\"", "name = \"api\""), "the API has added one of this name"),
        (base.replace("port = 7472", "port = 7480"), "cannot have port 7480: listener `api` has it"),
        (
            base.replace("\"common\"]", "\"common\", \"extra\"]"),
            "listener `in`: regions `own` and `extra` are in use in different protection domains",
        ),
        (
            base.replace("port = 7472", "port = 7471").replacen("port = 7471", "port = 7472", 1),
            "listener `in` cannot have port 7472: listener `second` has it",
        ),
        (
            base.replace("[\"extra\"]\n", "[\"extra\"]\n[[listener.queue]]\nqn = 0\ndeliver_to = \"file\"\npath = \"/nonexistent/x\"\n"),
            "listener `second`, queue 0: cannot open /nonexistent/x: ",
        ),
        (
            format!("{base}[limits]\nregion_memory = \"132 KiB\"\n[[region]]\nname = \"n\"\nsize = 4096\naccess = \"r\"\n")
                .replace("132 KiB", "138 KiB"),
            "limits.region_memory: 139264 of 141312 are in use",
        ),
    ];
    for (text, sentence) in cases {
        let refused = bench.dry_run_refusals(&text);
        assert!(
            refused.iter().any(|refusal| refusal.contains(sentence)),
            "{sentence}: {refused:?}"
        );
    }
    // A limit that the same file raises is taken into account.
    let raised = format!(
        "{base}[limits]\nregions = 6\n[[region]]\nname = \"n\"\nsize = 4096\naccess = \"r\"\n\
         [[region]]\nname = \"m\"\nsize = 4096\naccess = \"r\"\n"
    );
    assert_eq!(bench.dry_run(&raised).refused, [""; 0]);
    let refused = bench.dry_run_refusals(&raised.replace("regions = 6", "regions = 5"));
    assert!(
        refused[0].contains("there would be 6 regions, and limits.regions is 5"),
        "{refused:?}"
    );
    assert_eq!(bench.has_region_and_listener("n", "second"), (false, true));
}

/// Listener `in` needs the port that listener `second` releases in the same reload.
#[test]
fn listener_changes_are_ordered_by_freed_addresses() {
    let mut bench = bench_with(&format!("{BASIC}{EXTRA_SECTIONS}"));
    let moved = format!("{BASIC}{EXTRA_SECTIONS}").replace("7472", "7473").replace("7471", "7472");
    bench.reload(&moved).unwrap();
    let port = |bench: &Bench, name| bench.core.listeners()[name].section().port;
    assert_eq!((port(&bench, "in"), port(&bench, "second")), (7472, 7473));
    // A removed listener also releases its address.
    let renamed = moved.replace("name = \"second\"", "name = \"third\"");
    let report = bench.reload(&renamed).unwrap();
    assert_eq!(report.applied, ["listener `second` removed", "listener `third` added"]);
    assert_eq!(port(&bench, "third"), 7473);
}

#[test]
fn removed_listener_returns_if_its_replacement_fails() {
    let mut bench = bench_with(&format!("{BASIC}{EXTRA_SECTIONS}"));
    let renamed =
        format!("{BASIC}{EXTRA_SECTIONS}").replace("name = \"second\"", "name = \"third\"");
    std::fs::write(&bench.file, renamed).unwrap();
    let mut pending = bench.start_reload();
    bench.acknowledge_refusing(|c| matches!(c, Command::AddListener { .. }));
    assert!(answer(&mut pending).is_err());
    assert_eq!(bench.has_region_and_listener("extra", "second"), (true, true));
    assert_eq!(bench.has_region_and_listener("extra", "third"), (true, false));
}

#[test]
fn second_concurrent_reload_is_refused() {
    let mut bench = bench();
    std::fs::write(&bench.file, format!("{BASIC}{EXTRA_SECTIONS}")).unwrap();
    let mut first = bench.start_reload();
    let mut second = bench.start_reload();
    assert_eq!(answer(&mut second).unwrap_err().message, "a reload is going on already");
    bench.acknowledge();
    assert!(answer(&mut first).is_ok());
}

#[test]
fn reload_restores_objects_removed_by_api() {
    let mut bench = bench_with(&format!("{BASIC}{EXTRA_SECTIONS}"));
    bench.call_api(Request::RemoveListener { name: "second".into() });
    bench.call_api(Request::RemoveRegion { name: "extra".into(), force: false });
    let report = bench.reload(&format!("{BASIC}{EXTRA_SECTIONS}")).unwrap();
    assert_eq!(report.applied, ["region `extra` added", "listener `second` added"]);
}
