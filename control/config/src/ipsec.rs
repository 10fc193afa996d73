//! Reads `[ipsec]`: the source of keys, the policies for packets, and SAs whose keys are in files. Such SAs are for
//! laboratories only.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipsec::crypto::Algorithm;
use ipsec::guard::{Direction, Protection};
use ipsec::policy::{Action, Policy, PolicyError, Selector, Spd};
use serde_json::json;
use toml::de::DeValue;

use super::errors::SectionSpan;
use super::keys::{Key, keys, section};
use super::reader::Section;
use super::rule::{Parsed, Rule, Shape};
use super::to_tables::WrittenTable;
use super::values::{
    self, boolean_rule, duration_or_off_rule, integer_rule, quoted, rule_of_parser, word_rule,
};

/// Lowest permitted SPI; lower SPIs are reserved (RFC 4303 §2.1).
const MIN_SPI: u32 = 256;

/// Protocols that the file may name instead of a number.
const PROTOCOLS: [(&str, u8); 5] =
    [("tcp", 6), ("udp", 17), ("sctp", 132), ("icmp", 1), ("icmpv6", 58)];

section! {
    /// Configuration keys of `[ipsec]` itself, without its policies and SAs.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IpsecKeys in "ipsec" {
        /// Source of keys. `files`: the key files of `[[ipsec.sa]]`, for laboratories. `kernel`: the kernel's XFRM, in
        /// which IKE daemons keep SAs and policies.
        keys: KeySource = word_rule(&SOURCES), or KeySource::Files;
        /// True to allow SAs with keys from files. For laboratories only: such keys are never renewed, and RFC 7146 §3
        /// forbids manual keys elsewhere.
        laboratory: bool = boolean_rule(), or false;
        /// Size of the anti-replay window, packets (RFC 4303 §3.4.3).
        window: u16 = integer_rule(64, 4096), or 1024;
        /// For SAs in UDP with keys from files: time without a packet after which a NAT keepalive is sent (RFC 3948
        /// §4). IKE daemons send their own.
        nat_keepalive: Option<Duration> = duration_or_off_rule(Duration::from_secs(1), Duration::from_secs(3600)), or Some(Duration::from_secs(20));
    }
}

/// Source of SAs and their keys (`ipsec.keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// Files with fixed keys, for laboratories.
    Files,
    /// SAs and policies of the kernel's XFRM.
    Kernel,
}

const SOURCES: [(&str, KeySource); 2] =
    [("files", KeySource::Files), ("kernel", KeySource::Kernel)];

/// `[ipsec]` with its policies and SAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecSection {
    /// Configuration keys of `[ipsec]` itself, without its policies and SAs.
    pub keys: IpsecKeys,
    /// `[[ipsec.policy]]` in the order of the file. Without any, IPsec is off unless `keys = "kernel"`.
    pub policies: Vec<PolicySection>,
    /// `[[ipsec.sa]]` in the order of the file.
    pub sas: Vec<SaSection>,
}

/// `[[ipsec.policy]]`: the treatment of selected packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySection {
    /// Name, unique among the policies of the file.
    pub name: String,
    /// Selects the packets.
    pub selector: Selector,
    /// Treatment of the selected packets.
    pub action: PolicyAction,
}

/// Treatment of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Protect: in tunnel mode between these endpoints, or in transport mode if `None`.
    Protect(Option<TunnelEndpoints>),
    /// Pass in clear.
    Bypass,
    /// Drop.
    Discard,
}

/// Addresses of a tunnel's outer IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelEndpoints {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}

/// `[[ipsec.sa]]`: an SA with keys from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaSection {
    /// Name, unique among the SAs of the file.
    pub name: String,
    /// Name of the policy that the SA serves.
    pub policy: String,
    /// Direction of the SA's packets.
    pub direction: Direction,
    /// SPI, unique at the receiver.
    pub spi: u32,
    /// Encryption and integrity algorithm.
    pub algorithm: Algorithm,
    /// File with the keys in hexadecimal: the encryption key with its salt, then the authentication key.
    pub key_file: PathBuf,
    /// True for 64-bit sequence numbers (RFC 4303 §2.2.1).
    pub esn: bool,
    /// True for ESP in UDP, with port 4500 on both sides (RFC 3948).
    pub udp: bool,
    /// File in which sequence numbers are reserved in advance, so that none is reused after a restart. `None` for
    /// inbound SAs.
    pub sequence_file: Option<PathBuf>,
}

