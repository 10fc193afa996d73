//! Calls that create and remove objects (memory regions, channels, CQs, QPs), their limits and their refusals.

use ddp::Access;

use super::workers::write_at;
use super::*;

fn welcome(client: &mut Client, rig: &mut Rig) -> (Welcome, Vec<OwnedFd>) {
    let id = client.send(rig, hello());
    rig.settle();
    match client.reply_with_descriptors(id) {
        Some((Ok(Answer::Welcome(welcome)), fds)) => (welcome, fds),
        other => panic!("{other:?}"),
    }
}

#[test]
fn welcome_has_arena_doorbells_limits_and_devices() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::new(&rig, 7);
    let (welcome, fds) = welcome(&mut client, &mut rig);
    assert_eq!(fds.len(), 1 + 2 * WORKERS);
    assert_eq!((welcome.version, welcome.program, welcome.arena), (VERSION, 7, 1 << 20));
    assert_eq!((welcome.workers, welcome.limits.queue_pairs, welcome.limits.posts), (2, 3, 64));
    assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_size, 1 << 20);
    let [device] = &welcome.devices[..] else { panic!("{welcome:?}") };
    assert_eq!((device.name.as_str(), device.addresses.len()), ("i", 1));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn sessions_that_may_not_begin_are_refused_and_closed() {
    let mut rig = Rig::new(PROGRAMS);
    let other_user = AttachedProcess { uid: 12, pid: 1, admitted: false };
    let mut client = Client::of_process(&rig, 1, other_user);
    assert_eq!(client.refused(&mut rig, hello()), RefusalKind::NotAllowed);
    let mut client = Client::new(&rig, 2);
    for (oldest, newest, name, kind) in [
        (VERSION + 1, 9, "x".to_owned(), RefusalKind::Version),
        (OLDEST, VERSION, "x".repeat(65), RefusalKind::Invalid),
        (OLDEST, VERSION, "a\nb".to_owned(), RefusalKind::Invalid),
    ] {
        let call = Call::Hello { oldest, newest, name };
        assert_eq!(client.refused(&mut rig, call), kind);
    }
    assert_eq!(client.refused(&mut rig, Call::CreatePd), RefusalKind::Invalid, "no hello");
    let first = Client::attach(&mut rig, 3);
    let mut second = Client::attach(&mut rig, 4);
    assert_eq!(second.refused(&mut rig, hello()), RefusalKind::Invalid, "a second hello");
    let mut third = Client::new(&rig, 5);
    assert_eq!(third.refused(&mut rig, hello()), RefusalKind::Limit, "programs = 2");
    third.read();
    assert!(third.is_closed);
    // A program that has ended does not count against the limit.
    first.hang_up(&mut rig);
    Client::attach(&mut rig, 6).hang_up(&mut rig);
    rig.refuse_next("AddProgram");
    let mut refused = Client::new(&rig, 8);
    assert_eq!(refused.refused(&mut rig, hello()), RefusalKind::NotAllowed);
    second.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn memory_region_is_the_programs_memory_at_its_address() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::new(&rig, 1);
    let (_, fds) = welcome(&mut client, &mut rig);
    let pd = client.create(&mut rig, Call::CreatePd);
    let access = MemoryAccess { remote_write: true, remote_atomic: true, ..LOCAL_ACCESS };
    let stag = client.create(&mut rig, register(pd, access));
    for worker in 0..WORKERS {
        let entry = rig.entry(worker, stag).unwrap();
        assert_eq!((entry.base_to.0, entry.len, entry.memory_offset), (0x7f00_0000_0010, PAGE, 16));
        assert_eq!(entry.access, Access::REMOTE_WRITE | Access::ATOMIC);
        assert_eq!(entry.stream, None);
    }
    // The byte at address 0x7f0000001000 is the first of the second part.
    write_at(&fds[0], b"x", 8 * PAGE).unwrap();
    let entry = rig.entry(1, stag).unwrap();
    let mut byte = [0];
    ddp::RegionMemory::read(&entry.memory, entry.memory_offset + PAGE - 16, &mut byte);
    assert_eq!(&byte, b"x");
    // Protection domains of different programs have different numbers at the workers.
    let mut other = Client::attach(&mut rig, 2);
    let other_pd = other.create(&mut rig, Call::CreatePd);
    let other_stag = other.create(&mut rig, register(other_pd, LOCAL_ACCESS));
    assert_ne!(rig.entry(0, stag).unwrap().pd, rig.entry(0, other_stag).unwrap().pd);
    let foreign = Call::DeregisterMemory { stag: other_stag };
    assert_eq!(client.refused(&mut rig, foreign), RefusalKind::NotFound);
    client.hang_up(&mut rig);
    other.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn invalid_memory_regions_are_refused() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let invalid =
        |address: u64, len: u64, offset: u64, parts: &[(u64, u64)]| Call::RegisterMemory {
            pd,
            address,
            len,
            offset,
            parts: parts.to_vec(),
            access: LOCAL_ACCESS,
        };
    let page = [(0, PAGE)];
    for call in [
        invalid(0, 0, 0, &page),
        invalid(0, PAGE + 1, 0, &page),
        invalid(1, PAGE, 1, &page),
        invalid(0, 1, PAGE, &page),
        invalid(8, 1, 16, &page),
        invalid(u64::MAX - 4095, PAGE, 0, &page),
        invalid(0, 1, 0, &[]),
        invalid(0, 1, 0, &[(PAGE, PAGE)]),
        invalid(0, 1, 0, &[(PAGE, 0)]),
        invalid(0, 1, 0, &[(0, 1)]),
        invalid(0, 1, 0, &[(0, u64::MAX), (0, u64::MAX)]),
        invalid(0, 1, 0, &[((1 << 20) - PAGE, (1 << 20) + PAGE)]),
        register(pd, MemoryAccess { remote_write: true, ..MemoryAccess::default() }),
        register(pd, MemoryAccess { remote_atomic: true, ..MemoryAccess::default() }),
    ] {
        let kind = client.refused(&mut rig, call.clone());
        assert!(matches!(kind, RefusalKind::Invalid | RefusalKind::Limit), "{call:?}: {kind:?}");
    }
    assert_eq!(client.refused(&mut rig, register(9, LOCAL_ACCESS)), RefusalKind::NotFound);
    rig.refuse_next("AddStag");
    assert_eq!(client.refused(&mut rig, register(pd, LOCAL_ACCESS)), RefusalKind::NoMemory);
    rig.settle();
    assert_eq!(
        client.call(&mut rig, Call::RemovePd { pd }),
        Ok(Answer::Done),
        "the refused region does not use the domain"
    );
    client.hang_up(&mut rig);
    rig.assert_empty();
}

