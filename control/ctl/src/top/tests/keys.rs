//! Keys: views, sort orders, filter, selection, details of a stream, and the interval.

use super::super::state::Overlay;
use super::super::table::Sort;
use super::*;

#[test]
fn keys_select_view() {
    let mut state = state_after_samples(2);
    let mut seen = Vec::new();
    for _ in 0..6 {
        assert_eq!(press(&mut state, KeyCode::Tab), Action::Draw);
        seen.push(state.view);
    }
    use View::*;
    assert_eq!(seen, [Workers, Regions, Peers, Ports, Programs, Streams]);
    press(&mut state, KeyCode::BackTab);
    assert_eq!(state.view, Programs);
    type_text(&mut state, "3");
    assert_eq!((state.view, ids(&state)), (Regions, vec!["inbox"]));
    type_text(&mut state, "4");
    assert_eq!(ids(&state), ["10.77.0.2", "fd77::2"]);
    press(&mut state, KeyCode::Right);
    press(&mut state, KeyCode::Left);
    assert_eq!(state.view, Peers);
    // A view that needs the list of streams takes a sample at once if there is none.
    let mut workers = sample(Instant::now(), 9);
    workers.streams = None;
    state.handle_sample(Ok(workers));
    assert_eq!((type_text(&mut state, "2"), state.requested_data()), (Action::Draw, (false, None)));
    assert_eq!(
        (type_text(&mut state, "1"), state.requested_data()),
        (Action::Refresh, (true, None))
    );
}

#[test]
fn keys_select_sort_order() {
    let (one, two, three) = ("0000000001000000", "0000000002000000", "0000000003000000");
    let mut state = state_after_samples(2);
    assert_eq!(ids(&state), [two, one, three], "the busiest first");
    type_text(&mut state, "r");
    assert_eq!(ids(&state), [three, one, two]);
    type_text(&mut state, "s");
    assert_eq!(state.sort(), Sort { column: Some(0), reverse: false });
    assert_eq!(ids(&state), [one, two, three]);
    type_text(&mut state, "ss");
    assert_eq!(ids(&state), [one, two, three], "by RX");
    type_text(&mut state, "s");
    assert_eq!(ids(&state), [two, one, three], "by TX");
    type_text(&mut state, "SSSS");
    assert_eq!(state.sort(), Sort::default());
    type_text(&mut state, "S");
    assert_eq!(state.table.heads[state.sort().column.unwrap()].key, "sent_bytes");
    // Each view keeps its own sort order.
    type_text(&mut state, "21");
    assert_eq!(state.table.heads[state.sort().column.unwrap()].key, "sent_bytes");
    state.set_initial("rtt_us", "");
    assert_eq!(state.sort().column, Some(4));
}

/// Unknown values are sorted last in either direction.
#[test]
fn missing_values_sort_last() {
    let (mut state, start) = (state_after_samples(1), Instant::now());
    let mut second = sample(start, 1);
    second.streams.as_mut().unwrap().value[0].flow = None;
    state.handle_sample(Ok(second));
    state.set_initial("rtt_us", "");
    assert_eq!(ids(&state).last(), Some(&"0000000001000000"));
    type_text(&mut state, "r");
    assert_eq!(ids(&state).last(), Some(&"0000000001000000"));
}

#[test]
fn filter_is_edited_kept_and_cleared() {
    let mut state = state_after_samples(2);
    type_text(&mut state, "/FD77");
    assert_eq!((state.editing.as_deref(), ids(&state).len()), (Some("FD77"), 3), "not yet");
    press(&mut state, KeyCode::Backspace);
    assert_eq!(type_text(&mut state, "q7"), Action::Draw, "letters are part of the filter");
    press(&mut state, KeyCode::Backspace);
    press(&mut state, KeyCode::Backspace);
    press(&mut state, KeyCode::Enter);
    assert_eq!((state.filter(), ids(&state)), ("FD7", vec!["0000000003000000"]));
    assert_eq!(state.table.count_text(), "1 of 3");
    state.handle_sample(Ok(sample(Instant::now(), 9)));
    assert_eq!(state.table.count_text(), "1 of 3", "the filter remains");
    type_text(&mut state, "/x");
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.filter(), "FD7", "the filter is unchanged");
    press(&mut state, KeyCode::Esc);
    assert_eq!((state.filter(), ids(&state).len()), ("", 3));
    type_text(&mut state, "/");
    type_text(&mut state, &"x".repeat(1000));
    assert_eq!(state.editing.as_ref().unwrap().len(), 60);
}