/// Names of algorithms, as IKE daemons write them.
const ALGORITHMS: [(&str, Algorithm); 11] = [
    ("aes128gcm16", Algorithm::AesGcm128),
    ("aes256gcm16", Algorithm::AesGcm256),
    ("chacha20poly1305", Algorithm::ChaCha20Poly1305),
    ("aes128gmac", Algorithm::AesGmac128),
    ("aes256gmac", Algorithm::AesGmac256),
    ("aes128-sha256", Algorithm::AesCbc128HmacSha256),
    ("aes256-sha256", Algorithm::AesCbc256HmacSha256),
    ("aes128-sha1", Algorithm::AesCbc128HmacSha1),
    ("aes256-sha1", Algorithm::AesCbc256HmacSha1),
    ("null-sha256", Algorithm::NullHmacSha256),
    ("null-sha1", Algorithm::NullHmacSha1),
];

/// Returns the name of an algorithm, as in the configuration.
pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(_, known)| *known == algorithm).map_or("", |(name, _)| name)
}

impl IpsecSection {
    /// Returns true if IPsec is on: the file has policies, or the kernel's policies are used.
    pub fn is_enabled(&self) -> bool {
        self.uses_kernel_keys() || !self.policies.is_empty()
    }

    /// Returns true if the kernel supplies the SAs and policies (`keys = "kernel"`).
    pub fn uses_kernel_keys(&self) -> bool {
        self.keys.keys == KeySource::Kernel
    }

    /// Returns the policies for packets that no policy of the kernel selects. A policy with `protect` becomes a policy
    /// that drops the packets.
    pub fn fallback_policies(&self) -> Vec<Policy<Protection>> {
        let policies = self.policies.iter().map(|policy| Policy {
            direction: None,
            selector: policy.selector.clone(),
            action: match policy.action {
                PolicyAction::Bypass => Action::Bypass,
                PolicyAction::Protect(_) | PolicyAction::Discard => Action::Discard,
            },
        });
        policies.collect()
    }

    /// Returns the policies with `protect`, in the order of their [`Protection`] numbers from 0.
    pub fn protect_policies(&self) -> impl Iterator<Item = &PolicySection> {
        self.policies.iter().filter(|p| matches!(p.action, PolicyAction::Protect(_)))
    }

    /// Returns the checked policies in the form that workers use.
    ///
    /// # Errors
    /// One error per invalid policy, or one error if there are too many policies.
    pub fn policy_database(&self) -> Result<Spd<Protection>, Vec<PolicyError>> {
        let mut next = (0..).map(Protection);
        let policies = self.policies.iter().map(|policy| Policy {
            direction: None,
            selector: policy.selector.clone(),
            action: match policy.action {
                PolicyAction::Protect(_) => {
                    Action::Protect(next.next().unwrap_or(Protection(u16::MAX)))
                }
                PolicyAction::Bypass => Action::Bypass,
                PolicyAction::Discard => Action::Discard,
            },
        });
        Spd::new(policies.collect())
    }

    pub(super) fn to_tables(&self, tables: &mut Vec<WrittenTable>) {
        tables.push(WrittenTable {
            section: "ipsec",
            identity: Vec::new(),
            keys: self.keys.written(),
        });
        tables.extend(self.policies.iter().map(|policy| WrittenTable {
            section: "ipsec.policy",
            identity: vec![policy.name.clone()],
            keys: policy.to_keys(self.uses_kernel_keys()),
        }));
        tables.extend(self.sas.iter().map(|sa| WrittenTable {
            section: "ipsec.sa",
            identity: vec![sa.name.clone()],
            keys: sa.to_keys(),
        }));
    }
}

