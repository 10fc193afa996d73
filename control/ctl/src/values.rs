//! Parsers of command line values.

use std::net::SocketAddr;
use std::time::SystemTime;

use base::address::{self, AddressError};

use api::Severity;
use config::parse_u64;

pub(crate) fn severity(text: &str) -> Result<Severity, String> {
    let found = Severity::ALL.into_iter().find(|(word, _)| *word == text);
    found.map(|(_, severity)| severity).ok_or_else(|| "write info, warning or error".into())
}

/// Parses a time in UTC, or a duration before now.
pub(crate) fn since(text: &str) -> Result<SystemTime, String> {
    let ago = humantime::parse_duration(text).ok();
    let ago = ago.and_then(|ago| SystemTime::now().checked_sub(ago));
    ago.or_else(|| humantime::parse_rfc3339_weak(text).ok()).ok_or_else(|| {
        "write a duration before now, such as 10m, or a time in UTC, such as 2026-01-31T12:00:00Z"
            .into()
    })
}

pub(crate) fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

pub(crate) fn number(text: &str) -> Result<u64, String> {
    parse_u64(text).ok_or_else(|| "write a number, decimal or 0x".into())
}

pub(crate) fn stag(text: &str) -> Result<u32, String> {
    let stag = number(text)?;
    u32::try_from(stag).map_err(|_| "a steering tag has 32 bits, such as 0x0badcafe".into())
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    let size: bytesize::ByteSize =
        text.parse().map_err(|_| "write bytes or a size such as 64MiB".to_owned())?;
    if size.as_u64() == 0 { Err("must be 1 byte or more".into()) } else { Ok(size.as_u64()) }
}

pub(crate) fn size32(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| "must be less than 4GiB".into())
}

pub(crate) fn region_name(text: &str) -> Result<String, String> {
    match ddp::advert::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("use 1 to 64 of A-Z a-z 0-9 . _ -".into()),
    }
}

/// Parses an address and a port for kernel sockets of this host.
pub(super) fn socket(text: &str) -> Result<SocketAddr, String> {
    address::parse_socket(text).map_err(|error| match error {
        AddressError::Syntax => "write ADDRESS:PORT, such as 0.0.0.0:7471 or [::]:7471".into(),
        named => format!("this is {named}"),
    })
}
