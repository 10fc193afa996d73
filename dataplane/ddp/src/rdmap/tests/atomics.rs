//! Atomic operations at both ends (RFC 7306 §5, §8).

use wire::rdmap::{AtomicRequestRepr, AtomicResponseRepr};

use super::*;

// RFC 7306 §5.2, RFC 5040 §6.1: an atomic counts as an outstanding Read, so it is refused with ORD 0.
#[test]
fn post_of_read_or_atomic_requires_ord() {
    let mut a = End::with_config(Config { ord: 0, ..config() });
    for request in [atomic(AtomicOp::swap(1), 0, 1), read(0, 0, 8, 2)] {
        assert_eq!(a.stream.post(request), Err(PostError::NoReads));
    }
    let mut a = End::with_config(Config { ord: 0, atomics: false, ..config() });
    assert_eq!(a.stream.post(atomic(AtomicOp::swap(1), 0, 1)), Err(PostError::NoExtensions));
    let mut a = End::with_config(Config { ord: 1, ..config() });
    assert_eq!(a.stream.post(atomic(AtomicOp::swap(1), 0, 1)), Ok(()));
}

const ADD: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

fn request(msn: u32, id: u32, stag: Stag, at: u64, op: AtomicOp) -> Vec<u8> {
    let to = TaggedOffset(BASE.wrapping_add(at));
    untagged(Opcode::AtomicRequest, 1, msn, &AtomicRequestRepr { id, stag, to, op }.emit())
}

fn response(msn: u32, id: u32, original: u64) -> Vec<u8> {
    untagged(Opcode::AtomicResponse, 3, msn, &AtomicResponseRepr { id, original }.emit())
}

// RFC 7306 §5.2.1 (7), (8), §5.2.2 (3), (8): atomics are executed and answered in order, on queue 3.
#[test]
fn atomics_execute_and_respond_in_order() {
    let mut b = End::new();
    b.memory.write(16, &100u64.to_ne_bytes());
    b.input(&request(1, 71, STAG, 16, ADD));
    let swap = AtomicOp::CompareSwap {
        compare: 101,
        compare_mask: u64::MAX,
        swap: 0xff00,
        swap_mask: 0xff00,
    };
    b.input(&request(2, 72, STAG, 16, swap));
    b.input(&request(3, 73, STAG, 16, swap));
    let segments = b.sent_segments();
    let expected = [(71, 100), (72, 101), (73, 0xff65)];
    for (i, (segment, (id, original))) in segments.iter().zip(expected).enumerate() {
        assert_eq!(segment[..2], [0x41, 0x4b]);
        assert_eq!((segment[9], segment[13]), (3, i as u8 + 1));
        assert_eq!(
            AtomicResponseRepr::parse(&segment[18..]),
            Ok(AtomicResponseRepr { id, original })
        );
    }
    assert_eq!(b.memory.to_vec()[16..24], 0xff65u64.to_ne_bytes());
    assert_eq!(b.stream.counters().atomics_served, 3);
}

// RFC 7306 §5.1.1: the number in memory has the byte order of this machine, the header field is big-endian.
#[test]
fn atomic_operand_uses_memory_byte_order() {
    let mut b = End::new();
    b.memory.write(0, &0x0102_0304_0506_0708u64.to_ne_bytes());
    b.input(&request(1, 1, STAG, 0, ADD));
    assert_eq!(b.sent_segments()[0][22..], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b.memory.to_vec()[..8], 0x0102_0304_0506_0709u64.to_ne_bytes());
}

// RFC 7306 §5.4 (3), (5): an atomic beyond a gap is executed when all earlier segments have arrived.
#[test]
fn out_of_order_atomic_is_not_executed() {
    let mut b = End::new();
    b.input_at(1, &request(1, 1, STAG, 0, ADD));
    assert_eq!(b.memory.to_vec()[..8], [0; 8]);
    b.input_at(0, &tagged(Opcode::Write, STAG, 0, true, &9u64.to_ne_bytes()));
    assert_eq!(b.memory.to_vec()[..8], 10u64.to_ne_bytes());
}

