//! Reads SA keys from files.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ipsec::crypto::{Algorithm, Keys};
use zeroize::Zeroizing;

use config::text;

/// Maximum length of a key file, bytes.
const MAX_LEN: u64 = 1024;

/// The keys of an SA as bytes, wiped on drop.
pub(super) struct KeyText {
    encryption: Zeroizing<Vec<u8>>,
    authentication: Zeroizing<Vec<u8>>,
}

impl KeyText {
    /// Returns true if both have the same encryption key; false if they have none.
    pub(super) fn is_same_key(&self, other: &KeyText) -> bool {
        !self.encryption.is_empty() && self.encryption == other.encryption
    }

    pub(super) fn keys(&self) -> Keys {
        Keys::new(self.encryption.to_vec(), self.authentication.to_vec())
    }
}

/// Reads a key file. Its owner must be this user or root, and no other user may have access. The first line is the
/// encryption key with its salt, the second line the authentication key, both in hexadecimal. The line of a key that
/// the algorithm does not use is omitted.
///
/// # Errors
/// Returns one sentence, which contains no part of a key.
pub(super) fn read(path: &Path, algorithm: Algorithm) -> Result<KeyText, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    let file = File::open(path).map_err(cannot)?;
    let facts = file.metadata().map_err(cannot)?;
    if !facts.is_file() {
        return Err(format!("{shown} is no file"));
    }
    if facts.mode() & 0o077 != 0 {
        return Err(format!("{shown} can be used by others than its owner: chmod 600 it"));
    }
    let own_uid = rustix::process::geteuid().as_raw();
    if facts.uid() != own_uid && facts.uid() != 0 {
        return Err(format!("{shown} belongs to user {}: it must be ours or root's", facts.uid()));
    }
    let mut read = Zeroizing::new(Vec::with_capacity(MAX_LEN as usize + 1));
    file.take(MAX_LEN + 1).read_to_end(&mut read).map_err(cannot)?;
    if read.len() as u64 > MAX_LEN {
        return Err(format!("{shown} has more than {MAX_LEN} bytes: it is no key"));
    }
    let text = text::decode(&read).map_err(|why| format!("{shown} {why}"))?;
    let key_lens = [algorithm.key_len(), algorithm.auth_key_len()];
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut keys = Vec::new();
    for (len, key_name) in
        key_lens.into_iter().zip(["encryption, its salt included", "authentication"])
    {
        if len == 0 {
            keys.push(Zeroizing::new(Vec::new()));
            continue;
        }
        let line = lines.next().ok_or_else(|| {
            format!(
                "{shown} has no key of {key_name}: write its {len} bytes in hexadecimal on a line"
            )
        })?;
        let key = parse_hex(line)
            .ok_or_else(|| format!("{shown}: the key of {key_name} is not in hexadecimal"))?;
        if key.len() != len {
            let have = key.len();
            return Err(format!(
                "{shown}: the key of {key_name} has {have} bytes, but needs {len}"
            ));
        }
        keys.push(key);
    }
    if lines.next().is_some() {
        return Err(format!("{shown} has more keys than the algorithm needs"));
    }
    let [encryption, authentication]: [_; 2] =
        keys.try_into().map_err(|_| format!("{shown} has not two keys"))?;
    Ok(KeyText { encryption, authentication })
}

fn parse_hex(line: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digits = line.strip_prefix("0x").unwrap_or(line);
    // `from_str_radix` would accept a sign.
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for at in (0..digits.len()).step_by(2) {
        out.push(u8::from_str_radix(&digits[at..at + 2], 16).ok()?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_text_has_hexadecimal_digits_only() {
        assert_eq!(parse_hex("0x0aFF").as_deref(), Some(&vec![0x0a, 0xff]));
        for text in ["0x+a00", "-a00", "0x 0", "0xa", "0xg0", "0xé"] {
            assert_eq!(parse_hex(text), None, "{text}");
        }
    }
}
