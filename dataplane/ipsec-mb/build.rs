//! Generates the bindings of libIPSec_MB from the installed header.

use std::env;
use std::path::PathBuf;
use std::process::exit;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c/wrapper.h");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindgen::Builder::default()
        .header("c/wrapper.h")
        .allowlist_function("alloc_mb_mgr|free_mb_mgr|init_mb_mgr_auto|imb_get_version_str")
        .allowlist_type("gcm_key_data|gcm_context_data")
        .allowlist_var("IMB_FEATURE_(AESNI|PCLMULQDQ)")
        .generate_comments(false)
        .layout_tests(false)
        // Cargo runs this script again if the header was moved or updated.
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .generate()
        .unwrap_or_else(|error| refuse(&error))
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR can be written");
    println!("cargo:rustc-link-lib=IPSec_MB");
}

/// Prints an error line that makes cargo fail the build, and exits.
fn refuse(error: &bindgen::BindgenError) -> ! {
    println!(
        "cargo::error=intel-ipsec-mb.h cannot be read (Debian packages libipsec-mb-dev, which libdpdk-dev brings, and libclang-dev): {error}"
    );
    exit(0)
}
