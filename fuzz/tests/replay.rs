//! Replays the corpora: every input that a fuzzer or a person found worth keeping.

use std::path::Path;

#[test]
fn every_corpus_replays() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in fuzz::TARGETS {
        let folder = corpora.join(target.name);
        let mut inputs = 0;
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            let data = std::fs::read(&path).expect("a readable file");
            (target.run)(&data);
            inputs += 1;
        }
        assert!(inputs >= 5, "{}: {inputs} inputs are no corpus", target.name);
    }
}

/// Also without libFuzzer: a few thousand damaged copies of the corpus, the same ones each time.
#[test]
fn damaged_corpora_do_no_harm() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in fuzz::TARGETS {
        let mut inputs: Vec<_> = std::fs::read_dir(corpora.join(target.name))
            .expect("a corpus")
            .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a readable file"))
            .collect();
        inputs.sort();
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
