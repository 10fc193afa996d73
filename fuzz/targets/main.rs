//! The libFuzzer program for all fuzz targets. The environment variable `FUZZ_TARGET` selects a target by name. With
//! the value `list` the program prints all names (see README.md).
#![no_main]

use std::io::Write as _;
use std::sync::OnceLock;

static TARGET: OnceLock<&'static fuzz::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        if name == "list" {
            let mut out = std::io::stdout().lock();
            for target in fuzz::TARGETS {
                writeln!(out, "{}", target.name).unwrap_or_else(|error| panic!("stdout: {error}"));
            }
            std::process::exit(0);
        }
        let target = fuzz::target(&name).unwrap_or_else(|| {
            let names: Vec<_> = fuzz::TARGETS.iter().map(|target| target.name).collect();
            panic!("FUZZ_TARGET is {name:?}; it must be one of {names:?}")
        });
        TARGET.get_or_init(|| target);
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(data);
        }
    }
);
