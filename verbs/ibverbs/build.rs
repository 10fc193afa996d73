//! Generates the structures and constants of the installed `infiniband/verbs.h`.

use std::env;
use std::path::PathBuf;
use std::process::exit;

fn main() {
    for file in ["build.rs", "c/verbs.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let bindings = bindgen::Builder::default()
        .header("c/verbs.h")
        .allowlist_type("ibv_.*|_compat_ibv_port_attr|verbs_context")
        .allowlist_var("IBV_.*|_?IBV_DEVICE_.*")
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(false)
        .generate();
    let bindings = bindings.unwrap_or_else(|error| {
        // Cargo prints this line and fails. With a status other than 0, the message would be lost in the script's
        // output.
        println!(
            "cargo::error=bindgen cannot read infiniband/verbs.h: install the Debian packages libibverbs-dev and \
             libclang-dev ({error})"
        );
        exit(0)
    });
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR can be written");
}
