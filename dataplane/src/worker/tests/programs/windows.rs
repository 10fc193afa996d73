//! Memory windows: bindings, the peer's access through them, invalidation by either side, and refused requests.

use ddp::{PdId, Stag};
use verbs_layout::work::{Remote, WindowAccess, WindowBind};

use super::hostile::{failed, program_event};
use super::*;
use crate::api::{CommandError, ProgramEvent, QueuePairError, WindowChange, WindowId, WindowKind};

const WINDOW: WindowId = WindowId(0x77);
pub(super) const ALL: WindowAccess =
    WindowAccess { remote_write: true, remote_read: true, remote_atomic: true, zero_based: false };

impl Programs {
    pub(super) fn change_window(
        &mut self,
        host: usize,
        change: WindowChange,
    ) -> Result<(), CommandError> {
        let change = |ticket| Command::Window { program: PROGRAM, change, ticket };
        let ticket = self.net.hosts[host].command(0, change);
        self.net.wait_done(host, ticket)
    }

    pub(super) fn add_window(&mut self, host: usize, window: WindowId, kind: WindowKind) {
        self.change_window(host, WindowChange::Add { window, pd: PD, kind }).unwrap();
    }

    fn check_region(&mut self, host: usize, stag: Stag) -> Result<(), CommandError> {
        let ticket =
            self.net.hosts[host].command(0, |ticket| Command::CheckRegion { stag, ticket });
        self.net.wait_done(host, ticket)
    }

    /// Binds the window to 4096 bytes at offset 8192 of the region of `b`, and waits for the completion.
    fn bind(&mut self, key: u8, access: WindowAccess) {
        let operation = Operation::BindWindow(binding(&self.b, key, access));
        self.b.post(50, operation);
        assert_eq!(self.completion(1), sent(50, Opcode::BindWindow, 0));
    }

    /// Writes 8 bytes of `a` to the peer's memory. Returns true if the peer has placed them.
    fn is_writable(&mut self, stag: Stag, to: u64) -> bool {
        let remote = Remote { stag: stag.0, to };
        self.a.post(60, Operation::Write { remote, payload: inline(b"8 bytes!") });
        // A Read is answered after the Write was placed.
        let sinks = self.a.list(&[(0, 8)]);
        let remote = self.b.remote(0);
        self.a.post(61, Operation::Read { remote, sinks });
        self.completions(0, 2)[1].status == Status::Success
    }
}

fn binding(program: &TestProgram, key: u8, access: WindowAccess) -> WindowBind {
    WindowBind {
        window: WINDOW.stag(key).0,
        region: program.stag.0,
        address: ADDRESS + 8192,
        len: 4096,
        access,
    }
}

fn bind_of(event: ProgramEvent) -> (u32, WindowBind) {
    let ProgramEvent::BindWindow { id: _, sequence, bind } = event else { panic!("{event:?}") };
    (sequence, bind)
}

#[test]
fn window_gives_the_peer_its_part_of_the_region() {
    for zero_based in [false, true] {
        let mut programs = Programs::connected(PairPlan::default());
        programs.add_window(1, WINDOW, WindowKind::Two);
        programs.bind(9, WindowAccess { zero_based, ..ALL });
        let base = if zero_based { 0 } else { ADDRESS + 8192 };
        assert!(programs.is_writable(WINDOW.stag(9), base + 4088));
        assert_eq!(programs.b.read(8192 + 4088, 8), b"8 bytes!");
        let (stag, remote) = (WINDOW.stag(9).0, |to| Remote { stag: WINDOW.stag(9).0, to });
        let sinks = programs.a.list(&[(100, 8)]);
        programs.a.post(1, Operation::Read { remote: remote(base + 4088), sinks });
        let result = AtomicResult { address: ADDRESS + 200, lkey: programs.a.stag.0 };
        programs.a.post(2, Operation::FetchAdd { remote: remote(base), add: 5, result });
        let expected = [sent(1, Opcode::Read, 8), sent(2, Opcode::FetchAdd, 8)];
        assert_eq!(programs.completions(0, 2), expected);
        assert_eq!(programs.a.read(100, 8), b"8 bytes!");
        assert_eq!(programs.b.read(8192, 8), 5u64.to_ne_bytes());
        let outside = if zero_based { 4096 } else { ADDRESS };
        assert!(!programs.is_writable(Stag(stag), outside), "outside of the window");
    }
}

#[test]
fn window_without_the_right_refuses_the_peer() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(1, WINDOW, WindowKind::Two);
    programs.bind(9, WindowAccess { remote_write: false, ..ALL });
    assert!(!programs.is_writable(WINDOW.stag(9), ADDRESS + 8192));
    assert_eq!(programs.b.read(8192, 8), [0; 8]);
}

