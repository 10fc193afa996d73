//! IPsec: SAs with keys from files or from the kernel, and reservation of sequence numbers.

mod kernel;
mod keys;
mod sequence;
mod socket;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use config::{Config, PolicyAction, PolicySection, SaSection};
use dataplane::{
    IpsecConfig, Protection, ReplayWindows, SaConfig, SaDirection, SaDirectionConfig, SaId,
    WorkerId,
};
use ipsec::policy::{Spd, Unmatched};
use ipsec::sa::{Encapsulation, Fragments, Lifetime, Mode, Parameters, Tunnel};

pub(super) use self::kernel::{Kernel, protections};
use self::keys::KeyText;
use self::sequence::Sequence;

/// UDP port of ESP in UDP (RFC 3948 §2.1).
const NAT_PORT: u16 = 4500;
/// TTL of outer IP headers in tunnel mode.
const TTL: u8 = 64;

/// The SAs in force, from the configuration or from the kernel.
#[derive(Debug, Default)]
pub struct Ipsec {
    sas: Vec<StaticSa>,
    kernel: Option<Kernel>,
}

/// Identity of an SA, for events.
pub(super) struct SaIdentity {
    pub(super) spi: u32,
    pub(super) direction: SaDirection,
    /// Name from the configuration. An SA of the kernel has the name of its protection.
    pub(super) name: String,
}

/// An SA of the configuration.
#[derive(Debug)]
struct StaticSa {
    section: SaSection,
    /// The sequence file. `None` if the section names none.
    sequence: Option<Sequence>,
}

/// Returns the workers' configuration and the control thread's state. Without IPsec the configuration is `None` and the
/// state is empty.
///
/// # Errors
/// Returns one sentence if a file or the kernel's XFRM cannot be used, or no worker has a queue of every port.
pub(super) fn start(config: &Config) -> Result<(Option<Arc<IpsecConfig>>, Ipsec), String> {
    let section = &config.ipsec;
    if !section.is_enabled() {
        return Ok((None, Ipsec::default()));
    }
    if section.uses_kernel_keys() {
        Owners::from_config(config)?;
        let kernel = Some(Kernel::open(section.keys.window)?);
        // Until the kernel has answered, only IKE, neighbour discovery and multicast listener discovery pass.
        let policies = Spd::from_checked(Vec::new(), Unmatched::DROP);
        let (owners, sas, windows) = (Vec::new(), Vec::new(), ReplayWindows::default());
        let config = IpsecConfig { policies, owners, sas, sole_sealer: true, windows };
        return Ok((Some(Arc::new(config)), Ipsec { sas: Vec::new(), kernel }));
    }
    let mut read: Vec<(StaticSa, KeyText)> = Vec::new();
    let mut sas = Vec::new();
    for sa in &section.sas {
        let with_sa_name = |error: String| format!("[[ipsec.sa]] {}: {error}", sa.name);
        let text = keys::read(&sa.key_file, sa.algorithm).map_err(with_sa_name)?;
        if sa.algorithm.nonce_is_sequence()
            && let Some((other, _)) = read.iter().find(|(_, other)| other.is_same_key(&text))
        {
            return Err(with_sa_name(format!(
                "has the key of {}: sequence numbers that are used twice under one key break {}; give each SA a key of its \
                 own (RFC 4106 §2)",
                other.section.name,
                config::algorithm_name(sa.algorithm)
            )));
        }
        let sequence = sa.sequence_file.as_deref().map(|file| Sequence::open(file, sa.spi));
        let mut sequence = sequence.transpose().map_err(with_sa_name)?;
        let reserve = sequence
            .as_mut()
            .map(|sequence| sequence.reserve())
            .transpose()
            .map_err(with_sa_name)?;
        let Some((at, policy)) = protection(config, &sa.policy) else { continue };
        let way = match sa.direction {
            SaDirection::In => SaDirectionConfig::In { window: section.keys.window, top: 0 },
            SaDirection::Out => {
                SaDirectionConfig::Out { reserve, keepalive: section.keys.nat_keepalive }
            }
        };
        let (id, parameters) = (sa_id(read.len()), Arc::new(parameters(sa, policy, &text)));
        sas.push(SaConfig { id, protection: at, parameters, direction_config: way });
        read.push((StaticSa { section: sa.clone(), sequence }, text));
    }
    let policies = section
        .policy_database()
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let owners = Owners::from_config(config)?.assign_owners(section.protect_policies().count());
    let ipsec = Ipsec { sas: read.into_iter().map(|(sa, _)| sa).collect(), kernel: None };
    let windows = ReplayWindows::default();
    Ok((Some(Arc::new(IpsecConfig { policies, owners, sas, sole_sealer: false, windows })), ipsec))
}

