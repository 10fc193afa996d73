//! Replays the corpora, which contain hand-written inputs and inputs found by libFuzzer.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Returns a target's inputs, sorted: the files of its folder, and the entries of its archive of libFuzzer's findings.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folder = corpora.join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let named = entries.map(|entry| entry.expect("an entry").path());
    let mut inputs: Vec<_> =
        named.map(|path| std::fs::read(path).expect("a readable file")).collect();
    let archive = corpora.join(format!("{target}.tar"));
    if archive.exists() {
        let mut archive = tar::Archive::new(File::open(archive).expect("a readable archive"));
        for entry in archive.entries().expect("an archive") {
            let mut input = Vec::new();
            entry.expect("an entry").read_to_end(&mut input).expect("its bytes");
            inputs.push(input);
        }
    }
    inputs.sort();
    inputs
}

#[test]
fn every_corpus_replays() {
    for target in fuzz::TARGETS {
        let inputs = corpus(target.name);
        inputs.iter().for_each(|input| (target.run)(input));
        assert!(inputs.len() >= 5, "{}: {} inputs are not a corpus", target.name, inputs.len());
    }
}

/// Runs 2000 mutated inputs per target without libFuzzer. The mutations are the same in each run.
#[test]
fn damaged_corpora_do_not_panic() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound.max(1) as u64) as usize
    };
    for target in fuzz::TARGETS {
        let inputs = corpus(target.name);
        for _ in 0..2000 {
            let mut data = inputs[random(inputs.len())].clone();
            for _ in 0..=random(4) {
                let at = random(data.len() + 1);
                match random(4) {
                    0 if at < data.len() => data[at] ^= 1 << random(8),
                    1 if at < data.len() => data[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                    2 => data.truncate(at),
                    _ => data.insert(at, random(256) as u8),
                }
            }
            (target.run)(&data);
        }
    }
}