impl PolicySection {
    fn to_keys(&self, kernel: bool) -> Vec<(&'static str, serde_json::Value)> {
        let selector = &self.selector;
        let protocol = match selector.protocol {
            None => "any".to_owned(),
            Some(number) => {
                let known = PROTOCOLS.iter().find(|(_, known)| *known == number);
                known.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
            }
        };
        let ports =
            |ports: &RangeInclusive<u16>| json!(format!("{}-{}", ports.start(), ports.end()));
        let mut keys = vec![
            ("name", json!(self.name)),
            ("local", json!(selector.local.to_string())),
            ("remote", json!(selector.remote.to_string())),
            ("protocol", json!(protocol)),
            ("local_ports", ports(&selector.local_ports)),
            ("remote_ports", ports(&selector.remote_ports)),
        ];
        let action = match self.action {
            PolicyAction::Protect(_) => "protect",
            PolicyAction::Bypass => "bypass",
            PolicyAction::Discard => "discard",
        };
        keys.push(("action", json!(action)));
        match self.action {
            PolicyAction::Protect(None) if kernel => {}
            PolicyAction::Protect(None) => keys.push(("mode", json!("transport"))),
            PolicyAction::Protect(Some(TunnelEndpoints { local, remote })) => keys.extend([
                ("mode", json!("tunnel")),
                ("tunnel_local", json!(local)),
                ("tunnel_remote", json!(remote)),
            ]),
            PolicyAction::Bypass | PolicyAction::Discard => {}
        }
        keys
    }
}

impl SaSection {
    fn to_keys(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut keys = vec![
            ("name", json!(self.name)),
            ("policy", json!(self.policy)),
            ("direction", json!(if self.direction == Direction::In { "in" } else { "out" })),
            ("spi", json!(self.spi)),
            ("algorithm", json!(algorithm_name(self.algorithm))),
            ("key_file", json!(self.key_file)),
            ("esn", json!(self.esn)),
            ("udp", json!(self.udp)),
        ];
        keys.extend(self.sequence_file.as_ref().map(|file| ("sequence_file", json!(file))));
        keys
    }
}

/// Keys of `[[ipsec.policy]]`.
mod policy {
    use super::*;
    keys! { keys_of in "ipsec.policy", reload: false {
        /// Unique name.
        name: String = rule_of_parser(Shape::Name, values::parse_name), "";
        /// Local addresses.
        local: IpNet = rule_of_parser(NETWORK, values::parse_network), "all of the family";
        /// Addresses of the peer.
        remote: IpNet = rule_of_parser(NETWORK, values::parse_network), "";
        /// Protocol above IP.
        protocol: Option<u8> = rule_of_parser(Shape::Text("`any`, `tcp`, `udp`, `sctp`, `icmp`, `icmpv6` or a number"), read_protocol), "\"any\"";
        /// Local ports, for protocols with ports.
        local_ports: RangeInclusive<u16> = rule_of_parser(PORTS, read_ports), "\"0-65535\"";
        /// Ports of the peer, for protocols with ports.
        remote_ports: RangeInclusive<u16> = rule_of_parser(PORTS, read_ports), "\"0-65535\"";
        /// Treatment of the selected packets, in both directions. The first matching policy applies. If there are
        /// policies, unmatched packets are dropped. IKE, ARP and neighbour discovery always pass. With
        /// `keys = "kernel"` these policies apply to packets that no policy of the kernel selects, and `protect` drops
        /// them.
        action: &'static str = word_rule(&[("protect", "protect"), ("bypass", "bypass"), ("discard", "discard")]), "";
        /// For `protect`: mode of IPsec.
        mode: &'static str = word_rule(&[("transport", "transport"), ("tunnel", "tunnel")]), "\"transport\"";
        /// For `tunnel`: local endpoint.
        tunnel_local: IpAddr = rule_of_parser(ADDRESS, values::parse_host_ip), "";
        /// For `tunnel`: endpoint of the peer.
        tunnel_remote: IpAddr = rule_of_parser(ADDRESS, values::parse_host_ip), "";
    }}
}

