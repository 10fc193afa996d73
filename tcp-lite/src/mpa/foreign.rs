//! Detects protocols other than MPA from the peer's first bytes, so that an error names the protocol on the wrong port.
//! Only the first segment is examined. If the segment is not MPA, the start-up fails without waiting for more bytes.
//!
//! Not included: protocols in which the server speaks first.

use core::fmt;

/// A protocol other than MPA.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ForeignProtocol {
    /// HTTP request or response (RFC 9110, RFC 9113).
    Http,
    /// TLS handshake or alert record (RFC 8446 §5.1).
    Tls,
    /// SSH identification string (RFC 4253 §4.2).
    Ssh,
}

/// First bytes of HTTP messages in either direction.
const HTTP: [&[u8]; 11] = [
    b"GET ",
    b"PUT ",
    b"POST ",
    b"HEAD ",
    b"PATCH ",
    b"TRACE ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"HTTP/",
    b"PRI * ",
];

/// Number of bytes that must match to detect HTTP or SSH.
const MIN_MATCH: usize = 4;

impl ForeignProtocol {
    /// Returns the protocol that begins with `bytes`; `None` if the bytes match none, or are too few.
    pub(super) fn detect(bytes: &[u8]) -> Option<ForeignProtocol> {
        let begins = |word: &[u8]| {
            let len = bytes.len().min(word.len());
            len >= MIN_MATCH && bytes[..len] == word[..len]
        };
        if HTTP.into_iter().any(begins) {
            return Some(ForeignProtocol::Http);
        }
        match bytes {
            // TLS record: ContentType alert or handshake, version 3.0 to 3.4.
            [0x15 | 0x16, 3, 0..=4, ..] => Some(ForeignProtocol::Tls),
            _ if begins(b"SSH-") => Some(ForeignProtocol::Ssh),
            _ => None,
        }
    }

    /// Returns a stable name for counters and machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            ForeignProtocol::Http => "http",
            ForeignProtocol::Tls => "tls",
            ForeignProtocol::Ssh => "ssh",
        }
    }
}

impl fmt::Display for ForeignProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ForeignProtocol::Http => "HTTP",
            ForeignProtocol::Tls => "TLS",
            ForeignProtocol::Ssh => "SSH",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_protocol_is_detected_from_first_bytes() {
        let cases: [(&[u8], Option<ForeignProtocol>); 14] = [
            (b"GET / HTTP/1.1\r\n", Some(ForeignProtocol::Http)),
            (b"GET ", Some(ForeignProtocol::Http)),
            (b"GET", None),
            (b"GETS x", None),
            (b"OPTIONS * HTTP/1", Some(ForeignProtocol::Http)),
            (b"HTTP/1.1 400 Bad", Some(ForeignProtocol::Http)),
            (b"PRI * HTTP/2.0\r\n", Some(ForeignProtocol::Http)),
            (&[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], Some(ForeignProtocol::Tls)),
            (&[0x15, 3, 3, 0, 2, 2, 70], Some(ForeignProtocol::Tls)),
            (&[0x16, 3, 5], None),
            (b"SSH-2.0-OpenSSH_", Some(ForeignProtocol::Ssh)),
            (b"SSH", None),
            (b"MPA ID Req Frame", None),
            (b"", None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(ForeignProtocol::detect(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn foreign_protocols_have_names() {
        let all = [ForeignProtocol::Http, ForeignProtocol::Tls, ForeignProtocol::Ssh];
        assert_eq!(all.map(ForeignProtocol::name), ["http", "tls", "ssh"]);
        assert_eq!(all.map(|foreign| foreign.to_string()), ["HTTP", "TLS", "SSH"]);
    }
}
