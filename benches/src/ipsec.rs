//! IPsec configuration of the rows with IPsec: AES-GCM-128 with ESN in transport mode, as in the configuration files of
//! both ends. This module derives the keys from the SPIs: the key files that the configuration names are not read.

use std::sync::Arc;

use config::Config;
use dataplane::{
    IpsecConfig, Protection, ReplayWindows, SaConfig, SaDirectionConfig, SaId, WorkerId,
};
use ipsec::crypto::{Algorithm, Keys};
use ipsec::guard::Direction;
use ipsec::sa::{Lifetime, Mode, Parameters};

use crate::rig_config::{RigConfig, Side};

/// Algorithm of all SAs.
pub const ALGORITHM: Algorithm = Algorithm::AesGcm128;

/// Returns the SPI of the SA from `from` to its peer.
fn outbound_spi(from: Side) -> u32 {
    0x1001 + from as u32
}

/// Returns the IPsec sections of one side's configuration file, in order.
pub(crate) fn ipsec_sections(rig: &RigConfig, side: Side) -> [(&'static str, String); 3] {
    let peers = if rig.network.v6 { "fd00:9::/64" } else { "10.9.0.0/16" };
    let policy = format!("name = \"peers\"\nremote = \"{peers}\"\naction = \"protect\"");
    let peer = if side == Side::Initiator { Side::Responder } else { Side::Initiator };
    let sa = |name: &str, from: Side, more: &str| {
        format!(
            "name = \"{name}\"\npolicy = \"peers\"\ndirection = \"{name}\"\nspi = {}\n\
             algorithm = \"aes128gcm16\"\nkey_file = \"none-{name}\"{more}",
            outbound_spi(from)
        )
    };
    let sas = [
        sa("out", side, "\nsequence_file = \"none\""),
        "[[ipsec.sa]]".to_owned(),
        sa("in", peer, ""),
    ];
    [
        ("ipsec", "laboratory = true".to_owned()),
        ("ipsec.policy", policy),
        ("ipsec.sa", sas.join("\n")),
    ]
}

/// Returns the worker's IPsec configuration; `None` if the configuration file has none.
pub(crate) fn ipsec_config(config: &Config) -> anyhow::Result<Option<Arc<IpsecConfig>>> {
    let section = &config.ipsec;
    if !section.is_enabled() {
        return Ok(None);
    }
    let policies = section.policy_database().map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
    let sas = section.sas.iter().zip(0..).map(|(sa, id)| SaConfig {
        id: SaId(id),
        protection: Protection(0),
        parameters: Arc::new(Parameters {
            spi: sa.spi,
            algorithm: sa.algorithm,
            keys: Keys::new(vec![sa.spi as u8; sa.algorithm.key_len()], Vec::new()),
            mode: Mode::Transport,
            esn: sa.esn,
            encapsulation: None,
            soft: Lifetime::default(),
            hard: Lifetime::default(),
        }),
        direction_config: match sa.direction {
            Direction::In => SaDirectionConfig::In { window: section.keys.window, top: 0 },
            // One reservation of sequence numbers for the whole run, because there is no control thread to extend it.
            Direction::Out => {
                SaDirectionConfig::Out { reserve: Some((1, 1 << 40)), keepalive: None }
            }
        },
    });
    Ok(Some(Arc::new(IpsecConfig {
        policies,
        owners: vec![WorkerId(0)],
        sas: sas.collect(),
        sole_sealer: false,
        windows: ReplayWindows::default(),
    })))
}
