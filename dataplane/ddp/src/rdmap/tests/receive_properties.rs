//! Posted receives against a reference model that maps each byte of a message to a byte of memory.

use proptest::prelude::*;

use super::receives::posted;
use super::*;
use crate::ErrorCode as DdpErrorCode;
use crate::llp::Disposition::{Ignored, Placed, Refused};
use crate::{MAX_SPANS, Span, SpanList};

/// Bytes of each of the two regions.
const REGION: usize = 16 * 1024;
/// Number of bytes between two spans, which no message may change.
const GUARD: usize = 3;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

/// A byte of the model: its region, and its offset in the region.
type Place = (usize, usize);

/// Expected bytes of both regions, and the first free offset in each.
struct Model {
    regions: [Vec<u8>; 2],
    free: [usize; 2],
}

impl Model {
    /// Returns random spans with guards between them, and the location of each of their bytes.
    fn spans(
        &mut self,
        rng: &mut Rng,
        memories: &[VecMemory; 2],
    ) -> (SpanList<VecMemory>, Vec<Place>) {
        let (mut spans, mut places) = (Vec::new(), Vec::new());
        for _ in 0..rng.below(MAX_SPANS as u64 + 1) {
            let (region, len) = (rng.below(2) as usize, rng.below(40) as usize);
            let start = self.free[region] + GUARD;
            self.free[region] = start + len;
            places.extend((start..start + len).map(|at| (region, at)));
            let memory = memories[region].clone();
            spans.push(Span { memory, offset: start as u64, len: len as u32 });
        }
        (SpanList::new(spans).unwrap(), places)
    }
}

/// A message of the peer.
#[derive(Clone, Debug)]
struct Message {
    opcode: Opcode,
    data: Vec<u8>,
}

fn message(rng: &mut Rng, room: usize) -> Message {
    if rng.below(4) == 0 {
        let opcode = [Opcode::Immediate, Opcode::ImmediateSolicited][rng.below(2) as usize];
        return Message { opcode, data: pattern(rng.below(256) as u8, 8) };
    }
    let len = match rng.below(3) {
        0 => room,
        _ => rng.below(room as u64 + 1) as usize,
    };
    let opcode = [Opcode::Send, Opcode::SendSolicited][rng.below(2) as usize];
    Message { opcode, data: pattern(rng.below(256) as u8 | 1, len) }
}

/// A segment of message `index`, from `at` on.
#[derive(Clone, Debug)]
struct Part {
    index: usize,
    at: usize,
    len: usize,
    bytes: Vec<u8>,
}

/// Cuts a message into segments of random length.
fn cut(rng: &mut Rng, index: usize, message: &Message) -> Vec<Part> {
    let (mut parts, mut at, total) = (Vec::new(), 0, message.data.len());
    loop {
        let len = (1 + rng.below(60) as usize).min(total - at);
        let last = at + len == total;
        let payload = &message.data[at..at + len];
        let (msn, mo) = (index as u32 + 1, at as u32);
        let bytes = untagged_with(message.opcode, None, 0, msn, mo, last, payload);
        parts.push(Part { index, at, len, bytes });
        at += len;
        if last {
            return parts;
        }
    }
}

fn delivered(cookie: u64, message: &Message) -> Event {
    let solicited = message.opcode.is_solicited();
    if message.opcode.is_extension() {
        let data = message.data.as_slice().try_into().unwrap();
        return Event::ImmediateInto { cookie, data, solicited };
    }
    let len = message.data.len() as u32;
    Event::ReceivedInto { cookie, len, solicited, invalidated: None }
}

