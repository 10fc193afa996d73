//! JSON Schemas of request bodies and strings whose Rust types do not describe their format.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};
use tcp_lite::mpa::Peer;

/// Defines types that exist only for their JSON Schema. The documentation of a type is the schema's description.
macro_rules! shapes {
    ($($(#[doc = $doc:literal])+ $Name:ident = $schema:tt;)+) => {$(
        $(#[doc = $doc])+
        pub(super) struct $Name;

        impl JsonSchema for $Name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($Name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let mut schema: Schema = json_schema!($schema);
                let lines = [$($doc.trim()),+];
                schema.insert("description".into(), Value::String(lines.join(" ")));
                schema
            }
        }
    )+};
}

shapes! {
    /// Bytes in base64 (RFC 4648 §4, with padding).
    Base64 = {
        "type": "string",
        "contentEncoding": "base64",
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
        "examples": ["aGVsbG8="],
    };
    /// Absolute path on the appliance's host.
    AbsolutePath = { "type": "string", "pattern": "^/[^\\x00]*$" };
    /// IP address and port. IPv6 addresses are in brackets.
    SocketAddress = {
        "type": "string",
        "anyOf": [{ "pattern": IPV4_PATTERN }, { "pattern": IPV6_PATTERN }],
        "examples": ["192.0.2.1:7471", "[2001:db8::1]:7471"],
    };
}

/// Pattern of an IPv4 address and a port.
const IPV4_PATTERN: &str = concat!(
    r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    r":(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}|0)$"
);
/// Pattern of an IPv6 address and a port. The address has form 1 or 2 of RFC 4291 §2.2; form 3, with an embedded IPv4
/// address, is not accepted.
const IPV6_PATTERN: &str = concat!(
    r"^\[(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}",
    r"|::([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,6})?",
    r"|[0-9A-Fa-f]{1,4}::([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,5})?",
    r"|([0-9A-Fa-f]{1,4}:){2}:([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,4})?",
    r"|([0-9A-Fa-f]{1,4}:){3}:([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,3})?",
    r"|([0-9A-Fa-f]{1,4}:){4}:([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,2})?",
    r"|([0-9A-Fa-f]{1,4}:){5}:([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4})?)?",
    r"|([0-9A-Fa-f]{1,4}:){6}:([0-9A-Fa-f]{1,4})?",
    r"|([0-9A-Fa-f]{1,4}:){7}:)\]",
    r":(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}|0)$"
);

/// Returns the schema of the rights of peers on a region.
pub(super) fn access_words(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": config::access_words() })
}

/// Returns the schema of `peer`: the names of the kinds of RDMAP peers.
pub(super) fn peers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": Peer::ALL.map(Peer::name) })
}

/// Defines request bodies that consist of the keys of a configuration section.
macro_rules! sections {
    ($($(#[doc = $doc:literal])+ $Name:ident = $section:literal, example $example:tt;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Deserialize)]
        #[serde(transparent)]
        pub(super) struct $Name(pub(super) Value);

        impl JsonSchema for $Name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($Name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let mut schema = config::section_schema(&config::keys(), $section);
                schema["description"] = json!([$($doc.trim()),+].join(" "));
                schema["examples"] = json!([$example]);
                schema.try_into().expect("a section is an object")
            }
        }
    )+};
}

sections! {
    /// Keys of `[[region]]` in the configuration.
    RegionKeys = "region", example {"name": "in", "size": "64 KiB", "access": "w"};
    /// Keys of `[[listener]]` in the configuration.
    ListenerKeys = "listener", example {"name": "extra", "interface": "lan", "port": 7475, "regions": ["in"]};
}