// RFC 7306 §5.1.1, §5.1.2, §8.2: an unaligned address ends the stream with a Terminate and changes no memory.
#[test]
fn unaligned_atomic_is_0_2_07_and_changes_no_memory() {
    for op in [ADD, AtomicOp::swap(5)] {
        for at in [1, 4, 7] {
            let mut b = End::new();
            b.memory.write(0, &pattern(1, 64));
            b.input(&request(1, 1, STAG, at, op));
            let terminate = b.terminate();
            assert_eq!((terminate.layer, terminate.error_type, terminate.code), (0, 2, 7));
            // RFC 7306 §8.1 (2): the DDP header is included, an RDMAP header is not.
            assert_eq!((terminate.ddp_header.len(), terminate.read_request), (18, None));
            assert_eq!(b.memory.to_vec()[..64], pattern(1, 64));
            assert_eq!(shape(&b.sent_segments()), [(Opcode::Terminate, true)]);
        }
    }
}

// RFC 7306 §5.2.1: the address in memory must be aligned; the TO need not be.
#[test]
fn atomic_alignment_is_relative_to_memory() {
    let memory = VecMemory::new(64);
    let odd = StagEntry {
        base_to: TaggedOffset(3),
        len: 48,
        memory_offset: 16,
        ..entry(Stag(4), Access::ATOMIC, &memory)
    };
    let mut b = End::new();
    b.stags.insert(odd).unwrap();
    b.input(&request(1, 1, Stag(4), 11u64.wrapping_sub(BASE), ADD));
    assert_eq!(memory.to_vec()[24..32], 1u64.to_ne_bytes());
    b.input(&request(2, 2, Stag(4), 8u64.wrapping_sub(BASE), ADD));
    assert_eq!(b.terminate_numbers(), (0, 2, 7));
}

#[test]
fn atomic_without_access_is_remote_protection_error() {
    let other = Stag(0x55);
    let rw = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let no_right = entry(other, rw, &VecMemory::new(64));
    let foreign = StagEntry { pd: PdId(3), ..entry(other, Access::ATOMIC, &VecMemory::new(64)) };
    let cases: [(Option<StagEntry<VecMemory>>, Stag, u64, u8); 5] = [
        (None, other, 0, 0x00),
        (None, STAG, LEN - 4, 0x01),
        (Some(no_right), other, 0, 0x02),
        (Some(foreign), other, 0, 0x03),
        (None, STAG, u64::MAX - BASE - 7, 0x04),
    ];
    for (entry, stag, at, code) in cases {
        let mut b = End::new();
        if let Some(entry) = entry {
            b.stags.insert(entry).unwrap();
        }
        b.input(&request(1, 1, stag, at, ADD));
        assert_eq!(b.terminate_numbers(), (0, 1, code));
        assert_eq!(b.memory.to_vec(), [0; LEN as usize]);
    }
}

// RFC 7306 §5.2.1 (4): an undefined operation is an unexpected opcode.
#[test]
fn an_unknown_atomic_operation_is_0_2_06() {
    for code in [1, 3, 15] {
        let mut b = End::new();
        let mut segment = request(1, 1, STAG, 0, ADD);
        segment[18 + 3] = code;
        b.input(&segment);
        assert_eq!(b.terminate_numbers(), (0, 2, 6));
        assert_eq!(b.memory.to_vec()[..8], [0; 8]);
    }
}

#[test]
fn an_atomic_request_of_another_length_is_an_error() {
    let segment = request(1, 1, STAG, 0, ADD);
    for cut in [18, 18 + 28, segment.len() - 1] {
        let mut b = End::new();
        b.input(&segment[..cut]);
        assert_eq!(b.terminate_numbers(), (0, 2, 7));
    }
    let mut b = End::new();
    b.input(&[&segment[..], &[0]].concat());
    assert_eq!(b.terminate_numbers(), (1, 2, 5), "the request does not fit into DDP's buffer");
    assert_eq!(b.memory.to_vec()[..8], [0; 8]);
}

