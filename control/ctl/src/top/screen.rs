//! The terminal, the thread that sends requests, and the loop that connects them.
//!
//! The terminal is restored at the end, whatever its cause: q, Ctrl-C, SIGTERM, SIGHUP, an error, a panic in any
//! thread. One request is outstanding at a time, and requests are in progress for at most a third of the time.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use api::{Client, StreamId, StreamInfo};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{Command, execute};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::sample::Sample;
use super::state::{Action, State};
use super::view;
use crate::exit::{Exit, Failure};
use crate::show;

/// Maximum wait for a key, and thus the maximum delay before an answer or a signal is handled.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after a signal at which the loop is considered stuck; longer than any iteration.
const STUCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which an outstanding request is reported on the screen.
const SILENCE_NOTICE: Duration = Duration::from_secs(2);

pub(super) fn run(mut state: State, client: Client, out: &mut dyn Write) -> Result<(), Failure> {
    let asker = Poller::start(client)?;
    let stop = Arc::new(AtomicBool::new(false));
    install_signal_handler(stop.clone())?;
    let mut screen = Screen::enter(out)?;
    let mut pace = PollSchedule::new(Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if let Some(answer) = asker.try_reply()? {
            pace.record_answer(now, state.interval, answer.sample.is_ok());
            state.handle_sample(answer.sample);
            if let Some((stream, text)) = answer.stream {
                state.handle_stream(stream, &text);
            }
        }
        if pace.is_due(now, state.paused) {
            pace.record_request(now);
            let (streams, stream) = state.requested_data();
            asker.send_request(SampleRequest { streams, stream })?;
        }
        state.silent_for = pace.silent_for(now, state.error.is_some());
        screen.draw(&mut state)?;
        if !event::poll(Duration::ZERO)? {
            if !await_key()? {
                break;
            }
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        match state.handle_key(key) {
            Action::Draw => {}
            Action::Refresh => pace.request_now(),
            Action::Quit => break,
        }
    }
    Ok(())
}

/// Starts a thread that sets `stop` upon SIGINT, SIGTERM or SIGHUP. If the main loop is stuck, the thread then ends the
/// process.
fn install_signal_handler(stop: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            stop.store(true, Ordering::Relaxed);
            std::thread::sleep(STUCK_TIMEOUT);
            std::process::exit(Exit::Failed as i32);
        }
    })?;
    Ok(())
}

