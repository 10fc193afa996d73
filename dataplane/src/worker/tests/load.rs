//! Load that workers generate themselves, and the Echo service that answers it.

use std::net::SocketAddr;
use std::time::Duration;

use ddp::{Access, Qn, RegionMemory, Stag, StreamId, TaggedOffset, rdmap};
use tcp_lite::endpoint::{EndpointConfig, UlpConfig};

use super::test_host::*;
use crate::api::{
    Command, Connect, Event, InterfaceId, Load, LoadKind, LoadReport, Order, Pace, PostFailure,
    Service, SourceRemoval, Ticket, Window,
};
use crate::memory::Memory;

const PORT: u16 = 4793;
const LOCAL: Stag = Stag(0x5100);
const REMOTE: Stag = Stag(0x5200);
const LEN: usize = 1 << 16;
const QN: Qn = Qn(0);

struct Scene {
    net: Net,
    here: StreamId,
    there: StreamId,
    local: Memory,
    remote: Memory,
}

fn window(bytes: u64) -> Window {
    let order = Order::Sequential;
    Window { local: LOCAL, remote: REMOTE, base: TaggedOffset(0), bytes, order }
}

fn rdmap_config() -> UlpConfig {
    rdmap::Config { recv_buffers: 8, max_operations: 16, ..rdmap::Config::default() }.into()
}

/// Creates two hosts with a region each, and a stream between them; the accepting end has this service.
fn scene(ulp: UlpConfig, service: Service) -> Scene {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    let local = net.hosts[0].region(LOCAL.0, LEN, Access::NONE);
    let remote = net.hosts[1].region(REMOTE.0, LEN, Access::REMOTE_WRITE | Access::REMOTE_READ);
    net.hosts[1].listen(PORT);
    net.hosts[0].command(0, |ticket| {
        Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket,
            interface: InterfaceId(0),
            local: None,
            remote: SocketAddr::new(v4(2), PORT),
            endpoint: EndpointConfig::default().into(),
            ulp: ulp.clone(),
            service: Service::Control,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        }))
    });
    let there = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    let accept = Command::Accept { stream: there, pd: PD, private_data: Vec::new(), ulp, service };
    net.hosts[1].command(0, |_| accept);
    let here = net.run_until("both ends", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { stream, .. } => Some(*stream),
            Event::ConnectFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    });
    Scene { net, here, there, local, remote }
}

impl Scene {
    /// Runs turns without advancing time, for a load that never becomes idle.
    fn run_turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.net.turn();
        }
    }

    fn load(&mut self, kind: LoadKind, len: u32, count: u64, depth: u32) -> Ticket {
        self.begin_load(Load { count, ..Load::closed(kind, len, depth) })
    }

    fn begin_load(&mut self, load: Load) -> Ticket {
        let stream = self.here;
        self.net.hosts[0].command(0, |ticket| Command::Load { stream, load, ticket })
    }

    fn wait_report(&mut self, ticket: Ticket) -> LoadReport {
        self.net.run_until("the load's end", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::LoadDone { ticket: t, report, .. } if *t == ticket => {
                    Some(LoadReport::clone(report))
                }
                _ => None,
            })
        })
    }

    fn run(&mut self, kind: LoadKind, len: u32, count: u64, depth: u32) -> LoadReport {
        let ticket = self.load(kind, len, count, depth);
        let report = self.wait_report(ticket);
        assert_eq!(report.failure, None);
        assert_eq!((report.messages, report.bytes), (count, count * u64::from(len)));
        report
    }
}

fn ddp() -> UlpConfig {
    stream_config().into()
}

#[test]
fn load_writes_fill_the_window_and_are_counted() {
    for ulp in [ddp(), rdmap_config()] {
        let mut s = scene(ulp, Service::Sink);
        s.local.write(0, &pattern(LEN));
        // Seven messages fit into the window. The eighth message is written at the start of the window again.
        let report = s.run(LoadKind::Write(window(7500)), 1000, 50, 300);
        assert!(report.latency.is_none());
        let placed = read_memory(&s.remote);
        assert!(placed[..7000] == pattern(LEN)[..7000]);
        assert!(placed[7000..].iter().all(|&byte| byte == 0));
        s.net.run_until_idle();
        assert_eq!(s.net.hosts[0].count("load_messages"), 50);
        assert_eq!(s.net.hosts[0].count("load_bytes"), 50_000);
        // Neither control thread has received an event for a message.
        assert!(s.net.hosts.iter().all(|h| h.events.iter().all(|(_, e)| !is_message(e))));
    }
}

