//! Notifications and the watchdog, with a simulated service manager.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dataplane::Counters;

use super::watchdog::{Feeder, Pulse, Watchdog, WatchedAppliance, interval};
use super::*;
use crate::waker::Waker;

struct Manager {
    socket: UnixDatagram,
    dir: tempfile::TempDir,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Manager { socket, dir }
    }

    fn service(&self, appliances: usize) -> Service {
        let path = self.dir.path().join("notify");
        Service::new(Socket::open_named(Some(path.as_os_str())), appliances)
    }

    fn received(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let next = || {
            let len = self.socket.recv(&mut buffer).ok()?;
            Some(String::from_utf8(buffer[..len].to_vec()).unwrap())
        };
        std::iter::from_fn(next).collect()
    }
}

fn serving_state(streams: usize) -> State {
    State { stage: Stage::Serving, listeners: 2, streams, ..State::default() }
}

#[test]
fn ready_is_sent_when_all_appliances_serve() {
    let (manager, now) = (Manager::new(), Instant::now());
    let service = manager.service(2);
    assert_eq!(manager.received(), ["STATUS=starting"]);
    service.update(1, serving_state(0), now);
    assert_eq!(manager.received(), [""; 0]);
    service.update(0, serving_state(1), now);
    assert_eq!(manager.received(), ["READY=1\nSTATUS=serving 4 listeners, 1 stream"]);
}

#[test]
fn status_numbers_are_sent_each_second_and_changes_at_once() {
    let (manager, now) = (Manager::new(), Instant::now());
    let service = manager.service(1);
    service.update(0, serving_state(0), now);
    manager.received();
    service.update(0, serving_state(3), now);
    assert_eq!(manager.received(), [""; 0]);
    service.update(0, serving_state(3), now + STATUS_INTERVAL);
    assert_eq!(manager.received(), ["STATUS=serving 2 listeners, 3 streams"]);
    let draining = State { stage: Stage::Draining, ..serving_state(3) };
    service.update(0, draining, now + STATUS_INTERVAL);
    assert_eq!(manager.received(), ["STATUS=draining: 3 streams left"]);
}

#[test]
fn reload_is_sent_with_its_time_and_its_end() {
    let (manager, now) = (Manager::new(), Instant::now());
    let service = manager.service(2);
    service.update(0, serving_state(0), now);
    service.update(1, serving_state(0), now);
    manager.received();
    service.update(0, State { reloads: 1, reloading: true, ..serving_state(0) }, now);
    let [message] = &manager.received()[..] else { panic!() };
    let time = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    let (time, status) = time.split_once('\n').unwrap();
    assert!(time.parse::<u64>().unwrap() > 0);
    assert_eq!(status, "STATUS=reloading");
    // The second appliance reloads completely between two updates; the first is still reloading.
    service.update(1, State { reloads: 1, ..serving_state(0) }, now);
    assert_eq!(manager.received(), [""; 0]);
    service.update(0, State { reloads: 1, ..serving_state(0) }, now);
    assert_eq!(manager.received(), ["READY=1\nSTATUS=serving 4 listeners, 0 streams"]);
    // A reload that ends at once, such as a refused reload, must also be announced: the manager waits for it.
    service.update(0, State { reloads: 2, ..serving_state(0) }, now);
    let got = manager.received();
    assert!(got[0].starts_with("RELOADING=1\n") && got[1].starts_with("READY=1\n"), "{got:?}");
}

#[test]
fn stopping_is_sent_once_when_all_appliances_end() {
    let (manager, now) = (Manager::new(), Instant::now());
    let service = manager.service(2);
    let stage = |stage, streams| State { stage, ..serving_state(streams) };
    service.update(0, serving_state(1), now);
    service.update(1, serving_state(1), now);
    service.update(0, stage(Stage::Ending, 1), now);
    manager.received();
    service.update(1, stage(Stage::Ending, 1), now);
    assert_eq!(manager.received(), ["STOPPING=1\nSTATUS=draining before the end: 2 streams left"]);
    service.update(0, stage(Stage::Stopping, 0), now);
    service.update(1, stage(Stage::Stopping, 0), now);
    let got = manager.received();
    assert_eq!(got.last().unwrap(), "STATUS=stopping");
    assert!(got.iter().all(|message| !message.contains("STOPPING")), "{got:?}");
}

#[test]
fn abstract_socket_is_used_and_invalid_name_is_ignored() {
    let name = format!("ddpd-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    let socket = Socket::open_named(Some(format!("@{name}").as_ref()));
    assert_eq!(socket.send("READY=1"), SendOutcome::Done);
    let mut buffer = [0; 64];
    let len = manager.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"READY=1");
    for wrong in ["relative", "/none/such/socket", "@"] {
        let service = Service::new(Socket::open_named(Some(wrong.as_ref())), 1);
        service.update(0, serving_state(0), Instant::now());
    }
    assert!(!Socket::open_named(None).is_present());
}

