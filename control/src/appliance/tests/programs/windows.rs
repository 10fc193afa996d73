//! Memory windows: allocation, type 1 bindings at all workers, and regions with bound windows.

use dataplane::{ProgramEvent as Requested, QueuePairId, WindowId};
use ddp::Stag;
use verbs_layout::work::WindowBind;
use verbs_session::message::WindowKind;

use super::*;

fn allocate(pd: u32, kind: WindowKind) -> Call {
    Call::AllocateWindow { pd, kind }
}

/// Reports that a QP requests to bind a window, and lets the workers answer.
fn request_bind(rig: &mut Rig, id: QueuePairId, sequence: u32, bind: WindowBind) {
    rig.bench.event(Event::Program(Requested::BindWindow { id, sequence, bind }));
    rig.settle();
}

#[test]
fn windows_are_allocated_at_all_workers_and_count_as_regions() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let region = client.create(&mut rig, register(pd, LOCAL_ACCESS));
    // `memory_regions` counts each part of a region: `register` makes two parts, and two windows reach the limit of 4.
    let first = client.create(&mut rig, allocate(pd, WindowKind::One));
    let second = client.create(&mut rig, allocate(pd, WindowKind::Two));
    assert_eq!((first & 0xff, second & 0xff), (0, 0));
    assert_ne!(first, second);
    assert_eq!(rig.windows().len(), 2 * WORKERS);
    assert_eq!(client.refused(&mut rig, allocate(pd, WindowKind::Two)), RefusalKind::Limit);
    assert_eq!(client.refused(&mut rig, Call::RemovePd { pd }), RefusalKind::InUse);
    // The key (low 8 bits of the STag) does not matter: any key identifies the window.
    let remove = Call::DeallocateWindow { stag: second | 7 };
    assert_eq!(client.call(&mut rig, remove.clone()), Ok(Answer::Done));
    assert_eq!(client.refused(&mut rig, remove), RefusalKind::NotFound);
    assert_eq!(client.refused(&mut rig, allocate(9, WindowKind::Two)), RefusalKind::NotFound);
    let other = Call::DeallocateWindow { stag: region };
    assert_eq!(client.refused(&mut rig, other), RefusalKind::NotFound);
    rig.refuse_next("Window");
    assert_eq!(client.refused(&mut rig, allocate(pd, WindowKind::Two)), RefusalKind::NoMemory);
    rig.settle();
    assert_eq!(rig.windows().len(), WORKERS, "the first one");
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn region_with_bound_windows_is_not_deregistered() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.connect(&mut rig, 5);
    let id = QueuePairId { program: client.id, number: pair };
    let stag = client.create(&mut rig, register(0, LOCAL_ACCESS));
    let window = client.create(&mut rig, allocate(0, WindowKind::One));
    let bind = WindowBind {
        window: window | 3,
        region: stag,
        address: 0,
        len: 1,
        access: Default::default(),
    };
    request_bind(&mut rig, id, 8, bind);
    assert_eq!(std::mem::take(&mut rig.bound), [(id, 8, true)]);
    assert_eq!(rig.windows(), vec![(WindowId::of(Stag(window)), Some(bind)); WORKERS]);
    let remove = Call::DeregisterMemory { stag };
    assert_eq!(client.refused(&mut rig, remove.clone()), RefusalKind::InUse);
    // A second removal is refused while the first is in progress.
    let first = client.send(&rig, remove.clone());
    let second = client.send(&rig, remove.clone());
    rig.settle();
    let kinds = [first, second].map(|id| client.reply(id).unwrap().unwrap_err().kind);
    assert_eq!(kinds, [RefusalKind::InUse, RefusalKind::NotFound]);
    client.call(&mut rig, Call::DeallocateWindow { stag: window }).unwrap();
    assert_eq!(client.call(&mut rig, remove), Ok(Answer::Done));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn bindings_that_cannot_be_performed_are_answered() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.connect(&mut rig, 5);
    let id = QueuePairId { program: client.id, number: pair };
    let stag = client.create(&mut rig, register(0, LOCAL_ACCESS));
    let [one, two] =
        [WindowKind::One, WindowKind::Two].map(|kind| client.create(&mut rig, allocate(0, kind)));
    let bind = |window| WindowBind {
        window,
        region: stag,
        address: 0,
        len: 1,
        access: Default::default(),
    };
    for window in [two, stag] {
        request_bind(&mut rig, id, 1, bind(window));
        assert_eq!(std::mem::take(&mut rig.bound), [(id, 1, false)]);
    }
    rig.refuse_next("Window");
    request_bind(&mut rig, id, 2, bind(one));
    assert_eq!(std::mem::take(&mut rig.bound), [(id, 2, false)]);
    // Requests of a QP or program that does not exist are not answered.
    request_bind(&mut rig, QueuePairId { number: 2, ..id }, 3, bind(two));
    request_bind(&mut rig, QueuePairId { program: ProgramId(9), ..id }, 3, bind(two));
    assert!(rig.bound.is_empty());
    client.hang_up(&mut rig);
    request_bind(&mut rig, id, 4, bind(one));
    assert!(rig.bound.is_empty());
    rig.assert_empty();
}

#[test]
fn windows_end_with_their_program_at_any_step() {
    for settles in [false, true] {
        let mut rig = Rig::new(PROGRAMS);
        let mut client = Client::attach(&mut rig, 1);
        let pair = client.connect(&mut rig, 5);
        let id = QueuePairId { program: client.id, number: pair };
        let stag = client.create(&mut rig, register(0, LOCAL_ACCESS));
        let window = client.create(&mut rig, allocate(0, WindowKind::One));
        client.send(&rig, allocate(0, WindowKind::Two));
        let (len, address) = (1, 0);
        let bind = WindowBind { window, region: stag, address, len, access: Default::default() };
        rig.bench.event(Event::Program(Requested::BindWindow { id, sequence: 1, bind }));
        client.send(&rig, Call::DeregisterMemory { stag });
        client.send(&rig, Call::DeallocateWindow { stag: window });
        if settles {
            rig.settle();
        }
        client.hang_up(&mut rig);
        rig.assert_empty();
    }
}