// RFC 5040 §5.3, §8.1.1: an invalidated STag gives no access.
#[test]
fn local_invalidation_ends_the_window_in_its_place() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(1, WINDOW, WindowKind::Two);
    programs.bind(9, ALL);
    // The side that accepts may send after the first message of the peer (RFC 5044 §7.1.2).
    assert!(programs.is_writable(WINDOW.stag(9), ADDRESS + 8192));
    programs.a.receive(7, &[(0, 64)]);
    // The invalidation completes after the Read that was posted before it.
    let Programs { a, b, .. } = &mut programs;
    let sinks = b.list(&[(300_000, 100_000)]);
    b.post(1, Operation::Read { remote: a.remote(0), sinks });
    b.post(2, Operation::LocalInvalidate { stag: WINDOW.stag(9).0 });
    b.post(3, Operation::Send { payload: inline(b"x"), solicited: false });
    let expected = [
        sent(1, Opcode::Read, 100_000),
        sent(2, Opcode::LocalInvalidate, 0),
        sent(3, Opcode::Send, 0),
    ];
    assert_eq!(programs.completions(1, 3), expected);
    assert_eq!(programs.completion(0), received(7, 1, false, Carried::Nothing));
    // The bind counts as a completed request, too.
    assert_eq!(programs.net.hosts[1].count("program_sends_completed"), 4);
    // The window can be bound again, with another key.
    programs.bind(10, ALL);
    assert!(programs.is_writable(WINDOW.stag(10), ADDRESS + 8192));
    assert!(!programs.is_writable(WINDOW.stag(9), ADDRESS + 8192));
}

#[test]
fn peer_invalidates_the_window_of_its_queue_pair() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(1, WINDOW, WindowKind::Two);
    programs.bind(9, ALL);
    for key in [9, 10] {
        let (stag, region) = (WINDOW.stag(key).0, programs.b.stag);
        assert_eq!(programs.check_region(1, region), Err(CommandError::WindowsBound));
        programs.b.receive(10, &[(0, 64)]);
        let payload = inline(b"bye");
        programs.a.post(2, Operation::SendInvalidate { payload, solicited: false, stag });
        assert_eq!(programs.completion(1), received(10, 3, false, Carried::Invalidated(stag)));
        programs.completion(0);
        assert_eq!(programs.check_region(1, region), Ok(()));
        programs.bind(key + 1, ALL);
    }
}

#[test]
fn peer_cannot_invalidate_a_region_or_a_type_1_window() {
    for is_window in [false, true] {
        let mut programs = Programs::connected(PairPlan::default());
        programs.add_window(1, WINDOW, WindowKind::One);
        let bind = binding(&programs.b, 4, ALL);
        programs.change_window(1, WindowChange::Bind(bind)).unwrap();
        let stag = if is_window { WINDOW.stag(4).0 } else { programs.b.stag.0 };
        programs.b.receive(10, &[(0, 64)]);
        let payload = inline(b"bye");
        programs.a.post(2, Operation::SendInvalidate { payload, solicited: false, stag });
        assert_eq!(programs.completion(1).status, Status::Flushed);
    }
}

#[test]
fn invalidation_ends_a_read_in_progress() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(1, WINDOW, WindowKind::Two);
    let bind = WindowBind { len: 500_000, ..binding(&programs.b, 9, ALL) };
    programs.b.post(1, Operation::BindWindow(bind));
    assert_eq!(programs.completion(1), sent(1, Opcode::BindWindow, 0));
    programs.b.write(8192, &[7; 500_000]);
    let sinks = programs.a.list(&[(0, 500_000)]);
    let remote = Remote { stag: bind.window, to: bind.address };
    programs.a.post(1, Operation::Read { remote, sinks });
    // Waits until a part of the response is placed.
    programs.net.run_until("a part of the response", |_| {
        let mut byte = [0];
        programs.a.memory.read(0, &mut byte);
        (byte == [7]).then_some(())
    });
    programs.b.post(2, Operation::LocalInvalidate { stag: bind.window });
    assert_eq!(programs.completion(1), sent(2, Opcode::LocalInvalidate, 0));
    assert_eq!(programs.completion(0).status, Status::RemoteAccess);
}