#[test]
fn full_manager_socket_queues_the_change() {
    let (manager, now) = (Manager::new(), Instant::now());
    let path = manager.dir.path().join("notify");
    let filler = Socket::open_named(Some(path.as_os_str()));
    let service = manager.service(1);
    while filler.send("x") == SendOutcome::Done {}
    service.update(0, serving_state(0), now);
    assert!(manager.received().iter().all(|message| !message.contains("READY")));
    service.update(0, serving_state(0), now + STATUS_INTERVAL);
    assert_eq!(manager.received(), ["READY=1\nSTATUS=serving 2 listeners, 0 streams"]);
}

#[test]
fn watchdog_interval_of_another_process_is_ignored() {
    let usec = |usec, pid| interval(usec, pid, 7);
    let second = Ok(Some(Duration::from_secs(1)));
    assert_eq!(usec(None, Some("7")), Ok(None));
    assert_eq!(usec(Some("1000000"), None), second);
    assert_eq!(usec(Some("1000000"), Some("7")), second);
    assert_eq!(usec(Some("1000000"), Some("8")), Ok(None));
    assert_eq!(usec(Some("0"), None), Ok(None));
    assert!(usec(Some("soon"), None).unwrap_err().contains("WATCHDOG_USEC"));
}

fn watched_appliance(workers: usize) -> WatchedAppliance {
    let workers = (0..workers).map(|_| Arc::new(Counters::default())).collect();
    let (appliance, control) = ("a".into(), Arc::new(Pulse::default()));
    WatchedAppliance { appliance, control, waker: Waker::new().unwrap(), workers }
}

#[test]
fn stuck_thread_is_named() {
    let (all, start) = (watched_appliance(2), Instant::now());
    let mut watchdog = Watchdog::new(vec![all.clone()], start);
    let at = |seconds| start + Duration::from_secs(seconds);
    let turn = |workers: &[usize]| workers.iter().for_each(|&at| all.workers[at].run.turns.add(1));
    let words = |stuck: Vec<watchdog::Stuck>| -> Vec<String> {
        stuck.iter().map(ToString::to_string).collect()
    };
    all.control.count_turn(false);
    turn(&[0, 1]);
    assert_eq!(watchdog.check(at(5)), []);
    all.control.count_turn(false);
    turn(&[0]);
    let stuck = words(watchdog.check(at(10)));
    let sentence = "appliance a: worker 1 has made no progress for 5.0 s; its last turn was 1";
    assert_eq!(stuck, [sentence]);
    // The failed check did not feed the watchdog, so the other threads' turns before the check still count.
    turn(&[1]);
    assert_eq!(watchdog.check(at(11)), []);
    turn(&[0, 1]);
    let stuck = words(watchdog.check(at(16)));
    assert_eq!(stuck.len(), 1);
    assert!(stuck[0].contains("the control thread has made no progress for 6.0 s"), "{stuck:?}");
    // Workers that are stopping, and a control thread that has ended, are not checked.
    all.control.count_turn(true);
    assert_eq!(watchdog.check(at(20)), []);
    all.control.mark_ended();
    assert_eq!(watchdog.check(at(30)), []);
}

#[test]
fn watchdog_is_fed_unless_a_thread_is_stuck() {
    let manager = Manager::new();
    let (all, service) = (watched_appliance(2), manager.service(1));
    manager.received();
    let (report, reported) = channel();
    let report = move |stuck: &watchdog::Stuck| report.send(stuck.to_string()).unwrap();
    let interval = Duration::from_millis(40);
    let turn = |workers: &[usize]| {
        all.control.count_turn(false);
        workers.iter().for_each(|&at| all.workers[at].run.turns.add(1));
    };
    let feeder = Feeder::start(service, vec![all.clone()], interval, report).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let mut fed = Vec::new();
    while fed.is_empty() && Instant::now() < until {
        turn(&[0, 1]);
        std::thread::sleep(Duration::from_millis(1));
        fed = manager.received();
    }
    assert!(fed.iter().all(|message| message == "WATCHDOG=1") && !fed.is_empty(), "{fed:?}");
    let mut named = None;
    while named.is_none() && Instant::now() < until {
        turn(&[0]);
        std::thread::sleep(Duration::from_millis(1));
        named = reported.try_recv().ok();
    }
    assert!(named.unwrap().contains("worker 1 has made no progress"));
    manager.received();
    for _ in 0..100 {
        turn(&[0]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(manager.received(), [""; 0], "the watchdog is fed although a worker is stuck");
    assert!(reported.try_recv().is_err(), "one line");
    drop(feeder);
}