// A Send from the region may be in flight: its retransmission reads the region.
#[test]
fn deregistration_is_answered_when_nothing_refers_to_the_memory() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let stag = client.create(&mut rig, register(pd, LOCAL_ACCESS));
    let in_flight = rig.entry(1, stag).unwrap().memory.clone();
    let id = client.send(&rig, Call::DeregisterMemory { stag });
    rig.settle();
    assert!(client.reply(id).is_none());
    assert_eq!(client.refused(&mut rig, Call::DeregisterMemory { stag }), RefusalKind::NotFound);
    assert_eq!(client.refused(&mut rig, Call::RemovePd { pd }), RefusalKind::InUse);
    drop(in_flight);
    rig.settle();
    assert_eq!(client.reply(id), Some(Ok(Answer::Done)));
    assert_eq!(client.call(&mut rig, Call::RemovePd { pd }), Ok(Answer::Done));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn limits_of_a_program_are_kept_and_freed() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let first = client.create(&mut rig, register(pd, LOCAL_ACCESS));
    client.create(&mut rig, register(pd, LOCAL_ACCESS));
    let refused = client.refused(&mut rig, register(pd, LOCAL_ACCESS));
    assert_eq!(refused, RefusalKind::Limit, "memory_regions = 4 parts");
    client.call(&mut rig, Call::DeregisterMemory { stag: first }).unwrap();
    client.create(&mut rig, register(pd, LOCAL_ACCESS));
    let all = Call::RegisterMemory {
        pd,
        address: 0,
        len: 1 << 20,
        offset: 0,
        parts: vec![(0, 1 << 20)],
        access: LOCAL_ACCESS,
    };
    assert_eq!(client.refused(&mut rig, all), RefusalKind::Limit, "memory = 1 MiB");
    for n in 0..2 {
        assert_eq!(client.create(&mut rig, completion_queue()), n);
        assert_eq!(client.create(&mut rig, Call::CreateChannel), n);
    }
    assert_eq!(client.refused(&mut rig, completion_queue()), RefusalKind::Limit);
    assert_eq!(client.refused(&mut rig, Call::CreateChannel), RefusalKind::Limit);
    for n in 0..3 {
        assert_eq!(client.create(&mut rig, queue_pair(pd, 0)), n);
    }
    assert_eq!(client.refused(&mut rig, queue_pair(pd, 0)), RefusalKind::Limit);
    client.call(&mut rig, Call::RemoveQueuePair { pair: 1 }).unwrap();
    assert_eq!(client.create(&mut rig, queue_pair(pd, 1)), 1, "the number is used again");
    for _ in 0..2 {
        client.create(&mut rig, listen(0));
    }
    assert_eq!(client.refused(&mut rig, listen(0)), RefusalKind::Limit);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn queues_have_the_promised_layout_and_are_bounded() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let id = client.send(&rig, Call::CreateCompletionQueue { entries: 100, channel: None });
    rig.settle();
    let (answer, fds) = client.reply_with_descriptors(id).unwrap();
    let Ok(Answer::CompletionQueue { queue: 0, capacity: 128, offsets }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((offsets, fds.len()), (vec![128, 128 + 128 + 128 * 64], 1));
    let id = client.send(&rig, queue_pair(pd, 0));
    rig.settle();
    let (answer, fds) = client.reply_with_descriptors(id).unwrap();
    let Ok(Answer::QueuePair { pair: 0, sends, receives: Some(receives) }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((sends.offset, sends.capacity, receives.capacity, fds.len()), (128, 16, 8, 1));
    assert_eq!(receives.offset, 128 + 256 + 16 * 64);
    assert_eq!(
        rustix::fs::fstat(&fds[0]).unwrap().st_size,
        (receives.offset + 256 + 8 * 64) as i64
    );
    for entries in [0, 257, u32::MAX] {
        let call = Call::CreateCompletionQueue { entries, channel: None };
        assert_eq!(client.refused(&mut rig, call), RefusalKind::Invalid);
    }
    for (max_sends, max_receives) in [(0, 1), (1, 0), (65, 1), (1, u32::MAX)] {
        let Call::CreateQueuePair { send_completions, receive_completions, .. } = queue_pair(pd, 0)
        else {
            panic!()
        };
        let call = Call::CreateQueuePair {
            pd,
            send_completions,
            receive_completions,
            max_sends,
            max_receives,
            copy_sources: false,
            shared_receives: None,
        };
        assert_eq!(client.refused(&mut rig, call), RefusalKind::Invalid);
    }
    assert_eq!(client.refused(&mut rig, queue_pair(pd, 1)), RefusalKind::NotFound);
    assert_eq!(client.refused(&mut rig, queue_pair(5, 0)), RefusalKind::NotFound);
    let call = Call::CreateCompletionQueue { entries: 1, channel: Some(3) };
    assert_eq!(client.refused(&mut rig, call), RefusalKind::NotFound);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn objects_in_use_are_not_removed() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let channel = client.create(&mut rig, Call::CreateChannel);
    let call = Call::CreateCompletionQueue { entries: 4, channel: Some(channel) };
    let queue = client.create(&mut rig, call);
    let pd = client.create(&mut rig, Call::CreatePd);
    let pair = client.create(&mut rig, queue_pair(pd, queue));
    let removals = [
        Call::RemoveQueuePair { pair },
        Call::RemoveCompletionQueue { queue },
        Call::RemoveChannel { channel },
        Call::RemovePd { pd },
    ];
    for call in &removals[1..] {
        assert_eq!(client.refused(&mut rig, call.clone()), RefusalKind::InUse, "{call:?}");
    }
    for call in &removals {
        assert_eq!(client.call(&mut rig, call.clone()), Ok(Answer::Done), "{call:?}");
        assert_eq!(client.refused(&mut rig, call.clone()), RefusalKind::NotFound, "{call:?}");
    }
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn program_with_too_much_memory_in_its_arena_registers_nothing() {
    let text = PROGRAMS.replace("arena = \"1 MiB\"", "arena = \"256 MiB\"");
    let mut rig = Rig::new(&text);
    let mut client = Client::new(&rig, 1);
    let (_, descriptors) = welcome(&mut client, &mut rig);
    let pd = client.create(&mut rig, Call::CreatePd);
    // The limit of an arena: twice `programs.memory` plus `ARENA_SLACK`.
    let most = (2 << 20) + (64 << 20);
    let allocate = |offset, len| {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&descriptors[0], flags, offset, len).unwrap();
    };
    allocate(0, most);
    let stag = client.create(&mut rig, register(pd, LOCAL_ACCESS));
    allocate(most, PAGE);
    assert_eq!(client.refused(&mut rig, register(pd, LOCAL_ACCESS)), RefusalKind::Limit);
    let holes = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&descriptors[0], holes, most, PAGE).unwrap();
    client.create(&mut rig, register(pd, LOCAL_ACCESS));
    assert_eq!(client.call(&mut rig, Call::DeregisterMemory { stag }), Ok(Answer::Done));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn memory_of_programs_counts_under_the_memory_ceiling() {
    let text = PROGRAMS.replace("memory = \"1 MiB\"", "memory = \"1 GiB\"");
    let mut rig = Rig::new(&text);
    let mut client = Client::attach(&mut rig, 1);
    let free = {
        let info = rig.bench.budget.info();
        info.ceiling - info.in_use
    };
    let _all = rig.bench.budget.charge(crate::appliance::budget::ChargeKind::Job, "all", free);
    let pd = client.create(&mut rig, Call::CreatePd);
    assert_eq!(client.refused(&mut rig, register(pd, LOCAL_ACCESS)), RefusalKind::NoMemory);
    assert_eq!(client.refused(&mut rig, completion_queue()), RefusalKind::NoMemory);
    drop(_all);
    client.create(&mut rig, register(pd, LOCAL_ACCESS));
    client.hang_up(&mut rig);
    rig.assert_empty();
}