#[test]
fn refused_requests_complete_with_their_status_and_end_the_pair() {
    const FOREIGN: Stag = Stag(0x9000);
    const OTHER_DOMAIN: WindowId = WindowId(0x78);
    type Change = fn(&mut WindowBind);
    let binds: [(&str, Change); 9] = [
        ("no such window", |bind| bind.window = WindowId(0x79).stag(1).0),
        ("a window of another domain", |bind| bind.window = OTHER_DOMAIN.stag(1).0),
        ("a bound window", |bind| bind.window = WindowId(0x7a).stag(2).0),
        ("0 bytes of type 2", |bind| bind.len = 0),
        ("an unknown region", |bind| bind.region += 100),
        ("a region of another domain", |bind| bind.region = FOREIGN.0),
        ("another window as region", |bind| bind.region = WindowId(0x7a).stag(1).0),
        ("before the region", |bind| bind.address = ADDRESS - 1),
        ("across the end", |bind| bind.address = ADDRESS + MEMORY - 4095),
    ];
    for (what, change) in binds {
        let mut programs = windows_for_refusals();
        let mut bind = binding(&programs.a, 1, ALL);
        change(&mut bind);
        programs.a.post(1, Operation::BindWindow(bind));
        programs.a.post(2, Operation::Send { payload: inline(b"late"), solicited: false });
        let statuses = programs.completions(0, 2).into_iter().map(|c| (c.wr_id, c.status));
        let expected = [(1, Status::WindowBind), (2, Status::Flushed)];
        assert_eq!(statuses.collect::<Vec<_>>(), expected, "{what}");
        assert_eq!(program_event(&mut programs), failed(QueuePairError::Window), "{what}");
    }
    let invalidations = [
        ("an unknown STag", Stag(0x1234_5678), Status::LocalProtection),
        ("a region of another domain", FOREIGN, Status::LocalProtection),
        ("a window of another domain", OTHER_DOMAIN.stag(1), Status::LocalProtection),
        ("a region", Stag(0x5000), Status::WindowBind),
        ("an unbound window", WINDOW.stag(1), Status::WindowBind),
        ("another key", WindowId(0x7a).stag(2), Status::WindowBind),
    ];
    for (what, Stag(stag), status) in invalidations {
        let mut programs = windows_for_refusals();
        programs.a.post(1, Operation::LocalInvalidate { stag });
        assert_eq!(programs.completion(0).status, status, "{what}");
        let reason = match status {
            Status::LocalProtection => QueuePairError::SendProtection,
            _ => QueuePairError::Window,
        };
        assert_eq!(program_event(&mut programs), failed(reason), "{what}");
    }

    /// Adds to host 0 an unbound window, a window of another domain, a bound window, and a region of another domain.
    fn windows_for_refusals() -> Programs {
        let mut programs = Programs::connected(PairPlan::default());
        programs.add_foreign_region();
        programs.add_window(0, WINDOW, WindowKind::Two);
        let (window, pd, kind) = (OTHER_DOMAIN, PdId(PD.0 + 1), WindowKind::Two);
        programs.change_window(0, WindowChange::Add { window, pd, kind }).unwrap();
        programs.add_window(0, WindowId(0x7a), WindowKind::Two);
        let window = WindowId(0x7a).stag(1).0;
        let bind = WindowBind { window, ..binding(&programs.a, 0, ALL) };
        programs.a.post(0, Operation::BindWindow(bind));
        assert_eq!(programs.completion(0), sent(0, Opcode::BindWindow, 0));
        programs
    }
}

#[test]
fn read_only_region_gives_no_rights_to_write_through_a_window() {
    for access in [
        WindowAccess { remote_write: true, ..WindowAccess::default() },
        WindowAccess { remote_atomic: true, ..WindowAccess::default() },
        WindowAccess { remote_read: true, ..WindowAccess::default() },
    ] {
        let mut programs = Programs::connected(PairPlan::default());
        register(&mut programs.net, 0, Stag(0x6000), false);
        programs.add_window(0, WINDOW, WindowKind::Two);
        let bind = WindowBind { region: 0x6000, ..binding(&programs.a, 1, access) };
        programs.a.post(1, Operation::BindWindow(bind));
        let expected = if access.remote_read { Status::Success } else { Status::WindowBind };
        assert_eq!(programs.completion(0).status, expected);
    }
}

#[test]
fn stag_of_a_window_is_refused_as_lkey() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(1, WINDOW, WindowKind::Two);
    programs.bind(9, ALL);
    let sge = verbs_layout::work::Sge { lkey: WINDOW.stag(9).0, ..programs.b.sge(8192, 8) };
    let payload = verbs_layout::work::Payload::Gather(SgeList::new(&[sge]).unwrap());
    programs.b.post(1, Operation::Send { payload, solicited: false });
    assert_eq!(programs.completion(1).status, Status::LocalProtection);
}

