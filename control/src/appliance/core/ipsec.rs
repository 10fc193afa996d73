//! IPsec events of the workers and the kernel, and queries of security associations (SAs) and policies.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use api::{EventKind, IpsecPolicyInfo, IpsecSaInfo, Reply, Responder};
use config::{PolicyAction, PolicySection, algorithm_name};
use dataplane::{
    Command, IpsecDrop, IpsecNotice, Protection, SaChange, SaConfig, SaDirection,
    SaDirectionConfig, SaId, SaInfo, WorkerId,
};
use ipnet::IpNet;
use ipsec::policy::{Action, Flow, Selector, Spd, Unmatched};
use xfrm::PolicyInfo;

use super::Core;
use crate::appliance::ipsec::{Kernel, Owners, SaIdentity, protections};
use crate::appliance::pending::Continuation;

/// Returns address and port, such as `192.0.2.1:4791`; the address alone if the flow has no ports.
fn endpoint_text(address: std::net::IpAddr, port: Option<u16>) -> String {
    port.map_or_else(
        || address.to_string(),
        |port| std::net::SocketAddr::new(address, port).to_string(),
    )
}

fn direction_name(direction: SaDirection) -> &'static str {
    match direction {
        SaDirection::In => "in",
        SaDirection::Out => "out",
    }
}

impl Core {
    pub(super) fn on_ipsec(&mut self, notice: IpsecNotice) {
        match notice {
            IpsecNotice::SequencesLow(id) => self.reserve_sequence_numbers(id),
            IpsecNotice::Acquire { protection, flow } => {
                let policy = self.policy_name(protection);
                let remote = endpoint_text(flow.remote, flow.ports.map(|(_, remote)| remote));
                match self.env.ipsec.kernel_mut() {
                    Some(kernel) => {
                        kernel.request_sa(protection, &flow);
                        tracing::info!("ipsec: {policy}: an SA to {remote} is requested");
                    }
                    None => tracing::warn!("ipsec: policy {policy}: there is no SA to {remote}"),
                }
                self.env.log.push(EventKind::IpsecNoSa { policy, remote });
            }
            IpsecNotice::SoftExpired(id) => self.on_lifetime_end(id, false),
            IpsecNotice::HardExpired(id) => self.on_lifetime_end(id, true),
            IpsecNotice::Audit { reason: why, spi, flow, sequence } => {
                self.log_audit_event(why, spi, flow, sequence);
            }
        }
    }

    /// Reports that an SA has reached a limit of bytes, packets or sequence numbers. `hard`: true if the SA ends, false
    /// if the SA should be replaced soon.
    fn on_lifetime_end(&mut self, id: SaId, hard: bool) {
        if let Some(kernel) = self.env.ipsec.kernel_mut() {
            kernel.report_expiry(id, hard);
        }
        self.log_sa_event(id, if hard { "over" } else { "soft" });
    }

    fn log_sa_event(&mut self, id: SaId, state: &str) {
        // The SA may have been deleted in the meantime.
        let Some(SaIdentity { spi, direction, name }) = self.env.ipsec.sa(id) else { return };
        let direction = direction_name(direction).to_owned();
        tracing::info!("ipsec: SA {name} {spi:#010x} {direction}: {state}");
        self.env.log.push(EventKind::IpsecSa { spi, direction, name, state: state.to_owned() });
    }

    /// Passes the kernel's changes to the workers. Returns true if more may be pending.
    pub fn apply_kernel_changes(&mut self, now: Instant) -> bool {
        let Some(kernel) = self.env.ipsec.kernel_mut() else { return false };
        let (events, more) = kernel.poll_changes();
        if kernel.is_usage_due(now) {
            self.request_sa_usage();
        }
        events.into_iter().for_each(|event| self.on_kernel(event));
        more
    }

    /// Requests from each worker the use of its SAs: sequence numbers, bytes and packets. [`Core::on_sa_usage`]
    /// receives the answers.
    fn request_sa_usage(&mut self) {
        self.env.broadcast(Continuation::SaUsage(Vec::new()), |ticket| Command::ListSas { ticket });
    }

    /// Requests from the workers, before they stop, the highest sequence number of each SA that came from the kernel.
    /// The numbers are reported to the kernel, so that no packet is accepted a second time after a restart.
    pub(super) fn request_final_sa_usage(&mut self) {
        if self.env.ipsec.kernel().is_some() {
            self.request_sa_usage();
        }
    }

