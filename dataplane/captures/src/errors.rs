//! Errors of a Terminate, by layer, type and code (RFC 6580 §3.1 to §3.3, RFC 6581 §8).

/// Layer, type, code, name of each registered error.
pub const ERRORS: [(u8, u8, u8, &str); 34] = [
    (0, 0, 0, "local catastrophic error"),
    (0, 1, 0x00, "invalid STag"),
    (0, 1, 0x01, "base or bounds violation"),
    (0, 1, 0x02, "access rights violation"),
    (0, 1, 0x03, "STag not associated with RDMAP stream"),
    (0, 1, 0x04, "TO wrap"),
    (0, 1, 0x09, "STag cannot be invalidated"),
    (0, 1, 0xff, "unspecified error"),
    (0, 2, 0x05, "invalid RDMAP version"),
    (0, 2, 0x06, "unexpected opcode"),
    (0, 2, 0x07, "catastrophic error, localized to RDMAP stream"),
    (0, 2, 0x08, "catastrophic error, global"),
    (0, 2, 0x09, "STag cannot be invalidated"),
    (0, 2, 0xff, "unspecified error"),
    (1, 0, 0x00, "local catastrophic error"),
    (1, 1, 0x00, "invalid STag"),
    (1, 1, 0x01, "base or bounds violation"),
    (1, 1, 0x02, "STag not associated with DDP stream"),
    (1, 1, 0x03, "TO wrap"),
    (1, 1, 0x04, "invalid DDP version"),
    (1, 2, 0x01, "invalid queue number"),
    (1, 2, 0x02, "invalid MSN: no buffer available"),
    (1, 2, 0x03, "invalid MSN: range is not valid"),
    (1, 2, 0x04, "invalid MO"),
    (1, 2, 0x05, "DDP message too long for available buffer"),
    (1, 2, 0x06, "invalid DDP version"),
    (2, 0, 0x01, "TCP connection closed, terminated or lost"),
    (2, 0, 0x02, "CRC error"),
    (2, 0, 0x03, "marker and ULPDU_Length mismatch"),
    (2, 0, 0x04, "invalid MPA Request or Reply frame"),
    (2, 0, 0x05, "local catastrophic error"),
    (2, 0, 0x06, "insufficient IRD resources"),
    (2, 0, 0x07, "no matching RTR option"),
    // A code other than 0: the code of a local catastrophic error is arbitrary (RFC 5040 figure 9).
    (0, 0, 0x5a, "local catastrophic error"),
];

const LAYERS: [&str; 3] = ["RDMAP", "DDP", "LLP (MPA)"];

const TYPES: [(u8, u8, &str); 8] = [
    (0, 0, "local catastrophic error"),
    (0, 1, "remote protection error"),
    (0, 2, "remote operation error"),
    (1, 0, "local catastrophic error"),
    (1, 1, "tagged buffer error"),
    (1, 2, "untagged buffer error"),
    (1, 3, "reserved for the LLP"),
    (2, 0, "MPA error"),
];

/// Returns the name of an error; `None` if it is not registered.
pub fn name(layer: u8, etype: u8, code: u8) -> Option<&'static str> {
    // RFC 6580 §3.1: layer 0, type 0 (local catastrophic error) is registered for all codes.
    let code = if (layer, etype) == (0, 0) { 0 } else { code };
    ERRORS.iter().find(|e| (e.0, e.1, e.2) == (layer, etype, code)).map(|e| e.3)
}

/// Returns layer, type and name of an error.
pub fn describe(layer: u8, etype: u8, code: u8) -> String {
    let known = TYPES.iter().find(|t| (t.0, t.1) == (layer, etype)).map(|t| t.2.to_owned());
    format!(
        "{}, {}, {}",
        LAYERS
            .get(usize::from(layer))
            .map_or_else(|| format!("layer {layer}"), |l| (*l).to_owned()),
        known.unwrap_or_else(|| format!("type {etype}")),
        name(layer, etype, code).map_or_else(|| format!("code 0x{code:02x}"), str::to_owned),
    )
}