/// Runs random messages in random order. The stream ends after `steps` arrivals, or earlier at a message that is too
/// long for its receive.
fn play(seed: u64, too_long: Option<usize>, steps: usize) -> Result<(), TestCaseError> {
    let mut rng = Rng(seed);
    let memories = [VecMemory::new(REGION), VecMemory::new(REGION)];
    let mut model = Model { regions: [vec![0; REGION], vec![0; REGION]], free: [0; 2] };
    let receives: Vec<_> = (0..20).map(|_| model.spans(&mut rng, &memories)).collect();
    let mut messages: Vec<_> =
        receives.iter().map(|(_, places)| message(&mut rng, places.len())).collect();
    if let Some(at) = too_long {
        let len = receives[at].1.len() + 1 + rng.below(100) as usize;
        messages[at] = Message { opcode: Opcode::Send, data: pattern(9, len) };
    }
    let parts: Vec<Part> =
        messages.iter().enumerate().flat_map(|(i, message)| cut(&mut rng, i, message)).collect();
    let max = 1 + rng.below(8) as u32;
    let mut b = End::with_config(posted(max));
    let (mut arrived, mut order, mut posts) = (vec![false; parts.len()], 0, 0);
    let mut seen = Vec::new();
    let post = |b: &mut End, posts: &mut usize| {
        let Some((spans, _)) = receives.get(*posts) else { return false };
        let receive = Receive { cookie: *posts as u64, spans: spans.clone() };
        let done = b.stream.post_receive(receive).is_ok();
        *posts += usize::from(done);
        done
    };
    for _ in 0..steps {
        if order == parts.len() || b.stream.error().is_some() {
            break;
        }
        if rng.below(3) == 0 {
            post(&mut b, &mut posts);
        }
        // Selects the segment at the gap, or one shortly after it that may have arrived already.
        let key = (order + rng.below(12) as usize).min(parts.len() - 1);
        let key = if rng.below(3) == 0 { order } else { key };
        let part = &parts[key];
        // Posts the receive of a segment in order, because its absence is an error, which a unit test covers.
        while key == order && posts <= part.index {
            prop_assert!(post(&mut b, &mut posts));
        }
        let disposition = b.input_at(key as u64, &part.bytes);
        let (message, places) = (&messages[part.index], &receives[part.index].1);
        let fits = message.opcode.is_extension() || part.at + part.len <= places.len();
        if arrived[key] || !fits {
            prop_assert!(disposition == Ignored || disposition == Refused && part.index >= posts);
        } else if part.index >= posts {
            prop_assert!(matches!(disposition, Refused | Ignored));
        } else if disposition != Ignored || b.stream.error().is_none() && too_long.is_none() {
            prop_assert_eq!(disposition, Placed(part.len));
        }
        if let Placed(_) = disposition
            && !message.opcode.is_extension()
        {
            for (byte, (region, at)) in
                message.data[part.at..].iter().zip(&places[part.at..]).take(part.len)
            {
                model.regions[*region][*at] = *byte;
            }
        }
        arrived[key] |= disposition != Refused;
        while arrived.get(order) == Some(&true) {
            order += 1;
        }
        b.complete_order(order as u64);
        for (memory, expected) in memories.iter().zip(&model.regions) {
            prop_assert!(memory.to_vec() == *expected);
        }
        seen.extend(b.events());
    }
    let complete = parts.get(order).map_or(messages.len(), |part| part.index);
    let complete = complete.min(too_long.unwrap_or(complete));
    let reached = b.stream.error().is_some();
    if let Some(Error::Ddp(error)) = b.stream.error() {
        prop_assert!(matches!(error.code, DdpErrorCode::MessageTooLong | DdpErrorCode::InvalidMo));
    }
    b.stream.fail(Failure::LlpLost);
    seen.extend(b.events());
    let mut expected: Vec<Event> =
        (0..complete).map(|i| delivered(i as u64, &messages[i])).collect();
    expected.extend((complete..posts).map(|i| Event::ReceiveFlushed { cookie: i as u64 }));
    let kept =
        |e: &Event| !matches!(e, Event::Error(_) | Event::Terminated { .. } | Event::Failed(_));
    seen.retain(kept);
    prop_assert_eq!(seen, expected);
    prop_assert!(memories.iter().all(|memory| !b.stream.uses_memory(memory)));
    b.stream.release(&mut b.pool);
    prop_assert_eq!((b.pool.in_use(), b.pool.high_water()), (0, 0));
    prop_assert!(reached || too_long.is_none() || order < parts.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // RFC 5041 §5.1.2, §5.3: for any spans, messages, segments and order of arrival, messages fill their receives and
    // no other byte. The stream may end after any arrival.
    #[test]
    fn messages_fill_their_receives_and_no_other_byte(seed in 1u64.., steps in 1usize..1500) {
        play(seed, None, steps)?;
    }

    // RFC 5041 §7.1: a message that is too long ends the stream after all earlier messages are delivered.
    #[test]
    fn too_long_message_flushes_its_receive_and_those_behind(
        seed in 1u64.., at in 0usize..20, steps in 1usize..3000,
    ) {
        play(seed, Some(at), steps)?;
    }
}
