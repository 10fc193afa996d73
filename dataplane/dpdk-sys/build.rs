//! Finds libdpdk, compiles the C shim against its headers, and generates the bindings.

use std::env;
use std::path::PathBuf;
use std::process::exit;

/// Oldest DPDK release that the shim compiles against.
const MIN_RELEASE: &str = "22.11";

/// Headers that identify DPDK's header directories. The first is in the common directory, the second in the
/// architecture's directory.
const HEADERS: [&str; 2] = ["rte_version.h", "rte_build_config.h"];

/// DPDK functions that need no shim: not inline, and without structures in their signatures.
const FUNCTIONS: &[&str] = &[
    "rte_eal_init",
    "rte_eal_hotplug_add",
    "rte_eal_alarm_set",
    "rte_eal_alarm_cancel",
    "rte_version",
    "rte_strerror",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_dev_is_valid_port",
    "rte_eth_promiscuous_enable",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_rx_intr_enable",
    "rte_eth_dev_rx_intr_disable",
];

/// Libraries that contain [`FUNCTIONS`] or functions that the shim calls. Two are drivers, `net_ring` and `net_vhost`.
/// The EAL loads all other drivers at run time.
const LIBRARIES: &[&str] = &[
    "rte_net_ring",
    "rte_net_vhost",
    "rte_vhost",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_log",
    "rte_eal",
];

fn main() {
    for file in ["build.rs", "c/shim.c", "c/shim.h", "c/wrapper.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "LIBCLANG_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let dpdk = pkg_config::Config::new()
        .cargo_metadata(false)
        .atleast_version(MIN_RELEASE)
        .probe("libdpdk")
        .unwrap_or_else(|error| fail_without_dpdk(&error));
    for path in rerun_paths(&dpdk) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let flags = cflags();

    let mut shim = cc::Build::new();
    shim.file("c/shim.c").include("c").flag("-O3");
    flags.iter().for_each(|flag| {
        shim.flag(flag);
    });
    shim.compile("ddpd_shim");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut builder = bindgen::Builder::default()
        .header("c/wrapper.h")
        .clang_args(&flags)
        .clang_arg("-Ic")
        .allowlist_function("ddpd_.*")
        .allowlist_type("ddpd_.*")
        .opaque_type("rte_(mbuf|mempool|ring)")
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(false);
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    builder
        .generate()
        .unwrap_or_else(|error| {
            fail(&format!("bindgen cannot read DPDK's headers (libclang 14 or later is needed, Debian package libclang-dev): {error}"))
        })
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR can be written");

    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        // Since release 23.11 rte_log is a separate library.
        if *library != "rte_log" || dpdk.libs.iter().any(|l| l == "rte_log") {
            println!("cargo:rustc-link-lib={library}");
        }
    }
}

/// Returns paths whose modification time or existence changes when libdpdk is upgraded.
///
/// The paths are the header directories and the library under its full name (`librte_eal.so.25.0`). An installation
/// renames each header into its directory, which changes the directory's time. The next release has another library
/// name. Header files are not among the paths, because their times are those of the package's build, often before our
/// last build.
fn rerun_paths(dpdk: &pkg_config::Library) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = dpdk
        .include_paths
        .iter()
        .filter(|dir| HEADERS.iter().any(|header| dir.join(header).exists()))
        .cloned()
        .collect();
    let eal = pkg_config::get_variable("libdpdk", "libdir")
        .ok()
        .and_then(|dir| PathBuf::from(dir).join("librte_eal.so").canonicalize().ok());
    paths.extend(eal);
    if paths.is_empty() {
        fail("pkg-config names no header directory of libdpdk: the package libdpdk-dev is broken");
    }
    paths
}

/// Returns the compiler flags of libdpdk as pkg-config prints them. The `pkg_config` crate's parsed form omits
/// `-march`, which the headers need.
fn cflags() -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = std::process::Command::new(program)
        .args(["--cflags", "libdpdk"])
        .output()
        .unwrap_or_else(|error| {
            fail(&format!(
                "pkg-config cannot be run ({error}); install it (Debian package pkgconf)"
            ))
        });
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

fn fail_without_dpdk(error: &pkg_config::Error) -> ! {
    let found = pkg_config::Config::new().cargo_metadata(false).probe("libdpdk").ok();
    match (found, error) {
        (Some(found), _) => fail(&format!(
            "libdpdk {} is too old, {MIN_RELEASE} or later is needed: install Debian 12's or a later libdpdk-dev",
            found.version
        )),
        (None, pkg_config::Error::Command { .. }) => {
            fail("pkg-config is missing: install the Debian packages pkgconf and libdpdk-dev")
        }
        (None, _) => fail(&format!(
            "libdpdk is missing: install the Debian package libdpdk-dev ({MIN_RELEASE} or later), or build without the appliance (cargo build -p control --no-default-features)"
        )),
    }
}

fn fail(sentence: &str) -> ! {
    // Cargo prints this line and fails. With a status other than 0, the message would be lost in the script's output.
    println!("cargo::error={sentence}");
    exit(0)
}
