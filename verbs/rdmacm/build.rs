//! Generates the structures and constants of the installed `rdma/rdma_cma.h`. Those of `infiniband/verbs.h` come from
//! the crate `ibverbs`.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};

/// Declares to bindgen that the structures of the crate `ibverbs` are `Copy`.
#[derive(Debug)]
struct Verbs;

impl ParseCallbacks for Verbs {
    fn blocklisted_type_implements_trait(
        &self,
        _name: &str,
        derive_trait: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        matches!(derive_trait, DeriveTrait::Copy).then_some(ImplementsTrait::Yes)
    }
}

fn main() {
    for file in ["build.rs", "c/rdma_cma.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let bindings = bindgen::Builder::default()
        .header("c/rdma_cma.h")
        .allowlist_type("rdma_.*")
        .allowlist_var("RDMA_.*|RAI_.*")
        .blocklist_type("(_compat_)?(ibv|verbs)_.*")
        .parse_callbacks(Box::new(Verbs))
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(false)
        .generate();
    let bindings = bindings.unwrap_or_else(|error| {
        // Cargo prints this line and fails. With a status other than 0, the message would be lost in the script's
        // output.
        println!(
            "cargo::error=bindgen cannot read rdma/rdma_cma.h: install the Debian packages librdmacm-dev and \
             libclang-dev ({error})"
        );
        exit(0)
    });
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR can be written");
}
