//! Shared receive queues: creation, use by QPs, the limit, removal and failures.

use dataplane::{ProgramEvent as Reported, Receives, SharedReceivesError};
use verbs_layout::ring::RingError;

use super::*;

fn create(pd: u32, max_receives: u32) -> Call {
    Call::CreateSharedReceiveQueue { pd, max_receives }
}

fn pair_on(pd: u32, queue: u32, shared: u32) -> Call {
    let mut call = queue_pair(pd, queue);
    if let Call::CreateQueuePair { shared_receives, .. } = &mut call {
        *shared_receives = Some(shared);
    }
    call
}

#[test]
fn queue_pairs_share_a_receive_queue_that_outlives_them() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let queue = client.create(&mut rig, completion_queue());
    let id = client.send(&rig, create(pd, 10));
    rig.settle();
    let (answer, fds) = client.reply_with_descriptors(id).unwrap();
    let Ok(Answer::SharedReceiveQueue { queue: shared, receives }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((receives.offset, receives.capacity, fds.len()), (128, 32, 1));
    assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_size, 128 + 256 + 32 * 64);
    for stream in [5, 6] {
        let answer = client.call(&mut rig, pair_on(pd, queue, shared));
        let Ok(Answer::QueuePair { pair, receives: None, .. }) = answer else {
            panic!("{answer:?}")
        };
        client.call(&mut rig, connect(pair)).unwrap();
        rig.establish_connect(stream);
    }
    let taken: Vec<_> = rig
        .pairs()
        .into_iter()
        .map(|pair| match &pair.receives {
            Receives::Shared(receives) => Arc::as_ptr(receives),
            Receives::Own(_) => panic!("the QP has its own RQ"),
        })
        .collect();
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[0], taken[1], "the workers share one queue");
    let removals = [
        Call::RemoveQueuePair { pair: 0 },
        Call::RemoveQueuePair { pair: 1 },
        Call::RemoveSharedReceiveQueue { queue: shared },
        Call::RemovePd { pd },
    ];
    for call in &removals[2..] {
        assert_eq!(client.refused(&mut rig, call.clone()), RefusalKind::InUse, "{call:?}");
    }
    for call in removals {
        assert_eq!(client.call(&mut rig, call.clone()), Ok(Answer::Done), "{call:?}");
    }
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn shared_receive_queues_are_checked_and_bounded() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let queue = client.create(&mut rig, completion_queue());
    for max_receives in [0, 65, u32::MAX] {
        assert_eq!(client.refused(&mut rig, create(pd, max_receives)), RefusalKind::Invalid);
    }
    assert_eq!(client.refused(&mut rig, create(9, 1)), RefusalKind::NotFound);
    assert_eq!(client.refused(&mut rig, pair_on(pd, queue, 0)), RefusalKind::NotFound);
    for call in
        [Call::RemoveSharedReceiveQueue { queue: 0 }, Call::SetReceiveLimit { queue: 0, limit: 1 }]
    {
        assert_eq!(client.refused(&mut rig, call), RefusalKind::NotFound);
    }
    for number in 0..3 {
        let answer = client.call(&mut rig, create(pd, 64));
        assert!(matches!(answer, Ok(Answer::SharedReceiveQueue { queue, .. }) if queue == number));
    }
    assert_eq!(client.refused(&mut rig, create(pd, 64)), RefusalKind::Limit);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn limit_and_failure_are_reported_to_the_program() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    client.call(&mut rig, create(pd, 4)).unwrap();
    // No receive was posted, so a limit above 0 is reached at once.
    let low = ProgramEvent::SharedReceivesLow { queue: 0 };
    for (limit, events) in [(0, vec![]), (1, vec![low.clone()])] {
        let call = Call::SetReceiveLimit { queue: 0, limit };
        assert_eq!(client.call(&mut rig, call), Ok(Answer::Done));
        assert_eq!(client.take_events(), events);
    }
    let (program, number) = (client.id, 0);
    rig.bench.event(Event::Program(Reported::SharedReceivesLow { program, number }));
    let reason = SharedReceivesError::Ring(RingError::LyingIndex);
    rig.bench.event(Event::Program(Reported::SharedReceivesFailed { program, number, reason }));
    rig.settle();
    let message = "the other side's index is impossible".to_owned();
    let failed = ProgramEvent::SharedReceivesFailed { queue: 0, message };
    assert_eq!(client.take_events(), [low, failed]);
    client.hang_up(&mut rig);
    rig.bench.event(Event::Program(Reported::SharedReceivesLow { program, number }));
    rig.assert_empty();
}