#[test]
fn type_1_window_is_bound_by_all_workers_before_later_requests() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(0, WINDOW, WindowKind::One);
    programs.b.receive(9, &[(0, 64)]);
    let bind = binding(&programs.a, 1, ALL);
    programs.a.post(1, Operation::BindWindow(bind));
    programs.a.post(2, Operation::Send { payload: inline(b"x"), solicited: false });
    let (sequence, requested) = bind_of(program_event(&mut programs));
    assert_eq!(requested, bind);
    programs.net.run_until_idle();
    assert_eq!((programs.a.poll(), programs.b.poll()), (None, None), "the queue waits");
    programs.change_window(0, WindowChange::Bind(bind)).unwrap();
    let answer = |sequence| {
        let id = crate::api::QueuePairId { program: PROGRAM, number: 3 };
        Command::WindowBound { id, sequence, is_bound: true }
    };
    programs.net.hosts[0].command(0, |_| answer(sequence + 1));
    programs.net.run_until_idle();
    assert_eq!(programs.a.poll(), None, "the answer to another request is ignored");
    programs.net.hosts[0].command(0, |_| answer(sequence));
    let expected = [sent(1, Opcode::BindWindow, 0), sent(2, Opcode::Send, 0)];
    assert_eq!(programs.completions(0, 2), expected);
    assert_eq!(programs.completion(1), received(9, 1, false, Carried::Nothing));
    // A further binding replaces the first binding. A binding of 0 bytes leaves the window unbound.
    let entry = |programs: &Programs, key| {
        let tables = &programs.net.hosts[0].cores[0].env.tables;
        tables.stag(WINDOW.stag(key)).map(|entry| (entry.base_to.0, entry.len))
    };
    assert_eq!(entry(&programs, 1), Some((ADDRESS + 8192, 4096)));
    let again = WindowBind { window: WINDOW.stag(2).0, len: 8, ..bind };
    programs.change_window(0, WindowChange::Bind(again)).unwrap();
    assert_eq!((entry(&programs, 1), entry(&programs, 2)), (None, Some((ADDRESS + 8192, 8))));
    let nothing = WindowBind { len: 0, ..again };
    programs.change_window(0, WindowChange::Bind(nothing)).unwrap();
    assert_eq!(entry(&programs, 2), None);
    let region = programs.a.stag;
    assert_eq!(programs.check_region(0, region), Ok(()));
}

#[test]
fn refused_binding_of_a_type_1_window_ends_the_pair() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(0, WINDOW, WindowKind::One);
    let bind = binding(&programs.a, 1, ALL);
    programs.a.post(1, Operation::BindWindow(bind));
    let (sequence, _) = bind_of(program_event(&mut programs));
    let id = crate::api::QueuePairId { program: PROGRAM, number: 3 };
    let answer = Command::WindowBound { id, sequence, is_bound: false };
    programs.net.hosts[0].command(0, |_| answer);
    assert_eq!(programs.completion(0).status, Status::WindowBind);
    assert_eq!(program_event(&mut programs), failed(QueuePairError::Window));
    programs.a.post(2, Operation::Send { payload: inline(b"x"), solicited: false });
    assert_eq!(programs.completion(0).status, Status::Flushed);
}

#[test]
fn windows_end_with_their_region_pair_and_program() {
    type End = fn(&mut Programs) -> Box<dyn FnOnce(crate::api::Ticket) -> Command>;
    let ends: [(&str, End); 4] = [
        ("region", |programs| {
            let (stag, removal) = (programs.b.stag, SourceRemoval::Wait);
            Box::new(move |ticket| Command::RemoveStag { stag, removal, ticket })
        }),
        ("pair", |programs| {
            let id = programs.b.id();
            Box::new(move |ticket| Command::RemoveQueuePair { id, ticket })
        }),
        ("program", |_| Box::new(|ticket| Command::RemoveProgram { program: PROGRAM, ticket })),
        ("window", |_| {
            let change = WindowChange::Remove { window: WINDOW };
            Box::new(move |ticket| Command::Window { program: PROGRAM, change, ticket })
        }),
    ];
    for (what, end) in ends {
        let mut programs = Programs::connected(PairPlan::default());
        programs.add_window(1, WINDOW, WindowKind::Two);
        programs.bind(9, ALL);
        let command = end(&mut programs);
        let ticket = programs.net.hosts[1].command(0, command);
        assert_eq!(programs.net.wait_done(1, ticket), Ok(()), "{what}");
        let tables = &programs.net.hosts[1].cores[0].env.tables;
        assert!(tables.stag(WINDOW.stag(9)).is_none(), "{what}");
        if what == "region" {
            assert!(programs.b.memory.is_unique(), "no window has a handle");
        }
        let region = programs.b.stag;
        assert_eq!(programs.check_region(1, region), Ok(()), "{what}");
    }
    // The end of the stream also unbinds the window.
    let mut programs = Programs::connected(PairPlan::default());
    programs.add_window(1, WINDOW, WindowKind::Two);
    programs.bind(9, ALL);
    let stream = programs.b_stream();
    programs.net.hosts[1].command(0, |_| Command::Close { stream, abort: true });
    programs.net.run_until_idle();
    assert!(&programs.net.hosts[1].cores[0].env.tables.stag(WINDOW.stag(9)).is_none());
}