/// Keys of `[[ipsec.sa]]`.
mod sa {
    use super::*;
    keys! { keys_of in "ipsec.sa", reload: false {
        /// Unique name.
        name: String = rule_of_parser(Shape::Name, values::parse_name), "";
        /// Name of the policy that the SA serves.
        policy: String = rule_of_parser(Shape::Text("the name of a section"), values::parse_string), "";
        /// Direction of the SA's packets.
        direction: Direction = word_rule(&[("in", Direction::In), ("out", Direction::Out)]), "";
        /// SPI, unique at the receiver.
        spi: u32 = integer_rule(MIN_SPI, u32::MAX), "";
        /// Algorithm of encryption and integrity.
        algorithm: Algorithm = word_rule(&ALGORITHMS), "";
        /// Path of the file with the keys in hexadecimal: the encryption key with its salt, and on a second line the
        /// authentication key, if the algorithm has one. Only the owner may be able to read the file.
        key_file: PathBuf = rule_of_parser(Shape::Text("a path"), values::parse_path), "";
        /// True for 64-bit extended sequence numbers. Both ends must have the same value.
        esn: bool = boolean_rule(), "true";
        /// True for ESP in UDP, with port 4500 on both sides (RFC 3948).
        udp: bool = boolean_rule(), "false";
        /// Path of the file in which sequence numbers are reserved ahead, so that no number is used twice under one
        /// key, even after a crash (RFC 4106 §2). Required for `out`; not for `in`.
        sequence_file: PathBuf = rule_of_parser(Shape::Text("a path"), values::parse_path), "";
    }}
}

const NETWORK: Shape = Shape::Text("an address with its prefix length, such as 192.0.2.0/24");
const ADDRESS: Shape = Shape::Text("an IP address");
const PORTS: Shape = Shape::Text("a port, or the first and the last, such as \"1-1023\"");

/// Returns the keys of `[ipsec]` and its sub-tables.
pub(super) fn ipsec_keys() -> Vec<Key> {
    [IpsecKeys::keys(), policy::keys_of(), sa::keys_of()].concat()
}

fn read_protocol(value: &DeValue<'_>) -> Parsed<Option<u8>> {
    if let Some(text) = value.as_str() {
        if text == "any" {
            return Ok(None);
        }
        if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| *name == text) {
            return Ok(Some(*number));
        }
        if let Ok(number) = text.parse() {
            return Ok(Some(number));
        }
        let what = quoted(text);
        return Err(format!(
            "is {what}: write \"any\", \"tcp\", \"udp\", \"sctp\", \"icmp\", \"icmpv6\" or a number up to 255"
        ));
    }
    let rule: Rule<u8> = integer_rule(0, u8::MAX);
    super::rule::ParseValue::parse(&rule, value).map(Some)
}

fn read_ports(value: &DeValue<'_>) -> Parsed<RangeInclusive<u16>> {
    let wrong = || "must be a port, or the first and the last, such as \"1-1023\"".to_owned();
    if value.as_integer().is_some() {
        let rule: Rule<u16> = integer_rule(0, u16::MAX);
        return super::rule::ParseValue::parse(&rule, value).map(|port| port..=port);
    }
    let text = value.as_str().ok_or_else(wrong)?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    Ok(port(first)?..=port(last)?)
}

/// Reads `[ipsec]` with its policies and SAs.
pub(super) fn read_ipsec(mut section: Section<'_, '_>) -> (IpsecSection, SectionSpan) {
    let keys = IpsecKeys::read(&mut section);
    let kernel = keys.keys == KeySource::Kernel;
    let (mut policies, mut policy_places) = (Vec::<PolicySection>::new(), Vec::new());
    let mut wrong = false;
    for table in section.tables("policy") {
        let (read, table) = read_policy(table, kernel);
        match read {
            Some(policy) if policies.iter().any(|other| other.name == policy.name) => {
                table.report("name", format!("\"{}\" is there twice: rename one", policy.name));
            }
            Some(policy) => {
                policies.push(policy);
                policy_places.push(table);
                continue;
            }
            None => wrong = true,
        }
        table.finish();
    }
    let mut sas = Vec::<SaSection>::new();
    for table in section.tables("sa") {
        let context = SaContext {
            policies: &policies,
            others: &sas,
            laboratory: keys.laboratory || kernel,
            incomplete: wrong,
        };
        let (sa, table) = read_sa(table, context);
        if kernel {
            table.report("name", "is an SA with a key of its own, but keys = \"kernel\" takes all SAs from the kernel: remove it");
        }
        sas.extend(sa);
        table.finish();
    }
    let all = IpsecSection { keys, policies, sas };
    check_ipsec(&all, &policy_places, wrong);
    policy_places.into_iter().for_each(|table| drop(table.finish()));
    (all, section.finish())
}

