//! Compares the fast and the slow path. A tagged segment in order whose first piece has the whole header takes the fast
//! path. Both paths must leave the stream in the same state.

use proptest::prelude::*;

use crate::llp::Disposition;
use crate::testing::*;
use crate::*;

/// Returns the state of stream, events and memory as text for comparison.
fn describe_state(rig: &mut Rig) -> String {
    let events = rig.events();
    format!("{:?} {events:?} {:?}", rig.stream, rig.memory.to_vec())
}

fn any_segment() -> impl Strategy<Value = Vec<u8>> {
    let stag = prop_oneof![20 => Just(STAG), 1 => Just(Stag(5))];
    let to = prop_oneof![20 => BASE..BASE + LEN, 1 => any::<u64>()];
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    let tagged = (stag, to, any::<bool>(), payload.clone())
        .prop_map(|(stag, to, last, payload)| tagged_to(stag, to, last, &payload));
    let untagged = (1u32..4, any::<bool>(), payload)
        .prop_map(|(msn, last, payload)| untagged(msn, 0, last, &payload[..payload.len().min(64)]));
    let version = prop_oneof![30 => Just(1u8), 1 => 0u8..4];
    let len = prop_oneof![30 => Just(usize::MAX), 1 => 0usize..20];
    (prop_oneof![10 => tagged, 1 => untagged], version, len).prop_map(|(segment, dv, len)| {
        let mut segment = with_version(segment, dv);
        segment.truncate(len);
        segment
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ulpdu_pieces_do_not_change_the_result(
        segments in prop::collection::vec((any_segment(), 0usize..14, 0u64..12), 1..30),
        behind in 0usize..40,
        events: bool,
    ) {
        let config = || StreamConfig { tagged_events: events, ..config() };
        let (mut one, mut two) = (Rig::with_config(config()), Rig::with_config(config()));
        let mut next = 0;
        for (segment, cut, ahead) in segments {
            // Most segments are in order.
            let key = if ahead < 10 { next } else { next + ahead - 9 };
            // A first piece that ends within the header takes the slow path. A first piece with the whole header takes
            // the fast path.
            let (front, back) = segment.split_at(cut.min(segment.len()));
            let (header, payload) = segment.split_at(segment.len().min(14 + behind));
            let disposition = one.input_pieces(key, &[header, payload]);
            prop_assert_eq!(disposition, two.input_pieces(key, &[front, back]));
            if key == next && disposition != Disposition::Refused {
                next += 1;
                one.complete_order(next);
                two.complete_order(next);
            }
            prop_assert_eq!(describe_state(&mut one), describe_state(&mut two));
        }
    }
}
