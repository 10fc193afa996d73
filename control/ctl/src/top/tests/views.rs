//! Drawn views at several terminal sizes.

use super::*;
use crate::top::sample::MOST_STREAMS;

#[test]
fn streams_view_fits_80x24() {
    let mut state = state_after_samples(4);
    let lines = frame(&mut state, 80, 24);
    let left = "left  ddpd 0.1.0  running  up 1h 3s  3 streams";
    let (rx, tx, spark) = ("rx 1.00 Gbit/s", "tx 10.0 Mbit/s", "███");
    let tabs = "1:streams 2:workers 3:regions 4:peers 5:ports 6:programs";
    let expected = [
        &*format!("{left:<72}every 1s"),
        &*format!("{rx:<16}{spark:>23} {tx:<16}{spark:>23}"),
        "drops 4/s  1 note: no hugepages: ordinary pages are used",
        &*format!("{tabs:<64}3, busiest first"),
        "STREAM           REMOTE           RX bit/s  TX bit/s    RTT LIMITED BY",
        "0000000002000000 10.77.0.2:40002        0     16.0 M 420 us congestion_window",
        "0000000001000000 10.77.0.2:40001     8.0 M        0  420 us congestion_window",
        "0000000003000000 [fd77::2]:40003        0         0  420 us congestion_window",
    ];
    assert_eq!(lines[..8], expected, "{}", lines.join("\n"));
    assert!(lines[8..23].iter().all(String::is_empty), "{}", lines.join("\n"));
    assert_eq!(
        lines[23],
        "q quit  ? help  1-6 Tab view  s r order  / filter  Enter stream  Space pause  +-"
    );
}

#[test]
fn other_views_fit_80x24() {
    let mut state = state_after_samples(4);
    for (key, expected) in [
        ("2", "      0     2  25 %        3    1.00 G    10.0 M 90000  1000        3 adaptive"),
        ("3", "inbox   64.0 MiB w"),
        ("4", "10.77.0.2"),
        ("5", "p0"),
        ("6", "       3 ping_pong attached          1     8.0 M    16.0 M 16.0 KiB"),
    ] {
        type_text(&mut state, key);
        let lines = frame(&mut state, 80, 24);
        assert!(lines[5].starts_with(expected), "{}", lines.join("\n"));
    }
}

#[test]
fn filter_is_shown_and_help_fits_at_80_columns() {
    let mut state = state_after_samples(3);
    type_text(&mut state, "/none");
    press(&mut state, KeyCode::Enter);
    let lines = frame(&mut state, 80, 24);
    assert!(lines[3].ends_with("  0 of 3, with \"none\""), "{}", lines[3]);
    assert_eq!(lines[5], "none with this text: Esc shows all");
    type_text(&mut state, "/");
    type_text(&mut state, &"x".repeat(60));
    press(&mut state, KeyCode::Enter);
    let lines = frame(&mut state, 80, 24);
    assert!(lines[3].ends_with("6:programs  0 of 3, with \"nonexxxx"), "{}", lines[3]);
    type_text(&mut state, "?");
    let longest = state.overlay_lines().iter().map(String::len).max().unwrap();
    assert!(longest <= 80 && state.overlay_lines().len() <= 19, "{longest}");
}

#[test]
fn any_terminal_size_is_drawn() {
    for keys in ["1", "2", "3", "4", "5", "?", "n", "/long", "/long\n", "sss", " "] {
        for looks in [0, 1, 3] {
            for (columns, lines) in [(1, 1), (2, 3), (20, 5), (79, 6), (80, 24), (300, 100)] {
                let mut state = state_after_samples(looks);
                for key in keys.chars() {
                    let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
                    press(&mut state, code);
                }
                frame(&mut state, columns, lines);
                state.handle_sample(Err("cannot reach the appliance".into()));
                state.silent_for = Some(Duration::from_secs(70));
                frame(&mut state, columns, lines);
            }
        }
    }
}

#[test]
fn wide_screen_has_more_columns_and_always_sort_column() {
    let mut state = state_after_samples(3);
    assert!(frame(&mut state, 300, 30)[4].ends_with("SENT"), "all columns");
    let narrow = frame(&mut state, 40, 10)[4].clone();
    assert!(!narrow.contains("SENT"), "{narrow}");
    state.set_initial("sent_bytes", "");
    let lines = frame(&mut state, 40, 10);
    assert!(lines[4].contains("SENT▼"), "{}", lines.join("\n"));
    type_text(&mut state, "r");
    assert!(frame(&mut state, 40, 10)[4].contains("SENT▲"));
}

#[test]
fn screen_reports_silent_appliance() {
    let mut state = state_after_samples(3);
    state.handle_sample(Err("cannot reach the appliance at x.sock: \x1b[31m".into()));
    state.silent_for = Some(Duration::from_secs(70));
    let lines = frame(&mut state, 80, 24);
    let expected = "no answer for 1m 10s: cannot reach the appliance at x.sock: \u{fffd}[31m";
    assert_eq!(lines[2], expected);
    assert!(lines[5].starts_with("0000000002000000"), "the last sample is still shown");
    state.handle_sample(Ok(sample(Instant::now(), 60)));
    assert!(frame(&mut state, 80, 24)[2].starts_with("drops "));
}

#[test]
fn control_characters_in_names_are_escaped() {
    let start = Instant::now();
    let mut state = State::new(View::Streams, Duration::from_secs(1));
    let mut evil = sample(start, 1);
    let name = "\x1b]0;x\x07\u{202e}\u{9b}2J\n";
    evil.status.name = name.into();
    evil.status.notes = vec![name.into()];
    evil.regions.value[0].name = name.into();
    evil.ports.value[0].name = name.into();
    evil.streams.as_mut().unwrap().value[0].listener = Some(name.into());
    evil.streams.as_mut().unwrap().value[0].remote = name.into();
    state.handle_sample(Ok(evil));
    for key in ["1", "2", "3", "4", "5", "n"] {
        type_text(&mut state, key);
        let text = frame(&mut state, 250, 24).concat();
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{key}: {text:?}");
    }
}

/// One appliance is designed for 10,000 streams.
#[test]
fn ten_thousand_streams_are_shown_page_by_page() {
    let many = |second: u64| {
        let mut sample = sample(Instant::now() + Duration::from_secs(second), second);
        let one =
            |id: u64| stream(id, &format!("10.0.{}.{}:7", id / 250, id % 250), id * second, 0);
        sample.streams.as_mut().unwrap().value = (0..MOST_STREAMS as u64).map(one).collect();
        sample.status.streams = 12_345;
        sample
    };
    let mut state = State::new(View::Streams, Duration::from_secs(1));
    state.handle_sample(Ok(many(0)));
    state.handle_sample(Ok(many(1)));
    let lines = frame(&mut state, 80, 24);
    assert!(lines[3].ends_with("10000 of 12345"), "{}", lines[3]);
    assert!(lines[5].starts_with("000000000000270f"), "{}", lines[5]);
    press(&mut state, KeyCode::End);
    let lines = frame(&mut state, 80, 24);
    assert!(lines.iter().any(|line| line.starts_with("0000000000000000")), "{}", lines.join("\n"));
    type_text(&mut state, "/10.0.39.");
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.table.count_text(), "250 of 12345");
    type_text(&mut state, "4");
    assert_eq!(ids(&state).len(), MOST_STREAMS, "peers");
}