/// Runs the checks that need all policies and SAs. `incomplete`: a policy has errors and is missing, so the checks are
/// skipped.
fn check_ipsec(all: &IpsecSection, places: &[Section<'_, '_>], incomplete: bool) {
    if incomplete {
        return;
    }
    for error in all.policy_database().err().into_iter().flatten() {
        let name = |at: usize| &all.policies[at].name;
        let (at, key, sentence) = match error {
            PolicyError::TooMany(n) => (0, "name", format!("is the first of {n} policies: {error}")),
            PolicyError::Families(at) => {
                (at, "remote", "is of another address family than `local`: use the same".into())
            }
            PolicyError::Ports(at) => {
                (at, "local_ports", "or `remote_ports` has its last port before its first".into())
            }
            PolicyError::PortsWithoutProtocol(at) => (
                at,
                "protocol",
                "has no ports, but `local_ports` or `remote_ports` are given: remove them, or name a protocol that has some"
                    .into(),
            ),
            PolicyError::Shadowed { earlier, later } => (
                later,
                "name",
                format!(
                    "\"{}\" gets no packet: \"{}\" before it takes all of its packets; put it first, or remove it",
                    name(later),
                    name(earlier)
                ),
            ),
        };
        if let Some(table) = places.get(at) {
            table.report(key, sentence);
        }
    }
    if all.uses_kernel_keys() {
        return;
    }
    let protecting = all.policies.iter().zip(places);
    let protecting = protecting.filter(|(p, _)| matches!(p.action, PolicyAction::Protect(_)));
    for (policy, table) in protecting {
        let has = |direction| {
            all.sas.iter().any(|sa| sa.policy == policy.name && sa.direction == direction)
        };
        for (direction, word) in [(Direction::In, "in"), (Direction::Out, "out")] {
            if !has(direction) {
                let sentence = format!(
                    "is \"protect\", but there is no [[ipsec.sa]] with policy = \"{}\" and direction = \"{word}\": nothing \
                     would pass",
                    policy.name
                );
                table.report("action", sentence);
            }
        }
    }
}

fn read_policy<'s, 'i>(
    mut table: Section<'s, 'i>,
    kernel: bool,
) -> (Option<PolicySection>, Section<'s, 'i>) {
    let name = table.required(
        "name",
        "give the policy a name, such as name = \"peers\"",
        values::parse_name,
    );
    let remote = table.required(
        "remote",
        "write the peers' network, such as \"192.0.2.0/24\"",
        policy::remote(),
    );
    let local = table.optional("local", policy::local());
    let protocol = table.or_default("protocol", None, policy::protocol());
    let local_ports = table.or_default("local_ports", 0..=u16::MAX, policy::local_ports());
    let remote_ports = table.or_default("remote_ports", 0..=u16::MAX, policy::remote_ports());
    let action =
        table.required("action", "write \"protect\", \"bypass\" or \"discard\"", policy::action());
    let action = match action {
        Some("protect") if kernel => {
            table.refuse_keys(&["mode", "tunnel_local", "tunnel_remote"], "for keys = \"kernel\"");
            Some(PolicyAction::Protect(None))
        }
        Some("protect") => read_mode(&mut table, remote),
        Some(word) => {
            let reason = format!("for action \"{word}\"");
            table.refuse_keys(&["mode", "tunnel_local", "tunnel_remote"], &reason);
            Some(if word == "bypass" { PolicyAction::Bypass } else { PolicyAction::Discard })
        }
        None => {
            table.mark_known(&["mode", "tunnel_local", "tunnel_remote"]);
            None
        }
    };
    let policy = name.zip(remote).zip(action).map(|((name, remote), action)| {
        let all = match remote {
            IpNet::V4(_) => Ipv4Net::default().into(),
            IpNet::V6(_) => Ipv6Net::default().into(),
        };
        let local = local.unwrap_or(all);
        let selector = Selector { local, remote, protocol, local_ports, remote_ports };
        PolicySection { name, selector, action }
    });
    (policy, table)
}

