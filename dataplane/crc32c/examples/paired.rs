//! Compares this crate's run times with those of the code that it replaces, in alternating slices. The input begins at
//! an address of 2 mod 64, like an FPDU in a packet. Prints medians in nanoseconds, and the median of the ratios
//! old/new with its 95 % interval (order statistics).
//!
//! `cargo run --release -p crc32c --example paired [PAIRS]`
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use crc_fast::CrcAlgorithm;
use crc32c::{Digest, Engine, Inserts, Path, Sum, Target};

const LENGTHS: [usize; 15] =
    [16, 32, 48, 64, 96, 128, 144, 192, 224, 230, 320, 1448, 1460, 4096, 8948];

/// Bytes processed per slice, by the old or the new code.
const SLICE_LEN: usize = 1 << 16;

fn main() {
    let pairs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(301);
    let Some(wide) = [Path::Avx512, Path::Avx2].into_iter().find_map(Engine::with_path) else {
        println!("this CPU has no VPCLMULQDQ");
        return;
    };
    println!("{wide:?}");
    let sum = sum();
    println!(
        "| operation | bytes | old ns | new ns | old/new | 95 % |\n|---|---:|---:|---:|---:|---|"
    );
    for len in LENGTHS {
        let mut rooms = [vec![0x5a_u8; len + 128], vec![0_u8; len + 128]];
        let [from, to] = &mut rooms;
        let (at, to_at) = (from.as_ptr().align_offset(64) + 2, to.as_ptr().align_offset(64) + 2);
        let from = &from[at..at + len];
        let to = &mut to[to_at..to_at + len];
        print_row(
            "crc",
            len,
            pairs,
            || baseline_crc(black_box(from)),
            || wide.update(0, black_box(from)),
        );
        print_row(
            "crc, dispatched",
            len,
            pairs,
            || baseline_crc(black_box(from)),
            || crc32c::update(0, black_box(from)),
        );
        let none = Sum::default();
        print_row(
            "crc + sum",
            len,
            pairs,
            || (sum(from), baseline_crc(black_box(from))),
            || wide.crc_sum(0, none, black_box(from)),
        );
        let cell = std::cell::RefCell::new(to);
        let copied = || {
            let mut to = cell.borrow_mut();
            to.copy_from_slice(black_box(from));
            baseline_crc(black_box(&to))
        };
        print_row("copy + crc", len, pairs, copied, || {
            wide.copy_crc(0, black_box(from), &mut cell.borrow_mut())
        });
        print_row(
            "copy + crc + sum",
            len,
            pairs,
            || (copied(), sum(&cell.borrow())),
            || wide.copy_crc_sum(0, none, black_box(from), &mut cell.borrow_mut()),
        );
        print_row(
            "copy with words + crc + sum",
            len,
            pairs,
            || {
                let mut to = cell.borrow_mut();
                copy_in_pieces(black_box(from), &mut to);
                (crc32c::update(0, &to), sum(&to))
            },
            || {
                let mut to = cell.borrow_mut();
                let mut target = Target::with_inserts(&mut to, WORDS, Digest::new(true));
                target.copy(&black_box(from)[..target.source_len()]);
                target.into_digest()
            },
        );
    }
}

/// The MPA markers of a long FPDU, the first of them at offset 300.
const WORDS: Inserts = Inserts::new(300, 300);

/// Copies piece by piece, with words at the same offsets as [`Target::copy`] with [`WORDS`]. Only the numbers in later
/// words differ.
fn copy_in_pieces(from: &[u8], to: &mut [u8]) {
    let (first, rest) = to.split_at_mut(300.min(from.len()));
    first.copy_from_slice(&from[..first.len()]);
    let mut at = first.len();
    for chunk in rest.chunks_mut(Inserts::INTERVAL) {
        let (word, piece) = chunk.split_at_mut(Inserts::LEN.min(chunk.len()));
        word.copy_from_slice(&(at as u32).to_be_bytes()[..word.len()]);
        piece.copy_from_slice(&from[at..at + piece.len()]);
        at += piece.len();
    }
}

fn print_row<A, B>(name: &str, len: usize, pairs: usize, old: impl Fn() -> A, new: impl Fn() -> B) {
    let calls = (SLICE_LEN / len).max(1);
    let (mut olds, mut news, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs + 5 {
        // The order alternates from pair to pair.
        let (a, b) = if pair % 2 == 0 {
            let a = nanos_per_call(calls, &old);
            (a, nanos_per_call(calls, &new))
        } else {
            let b = nanos_per_call(calls, &new);
            (nanos_per_call(calls, &old), b)
        };
        // The first five pairs are for warm-up and are not counted.
        if pair >= 5 {
            olds.push(a);
            news.push(b);
            ratios.push(a / b);
        }
    }
    for times in [&mut olds, &mut news, &mut ratios] {
        times.sort_by(f64::total_cmp);
    }
    // The values of rank n/2 ± 0.98 √n enclose the median with a probability of 95 %.
    let (middle, off) = (pairs / 2, (0.98 * (pairs as f64).sqrt()).ceil() as usize);
    let (least, most) = (ratios[middle - off.min(middle)], ratios[(middle + off).min(pairs - 1)]);
    println!(
        "| {name} | {len} | {:.1} | {:.1} | {:.2} | [{least:.2}, {most:.2}] |",
        olds[middle], news[middle], ratios[middle]
    );
}

/// Returns the mean time of a call in nanoseconds.
fn nanos_per_call<T>(calls: usize, call: impl Fn() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// Returns the CRC computed by the replaced code: by the CPU's instruction below 384 bytes, otherwise by `crc-fast`.
#[inline(never)]
fn baseline_crc(bytes: &[u8]) -> u32 {
    if bytes.len() < 384 {
        return crc32c_hw::update(0, bytes);
    }
    let mut digest = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, 0xffff_ffff);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Returns a function that computes the Internet checksum as `dataplane` does: vectorized by the compiler, with AVX-512
/// from 128 bytes on.
fn sum() -> fn(&[u8]) -> u64 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn sum_simd(bytes: &[u8]) -> u64 {
        sum_words(bytes)
    }
    match Engine::with_path(Path::Avx512) {
        Some(_) => |bytes| match bytes.len() {
            ..128 => sum_words(bytes),
            // SAFETY: the engine of the AVX-512 path is available only on CPUs with these features.
            _ => unsafe { sum_simd(bytes) },
        },
        None => sum_words,
    }
}

#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let last = u64::from(u32::from_ne_bytes(last));
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>() + last
}