/// Workers that can own SAs, because they have a queue of every port.
pub(super) struct Owners(Vec<u16>);

impl Owners {
    /// Returns the workers with a queue of every port.
    ///
    /// # Errors
    /// Returns one sentence if no worker has a queue of every port.
    pub(super) fn from_config(config: &Config) -> Result<Owners, String> {
        let all = 0..config.workers.len();
        let everywhere =
            |worker: &usize| config.ports.iter().all(|port| port.workers.contains(worker));
        let owners: Vec<u16> = all.filter(everywhere).map(|worker| worker as u16).collect();
        match owners.is_empty() {
            true => Err("[ipsec]: no worker has a queue of every port, as SAs need: give the ports a worker in common (port.workers)".into()),
            false => Ok(Owners(owners)),
        }
    }

    /// Returns the owner of each protection. Owners are assigned round-robin.
    pub(super) fn assign_owners(&self, protections: usize) -> Vec<WorkerId> {
        (0..protections).map(|at| WorkerId(self.0[at % self.0.len()])).collect()
    }
}

/// Returns the protecting policy with this name, and its protection: its index among the protecting policies. `None`
/// for an unknown name.
fn protection<'c>(config: &'c Config, name: &str) -> Option<(Protection, &'c PolicySection)> {
    let mut all = (0..).map(Protection).zip(config.ipsec.protect_policies());
    all.find(|(_, policy)| policy.name == name)
}

fn parameters(sa: &SaSection, policy: &PolicySection, keys: &KeyText) -> Parameters {
    let mode = match policy.action {
        PolicyAction::Protect(Some(ends)) => {
            let (source, destination) = match sa.direction {
                SaDirection::Out => (ends.local, ends.remote),
                SaDirection::In => (ends.remote, ends.local),
            };
            let fragments = Fragments::Copy;
            Mode::Tunnel(Tunnel { source, destination, ttl: TTL, dscp: None, ecn: true, fragments })
        }
        _ => Mode::Transport,
    };
    Parameters {
        spi: sa.spi,
        algorithm: sa.algorithm,
        keys: keys.keys(),
        mode,
        esn: sa.esn,
        encapsulation: sa.udp.then_some(Encapsulation { source: NAT_PORT, destination: NAT_PORT }),
        soft: Lifetime::default(),
        hard: Lifetime::default(),
    }
}

fn sa_id(index: usize) -> SaId {
    SaId(index as u64)
}

impl Ipsec {
    /// Reserves further sequence numbers for an SA. Returns the last reserved number; `None` if the SA has no sequence
    /// file.
    ///
    /// # Errors
    /// Returns one sentence if the sequence file cannot be written.
    pub(super) fn reserve(&mut self, id: SaId) -> Option<Result<u64, String>> {
        let sequence = self.sas.get_mut(usize::try_from(id.0).ok()?)?.sequence.as_mut()?;
        Some(sequence.reserve().map(|(first, numbers)| first + numbers - 1))
    }

    /// Returns the mirror of the kernel, if it is the source of SAs.
    pub(super) fn kernel_mut(&mut self) -> Option<&mut Kernel> {
        self.kernel.as_mut()
    }

    /// Returns the mirror of the kernel, if it is the source of SAs.
    pub(super) fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// Returns SPI, direction and name of an SA; `None` for an unknown SA.
    pub(super) fn sa(&self, id: SaId) -> Option<SaIdentity> {
        if let Some(kernel) = &self.kernel {
            let sa = kernel.sa(id)?;
            let name = kernel.name(sa.protection).unwrap_or_default();
            return Some(SaIdentity { spi: sa.spi, direction: sa.direction, name });
        }
        self.section(id).map(|section| SaIdentity {
            spi: section.spi,
            direction: section.direction,
            name: section.name.clone(),
        })
    }

    /// Returns the netlink socket to poll, if the kernel is the source of SAs.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.as_ref().map(Kernel::fd)
    }

    /// Returns true if the kernel's initial SAs and policies were received, or if the kernel is not their source.
    pub(super) fn is_ready(&self) -> bool {
        self.kernel.as_ref().is_none_or(Kernel::is_ready)
    }

    /// Returns the section of a configured SA; `None` for other SAs.
    pub(super) fn section(&self, id: SaId) -> Option<&SaSection> {
        self.sas.get(usize::try_from(id.0).ok()?).map(|sa| &sa.section)
    }
}
