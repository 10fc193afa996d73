//! The second target: IPsec policies with SAs from files, a port shared with the host's kernel, and listeners with
//! access lists. The good peers' packets match a BYPASS policy, and the access lists admit them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use ipsec::crypto::{Algorithm, Keys};
use ipsec::sa::{Lifetime, Mode, Parameters};

use crate::listener_section::listener_section;

/// Port of a listener that requires 128-bit encryption.
pub(crate) const REQUIRED_PORT: u16 = 7491;
/// Region of the listener at [`REQUIRED_PORT`], 64 KiB of zeros.
pub(crate) const REQUIRED_REGION: &str = "required";
/// TCP port of a listener that denies [`DENIED_NET`].
pub(crate) const DENIED_PORT: u16 = 7492;
/// SCTP port of a listener that denies [`DENIED_NET`], with UDP encapsulation.
pub(crate) const DENIED_SCTP_PORT: u16 = 7493;
/// UDP port of SCTP over UDP (RFC 6951).
pub(crate) const SCTP_UDP_PORT: u16 = 9899;

/// Peers whose policy requires 128-bit encryption.
const PROTECTED_NET: &str = "198.19.0.0/16";
/// Peers whose policy requires authentication without encryption.
const WEAK_NET: &str = "198.21.0.0/16";
/// Peers that access lists deny. No IPsec policy protects their packets.
pub(crate) const DENIED_NET: &str = "198.20.0.0/16";

/// An SA of the target, with its policy and algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sa {
    name: &'static str,
    policy: &'static str,
    spi: u32,
    algorithm: (&'static str, Algorithm),
    to_target: bool,
}

const STRONG_ALGORITHM: (&str, Algorithm) = ("aes128gcm16", Algorithm::AesGcm128);

const fn inbound(name: &'static str, spi: u32) -> Sa {
    Sa { name, policy: "protected", spi, algorithm: STRONG_ALGORITHM, to_target: true }
}

/// SA from the target to peers in [`PROTECTED_NET`].
pub(crate) const RETURN_SA: Sa = Sa { to_target: false, ..inbound("back", 0x1005) };
/// SA to the target with 128-bit encryption. Each attack has its own SA, whose sequence numbers begin at 1.
pub(crate) const STRONG_SA: Sa = inbound("strong", 0x2001);
/// SA to the target under the policy `weak`: authentication without encryption.
pub(crate) const WEAK_SA: Sa = Sa {
    policy: "weak",
    algorithm: ("null-sha256", Algorithm::NullHmacSha256),
    ..inbound("weak", 0x2002)
};
/// SA from the target under the policy `weak`: authentication without encryption.
const WEAK_RETURN_SA: Sa = Sa { name: "weak-back", spi: 0x1006, to_target: false, ..WEAK_SA };
/// SA to the target for replayed packets.
pub(crate) const REPLAYED_SA: Sa = inbound("replayed", 0x2003);
/// SA to the target for damaged packets.
pub(crate) const DAMAGED_SA: Sa = inbound("damaged", 0x2004);

const SAS: [Sa; 6] = [RETURN_SA, STRONG_SA, WEAK_SA, WEAK_RETURN_SA, REPLAYED_SA, DAMAGED_SA];

impl Sa {
    /// Returns the keys for encryption and authentication. The keys of two SAs differ, because each key is derived
    /// from the SA's SPI.
    fn keys(&self) -> (Vec<u8>, Vec<u8>) {
        let key = |len| vec![self.spi as u8; len];
        (key(self.algorithm.1.key_len()), key(self.algorithm.1.auth_key_len()))
    }

    /// Returns the parameters of the SA, equal at both ends.
    pub(crate) fn parameters(&self) -> Parameters {
        let (encryption, authentication) = self.keys();
        Parameters {
            spi: self.spi,
            algorithm: self.algorithm.1,
            keys: Keys::new(encryption, authentication),
            mode: Mode::Transport,
            esn: true,
            encapsulation: None,
            soft: Lifetime::default(),
            hard: Lifetime::default(),
        }
    }

    fn section(&self, directory: &Path) -> Result<String> {
        let (encryption, authentication) = self.keys();
        let lines: String = [encryption, authentication]
            .into_iter()
            .filter(|key| !key.is_empty())
            .map(|key| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n")
            .collect();
        let path = directory.join(format!("{}.key", self.name));
        // An existing file would keep its mode; the key file must have 0600.
        let _ = fs::remove_file(&path);
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(lines.as_bytes()).with_context(|| path.display().to_string())?;
        let mut text = format!(
            "[[ipsec.sa]]\nname = \"{}\"\npolicy = \"{}\"\ndirection = \"{}\"\nspi = {}\nalgorithm = \"{}\"\n\
             key_file = \"{}\"\n",
            self.name,
            self.policy,
            if self.to_target { "in" } else { "out" },
            self.spi,
            self.algorithm.0,
            path.display()
        );
        if !self.to_target {
            let path = directory.join(format!("{}.sequence", self.name));
            text += &format!("sequence_file = \"{}\"\n", path.display());
        }
        Ok(text)
    }
}

/// Configuration keys of the interface `front`: the TAP device to the host's kernel, and the range of the appliance's
/// local ports.
pub(crate) const HOST_KERNEL_KEYS: &str = "host = \"tap\"\nlocal_ports = \"20000-29999\"\n";

/// Returns the configuration sections that this target has in addition to the plain target's, and writes the key files.
pub(crate) fn sections(directory: &Path) -> Result<String> {
    let mut text = String::from("[ipsec]\nlaboratory = true\n");
    for (name, remote, action) in [
        ("protected", PROTECTED_NET, "protect"),
        ("weak", WEAK_NET, "protect"),
        ("rest", "0.0.0.0/0", "bypass"),
        ("rest-v6", "::/0", "bypass"),
    ] {
        text += &format!(
            "[[ipsec.policy]]\nname = \"{name}\"\nremote = \"{remote}\"\naction = \"{action}\"\n"
        );
    }
    for sa in SAS {
        text += &sa.section(directory)?;
    }
    text += &format!(
        "[[region]]\nname = \"{REQUIRED_REGION}\"\nsize = \"64 KiB\"\naccess = \"w\"\nshared = true\n"
    );
    let keys =
        format!("markers = false\nregions = [\"{REQUIRED_REGION}\"]\nrequire = \"ipsec-128\"");
    text += &listener_section("required", REQUIRED_PORT, "ddp", &keys);
    let keys = format!("regions = [\"prey\"]\ndeny = [\"{DENIED_NET}\"]");
    text += &listener_section("denied", DENIED_PORT, "ddp", &keys);
    let keys = format!("transport = \"sctp\"\nregions = [\"prey-s\"]\ndeny = [\"{DENIED_NET}\"]");
    Ok(text + &listener_section("denied-sctp", DENIED_SCTP_PORT, "ddp", &keys))
}
