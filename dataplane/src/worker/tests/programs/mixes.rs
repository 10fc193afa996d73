//! Random mixes of Sends, Writes, Reads, FetchAdds, Immediate Data and changes of windows, in both directions over a
//! lossy path. Completions and memory are compared with a model.
//!
//! ```text
//!  memory of each program:  0         256 KiB      512 KiB      768 KiB      1 MiB
//!                           | sources | receives   | Writes of  | sinks      |
//!                           | pattern |            | the peer   |            |
//! ```
//!
//! Each operation has a slot of [`SLOT`] bytes in each of the four parts. Bytes outside placed messages stay zero.

use verbs_layout::work::{Remote, WindowBind};

use super::windows::ALL;
use super::*;
use crate::api::{Transport, WindowId, WindowKind};

const PART: u64 = 256 << 10;
const SLOT: u64 = 4096;
/// Memory window of each program, over the part of the region into which the peer writes.
const TARGET: WindowId = WindowId(0x51);
/// Memory window of each program, which the program's operations bind and invalidate.
const CHANGED: WindowId = WindowId(0x52);
const OPERATIONS: u64 = PART / SLOT;

/// Random number generator: xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Expected memory and completions of one program.
#[derive(Default)]
struct Model {
    memory: Vec<u8>,
    sends: Vec<Completion>,
    receives: Vec<Completion>,
    /// Messages sent by the other program: bytes, length in the completion, Solicited Event flag, and Immediate Data if
    /// any.
    inbound: Vec<(Vec<u8>, u32, bool, Carried)>,
    /// Length in bytes of the last Write that the other program has posted since its last message; 0 if there is none.
    written: u32,
    /// With an SRQ: completions in order, without `wr_id`, and the bytes of their messages.
    shared: Vec<(Completion, Vec<u8>)>,
    /// Key with which the window [`CHANGED`] is bound.
    bound: Option<u8>,
}

