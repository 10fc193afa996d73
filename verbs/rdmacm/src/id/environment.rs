//! Environment variables of connections. `ddpctl run --transport` sets the transport. The user sets the kind of the
//! peers.

use ibverbs::errno::{EINVAL, Result};
use ibverbs::report;
use verbs_client::{PeerKind, Transport};

/// Environment variable that selects the lower layer protocol: `tcp`, the default, or `sctp`.
const TRANSPORT_VARIABLE: &str = "DDPD_TRANSPORT";
/// Environment variable that names the kind of the peers to which the program connects. Default: `standard`.
const PEER_VARIABLE: &str = "DDPD_PEER";

/// Returns the lower layer protocol of connects and listeners.
///
/// # Errors
/// `EINVAL`: the variable has an unknown value.
pub(super) fn transport() -> Result<Transport> {
    match std::env::var(TRANSPORT_VARIABLE).as_deref() {
        Err(_) | Ok("" | "tcp") => Ok(Transport::Tcp),
        Ok("sctp") => Ok(Transport::Sctp),
        Ok(other) => {
            let line = format_args!("{TRANSPORT_VARIABLE} is {other}: it must be tcp or sctp");
            report::once("transport", line);
            Err(EINVAL)
        }
    }
}

/// Returns the kind of the peers of connects.
///
/// # Errors
/// `EINVAL`: the variable has an unknown value.
pub(super) fn peer_kind() -> Result<PeerKind> {
    let kinds =
        [PeerKind::Standard, PeerKind::Siw, PeerKind::Cxgb4, PeerKind::Irdma, PeerKind::SmbDirect];
    let wanted = match std::env::var(PEER_VARIABLE) {
        Ok(wanted) if !wanted.is_empty() => wanted,
        _ => return Ok(PeerKind::Standard),
    };
    kinds.into_iter().find(|kind| kind.name() == wanted).ok_or_else(|| {
        let names = kinds.map(PeerKind::name).join(", ");
        let line = format_args!("{PEER_VARIABLE} is {wanted}: it must be one of {names}");
        report::once("peer", line);
        EINVAL
    })
}
