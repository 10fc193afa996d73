//! Tests of descriptors: round trips, refused encodings, and the documented layout.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::{MAX_UNITS, UNIT_WORDS, Unit};

fn sge() -> impl Strategy<Value = Sge> {
    // Six of these lengths may add up to more than 32 bits.
    let len = prop_oneof![Just(0), 1..100_000u32, Just(u32::MAX / 6), any::<u32>()];
    (any::<u64>(), len, any::<u32>()).prop_map(|(address, len, lkey)| Sge { address, len, lkey })
}

fn sge_list() -> impl Strategy<Value = SgeList> {
    vec(sge(), 0..=MAX_SGES).prop_filter_map("too long", |sges| SgeList::new(&sges).ok())
}

fn payload() -> impl Strategy<Value = Payload> {
    let inline = vec(any::<u8>(), 0..=MAX_INLINE);
    prop_oneof![
        sge_list().prop_map(Payload::Gather),
        inline.prop_map(|bytes| Payload::Inline(Inline::new(&bytes).expect("short data"))),
    ]
}

fn bind() -> impl Strategy<Value = WindowBind> {
    (any::<[u32; 2]>(), any::<[u64; 2]>(), any::<[bool; 4]>()).prop_map(
        |([window, region], [address, len], [write, read, atomic, zero_based])| {
            let access = WindowAccess {
                remote_write: write,
                remote_read: read,
                remote_atomic: atomic,
                zero_based,
            };
            WindowBind { window, region, address, len, access }
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let remote = || (any::<u32>(), any::<u64>()).prop_map(|(stag, to)| Remote { stag, to });
    let result =
        || (any::<u64>(), any::<u32>()).prop_map(|(address, lkey)| AtomicResult { address, lkey });
    prop_oneof![
        (payload(), any::<bool>())
            .prop_map(|(payload, solicited)| Operation::Send { payload, solicited }),
        (payload(), any::<bool>(), any::<u32>()).prop_map(|(payload, solicited, stag)| {
            Operation::SendInvalidate { payload, solicited, stag }
        }),
        (remote(), payload()).prop_map(|(remote, payload)| Operation::Write { remote, payload }),
        (remote(), sge_list()).prop_map(|(remote, sinks)| Operation::Read { remote, sinks }),
        any::<u32>().prop_map(|stag| Operation::LocalInvalidate { stag }),
        bind().prop_map(Operation::BindWindow),
        (remote(), any::<[u64; 2]>(), result()).prop_map(|(remote, [compare, swap], result)| {
            Operation::CompareSwap { remote, compare, swap, result }
        }),
        (remote(), any::<u64>(), result()).prop_map(|(remote, add, result)| Operation::FetchAdd {
            remote,
            add,
            result
        }),
        (any::<[u8; 8]>(), any::<bool>())
            .prop_map(|(data, solicited)| Operation::Immediate { data, solicited }),
    ]
}

fn send_work() -> impl Strategy<Value = SendWork> {
    (any::<u64>(), any::<bool>(), any::<bool>(), operation()).prop_map(
        |(wr_id, signalled, fence, operation)| SendWork { wr_id, signalled, fence, operation },
    )
}

fn receive_work() -> impl Strategy<Value = ReceiveWork> {
    (any::<u64>(), sge_list()).prop_map(|(wr_id, buffers)| ReceiveWork { wr_id, buffers })
}

fn completion() -> impl Strategy<Value = Completion> {
    let carried = prop_oneof![
        Just(Carried::Nothing),
        any::<u32>().prop_map(Carried::Invalidated),
        any::<[u8; 8]>().prop_map(Carried::Immediate),
    ];
    let completed = prop_oneof![
        select(&Opcode::ALL[..]).prop_map(Completed::Sent),
        (any::<bool>(), carried)
            .prop_map(|(solicited, carried)| Completed::Received { solicited, carried }),
    ];
    (any::<u64>(), select(&Status::ALL[..]), completed, any::<[u32; 2]>()).prop_map(
        |(wr_id, status, completed, [byte_len, qp_number])| Completion {
            wr_id,
            status,
            completed,
            byte_len,
            qp_number,
        },
    )
}

/// Generates units that resemble a descriptor: a control word of likely fields, and words that are often zero.
fn likely_units() -> impl Strategy<Value = Vec<Unit>> {
    let opcode = prop_oneof![0..12u8, Just(128), any::<u8>()];
    let inline = prop_oneof![3 => Just(0u16), 1 => 0..300u16, 1 => any::<u16>()];
    let top = prop_oneof![9 => Just(0u16), 1 => any::<u16>()];
    let fields = (opcode, 0..18u8, 0..9u8, inline, top);
    let words = vec(prop_oneof![3 => Just(0), 1 => Just(8), 1 => any::<u64>()], 40);
    (fields, words, 0..=6usize, option::weighted(0.2, any::<u8>())).prop_map(
        |((opcode, flags, sges, inline, top), mut words, count, other)| {
            let control = [other.unwrap_or(count as u8), opcode, flags, sges].map(u64::from);
            words[0] = control[0] | control[1] << 8 | control[2] << 16 | control[3] << 24;
            words[0] |= u64::from(inline) << 32 | u64::from(top) << 48;
            words.as_chunks::<UNIT_WORDS>().0.iter().copied().cycle().take(count).collect()
        },
    )
}

proptest! {
    #[test]
    fn send_work_round_trips(work in send_work()) {
        let units = work.encode();
        prop_assert_eq!(usize::from(units[0][0] as u8), units.len());
        prop_assert_eq!(SendWork::decode(&units), Ok(work));
        prop_assert!(ReceiveWork::decode(&units).is_err());
    }

    #[test]
    fn receive_work_round_trips(work in receive_work()) {
        let units = work.encode();
        prop_assert!(units.len() <= 2);
        prop_assert_eq!(ReceiveWork::decode(&units), Ok(work));
        prop_assert!(matches!(SendWork::decode(&units), Err(DescriptorError::Opcode(128))));
    }

    #[test]
    fn completion_round_trips(completion in completion()) {
        prop_assert_eq!(Completion::decode(&completion.encode()), Ok(completion));
    }

    /// Each value has exactly one encoding. A changed bit therefore gives an error or another value, also for reserved
    /// bits.
    #[test]
    fn descriptor_with_one_changed_bit_is_refused_or_another(
        work in send_work(),
        at in 0..MAX_UNITS * UNIT_WORDS,
        bit in 0..64u32,
    ) {
        let mut units = work.encode();
        let words = units.as_flattened_mut();
        let at = at % words.len();
        words[at] ^= 1 << bit;
        if let Ok(other) = SendWork::decode(&units) {
            prop_assert_ne!(&other, &work);
            prop_assert_eq!(other.encode(), units);
        }
    }

    #[test]
    fn completion_with_one_changed_bit_is_refused_or_another(
        completion in completion(),
        at in 0..Completion::WORDS,
        bit in 0..64u32,
    ) {
        let mut words = completion.encode();
        words[at] ^= 1 << bit;
        if let Ok(other) = Completion::decode(&words) {
            prop_assert_ne!(other, completion);
            prop_assert_eq!(other.encode(), words);
        }
    }

    #[test]
    fn arbitrary_units_are_refused_or_canonical(units in likely_units()) {
        if let Ok(work) = SendWork::decode(&units) {
            prop_assert_eq!(&work.encode()[..], &units[..]);
        }
        if let Ok(work) = ReceiveWork::decode(&units) {
            prop_assert_eq!(&work.encode()[..], &units[..]);
        }
    }

    #[test]
    fn missing_or_additional_units_are_refused(work in send_work(), count in 0..8usize) {
        let mut units = work.encode().to_vec();
        let encoded = units.len();
        units.resize(count, [0; UNIT_WORDS]);
        let decoded = SendWork::decode(&units);
        prop_assert_eq!(decoded.is_ok(), count == encoded);
        if count > 0 {
            // The descriptor is refused even if its control word agrees with the wrong number of units.
            units[0][0] = units[0][0] & !0xff | count as u64;
            prop_assert_eq!(SendWork::decode(&units).is_ok(), count == encoded);
        }
    }
}

/// Returns the words of a Write with one SGE.
fn write_words() -> Unit {
    let sge = Sge { address: 0x1000, len: 64, lkey: 7 };
    let operation = Operation::Write {
        remote: Remote { stag: 9, to: 0x2000 },
        payload: Payload::Gather(SgeList::new(&[sge]).expect("one SGE")),
    };
    SendWork { wr_id: 5, signalled: true, fence: false, operation }.encode()[0]
}

#[test]
fn layout_of_a_write_is_as_documented() {
    let control = 1 | 3 << 8 | 1 << 16 | 1 << 24;
    assert_eq!(write_words(), [control, 5, 0x2000, 9, 0, 0, 0x1000, 64 | 7 << 32]);
}

#[test]
fn each_wrong_field_has_its_error() {
    use DescriptorError as E;
    let cases: [(&[(usize, u64)], E); 14] = [
        (&[(0, 2 | 3 << 8 | 1 << 24)], E::Units(2)),
        (&[(0, 3 << 8 | 1 << 24)], E::Units(0)),
        (&[(0, 1 | 1 << 24)], E::Opcode(0)),
        (&[(0, 1 | 10 << 8 | 1 << 24)], E::Opcode(10)),
        (&[(0, 1 | 3 << 8 | 2 << 16 | 1 << 24)], E::Flags(2)),
        (&[(0, 1 | 4 << 8 | 8 << 16), (6, 0), (7, 0)], E::Flags(8)),
        (&[(0, 1 | 3 << 8 | 7 << 24)], E::Sges(7)),
        (&[(0, 1 | 5 << 8 | 1 << 24), (2, 0), (3, 0)], E::Sges(1)),
        (&[(0, 1 | 3 << 8 | 8 << 16 | 1 << 24)], E::Sges(1)),
        (&[(0, 1 | 3 << 8 | 8 << 16 | 257 << 32)], E::InlineLength(257)),
        (&[(0, 1 | 3 << 8 | 1 << 24 | 1 << 32)], E::InlineLength(1)),
        (&[(0, 1 | 7 << 8 | 1 << 24)], E::AtomicLength(64)),
        (&[(0, 1 | 3 << 8 | 1 << 24 | 1 << 48)], E::Reserved),
        (&[(4, 1)], E::Reserved),
    ];
    for (changes, expected) in cases {
        let mut unit = write_words();
        changes.iter().for_each(|&(at, word)| unit[at] = word);
        assert_eq!(SendWork::decode(&[unit]), Err(expected), "{changes:x?}");
    }
}

#[test]
fn lengths_add_up_to_32_bits_at_most() {
    let sge = |len| Sge { len, ..Sge::default() };
    let list = SgeList::new(&[sge(u32::MAX - 1), sge(1)]).expect("32 bits");
    assert_eq!(list.total_len(), u32::MAX);
    assert_eq!(SgeList::new(&[sge(u32::MAX), sge(1)]), Err(DescriptorError::TotalLength));
    let mut units = ReceiveWork { wr_id: 1, buffers: list }.encode();
    units[0][5] += 1;
    assert_eq!(ReceiveWork::decode(&units), Err(DescriptorError::TotalLength));
}

#[test]
fn values_have_the_documented_bounds() {
    assert_eq!(SgeList::new(&[Sge::default(); 7]), Err(DescriptorError::Sges(7)));
    assert_eq!(Inline::new(&[0; 257]), Err(DescriptorError::InlineLength(257)));
    let units = |payload| {
        let operation = Operation::Send { payload, solicited: false };
        SendWork { wr_id: 0, signalled: false, fence: false, operation }.encode().len()
    };
    let inline = |len| Payload::Inline(Inline::new(&vec![1; len]).expect("inline data"));
    let gather = |n| Payload::Gather(SgeList::new(&vec![Sge::default(); n]).expect("SGEs"));
    assert_eq!([0, 16, 17, 80, 81, 256].map(|len| units(inline(len))), [1, 1, 2, 2, 3, 5]);
    assert_eq!([0, 1, 2, 5, 6].map(|n| units(gather(n))), [1, 1, 2, 2, 3]);
}

#[test]
fn statuses_have_the_numbers_of_verbs() {
    let numbers = Status::ALL.map(|status| status as u8);
    assert_eq!(numbers, [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 19, 21]);
    let mut words = [0, 1 << 8, 0, 0, 0, 0, 0];
    assert!(Completion::decode(&words).is_ok());
    for undefined in [3, 12, 13, 20, 22, 255] {
        words[1] = 1 << 8 | undefined;
        let refused = DescriptorError::Status(undefined as u8);
        assert_eq!(Completion::decode(&words), Err(refused));
    }
}