    fn on_kernel(&mut self, event: xfrm::Event) {
        use xfrm::{Event, RefusedKind, SequenceState};
        match event {
            Event::Policies { mut list, unselected, .. } => {
                let behind = self.env.context.config.ipsec.fallback_policies();
                let unselected = if behind.is_empty() { unselected } else { Unmatched::DROP };
                // `from_config` cannot fail: it succeeded with this configuration when the appliance started.
                let Ok(owners) = Owners::from_config(&self.env.context.config) else { return };
                let owners: Arc<[WorkerId]> = owners.assign_owners(protections(&list)).into();
                list.extend(behind);
                let policies = Arc::new(Spd::from_checked(list, unselected));
                self.change_sas(&SaChange::Policies { policies, owners });
            }
            Event::AddSa { id, direction: _, protection, parameters, sequence } => {
                let way = match sequence {
                    SequenceState::Inbound { highest: top, window } => {
                        SaDirectionConfig::In { window, top }
                    }
                    // The worker sends no NAT keepalives, because the IKE daemon sends them.
                    SequenceState::Outbound { first, numbers } => {
                        SaDirectionConfig::Out { reserve: Some((first, numbers)), keepalive: None }
                    }
                };
                self.change_sas(&SaChange::Add(SaConfig {
                    id,
                    protection,
                    parameters,
                    direction_config: way,
                }));
                self.log_sa_event(id, "added");
            }
            Event::RemoveSa { id } => {
                self.log_sa_event(id, "removed");
                if let Some(sa) =
                    self.env.ipsec.kernel_mut().and_then(|kernel| kernel.remove_sa(id))
                {
                    self.change_sas(&SaChange::Remove(id, sa.direction));
                }
            }
            Event::SelectSa { id } => self.change_sas(&SaChange::Select(id)),
            Event::Reserved { id, last } => self.change_sas(&SaChange::Reserve(id, last)),
            Event::Refused { kind: what, name, reason } => {
                let what = match what {
                    RefusedKind::Policy => "policy",
                    RefusedKind::Sa => "sa",
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
        self.env.broadcast(Continuation::Ignore, command);
    }

    fn log_audit_event(
        &mut self,
        reason: IpsecDrop,
        spi: Option<u32>,
        flow: Option<Flow>,
        sequence: Option<u32>,
    ) {
        let addresses = flow.map(|flow| {
            let (local, remote) = flow.ports.unzip();
            (endpoint_text(flow.local, local), endpoint_text(flow.remote, remote))
        });
        let (local, remote) = addresses.unwrap_or_default();
        let why = reason.name().to_owned();
        self.env.log.push(EventKind::IpsecDropped { why, spi, sequence, local, remote });
    }

    fn reserve_sequence_numbers(&mut self, id: SaId) {
        if let Some(kernel) = self.env.ipsec.kernel_mut() {
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
        if let Some(kernel) = self.env.ipsec.kernel() {
            return kernel.name(protection).unwrap_or_default();
        }
        let mut names = self.env.context.config.ipsec.protect_policies();
        names.nth(usize::from(protection.0)).map(|policy| policy.name.clone()).unwrap_or_default()
    }

    /// Requests the SAs from the workers. The answer follows when all workers have answered.
    pub(super) fn list_sas(&mut self, answer: Responder) {
        let then = Continuation::Sas { found: Vec::new(), answer };
        self.env.broadcast(then, |ticket| Command::ListSas { ticket });
    }

    pub(super) fn on_sas(&self, found: &[SaInfo], answer: Responder) {
        let mut sas: Vec<IpsecSaInfo> = found.iter().map(|sa| self.sa_info(sa)).collect();
        sas.extend(
            self.env
                .ipsec
                .kernel()
                .into_iter()
                .flat_map(|kernel| kernel.unused_sas().map(unused_sa_info)),
        );
        sas.sort_by(|a, b| (&a.policy, &a.direction, a.spi).cmp(&(&b.policy, &b.direction, b.spi)));
        answer.send(Ok(Reply::IpsecSas(sas)));
    }

    /// Reports the workers' use of the SAs to the kernel.
    pub(super) fn on_sa_usage(&mut self, found: &[SaInfo]) {
        if let Some(kernel) = self.env.ipsec.kernel_mut() {
            kernel.report_usage(found);
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
            direction: direction_name(sa.direction).to_owned(),
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
        let ours = self.env.context.config.ipsec.policies.iter().map(configured_policy_info);
        let kernels =
            self.env.ipsec.kernel().into_iter().flat_map(|kernel| {
                kernel.policies().map(|policy| kernel_policy_info(policy, kernel))
            });
        kernels.chain(ours).collect()
    }
}

/// Converts a configured policy to the form of the API.
fn configured_policy_info(policy: &PolicySection) -> IpsecPolicyInfo {
    let (action, tunnel) = match policy.action {
        PolicyAction::Protect(None) => ("protect", None),
        PolicyAction::Protect(Some(ends)) => {
            ("protect", Some([ends.local.to_string(), ends.remote.to_string()]))
        }
        PolicyAction::Bypass => ("bypass", None),
        PolicyAction::Discard => ("discard", None),
    };
    IpsecPolicyInfo { name: policy.name.clone(), tunnel, ..policy_info(&policy.selector, action) }
}

fn policy_info(selector: &Selector, action: &str) -> IpsecPolicyInfo {
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

fn kernel_policy_info(policy: PolicyInfo, kernel: &Kernel) -> IpsecPolicyInfo {
    let (action, protection) = match policy.action {
        Some(Action::Protect(protection)) => ("protect", kernel.protection(protection)),
        Some(Action::Bypass) => ("bypass", None),
        Some(Action::Discard) => ("discard", None),
        None => ("none", None),
    };
    let name = protection.map_or(policy.templates, ToString::to_string);
    let tunnel = protection.filter(|protection| protection.tunnel);
    let every = 0..=u16::MAX;
    let fits = policy.translated_selector.unwrap_or_else(|| Selector {
        local: IpNet::from(IpAddr::from([0; 4])),
        remote: IpNet::from(IpAddr::from([0; 4])),
        protocol: None,
        local_ports: every.clone(),
        remote_ports: every,
    });
    IpsecPolicyInfo {
        name: if policy.refused.is_some() { policy.selector } else { name },
        direction: Some(direction_name(policy.direction).to_owned()),
        tunnel: tunnel.map(|ends| [ends.local.to_string(), ends.remote.to_string()]),
        priority: Some(policy.priority),
        refused: policy.refused,
        ..policy_info(&fits, action)
    }
}

/// Converts a kernel SA that the workers do not use to the form of the API.
fn unused_sa_info(sa: xfrm::SaInfo) -> IpsecSaInfo {
    let shown =
        |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    let ends = [shown(sa.source), shown(sa.destination)];
    IpsecSaInfo {
        spi: sa.spi,
        direction: sa
            .service
            .map(|(direction, _)| direction_name(direction).to_owned())
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
