//! Resolves locations in the peer's memory, destinations and sources of data, to STags and tagged offsets (TOs).

use ddp::Stag;

use api::{ApiError, RemotePlace};
use ddp::advert::Advertised;

/// Access that an operation requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    Write,
    Read,
    Atomic,
}

/// Returns STag and TO of the first byte of a location of `total` bytes. A region given by name must be advertised, not
/// in use by another stream, contain all bytes, and allow the access `need`. Of a location given by STag and TO, only
/// the TO is checked: it must not wrap.
pub(super) fn resolve_target(
    target: &RemotePlace,
    total: u64,
    regions: &[Advertised],
    need: Need,
) -> Result<(Stag, u64), ApiError> {
    match target {
        RemotePlace::Tagged { stag, to } => match to.checked_add(total) {
            Some(_) => Ok((Stag(*stag), *to)),
            None => Err(ApiError::bad_request("the tagged offset and the file's length wrap")),
        },
        RemotePlace::Region { name, offset } => {
            let Some(region) = regions.iter().find(|region| region.name == *name) else {
                let names: Vec<&str> = regions.iter().map(|region| region.name.as_str()).collect();
                let has = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(ApiError::peer_refused(format!(
                    "the peer offers no region `{name}` (it offers: {has})"
                )));
            };
            if region.busy {
                let sentence = format!(
                    "region_busy: the peer's region `{name}` is in use by another stream: try again when that stream has ended"
                );
                return Err(ApiError::peer_refused(sentence));
            }
            let (is_open, operations) = match need {
                Need::Write => (region.remote_write, "writes"),
                Need::Read => (region.remote_read, "reads"),
                Need::Atomic => (region.remote_atomic, "atomics"),
            };
            if !is_open {
                let sentence = format!("the peer's region `{name}` is not open to {operations}");
                return Err(ApiError::peer_refused(sentence));
            }
            match offset.checked_add(total) {
                Some(end) if end <= region.len => {
                    Ok((Stag(region.stag), region.base_to.wrapping_add(*offset)))
                }
                _ => Err(ApiError::bad_request(format!(
                    "{total} bytes at offset {offset} do not fit into the peer's region `{name}` \
                     of {} bytes",
                    region.len
                ))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ErrorKind;

    fn region() -> Advertised {
        Advertised {
            name: "in".into(),
            stag: 7,
            base_to: 1000,
            len: 100,
            remote_write: true,
            remote_read: false,
            remote_atomic: false,
            busy: false,
        }
    }

    fn named_target(name: &str, offset: u64) -> RemotePlace {
        RemotePlace::Region { name: name.into(), offset }
    }

    #[test]
    fn named_location_is_resolved_and_checked() {
        let regions = [region()];
        assert_eq!(
            resolve_target(&named_target("in", 10), 90, &regions, Need::Write),
            Ok((Stag(7), 1010))
        );
        let error = resolve_target(&named_target("in", 11), 90, &regions, Need::Write).unwrap_err();
        assert_eq!(error.error, ErrorKind::BadRequest);
        assert!(resolve_target(&named_target("in", u64::MAX), 90, &regions, Need::Write).is_err());
        let error = resolve_target(&named_target("out", 0), 1, &regions, Need::Write).unwrap_err();
        assert_eq!(error.message, "the peer offers no region `out` (it offers: in)");
        let taken = [Advertised { stag: 0, remote_write: false, busy: true, ..region() }];
        let error = resolve_target(&named_target("in", 0), 1, &taken, Need::Write).unwrap_err();
        assert_eq!(error.error, ErrorKind::PeerRefused);
        assert!(
            error.message.starts_with("region_busy: the peer's region `in` is in use"),
            "{error}"
        );
        let closed = [Advertised { remote_write: false, ..region() }];
        assert_eq!(
            resolve_target(&named_target("in", 0), 1, &closed, Need::Write).unwrap_err().error,
            ErrorKind::PeerRefused
        );
    }

    #[test]
    fn known_stag_is_used_unchecked_unless_to_wraps() {
        let target = RemotePlace::Tagged { stag: 9, to: u64::MAX - 5 };
        assert_eq!(resolve_target(&target, 5, &[], Need::Write), Ok((Stag(9), u64::MAX - 5)));
        assert!(resolve_target(&target, 6, &[], Need::Write).is_err());
    }
}
