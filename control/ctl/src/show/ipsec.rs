//! Tables of IPsec SAs and policies.

use api::{Counters, IpsecPolicyInfo, IpsecSaInfo, Stats};

use super::{format_pairs, table, text_or_dash};

/// Returns a table with one row per SA.
pub(crate) fn ipsec_sas(sas: &[IpsecSaInfo]) -> String {
    table(
        &[
            "POLICY",
            "DIRECTION",
            "SPI",
            "NAME",
            "ALGORITHM",
            "MODE",
            "SEQUENCE",
            "PACKETS",
            "BYTES",
            "REFUSED",
        ],
        sas.iter().map(|sa| {
            vec![
                sa.policy.clone(),
                sa.direction.clone(),
                format!("{:#010x}", sa.spi),
                text_or_dash(sa.name.clone()),
                sa.algorithm.clone(),
                format_mode(sa.tunnel.as_ref(), sa.udp),
                sa.sequence.to_string(),
                sa.packets.to_string(),
                sa.bytes.to_string(),
                text_or_dash(sa.refused.clone()),
            ]
        }),
    )
}

fn format_mode(tunnel: Option<&[String; 2]>, udp: bool) -> String {
    let mode = tunnel.map_or_else(|| "transport".to_owned(), |[a, b]| format!("tunnel {a}>{b}"));
    if udp { mode + ", UDP" } else { mode }
}

/// Returns a table with one row per policy.
pub(crate) fn ipsec_policies(policies: &[IpsecPolicyInfo]) -> String {
    let ports = |ports: [u16; 2]| match ports {
        [0, u16::MAX] => "any".to_owned(),
        [first, last] if first == last => first.to_string(),
        [first, last] => format!("{first}-{last}"),
    };
    table(
        &[
            "POLICY",
            "DIRECTION",
            "LOCAL",
            "REMOTE",
            "PROTOCOL",
            "LOCAL PORTS",
            "REMOTE PORTS",
            "ACTION",
            "REFUSED",
        ],
        policies.iter().map(|policy| {
            let action = match &policy.tunnel {
                Some([local, remote]) => format!("{} in a tunnel {local}>{remote}", policy.action),
                None => policy.action.clone(),
            };
            vec![
                policy.name.clone(),
                policy.direction.clone().unwrap_or_else(|| "both".to_owned()),
                policy.local.clone(),
                policy.remote.clone(),
                policy.protocol.map_or_else(|| "any".to_owned(), |number| number.to_string()),
                ports(policy.local_ports),
                ports(policy.remote_ports),
                action,
                text_or_dash(policy.refused.clone()),
            ]
        }),
    )
}

/// Returns the IPsec counters summed over all workers. Dropped frames are counted as `drop_REASON`.
pub(crate) fn ipsec_counters(stats: &Stats) -> Counters {
    let mut sums = Counters::new();
    let is_ours = |name: &str| {
        ["ipsec_", "unsent_", "mesh_seal_", "nat_keepalives_", "host_too_long"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    for worker in &stats.workers {
        for (name, value) in worker.counters.iter().filter(|(name, _)| is_ours(name)) {
            *sums.entry(name.clone()).or_default() += value;
        }
        for (reason, value) in &worker.drops {
            let name = reason.trim_start_matches("net_");
            if name.starts_with("ipsec_") || name.starts_with("esp_") {
                *sums.entry(format!("drop_{name}").into()).or_default() += value;
            }
        }
    }
    sums
}

/// Returns a table of names and values.
pub(crate) fn named_counters(counters: &Counters) -> String {
    format_pairs(counters.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}
