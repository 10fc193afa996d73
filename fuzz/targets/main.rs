//! One libFuzzer program for all targets: `FUZZ_TARGET` names the one to run (see README.md).
#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<&'static fuzz::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        fuzz::target(&name).unwrap_or_else(|| {
            let names: Vec<_> = fuzz::TARGETS.iter().map(|target| target.name).collect();
            panic!("FUZZ_TARGET is {name:?}; it must be one of {names:?}")
        })
    });
    (target.run)(data);
});
