//! IPsec events of the workers, and answers to queries about SAs and policies.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use api::{Answer, EventKind, IpsecPolicyInfo, IpsecSaInfo, Reply};
use config::{PolicyAction, PolicySection, algorithm_name};
use dataplane::{
    Command, IpsecDrop, IpsecNotice, Protection, SaChange, SaConfig, SaDirection, SaId, SaInfo,
    SaWay, WorkerId,
};
use ipnet::IpNet;
use ipsec::policy::{Action, Flow, Selector, Spd, Unselected};
use xfrm::PolicyInfo;

use super::Core;
use crate::appliance::ipsec::{Kernel, Owners, protections};
use crate::appliance::pending::Then;

/// Returns `192.0.2.1:4791`, or the address alone if the flow has no ports.
fn end(address: std::net::IpAddr, port: Option<u16>) -> String {
    port.map_or_else(
        || address.to_string(),
        |port| std::net::SocketAddr::new(address, port).to_string(),
    )
}

fn direction_word(direction: SaDirection) -> &'static str {
    match direction {
        SaDirection::In => "in",
        SaDirection::Out => "out",
    }
}

impl Core {
    /// Handles an IPsec event of a worker.
    pub(super) fn on_ipsec(&mut self, notice: IpsecNotice) {
        match notice {
            IpsecNotice::Reserve(id) => self.reserve(id),
            IpsecNotice::Wanted { protection, flow } => {
                let policy = self.policy_name(protection);
                let remote = end(flow.remote, flow.ports.map(|(_, remote)| remote));
                match self.env.ipsec.kernel() {
                    Some(kernel) => {
                        kernel.wanted(protection, &flow);
                        tracing::info!("ipsec: {policy}: an SA to {remote} is asked for");
                    }
                    None => tracing::warn!("ipsec: policy {policy}: there is no SA to {remote}"),
                }
                self.env.log.push(EventKind::IpsecNoSa { policy, remote });
            }
            IpsecNotice::Soft(id) => self.lifetime(id, false),
            IpsecNotice::Over(id) => self.lifetime(id, true),
            IpsecNotice::Audit { why, spi, flow, sequence } => {
                self.audited(why, spi, flow, sequence);
            }
        }
    }

    /// Reports an SA whose byte or packet lifetime, or whose sequence numbers, are used up.
    fn lifetime(&mut self, id: SaId, hard: bool) {
        if let Some(kernel) = self.env.ipsec.kernel() {
            kernel.over(id, hard);
        }
        self.sa_event(id, if hard { "over" } else { "soft" });
    }

    fn sa_event(&mut self, id: SaId, state: &str) {
        // The SA may have been deleted meanwhile.
        let Some((spi, direction, name)) = self.env.ipsec.sa(id) else { return };
        let direction = direction_word(direction).to_owned();
        tracing::info!("ipsec: SA {name} {spi:#010x} {direction}: {state}");
        self.env.log.push(EventKind::IpsecSa { spi, direction, name, state: state.to_owned() });
    }

    /// Applies the kernel's changes to the workers. Returns true if more may be pending.
    pub fn take_kernels(&mut self, now: Instant) -> bool {
        let Some(kernel) = self.env.ipsec.kernel() else { return false };
        let (events, more) = kernel.turn();
        if kernel.is_time(now) {
            self.request_use();
        }
        events.into_iter().for_each(|event| self.on_kernel(event));
        more
    }

    /// Requests the workers' use of the SAs: see [`Core::on_sas_used`].
    fn request_use(&mut self) {
        self.env.broadcast(Then::SasUsed(Vec::new()), |ticket| Command::ListSas { ticket });
    }

    /// Requests the last sequence numbers of the kernel's SAs before the workers stop. With them, a
    /// restart accepts no packet twice.
    pub(super) fn report_last_use(&mut self) {
        if self.env.ipsec.kernels().is_some() {
            self.request_use();
        }
    }