// RFC 7306 §5.2: one limit applies to Reads and atomics together, in both directions.
#[test]
fn atomics_count_against_ord_and_ird() {
    let mut a = End::with_config(Config { ord: 2, ..config() });
    a.post(read(0, 0, 4, 1));
    a.post(atomic(ADD, 0, 2));
    a.post(atomic(ADD, 0, 3));
    assert_eq!(
        shape(&a.sent_segments()),
        [(Opcode::ReadRequest, true), (Opcode::AtomicRequest, true)]
    );
    a.input(&response(1, 0, 5));
    assert_eq!(shape(&a.sent_segments()), [(Opcode::AtomicRequest, true)]);
    // RFC 5040 §5.5 (15): the Read was posted first, so it completes first.
    assert!(a.events().is_empty());
    a.input(&tagged(Opcode::ReadResponse, SINK, 0, true, b"1234"));
    let first = completed(1, Outcome::Read { len: 4 });
    assert_eq!(a.events(), [first, completed(2, Outcome::Atomic { original: 5 })]);
    let mut b = End::new();
    b.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(STAG, 0, 4).emit()));
    for msn in 2..=5 {
        b.input(&request(msn, msn, STAG, 0, ADD));
    }
    assert_eq!(b.terminate_numbers(), (1, 2, 2));
}

// RFC 7306 §5.2.2 (5), (7): each atomic posts one buffer for its response, and the response must match the oldest
// atomic.
#[test]
fn unsolicited_atomic_response_is_an_error() {
    let mut a = End::new();
    a.input(&response(1, 0, 0));
    assert_eq!(a.terminate_numbers(), (1, 2, 2));
    let mut a = End::new();
    a.post(atomic(ADD, 0, 1));
    a.post(atomic(ADD, 0, 2));
    a.sent_segments();
    a.input(&response(1, 1, 0));
    assert_eq!(a.terminate_numbers(), (0, 2, 7));
    assert_eq!(a.events(), [], "the later atomic was flushed before the Terminate");
    let mut a = End::new();
    a.post(atomic(ADD, 0, 1));
    a.sent_segments();
    a.input(&untagged(Opcode::AtomicResponse, 3, 1, &[0; 11]));
    assert_eq!(a.terminate_numbers(), (0, 2, 7));
}

// RFC 7306 §7: no Atomic Response is generated before an earlier Read Response.
#[test]
fn read_and_atomic_responses_share_one_order() {
    let mut b = End::new();
    b.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(STAG, 0, 300).emit()));
    b.input(&request(2, 1, STAG, 0, ADD));
    b.input(&untagged(Opcode::ReadRequest, 1, 3, &read_request(STAG, 0, 8).emit()));
    let segments: Vec<_> = core::iter::from_fn(|| b.next_segment(200).map(|(s, ..)| s)).collect();
    let read = |last| (Opcode::ReadResponse, last);
    let atomic = (Opcode::AtomicResponse, true);
    assert_eq!(shape(&segments), [read(false), read(true), atomic, read(true)]);
    assert_eq!(segments[3][14..], 1u64.to_ne_bytes(), "the Read returns the atomic's result");
}

// The test's region has the default `fetch_update_u64`, which refuses every atomic.
#[test]
fn atomic_to_unsupporting_region_is_an_access_error() {
    #[derive(Clone, Debug)]
    struct Plain;
    impl RegionMemory for Plain {
        fn len(&self) -> u64 {
            8
        }
        fn write(&self, _: u64, _: &[u8]) {}
        fn read(&self, _: u64, _: &mut [u8]) {}
        fn is_stable(&self) -> bool {
            true
        }
    }
    let mut stags = StagTable::new();
    let stag = Stag(1);
    stags
        .insert(StagEntry {
            stag,
            pd: PdId(1),
            stream: None,
            base_to: TaggedOffset(0),
            len: 8,
            access: Access::ATOMIC,
            memory: Plain,
            memory_offset: 0,
        })
        .unwrap();
    let mut pool = BufferPool::new(1 << 16);
    let mut stream = Stream::new(StreamId(9), PdId(1), config());
    let cx = Context { stags: &stags, buffers: &mut pool };
    let segment = request(1, 1, stag, 0u64.wrapping_sub(BASE), ADD);
    let disposition = stream.sink(cx).ulpdu(OrderKey(0), Ulpdu::new(&[&segment]));
    assert_eq!(disposition, Disposition::Placed(52));
    let Some(Event::Error(Error::Rdmap(error))) = stream.poll_event() else { panic!("no error") };
    assert_eq!(error.code, ErrorCode::AccessRights);
}