impl Model {
    /// Checks the completions of an SRQ, each of which names the slot of its message. Adds the messages to the memory.
    fn check_shared(&mut self, completions: &[Completion]) {
        let mut slots: Vec<_> = completions.iter().map(|completion| completion.wr_id).collect();
        slots.sort_unstable();
        assert_eq!(slots, (1000..1000 + slots.len() as u64).collect::<Vec<_>>(), "each one once");
        let (expected, messages): (Vec<_>, Vec<_>) = self.shared.drain(..).unzip();
        let seen: Vec<_> = completions.iter().map(|c| Completion { wr_id: 0, ..*c }).collect();
        assert_eq!(seen, expected);
        for (completion, bytes) in completions.iter().zip(messages) {
            let at = (PART + (completion.wr_id - 1000) * SLOT) as usize;
            self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

/// Splits `len` bytes from `at` on into three pieces, possibly empty. Returns offset and length of each.
fn split(random: &mut Random, at: u64, len: u64) -> Vec<(u64, u32)> {
    let first = random.below(len + 1);
    let second = random.below(len - first + 1);
    let lens = [first, second, len - first - second];
    let mut from = at;
    lens.map(|len| {
        let piece = (from, len as u32);
        from += len;
        piece
    })
    .to_vec()
}

/// Posts a random operation of `a` with number `n`, and records its effects in the models.
fn post(random: &mut Random, n: u64, a: &mut TestProgram, own: &mut Model, peer: &mut Model) {
    let slot = n * SLOT;
    let len = random.below(SLOT) + 1;
    let bytes = own.memory[slot as usize..(slot + len) as usize].to_vec();
    // The regions of the two hosts differ in the last bit of their STags.
    let other = |offset| Remote { stag: a.stag.0 ^ 1, to: ADDRESS + offset };
    let payload = match random.below(3) {
        0 if len <= 256 => inline(&bytes),
        _ => a.gather(&split(random, slot, len)),
    };
    let solicited = random.below(2) == 0;
    let target = match random.below(2) {
        0 => a.stag.0 ^ 1,
        _ => TARGET.stag(1).0,
    };
    let (operation, opcode, byte_len) = match random.below(7) {
        0 | 1 => {
            peer.written = 0;
            peer.inbound.push((bytes, len as u32, solicited, Carried::Nothing));
            (Operation::Send { payload, solicited }, Opcode::Send, 0)
        }
        2 => {
            let data = random.below(u64::MAX).to_le_bytes();
            let written = std::mem::take(&mut peer.written);
            peer.inbound.push((Vec::new(), written, solicited, Carried::Immediate(data)));
            (Operation::Immediate { data, solicited }, Opcode::Immediate, 0)
        }
        3 => {
            let to = 2 * PART + slot;
            peer.written = len as u32;
            peer.memory[to as usize..(to + len) as usize].copy_from_slice(&bytes);
            let remote = Remote { stag: target, to: ADDRESS + to };
            (Operation::Write { remote, payload }, Opcode::Write, 0)
        }
        4 => {
            // The part of sources is the same at both ends and does not change.
            let to = 3 * PART + slot;
            own.memory[to as usize..(to + len) as usize].copy_from_slice(&bytes);
            let sinks = a.list(&split(random, to, len));
            (Operation::Read { remote: other(slot), sinks }, Opcode::Read, len as u32)
        }
        5 => {
            let (to, at) = (3 * PART + slot, 2 * PART + slot);
            let add = random.below(u64::MAX);
            peer.memory[at as usize..at as usize + 8].copy_from_slice(&add.to_ne_bytes());
            let result = AtomicResult { address: ADDRESS + to, lkey: a.stag.0 };
            let remote = Remote { stag: target, to: ADDRESS + at };
            (Operation::FetchAdd { remote, add, result }, Opcode::FetchAdd, 8)
        }
        _ => match own.bound.take() {
            Some(key) => {
                let stag = CHANGED.stag(key).0;
                (Operation::LocalInvalidate { stag }, Opcode::LocalInvalidate, 0)
            }
            None => {
                own.bound = Some(n as u8);
                let bind = bind(a, CHANGED.stag(n as u8).0, slot, len);
                (Operation::BindWindow(bind), Opcode::BindWindow, 0)
            }
        },
    };
    let (signalled, fence) = (random.below(4) > 0, random.below(5) == 0);
    if signalled {
        own.sends.push(sent(n, opcode, byte_len));
    }
    a.post_work(&SendWork { wr_id: n, signalled, fence, operation });
}

/// Returns a binding of a window to `len` bytes at `offset` of the region.
fn bind(program: &TestProgram, window: u32, offset: u64, len: u64) -> WindowBind {
    let (region, address) = (program.stag.0, ADDRESS + offset);
    WindowBind { window, region, address, len, access: ALL }
}

/// Posts the receives for all messages of the other program.
fn post_receives(random: &mut Random, b: &mut TestProgram, model: &mut Model) {
    for (n, (bytes, len, solicited, carried)) in (0..).zip(std::mem::take(&mut model.inbound)) {
        let at = PART + n * SLOT;
        let room = bytes.len() as u64 + random.below(SLOT - bytes.len() as u64 + 1);
        if b.shared.is_some() {
            // Any message may take any receive of an SRQ.
            b.receive(1000 + n, &split(random, at, SLOT));
            let completion = received(0, len, solicited, carried);
            model.shared.push((completion, bytes));
            continue;
        }
        b.receive(1000 + n, &split(random, at, room));
        model.memory[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        model.receives.push(received(1000 + n, len, solicited, carried));
    }
}

fn run(transport: Transport, shared: bool, seed: u64) {
    let plan =
        PairPlan { transport, shared, units: 1024, max_receives: 256, ..PairPlan::default() };
    let mut programs = Programs::connected(plan);
    let mut random = Random(seed | 1 << 40);
    for host in [0, 1] {
        programs.add_window(host, TARGET, WindowKind::Two);
        programs.add_window(host, CHANGED, WindowKind::Two);
    }
    let Programs { net, a, b, .. } = &mut programs;
    let mut models = [Model::default(), Model::default()];
    for (program, model) in [&mut *a, &mut *b].into_iter().zip(&mut models) {
        model.memory = vec![0; MEMORY as usize];
        model.memory[..PART as usize].copy_from_slice(&pattern(PART as usize));
        program.write(0, &pattern(PART as usize));
        let operation = Operation::BindWindow(bind(program, TARGET.stag(1).0, 2 * PART, PART));
        let (wr_id, signalled, fence) = (OPERATIONS, false, false);
        program.post_work(&SendWork { wr_id, signalled, fence, operation });
    }
    let [first, second] = &mut models;
    // The operations determine the lengths of the receives. No worker runs until the operations and the receives are
    // posted.
    let mut loss = Random(seed ^ 0x5bd1 | 1);
    net.is_lost = Box::new(move |_, _| loss.below(100) < 3);
    for n in 0..OPERATIONS {
        post(&mut random, n, a, first, second);
        post(&mut random, n, b, second, first);
    }
    post_receives(&mut random, a, first);
    post_receives(&mut random, b, second);
    for (host, model) in models.iter_mut().enumerate() {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let expected = model.sends.len() + model.receives.len() + model.shared.len();
        for completion in programs.completions(host, expected) {
            match completion.completed {
                Completed::Sent(_) => sends.push(completion),
                Completed::Received { .. } => receives.push(completion),
            }
        }
        assert_eq!(sends, model.sends, "{transport:?}, seed {seed}, host {host}");
        if shared {
            model.check_shared(&receives);
            continue;
        }
        assert_eq!(receives, model.receives, "{transport:?}, seed {seed}, host {host}");
    }
    // Unsignalled operations may still be in flight.
    programs.net.run_until("the end of all operations", |net| {
        let all = [0, 1].map(|host| net.hosts[host].count("program_sends_completed"));
        all.iter().all(|&count| count > OPERATIONS).then_some(())
    });
    for (program, model) in [&programs.a, &programs.b].into_iter().zip(&models) {
        let bytes = program.read(0, MEMORY as usize);
        let wrong = bytes.iter().zip(&model.memory).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{transport:?}, seed {seed}");
    }
}

#[test]
fn random_mixes_of_operations_over_tcp_match_the_model() {
    (1..=8).for_each(|seed| run(Transport::Tcp, seed % 2 == 0, seed));
}

#[test]
fn random_mixes_of_operations_over_sctp_match_the_model() {
    (1..=8).for_each(|seed| run(Transport::Sctp, seed % 2 == 0, seed));
}