fn is_message(event: &Event) -> bool {
    matches!(
        event,
        Event::Sent { .. }
            | Event::Completed { .. }
            | Event::TaggedDelivered { .. }
            | Event::Untagged { .. }
            | Event::Received { .. }
    )
}

#[test]
fn echo_load_records_a_round_trip_per_message() {
    for ulp in [ddp(), rdmap_config()] {
        let mut s = scene(ulp, Service::Echo);
        let report = s.run(LoadKind::Echo { qn: QN }, 64, 3000, 1);
        assert_eq!(report.latency.expect("round trips").len(), 3000);
        let report = s.run(LoadKind::Echo { qn: QN }, 64, 100, 5);
        assert_eq!(report.latency.expect("round trips").len(), 100);
        assert!(s.net.hosts[1].events.iter().all(|(_, e)| !is_message(e)));
    }
}

#[test]
fn notified_writes_complete_with_the_returned_notice() {
    for ulp in [ddp(), rdmap_config()] {
        let mut s = scene(ulp, Service::Echo);
        s.local.write(0, &pattern(LEN));
        let kind = LoadKind::Notify { window: window(LEN as u64), qn: QN };
        let report = s.run(kind, 4096, 100, 1);
        assert_eq!(report.latency.expect("round trips").len(), 100);
        assert!(read_memory(&s.remote) == pattern(LEN));
    }
}

#[test]
fn send_and_read_loads_run_to_completion() {
    let mut s = scene(rdmap_config(), Service::Sink);
    s.run(LoadKind::Send { qn: QN }, 100, 500, 4);
    s.remote.write(0, &pattern(LEN));
    let report = s.run(LoadKind::Read(window(LEN as u64)), 8192, 16, 8);
    assert_eq!(report.latency.expect("round trips").len(), 16);
    assert!(read_memory(&s.local) == pattern(LEN));
    let mut s = scene(ddp(), Service::Sink);
    s.run(LoadKind::Send { qn: QN }, 100, 5000, 50);
}

#[test]
fn a_load_stops_on_command() {
    let mut s = scene(ddp(), Service::Sink);
    let ticket = s.load(LoadKind::Write(window(LEN as u64)), 1000, u64::MAX, 8);
    s.run_turns(50);
    let stream = s.here;
    s.net.hosts[0].command(0, |_| Command::StopLoad { stream });
    let report = s.wait_report(ticket);
    assert_eq!(report.failure, None);
    assert!(report.messages > 8 && report.bytes == report.messages * 1000, "{report:?}");
    // After the stop, the stream accepts another load.
    s.run(LoadKind::Write(window(LEN as u64)), 10, 10, 1);
}

#[test]
fn invalid_load_is_refused_with_reason() {
    let mut s = scene(ddp(), Service::Sink);
    let bad = |s: &mut Scene, kind| {
        let ticket = s.load(kind, 10, 10, 1);
        let report = s.wait_report(ticket);
        assert_eq!(report.messages, 0);
        report.failure.expect("a reason")
    };
    let unknown = Window { local: Stag(0x9900), ..window(100) };
    assert_eq!(bad(&mut s, LoadKind::Write(unknown)), PostFailure::NoRegion);
    let beyond = LoadKind::Write(window(LEN as u64 + 1));
    assert!(matches!(
        bad(&mut s, beyond),
        PostFailure::Refused(ddp::PostError::OutOfBounds { .. })
    ));
    // Bare DDP has no RDMA Reads.
    let read = LoadKind::Read(window(100));
    assert_eq!(bad(&mut s, read), PostFailure::Refused(ddp::PostError::OtherUlp));
    let running = s.load(LoadKind::Write(window(100)), 10, u64::MAX, 1);
    assert_eq!(bad(&mut s, LoadKind::Write(window(100))), PostFailure::LoadRunning);
    let (stream, abort) = (s.here, true);
    s.net.hosts[0].command(0, |_| Command::Close { stream, abort });
    assert_eq!(s.wait_report(running).failure, Some(PostFailure::Flushed));
    assert_eq!(bad(&mut s, LoadKind::Write(window(100))), PostFailure::NoStream);
}

