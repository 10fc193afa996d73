//! Workers as real threads on simulated ports: start, sleep, wake-up and panic.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::api::{
    Command, Event, InterfaceConfig, Limits, PortAttachment, PortId, Ticket, WorkerHandle, WorkerId,
};
use crate::io::{BURST, Frame};
use crate::net::path::TxChecksum;
use crate::port::{ChecksumSite, RxChecksum};
use crate::steering::Steering;

struct NoFrame;

impl Frame for NoFrame {
    fn bytes(&self) -> &[u8] {
        &[]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }
    fn truncate(&mut self, _: usize) {}
    fn expand(&mut self, _: usize, _: usize) -> bool {
        false
    }
    fn trim(&mut self, _: usize, _: usize) {}
    fn hash(&self) -> Option<u32> {
        None
    }
    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
    }
    fn offload(&mut self, _: TxChecksum, _: usize, _: usize, _: bool) {}
}

/// A port without traffic. With `turns_until_panic`, its worker panics after this number of turns.
struct IdlePort {
    turns_until_panic: Option<u32>,
    fd: Option<std::os::fd::OwnedFd>,
}

impl PortIo for IdlePort {
    type Frame = NoFrame;

    fn receive(&mut self, _: Instant, _: &mut ArrayVec<NoFrame, BURST>) {
        match &mut self.turns_until_panic {
            Some(0) => panic!("out of order"),
            Some(turns) => *turns -= 1,
            None => {}
        }
    }
    fn allocate(&mut self, _: usize) -> Option<NoFrame> {
        None
    }
    fn free_tx_slots(&mut self) -> usize {
        1
    }
    fn send(&mut self, _: NoFrame) {}
    fn flush(&mut self) -> bool {
        true
    }
    fn can_wake(&self) -> bool {
        self.fd.is_some()
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(std::os::fd::AsFd::as_fd)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// A port at which a frame arrives each time the worker tries to sleep: after the wake-ups are armed, and before the
/// last check for work.
struct LatePort {
    /// Number of attempts to sleep.
    sleep_attempts: Arc<AtomicU32>,
    arrived: bool,
    fd: std::os::fd::OwnedFd,
}

impl PortIo for LatePort {
    type Frame = NoFrame;

    fn receive(&mut self, _: Instant, out: &mut ArrayVec<NoFrame, BURST>) {
        if std::mem::take(&mut self.arrived) {
            out.push(NoFrame);
        }
    }
    fn allocate(&mut self, _: usize) -> Option<NoFrame> {
        None
    }
    fn free_tx_slots(&mut self) -> usize {
        1
    }
    fn send(&mut self, _: NoFrame) {}
    fn flush(&mut self) -> bool {
        true
    }
    fn can_wake(&self) -> bool {
        true
    }
    fn arm(&mut self) {
        self.sleep_attempts.fetch_add(1, Ordering::Relaxed);
        self.arrived = true;
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&self.fd))
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

const ADAPTIVE: Idle = Idle::Adaptive { spin: Duration::ZERO };

fn config(workers: u16) -> DataplaneConfig {
    let ids: Vec<WorkerId> = (0..workers).map(WorkerId).collect();
    let worker = |&id: &WorkerId| WorkerConfig { id, core: None, idle: ADAPTIVE };
    DataplaneConfig {
        workers: ids.iter().map(worker).collect(),
        ports: vec![PortAttachment { workers: ids.clone() }],
        interfaces: Vec::new(),
        limits: Limits::default(),
        sctp_udp_port: None,
        ipsec: None,
        secret: [1; 32].into(),
    }
}

fn facts(workers: u16) -> PortProperties {
    let ids: Vec<WorkerId> = (0..workers).map(WorkerId).collect();
    PortProperties {
        mac: [2, 0, 0, 0, 0, 1],
        tx_checksum: TxChecksum::SOFTWARE,
        rx_checksum: ChecksumSite::Software,
        rx_sctp_checksum: ChecksumSite::Software,
        device_hash: false,
        steering: Steering::software(&ids),
        workers: ids,
    }
}

fn port(workers: u16, panics: Option<u32>) -> Vec<StartPort<IdlePort>> {
    let queue = |at| IdlePort {
        turns_until_panic: panics.filter(|_| at + 1 == workers),
        fd: Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
    };
    vec![StartPort { facts: facts(workers), queues: (0..workers).map(queue).collect() }]
}

fn no_registration(_: WorkerId) -> Result<Registration, String> {
    Ok(Box::new(()))
}

/// Returns the next event of any worker. Sleeps until there is one.
fn next_event(dataplane: &mut Dataplane) -> Event {
    loop {
        if let Some(event) = dataplane.workers.iter_mut().find_map(WorkerHandle::poll) {
            return event;
        }
        if dataplane.arm() {
            let fd = dataplane.events_fd();
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
        }
        dataplane.disarm();
    }
}

/// Waits until the worker has slept once more. On a busy machine, the next command may arrive before the worker sleeps
/// again.
fn wait_for_sleep(worker: &WorkerHandle) {
    let (before, begin) = (worker.counters().run.sleeps.get(), std::time::Instant::now());
    while worker.counters().run.sleeps.get() == before {
        assert!(begin.elapsed() < Duration::from_secs(30), "an idle worker does not sleep");
        std::thread::yield_now();
    }
}

#[test]
fn a_sleeping_worker_wakes_for_each_command() {
    let mut dataplane = start(&config(1), port(1, None), no_registration).unwrap();
    for n in 0..200 {
        wait_for_sleep(&dataplane.workers[0]);
        let ticket = Ticket(n);
        dataplane.workers[0].send(Command::ListNeighbours { ticket }).unwrap();
        assert!(
            matches!(next_event(&mut dataplane), Event::Neighbours { ticket: t, .. } if t == ticket)
        );
    }
    let mut last = None;
    dataplane.stop(|_, event| last = Some(event));
    assert!(matches!(last, Some(Event::Stopped)));
}

#[test]
fn frame_before_a_sleep_prevents_the_sleep() {
    let attempts = Arc::new(AtomicU32::new(0));
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let queues = vec![LatePort { sleep_attempts: attempts.clone(), arrived: false, fd }];
    let ports = vec![StartPort { facts: facts(1), queues }];
    let dataplane = start(&config(1), ports, no_registration).unwrap();
    let begin = std::time::Instant::now();
    while attempts.load(Ordering::Relaxed) < 100 {
        assert!(begin.elapsed() < Duration::from_secs(30), "the worker does not try to sleep");
        std::thread::yield_now();
    }
    assert_eq!(dataplane.workers[0].counters().run.sleeps.get(), 0);
}

#[test]
fn poll_time_follows_the_round_trip_time() {
    let (us, least) = (Duration::from_micros, Duration::from_micros(50));
    for (round_trip, expected) in [(None, 50), (Some(10), 50), (Some(80), 120), (Some(160), 240)] {
        assert_eq!(spin_time(least, round_trip.map(us), true), us(expected), "{round_trip:?}");
    }
    // Responses slower than `MAX_SPIN` are not polled for.
    assert_eq!(spin_time(least, Some(us(1_000)), true), least);
    assert_eq!(spin_time(least, Some(us(10)), false), SPIN_WITHOUT_WAKE);
}

#[test]
fn worker_panic_is_reported_and_other_workers_continue() {
    let mut dataplane = start(&config(2), port(2, Some(50)), no_registration).unwrap();
    let Event::Failed { worker, message } = next_event(&mut dataplane) else {
        panic!("no failure")
    };
    assert_eq!((worker, message.as_str()), (WorkerId(1), "out of order"));
    assert!(dataplane.workers[1].is_finished() && !dataplane.workers[0].is_finished());
    let ticket = Ticket(3);
    dataplane.workers[0].send(Command::ListNeighbours { ticket }).unwrap();
    assert!(matches!(next_event(&mut dataplane), Event::Neighbours { .. }));
    assert!(dataplane.workers[1].poll().is_none(), "reported once");
}

#[test]
fn failed_thread_registration_stops_started_workers() {
    let refuse = |_| Err("no more threads".to_owned());
    let refused = start(&config(1), port(1, None), refuse);
    assert!(
        matches!(refused, Err(StartError::Register { reason, .. }) if reason == "no more threads")
    );
}

#[test]
fn inconsistent_configurations_are_refused() {
    let refusal = |change: &dyn Fn(&mut DataplaneConfig)| {
        let mut config = config(2);
        change(&mut config);
        check_config(&config).map_err(|error| error.to_string())
    };
    assert_eq!(refusal(&|_| {}), Ok(()));
    let attached = |workers: &[u16]| {
        let workers = workers.iter().map(|&w| WorkerId(w)).collect();
        move |config: &mut DataplaneConfig| config.ports = vec![PortAttachment { workers }]
    };
    let error = |workers: &[u16]| {
        let mut config = config(2);
        attached(workers)(&mut config);
        check_config(&config).unwrap_err().to_string()
    };
    assert_eq!(error(&[]), "port 0: no worker polls it");
    assert_eq!(error(&[0, 0]), "port 0: a worker is twice in its list");
    assert_eq!(error(&[2]), "port 0: a worker in its list does not exist");
    assert_eq!(refusal(&|c| c.workers.clear()), Err("at least one worker is needed".into()));
    assert_eq!(
        refusal(&|c| c.workers.swap(0, 1)),
        Err("worker 1 is not at its index in the list".into())
    );
    let interface = |port| InterfaceConfig {
        ip: Default::default(),
        local_ports: Default::default(),
        host: false,
        name: "lan".into(),
        port: PortId(port),
        vlan: None,
        addresses: Vec::new(),
        routes: Vec::new(),
        mtu: 1500,
    };
    let nowhere = refusal(&|c| c.interfaces = vec![interface(1)]);
    assert_eq!(nowhere, Err("interface lan: there is no such port".into()));
    let twice = refusal(&|c| c.interfaces = vec![interface(0), interface(0)]);
    assert_eq!(twice, Err("interface lan: another interface has the same port and VLAN".into()));
}
