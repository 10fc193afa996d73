//! The options of an IPv4 header (RFC 791 §3.1). [`check`] verifies lengths and refuses source routes. No other option
//! changes how a packet is processed.
//!
//! ```text
//!  | type | length | pointer, data ... | 1: no operation | type | length | ... | 0: end | ignored ... |
//! ```
//!
//! Record route, timestamp, router alert and the security options are skipped, and not copied to a reply. Packets with
//! a source route are dropped even if the route is completed (RFC 7126 §4.3, §4.4).

use crate::api::DropReason;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// Option types of the loose and the strict source route.
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// Checks `options`, the header bytes after the first 20.
///
/// # Errors
/// [`DropReason::IpOptions`] for an option whose length is below two or passes the end of the header (RFC 7126 §4),
/// [`DropReason::SourceRoute`] for a source route.
#[cold]
pub fn check(mut options: &[u8]) -> Result<(), DropReason> {
    loop {
        options = match *options {
            [] | [END, ..] => return Ok(()),
            [NO_OPERATION, ref rest @ ..] => rest,
            [kind, length, ..] if (2..=options.len()).contains(&length.into()) => {
                if SOURCE_ROUTES.contains(&kind) {
                    return Err(DropReason::SourceRoute);
                }
                &options[length.into()..]
            }
            _ => return Err(DropReason::IpOptions),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // RFC 791 §3.1, RFC 7126 §4: the bytes after an end-of-list option are ignored.
    #[test]
    fn source_routes_and_bad_option_lengths_are_refused() {
        let (route, bad) = (Err(DropReason::SourceRoute), Err(DropReason::IpOptions));
        let cases: [(&[u8], _); 16] = [
            (&[], Ok(())),
            (&[0, 131, 3, 4], Ok(())),
            (&[1, 1, 1, 1], Ok(())),
            (&[7, 7, 4, 0, 0, 0, 0, 0], Ok(())),
            (&[68, 8, 5, 0, 0, 0, 0, 0], Ok(())),
            (&[148, 4, 0, 0], Ok(())),
            (&[130, 3, 0, 1], Ok(())),
            (&[200, 2, 1, 0], Ok(())),
            (&[131, 7, 4, 10, 0, 0, 3, 0], route),
            (&[137, 7, 4, 10, 0, 0, 3, 0], route),
            (&[1, 131, 3, 8], route),
            (&[7, 3, 4, 137, 3, 4, 0, 0], route),
            (&[131, 9, 4, 10, 0, 0, 3, 0], bad),
            (&[7, 0, 0, 0], bad),
            (&[7, 1, 0, 0], bad),
            (&[1, 1, 1, 7], bad),
        ];
        for (options, outcome) in cases {
            assert_eq!(check(options), outcome, "{options:?}");
        }
    }

    proptest! {
        #[test]
        fn option_parser_ends_on_any_bytes(options in prop::collection::vec(any::<u8>(), 0..41)) {
            let _ = check(&options);
        }
    }
}