/// Waits for a key, at most [`KEY_POLL_INTERVAL`]. Returns false if the terminal has closed: crossterm would read
/// end-of-file for ever.
fn await_key() -> io::Result<bool> {
    let input = rustix::stdio::stdin();
    let mut keys = [PollFd::new(&input, PollFlags::IN)];
    let pause = Timespec { tv_sec: 0, tv_nsec: KEY_POLL_INTERVAL.subsec_nanos().into() };
    match poll(&mut keys, Some(&pause)) {
        Err(Errno::INTR) => return Ok(true),
        other => other?,
    };
    Ok(!keys[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

/// Schedule of the requests to the appliance.
#[derive(Debug)]
pub(super) struct PollSchedule {
    next_request: Instant,
    /// Time at which the outstanding request was sent.
    outstanding_since: Option<Instant>,
    /// True to send a request at once, even during a pause.
    immediate: bool,
    /// Time of the last successful answer; initially the start.
    last_answer: Instant,
}

impl PollSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { next_request: now, outstanding_since: None, immediate: false, last_answer: now }
    }

    pub(super) fn is_due(&self, now: Instant, paused: bool) -> bool {
        self.outstanding_since.is_none()
            && (self.immediate || (!paused && now >= self.next_request))
    }

    pub(super) fn record_request(&mut self, now: Instant) {
        (self.outstanding_since, self.immediate) = (Some(now), false);
    }

    /// Schedules the next request one interval after the last request was sent, but not before a pause of twice the
    /// duration of that request. After a failure (`well` is false), schedules it one interval after `now`.
    pub(super) fn record_answer(&mut self, now: Instant, interval: Duration, well: bool) {
        let sent_at = self.outstanding_since.take().unwrap_or(now);
        self.next_request = (sent_at + interval).max(now + (now - sent_at) * 2);
        if !well {
            // A failed request may have taken long, so its duration does not extend the pause.
            self.next_request = now + interval;
        } else {
            self.last_answer = now;
        }
    }

    pub(super) fn request_now(&mut self) {
        self.immediate = true;
    }

    /// Returns the time since the last successful answer if the last request failed (`trouble`) or is overdue.
    pub(super) fn silent_for(&self, now: Instant, trouble: bool) -> Option<Duration> {
        let late = self.outstanding_since.is_some_and(|asked| now - asked >= SILENCE_NOTICE);
        (trouble || late).then(|| now - self.last_answer)
    }
}

// --- the thread that sends requests ---

struct SampleRequest {
    streams: bool,
    stream: Option<StreamId>,
}

struct SampleReply {
    sample: Result<Sample, String>,
    /// The stream that the overlay shows, and its details as text.
    stream: Option<(StreamId, String)>,
}

struct Poller {
    requests: Sender<SampleRequest>,
    replies: Receiver<SampleReply>,
}

impl Poller {
    fn start(client: Client) -> io::Result<Self> {
        let ((asks, wanted), (found, answers)) = (channel::<SampleRequest>(), channel());
        std::thread::Builder::new().name("top".into()).spawn(move || {
            // The thread ends when the main loop drops the sender of requests.
            while let Ok(ask) = wanted.recv() {
                let sample = Sample::fetch(&client, ask.streams);
                let reached = sample.is_ok();
                let sample = sample.map_err(|error| error.to_string());
                let stream =
                    ask.stream.filter(|_| reached).map(|id| (id, stream_text(&client, id)));
                if found.send(SampleReply { sample, stream }).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { requests: asks, replies: answers })
    }

    fn send_request(&self, ask: SampleRequest) -> Result<(), Failure> {
        self.requests.send(ask).map_err(|_| poller_ended())
    }

    fn try_reply(&self) -> Result<Option<SampleReply>, Failure> {
        match self.replies.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(poller_ended()),
        }
    }
}

fn poller_ended() -> Failure {
    Failure::new(Exit::Failed, "the thread that asks the appliance has ended: this is a defect")
}

fn stream_text(client: &Client, stream: StreamId) -> String {
    match client.get::<StreamInfo>(&format!("/v1/streams/{stream}")) {
        Ok(info) => show::stream(&info),
        Err(error) => format!("{error}\nddpctl why {stream} tells how it ended, unless in order"),
    }
}

// --- the terminal ---

struct Screen<'w> {
    terminal: Terminal<CrosstermBackend<&'w mut dyn Write>>,
    /// True once the panic hook or the drop has restored the terminal.
    is_restored: Arc<AtomicBool>,
}

impl<'w> Screen<'w> {
    fn enter(out: &'w mut dyn Write) -> io::Result<Self> {
        let left = Arc::new(AtomicBool::new(false));
        let (hook, hooked) = (std::panic::take_hook(), left.clone());
        std::panic::set_hook(Box::new(move |panic| {
            if !hooked.swap(true, Ordering::Relaxed) {
                drop(disable_raw_mode());
                // write(2) bypasses the lock of the standard output, which another thread may hold.
                let _ = rustix::io::write(rustix::stdio::stdout(), leave_sequence().as_bytes());
            }
            hook(panic);
        }));
        enable_raw_mode()?;
        let mut screen = match Terminal::new(CrosstermBackend::new(out)) {
            Ok(terminal) => Self { terminal, is_restored: left },
            Err(error) => {
                drop(disable_raw_mode());
                return Err(error);
            }
        };
        execute!(screen.terminal.backend_mut(), EnterAlternateScreen, Hide)?;
        screen.terminal.clear()?;
        Ok(screen)
    }

    fn draw(&mut self, state: &mut State) -> io::Result<()> {
        if self.is_restored.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.terminal.draw(|frame| view::draw(frame, state)).map(drop)
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        if self.is_restored.swap(true, Ordering::Relaxed) {
            return;
        }
        drop(disable_raw_mode());
        let backend = self.terminal.backend_mut();
        drop(backend.write_all(leave_sequence().as_bytes()).and_then(|()| Write::flush(backend)));
    }
}

/// Returns the escape codes that restore the terminal.
fn leave_sequence() -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = LeaveAlternateScreen.write_ansi(&mut text).and_then(|()| Show.write_ansi(&mut text));
    text
}