    fn on_kernel(&mut self, event: xfrm::Event) {
        use xfrm::{Event, Refusal, Sequence};
        match event {
            Event::Policies { mut list, unselected, .. } => {
                let behind = self.env.facts.config.ipsec.behind_the_kernels();
                let unselected = if behind.is_empty() { unselected } else { Unselected::DROP };
                // The configuration's owners were checked at the start.
                let Ok(owners) = Owners::of(&self.env.facts.config) else { return };
                let owners: Arc<[WorkerId]> = owners.first(protections(&list)).into();
                list.extend(behind);
                let policies = Arc::new(Spd::of_others(list, unselected));
                self.change_sas(&SaChange::Policies { policies, owners });
            }
            Event::AddSa { id, direction: _, protection, parameters, sequence } => {
                let way = match sequence {
                    Sequence::Inbound { top, window } => SaWay::In { window, top },
                    // The IKE daemon sends the NAT keepalives.
                    Sequence::Outbound { first, numbers } => {
                        SaWay::Out { reserve: Some((first, numbers)), keepalive: None }
                    }
                };
                self.change_sas(&SaChange::Add(SaConfig { id, protection, parameters, way }));
                self.sa_event(id, "added");
            }
            Event::RemoveSa { id } => {
                self.sa_event(id, "removed");
                if let Some(sa) = self.env.ipsec.kernel().and_then(|kernel| kernel.forget(id)) {
                    self.change_sas(&SaChange::Remove(id, sa.direction));
                }
            }
            Event::SelectSa { id } => self.change_sas(&SaChange::Select(id)),
            Event::Reserved { id, last } => self.change_sas(&SaChange::Reserve(id, last)),
            Event::Refused { what, name, reason } => {
                let what = match what {
                    Refusal::Policy => "policy",
                    Refusal::Sa => "sa",
                };
                tracing::warn!("ipsec: the kernel's {what} {name} is not served: {reason}");
                let what = what.to_owned();
                self.env.log.push(EventKind::IpsecRefused { what, name, reason });
            }
            Event::Warning(message) => {
                tracing::warn!("ipsec: {message}");
                self.env.log.push(EventKind::Warning { message: format!("ipsec: {message}") });
            }
        }
    }

    fn change_sas(&mut self, change: &SaChange) {
        let command = |ticket| Command::Sa { change: change.clone(), ticket };
        self.env.broadcast(Then::Nothing, command);
    }

    fn audited(
        &mut self,
        why: IpsecDrop,
        spi: Option<u32>,
        flow: Option<Flow>,
        sequence: Option<u32>,
    ) {
        let ends = flow.map(|flow| {
            let (local, remote) = flow.ports.unzip();
            (end(flow.local, local), end(flow.remote, remote))
        });
        let (local, remote) = ends.unwrap_or_default();
        let why = why.name().to_owned();
        self.env.log.push(EventKind::IpsecDropped { why, spi, sequence, local, remote });
    }

    /// Reserves further sequence numbers for an SA.
    fn reserve(&mut self, id: SaId) {
        if let Some(kernel) = self.env.ipsec.kernel() {
            return kernel.reserve(id);
        }
        match self.env.ipsec.reserve(id) {
            Some(Ok(last)) => self.change_sas(&SaChange::Reserve(id, last)),
            Some(Err(error)) => {
                tracing::error!("ipsec: {error}: nothing more is sent by this SA");
                self.env.log.push(EventKind::Warning { message: format!("ipsec: {error}") });
            }
            None => self.env.tally.unexpected_events += 1,
        }
    }

    fn policy_name(&self, protection: Protection) -> String {
        if let Some(kernel) = self.env.ipsec.kernels() {
            return kernel.name(protection).unwrap_or_default();
        }
        let mut names = self.env.facts.config.ipsec.protecting();
        names.nth(usize::from(protection.0)).map(|policy| policy.name.clone()).unwrap_or_default()
    }

    /// Requests the SAs from the workers.
    pub(super) fn list_sas(&mut self, answer: Answer) {
        let then = Then::Sas { found: Vec::new(), answer };
        self.env.broadcast(then, |ticket| Command::ListSas { ticket });
    }

    pub(super) fn on_sas(&self, found: &[SaInfo], answer: Answer) {
        let mut sas: Vec<IpsecSaInfo> = found.iter().map(|sa| self.sa_info(sa)).collect();
        sas.extend(
            self.env.ipsec.kernels().into_iter().flat_map(|kernel| kernel.others().map(not_ours)),
        );
        sas.sort_by(|a, b| (&a.policy, &a.direction, a.spi).cmp(&(&b.policy, &b.direction, b.spi)));
        answer.send(Ok(Reply::IpsecSas(sas)));
    }

    /// Reports the workers' use of the SAs to the kernel.
    pub(super) fn on_sas_used(&mut self, found: &[SaInfo]) {
        if let Some(kernel) = self.env.ipsec.kernel() {
            kernel.used(found);
        }
    }