#[test]
fn selection_follows_its_row() {
    let mut state = state_after_samples(2);
    assert_eq!(state.selected(), 0);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.table.rows[state.selected()].id, "0000000001000000");
    type_text(&mut state, "s");
    assert_eq!((state.selected(), ids(&state)[0]), (0, "0000000001000000"));
    for (key, at) in [
        (KeyCode::End, 2),
        (KeyCode::Down, 2),
        (KeyCode::Up, 1),
        (KeyCode::PageUp, 0),
        (KeyCode::Up, 0),
        (KeyCode::PageDown, 1),
        (KeyCode::Home, 0),
    ] {
        press(&mut state, key);
        assert_eq!(state.selected(), at, "{key:?}, a page of one row");
    }
    press(&mut state, KeyCode::End);
    let mut fewer = sample(Instant::now(), 5);
    fewer.streams.as_mut().unwrap().value.truncate(1);
    state.handle_sample(Ok(fewer));
    assert_eq!(state.selected(), 0);
    let mut none = sample(Instant::now(), 6);
    none.streams.as_mut().unwrap().value.clear();
    state.handle_sample(Ok(none));
    assert_eq!((press(&mut state, KeyCode::Down), state.selected()), (Action::Draw, 0));
    assert_eq!(press(&mut state, KeyCode::Enter), Action::Draw, "there is no stream");
}

#[test]
fn enter_opens_stream_details() {
    let mut state = state_after_samples(2);
    press(&mut state, KeyCode::Down);
    assert_eq!(press(&mut state, KeyCode::Enter), Action::Refresh);
    let id = StreamId(0x0100_0000);
    assert_eq!(state.requested_data(), (true, Some(id)));
    assert_eq!(state.overlay_lines(), ["0000000001000000: asking"]);
    state.handle_stream(StreamId(5), "of another");
    state.handle_stream(id, "worker 1\nrtt\x1b[2J 4 us\n");
    assert_eq!(state.overlay_lines(), ["worker 1", "rtt\u{fffd}[2J 4 us"]);
    for (key, scroll) in [
        (KeyCode::Down, (1, 0)),
        (KeyCode::PageDown, (1, 0)),
        (KeyCode::Right, (1, 8)),
        (KeyCode::Right, (1, 11)),
        (KeyCode::Up, (0, 11)),
        (KeyCode::Home, (0, 0)),
    ] {
        press(&mut state, key);
        assert_eq!(state.scroll, scroll, "{key:?}");
    }
    type_text(&mut state, "2");
    assert_eq!(state.view, View::Streams, "table keys are ignored");
    assert_eq!(type_text(&mut state, "q"), Action::Draw, "closes the overlay, not the program");
    assert_eq!((state.overlay.as_ref(), state.requested_data()), (None, (true, None)));
    type_text(&mut state, "2");
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.overlay, None, "Enter has no effect on a worker");
    type_text(&mut state, "?");
    assert_eq!(state.overlay, Some(Overlay::Help));
    press(&mut state, KeyCode::Esc);
    type_text(&mut state, "n");
    assert_eq!(state.overlay_lines(), ["no hugepages: ordinary pages are used"]);
}

#[test]
fn keys_pause_and_change_the_interval() {
    let mut state = state_after_samples(2);
    assert_eq!((type_text(&mut state, " "), state.paused), (Action::Draw, true));
    assert_eq!((type_text(&mut state, " "), state.paused), (Action::Refresh, false));
    let mut seen = Vec::new();
    for keys in ["+", "-", "--", "---", "+++++++++"] {
        type_text(&mut state, keys);
        seen.push(state.interval.as_millis());
    }
    assert_eq!(seen, [2000, 1000, 200, 200, 60_000]);
    state.interval = Duration::from_millis(1500);
    type_text(&mut state, "-");
    assert_eq!(state.interval, Duration::from_secs(1));
}

#[test]
fn q_and_ctrl_c_quit() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for keys in ["1", "/", "?", "n"] {
        let mut state = state_after_samples(2);
        type_text(&mut state, keys);
        assert_eq!(state.handle_key(control_c), Action::Quit, "after {keys}");
    }
    assert_eq!(type_text(&mut state_after_samples(0), "q"), Action::Quit);
    let control_q = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::CONTROL);
    assert_eq!(state_after_samples(2).handle_key(control_q), Action::Draw);
}
