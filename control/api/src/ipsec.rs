//! IPsec security associations (SAs) and policies in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An IPsec security association (SA). Its keys are not included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpsecSaInfo {
    /// Security parameters index, which identifies the SA at its receiver (RFC 4303 §2.1).
    pub spi: u32,
    /// `in` or `out`.
    pub direction: String,
    /// Name of the SA in the configuration. `null` for an SA of the kernel.
    pub name: Option<String>,
    /// Policy that the SA serves: its name, or for the kernel's SAs addresses and reqid.
    pub policy: String,
    /// Encryption and integrity algorithm, by the name that IKE daemons use.
    pub algorithm: String,
    /// Tunnel source and destination address. `null` in transport mode.
    pub tunnel: Option<[String; 2]>,
    /// True if ESP is encapsulated in UDP (RFC 3948).
    pub udp: bool,
    /// Last sequence number sent, or for direction `in` the highest sequence number received.
    pub sequence: u64,
    /// Packets processed by the SA since the start.
    pub packets: u64,
    /// Bytes of these packets, including IP headers and excluding ESP.
    pub bytes: u64,
    /// Reason why an SA of the kernel is not used. `null` for an SA in use.
    pub refused: Option<String>,
}

/// An IPsec policy (RFC 4301 §4.4.1). Policies are listed in the order of their evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpsecPolicyInfo {
    /// Name of the policy. For a policy of the kernel: its required protection, or its selector if it is unsupported.
    pub name: String,
    /// `in` or `out`. `null`: both directions.
    pub direction: Option<String>,
    /// Prefix of local addresses.
    pub local: String,
    /// Prefix of the peer's addresses.
    pub remote: String,
    /// IP protocol number. `null`: any protocol.
    pub protocol: Option<u8>,
    /// Range of local ports: first and last.
    pub local_ports: [u16; 2],
    /// Range of the peer's ports: first and last.
    pub remote_ports: [u16; 2],
    /// Action: `protect`, `bypass`, `discard`, or `none` for a policy of the kernel that is not in force.
    pub action: String,
    /// Local and remote tunnel address. `null` without a tunnel.
    pub tunnel: Option<[String; 2]>,
    /// Priority of a policy of the kernel; lower values come first. `null` for a configured policy.
    pub priority: Option<u32>,
    /// Reason why a policy of the kernel is not supported. `null` for a policy in force.
    pub refused: Option<String>,
}