#[test]
fn region_removal_ends_its_load_and_waits_for_completion() {
    for sources in [SourceRemoval::Wait, SourceRemoval::Abort] {
        let mut s = scene(ddp(), Service::Sink);
        let load = s.load(LoadKind::Write(window(LEN as u64)), 1000, u64::MAX, 8);
        s.run_turns(50);
        let removal = s.net.hosts[0].command(0, |ticket| Command::RemoveStag {
            stag: LOCAL,
            removal: sources,
            ticket,
        });
        let report = s.wait_report(load);
        assert_eq!(report.failure, Some(PostFailure::NoRegion));
        assert_eq!(s.net.wait_done(0, removal), Ok(()));
    }
}

#[test]
fn flushed_reads_end_their_load() {
    let mut s = scene(rdmap_config(), Service::Sink);
    let load = s.load(LoadKind::Read(window(LEN as u64)), 60_000, u64::MAX, 8);
    s.run_turns(50);
    let (stream, abort) = (s.there, true);
    s.net.hosts[1].command(0, |_| Command::Close { stream, abort });
    assert_eq!(s.wait_report(load).failure, Some(PostFailure::Flushed));
}

/// Posting stops for 10 ms in the middle of the load. The latency of each message counts from its due time.
#[test]
fn open_loop_counts_latency_from_due_time_across_a_stall() {
    let mut s = scene(ddp(), Service::Echo);
    let (every, phase) = (Duration::from_micros(100), Duration::from_micros(50));
    let kind = LoadKind::Echo { qn: QN };
    let load = Load {
        count: 300,
        pace: Pace::Open { interval: every, phase },
        ..Load::closed(kind, 64, 1)
    };
    let begun = s.net.now;
    let ticket = s.begin_load(load);
    s.net.advance(Duration::from_millis(10));
    // The worker does not run for 10 ms. The hundred messages that become due in this time are then sent one after the
    // other.
    s.net.now += Duration::from_millis(10);
    let report = s.wait_report(ticket);
    assert_eq!((report.messages, report.failure), (300, None));
    let duration = s.net.now - begun;
    assert!(
        (Duration::from_micros(29_900)..Duration::from_millis(32)).contains(&duration),
        "{duration:?}"
    );
    let latency = report.latency.expect("round trips");
    assert_eq!(latency.len(), 300);
    // A hundred messages have waited for 0 to 10 ms, evenly distributed.
    let late = latency.count_between(1_000_000, 20_000_000);
    assert!((80..=95).contains(&late), "{late} of 300 are late");
    assert!(latency.value_at_quantile(0.5) < 200_000, "{}", latency.value_at_quantile(0.5));
}

/// The peer never answers, and the load is stopped after 10 ms. The wait of each due message is in the distribution,
/// whether the message was posted or not.
#[test]
fn open_loop_ended_in_a_stall_counts_due_messages() {
    let mut s = scene(ddp(), Service::Sink);
    let (every, phase) = (Duration::from_micros(10), Duration::ZERO);
    let kind = LoadKind::Echo { qn: QN };
    // The peer's Sink service does not answer the messages.
    let ticket = s.begin_load(Load {
        pace: Pace::Open { interval: every, phase },
        ..Load::closed(kind, 64, 4)
    });
    s.net.advance(Duration::from_millis(10));
    let stream = s.here;
    s.net.hosts[0].command(0, |_| Command::StopLoad { stream });
    s.run_turns(5);
    s.net.hosts[0].command(0, |_| Command::Close { stream, abort: true });
    let report = s.wait_report(ticket);
    assert_eq!((report.messages, report.failure), (0, Some(PostFailure::Flushed)));
    assert!((995..=1010).contains(&report.unfinished), "{}", report.unfinished);
    let latency = report.latency.expect("waits");
    assert_eq!(latency.len(), report.unfinished, "four messages are posted, the others are due");
    assert!((10_000_000..11_000_000).contains(&latency.max()), "{}", latency.max());
    // The due times are evenly distributed over the 10 ms.
    let half = latency.value_at_quantile(0.5);
    assert!((4_900_000..5_200_000).contains(&half), "{half}");
}