fn read_mode(table: &mut Section<'_, '_>, remote: Option<IpNet>) -> Option<PolicyAction> {
    if table.or_default("mode", "transport", policy::mode()) == "transport" {
        table.refuse_keys(&["tunnel_local", "tunnel_remote"], "for mode \"transport\"");
        return Some(PolicyAction::Protect(None));
    }
    let local =
        table.required("tunnel_local", "write our end of the tunnel", policy::tunnel_local());
    let end = table.required(
        "tunnel_remote",
        "write the peer's end of the tunnel",
        policy::tunnel_remote(),
    );
    let ends = TunnelEndpoints { local: local?, remote: end? };
    for (key, end) in [("tunnel_local", ends.local), ("tunnel_remote", ends.remote)] {
        if remote.is_some_and(|remote| remote.addr().is_ipv4() != end.is_ipv4()) {
            table.report(key, format!("is {end}, of another address family than what it carries"));
        }
    }
    Some(PolicyAction::Protect(Some(ends)))
}

/// Policies, SAs and settings against which an SA is checked.
#[derive(Clone, Copy)]
struct SaContext<'a> {
    policies: &'a [PolicySection],
    /// SAs that precede this one in the file.
    others: &'a [SaSection],
    /// False to report that SAs with keys from files require `laboratory = true`. True if the file has this key, or if
    /// another error already refuses these SAs (`keys = "kernel"`).
    laboratory: bool,
    /// True if a policy has errors and is therefore missing in `policies`.
    incomplete: bool,
}

fn read_sa<'s, 'i>(
    mut table: Section<'s, 'i>,
    context: SaContext<'_>,
) -> (Option<SaSection>, Section<'s, 'i>) {
    let SaContext { policies, others, laboratory, incomplete } = context;
    let name =
        table.required("name", "give the SA a name, such as name = \"to-b\"", values::parse_name);
    let policy =
        table.required("policy", "name the [[ipsec.policy]] that it serves", values::parse_string);
    let direction = table.required("direction", "write \"in\" or \"out\"", sa::direction());
    let spi = table.required("spi", "write a number that both ends use, above 255", sa::spi());
    let algorithm =
        table.required("algorithm", "write one, such as \"aes128gcm16\"", sa::algorithm());
    let key_file = table.required("key_file", "name the file with the keys", values::parse_path);
    let esn = table.or_default("esn", true, sa::esn());
    let udp = table.or_default("udp", false, sa::udp());
    let sequence_file = table.optional("sequence_file", sa::sequence_file());
    if !laboratory {
        table.report(
            "key_file",
            "has keys that nobody renews, which RFC 7146 §3 forbids outside of laboratories: write laboratory = true in \
             [ipsec] if this is one",
        );
    }
    if let Some(policy) = &policy {
        match policies.iter().find(|known| known.name == *policy) {
            Some(known) if !matches!(known.action, PolicyAction::Protect(_)) => {
                table
                    .report("policy", format!("\"{policy}\" does not protect: name one that does"));
            }
            None if !incomplete => {
                table.report(
                    "policy",
                    format!("\"{policy}\" does not exist: add an [[ipsec.policy]]"),
                );
            }
            _ => {}
        }
    }
    if let Some(other) = others.iter().find(|other| Some(&other.name) == name.as_ref()) {
        table.report("name", format!("\"{}\" is there twice: rename one", other.name));
    }
    let same = |other: &&SaSection| Some(other.spi) == spi && Some(other.direction) == direction;
    if let Some(other) = others.iter().find(same) {
        table.report("spi", format!("is that of \"{}\", too: each SA needs its own", other.name));
    }
    match direction {
        Some(Direction::In) if sequence_file.is_some() => {
            table.report("sequence_file", "is of no use for direction \"in\": remove it");
        }
        Some(Direction::Out) if sequence_file.is_none() => {
            table.report(
                "sequence_file",
                "is missing: no sequence number may be used twice under one key, after a restart neither (RFC 4303 §3.3.3, RFC \
                 4106 §2); name a file that the program may write",
            );
        }
        _ => {}
    }
    let sa = name.zip(policy).zip(direction).zip(spi).zip(algorithm).zip(key_file).map(
        |(((((name, policy), direction), spi), algorithm), key_file)| SaSection {
            name,
            policy,
            direction,
            spi,
            algorithm,
            key_file,
            esn,
            udp,
            sequence_file,
        },
    );
    (sa, table)
}