    fn sa_info(&self, sa: &SaInfo) -> IpsecSaInfo {
        let tunnel = match sa.mode {
            ipsec::sa::Mode::Transport => None,
            ipsec::sa::Mode::Tunnel(ends) => {
                Some([ends.source.to_string(), ends.destination.to_string()])
            }
        };
        IpsecSaInfo {
            spi: sa.spi,
            direction: direction_word(sa.direction).to_owned(),
            name: self.env.ipsec.section(sa.id).map(|section| section.name.clone()),
            refused: None,
            policy: self.policy_name(sa.protection),
            algorithm: algorithm_name(sa.algorithm).to_owned(),
            tunnel,
            udp: sa.udp,
            sequence: sa.sequence,
            packets: sa.used.packets,
            bytes: sa.used.bytes,
        }
    }

    pub(super) fn ipsec_policies(&self) -> Vec<IpsecPolicyInfo> {
        let ours = self.env.facts.config.ipsec.policies.iter().map(configured);
        let kernels = self
            .env
            .ipsec
            .kernels()
            .into_iter()
            .flat_map(|kernel| kernel.policies().map(|policy| of_kernel(policy, kernel)));
        kernels.chain(ours).collect()
    }
}

/// Describes a policy of the configuration.
fn configured(policy: &PolicySection) -> IpsecPolicyInfo {
    let (action, tunnel) = match policy.action {
        PolicyAction::Protect(None) => ("protect", None),
        PolicyAction::Protect(Some(ends)) => {
            ("protect", Some([ends.local.to_string(), ends.remote.to_string()]))
        }
        PolicyAction::Bypass => ("bypass", None),
        PolicyAction::Discard => ("discard", None),
    };
    IpsecPolicyInfo { name: policy.name.clone(), tunnel, ..shown(&policy.selector, action) }
}

fn shown(selector: &Selector, action: &str) -> IpsecPolicyInfo {
    let ports = |range: &std::ops::RangeInclusive<u16>| [*range.start(), *range.end()];
    IpsecPolicyInfo {
        name: String::new(),
        direction: None,
        local: selector.local.to_string(),
        remote: selector.remote.to_string(),
        protocol: selector.protocol,
        local_ports: ports(&selector.local_ports),
        remote_ports: ports(&selector.remote_ports),
        action: action.to_owned(),
        tunnel: None,
        priority: None,
        refused: None,
    }
}

/// Describes a policy of the kernel.
fn of_kernel(policy: PolicyInfo, kernel: &Kernel) -> IpsecPolicyInfo {
    let (action, protection) = match policy.action {
        Some(Action::Protect(protection)) => ("protect", kernel.protection(protection)),
        Some(Action::Bypass) => ("bypass", None),
        Some(Action::Discard) => ("discard", None),
        None => ("none", None),
    };
    let name = protection.map_or(policy.templates, ToString::to_string);
    let tunnel = protection.filter(|protection| protection.tunnel);
    let every = 0..=u16::MAX;
    let fits = policy.fits.unwrap_or_else(|| Selector {
        local: IpNet::from(IpAddr::from([0; 4])),
        remote: IpNet::from(IpAddr::from([0; 4])),
        protocol: None,
        local_ports: every.clone(),
        remote_ports: every,
    });
    IpsecPolicyInfo {
        name: if policy.refused.is_some() { policy.selector } else { name },
        direction: Some(direction_word(policy.direction).to_owned()),
        tunnel: tunnel.map(|ends| [ends.local.to_string(), ends.remote.to_string()]),
        priority: Some(policy.priority),
        refused: policy.refused,
        ..shown(&fits, action)
    }
}

/// Describes an SA of the kernel that no worker uses.
fn not_ours(sa: xfrm::SaInfo) -> IpsecSaInfo {
    let shown =
        |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    let ends = [shown(sa.source), shown(sa.destination)];
    IpsecSaInfo {
        spi: sa.spi,
        direction: sa
            .serves
            .map(|(direction, _)| direction_word(direction).to_owned())
            .unwrap_or_default(),
        name: None,
        policy: format!("{} - {}, reqid {}", ends[0], ends[1], sa.reqid),
        algorithm: sa.algorithm,
        tunnel: sa.tunnel.then_some(ends),
        udp: false,
        sequence: 0,
        packets: 0,
        bytes: 0,
        refused: Some(sa.refused.unwrap_or_else(|| "no policy asks for it".to_owned())),
    }
}