#[test]
fn aborted_closed_loop_records_only_completed_messages() {
    let mut s = scene(ddp(), Service::Sink);
    let ticket = s.load(LoadKind::Echo { qn: QN }, 64, u64::MAX, 4);
    s.run_turns(50);
    let (stream, abort) = (s.here, true);
    s.net.hosts[0].command(0, |_| Command::Close { stream, abort });
    let report = s.wait_report(ticket);
    assert_eq!((report.messages, report.unfinished), (0, 4));
    assert!(report.latency.expect("an empty histogram").is_empty());
}

#[test]
fn stale_pace_entry_does_not_advance_the_next_load() {
    let mut s = scene(ddp(), Service::Sink);
    let pace = Pace::Open { interval: Duration::from_micros(10), phase: Duration::ZERO };
    let write = Load::closed(LoadKind::Write(window(LEN as u64)), 100, 8);
    let stopped = s.begin_load(Load { pace, ..write });
    s.net.advance(Duration::from_millis(1));
    let stream = s.here;
    s.net.hosts[0].command(0, |_| Command::StopLoad { stream });
    let report = s.wait_report(stopped);
    assert!((90..=102).contains(&report.messages), "{}", report.messages);
    // A stale timer entry of the first load does not post messages of the next load.
    let slow = Pace::Open { interval: Duration::from_millis(1), phase: Duration::from_millis(1) };
    let begun = s.net.now;
    let ticket = s.begin_load(Load { pace: slow, count: 5, ..write });
    s.wait_report(ticket);
    assert!(s.net.now - begun >= Duration::from_millis(5), "{:?}", s.net.now - begun);
}

#[test]
fn timed_writes_measure_post_to_acknowledgement() {
    let mut s = scene(ddp(), Service::Sink);
    let write = Load::closed(LoadKind::Write(window(LEN as u64)), 64, 4);
    let ticket = s.begin_load(Load { timed: true, count: 100, ..write });
    assert_eq!(s.wait_report(ticket).latency.expect("times").len(), 100);
    assert!(s.run(LoadKind::Write(window(LEN as u64)), 64, 10, 4).latency.is_none());
}

#[test]
fn random_writes_reach_the_region_part_of_every_stag() {
    const STAGS: u32 = 16;
    let mut s = scene(ddp(), Service::Sink);
    let part = (LEN / STAGS as usize) as u64;
    for index in 1..STAGS {
        let entry = ddp::StagEntry {
            stag: Stag(REMOTE.0 + (index << 8)),
            pd: PD,
            stream: None,
            base_to: TaggedOffset(u64::from(index) * part),
            len: part,
            access: Access::REMOTE_WRITE,
            memory: s.remote.clone(),
            memory_offset: u64::from(index) * part,
        };
        let added = s.net.hosts[1].command(0, |ticket| Command::AddStag { entry, ticket });
        assert_eq!(s.net.wait_done(1, added), Ok(()));
    }
    s.local.write(0, &pattern(LEN));
    let order = Order::Random { stags: STAGS };
    let kind = LoadKind::Write(Window { order, ..window(LEN as u64) });
    s.run(kind, 64, 4000, 50);
    let (here, there) = (read_memory(&s.local), read_memory(&s.remote));
    for part in 0..STAGS as usize {
        let range = part * (LEN / STAGS as usize)..(part + 1) * (LEN / STAGS as usize);
        let hit = there[range.clone()].iter().filter(|&&byte| byte != 0).count();
        assert!(hit > range.len() / 2, "part {part}: {hit} bytes");
    }
    // Written bytes equal the bytes of the source at the same offsets.
    assert!(here.iter().zip(&there).all(|(a, b)| *b == 0 || a == b));
}
