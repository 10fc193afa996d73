//! Version, commit and features of `ddpd`. The text contains neither date nor host name, so that builds are
//! reproducible.

use port_kind::PortKind;

/// Names of instruction set extensions, each with true if the compiler was allowed to use the extension.
const INSTRUCTIONS: [(&str, bool); 5] = [
    ("sse4.2", cfg!(target_feature = "sse4.2")),
    ("pclmulqdq", cfg!(target_feature = "pclmulqdq")),
    ("bmi2", cfg!(target_feature = "bmi2")),
    ("avx2", cfg!(target_feature = "avx2")),
    ("avx512f", cfg!(target_feature = "avx512f")),
];

/// Returns the commit, which `scripts/package` and `scripts/release` pass in `DDPD_COMMIT`. Other builds omit the
/// commit, because each commit would otherwise cause a rebuild.
fn commit() -> &'static str {
    option_env!("DDPD_COMMIT").unwrap_or("not known to this build")
}

/// Returns three lines: version (with the version of libdpdk, if known), commit, and features.
pub(crate) fn text(dpdk: Option<&str>) -> String {
    let dpdk = dpdk.map(|dpdk| format!(" ({dpdk})")).unwrap_or_default();
    let instructions: Vec<&str> =
        INSTRUCTIONS.iter().filter(|(_, used)| *used).map(|(name, _)| *name).collect();
    let instructions = if instructions.is_empty() { "none".into() } else { instructions.join(" ") };
    format!(
        "ddpd {}{dpdk}\ncommit: {}\nfeatures: TCP, SCTP; DDP, RDMAP; ports {}; instructions {instructions}",
        env!("CARGO_PKG_VERSION"),
        commit(),
        PortKind::NAMES.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_text_starts_with_numbers_then_commit_and_features() {
        let text = text(Some("DPDK 24.11.1"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], concat!("ddpd ", env!("CARGO_PKG_VERSION"), " (DPDK 24.11.1)"));
        assert_eq!(lines[1].strip_prefix("commit: "), Some(commit()));
        assert!(lines[2].starts_with("features: ") && lines[2].contains("af_packet"), "{text}");
        assert_eq!(lines.len(), 3, "{text}");
    }

    #[test]
    fn version_text_without_libdpdk_omits_its_version() {
        let text = text(None);
        assert_eq!(text.lines().next(), Some(concat!("ddpd ", env!("CARGO_PKG_VERSION"))));
    }
}
