//! `ddpctl top --once`: tables as text and JSON, and errors.

use super::super::table::sanitize;
use super::*;
use crate::tests::ddpctl;

fn top(arguments: &[&str]) -> Top {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        top: Top,
    }
    <Line as clap::Parser>::parse_from([&["top"], arguments].concat()).top
}

#[test]
fn once_prints_text_and_json_tables() {
    let fake = fake::Fake::start();
    let socket = ["--socket", fake.socket().to_str().unwrap()];
    let run = |words: &[&str]| {
        let ran = ddpctl(&[&socket[..], words].concat());
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Success, ""), "{words:?}");
        ran.out
    };
    let once = ["top", "--once", "--interval", "200ms"];
    let text = run(&once);
    assert!(text.starts_with("fake  ddpd 0.1.0  running  up 1h 2m 3s  1 streams\n"), "{text}");
    assert!(text.contains("note: no hugepages: ordinary pages are used\n"), "{text}");
    for table in [
        "\nstreams: 1\nSTREAM ",
        "\nworkers: 1\n",
        "\nregions: 1\n",
        "\npeers: 1\n",
        "\nports: 1\n",
        "\nprograms: 1\n",
    ] {
        assert!(text.contains(table), "{table:?} in {text}");
    }
    assert!(text.contains("\n10.0.0.2  1 "), "{text}");
    assert!(!text.contains('\x1b'));
    let text = run(&[&once[..], &["--view", "streams", "--filter", "nothing of it"]].concat());
    assert!(text.ends_with("\nstreams: 0 of 1\n"), "{text}");
    let json = run(&[&["--json"], &once[..], &["--view", "peers", "--sort", "rx_rate"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["status"]["name"], json.get("streams")), (&"fake".into(), None));
    let peer = &json["peers"][0];
    assert_eq!((&peer["peer"], &peer["placed_bytes"]), (&"10.0.0.2".into(), &1_572_864.into()));
    assert_eq!((&peer["rx_rate"], &peer["rtt_us"]), (&0.into(), &420.into()));
}

#[test]
fn top_without_terminal_is_refused_with_hint() {
    for (arguments, json, terminal, message, hint) in [
        (&[][..], false, false, "top needs a terminal", "--once"),
        (&[], true, true, "--json", "--json top --once"),
        (&["--sort", "colour"], false, true, "--sort is \"colour\"", "busiest, age_seconds, cwnd"),
        (&["--sort", "busy", "--view", "ports"], false, true, "--sort is \"busy\"", "rx_rate"),
    ] {
        let failure = check_arguments(&top(arguments), OutputMode { json, terminal }).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains(message), "{}", failure.message);
        assert!(failure.hint.as_ref().unwrap().contains(hint), "{failure:?}");
    }
    for (arguments, json, terminal) in [
        (&[][..], false, true),
        (&["--once"], true, false),
        (&["--sort", "busy", "--view", "workers"], false, true),
        (&["--sort", "busy", "--once"], false, false),
    ] {
        check_arguments(&top(arguments), OutputMode { json, terminal }).unwrap();
    }
    for wrong in ["100ms", "2m", "fast"] {
        let ran = ddpctl(&["top", "--interval", wrong]);
        assert_eq!(ran.exit, Exit::Usage, "{wrong}: {}", ran.err);
    }
}

#[test]
fn once_fails_if_appliance_is_unreachable() {
    let ran = ddpctl(&["--socket", "/nonexistent/ddpd.sock", "top", "--once"]);
    assert_eq!(ran.exit, Exit::Unreachable, "{}", ran.err);
}

#[test]
fn printable_text_is_kept() {
    assert_eq!(sanitize("größe [::1]:7 ▼"), "größe [::1]:7 ▼");
    assert_eq!(sanitize("a\tb\u{feff}"), "a\u{fffd}b\u{fffd}");
}
