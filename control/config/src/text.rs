//! Reads text files of the operator in UTF-8. A file in another encoding is refused with a remedy, not converted.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The byte order mark of UTF-8, which some editors write.
const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";
/// Byte order marks of other encodings. UTF-32 precedes UTF-16, because the little-endian mark of UTF-32 begins with
/// the mark of UTF-16.
const OTHER_ENCODINGS: [(&[u8], &str, &str); 4] = [
    (b"\xff\xfe\0\0", "UTF-32, little-endian", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32, big-endian", "UTF-32"),
    (b"\xff\xfe", "UTF-16, little-endian", "UTF-16"),
    (b"\xfe\xff", "UTF-16, big-endian", "UTF-16"),
];
/// Maximum length of a text file, bytes. Bounds reads from devices and pipes, which may have no end.
const MAX_LEN: u64 = 16 << 20;

/// Reads a text file.
///
/// # Errors
/// The end of a sentence that begins with the file's name: the file cannot be read, is too long or is not UTF-8.
pub fn read_file(file: &Path) -> Result<String, String> {
    let cannot = |error: io::Error| match error.kind() {
        io::ErrorKind::IsADirectory => "is a directory: name a file".to_owned(),
        _ => format!("cannot be read: {error}; check the path and its permissions"),
    };
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|file| file.take(MAX_LEN + 1).read_to_end(&mut bytes))
        .map_err(cannot)?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(format!("has more than {} MiB: it is no text file of ddpd", MAX_LEN >> 20));
    }
    decode(&bytes).map(str::to_owned)
}

/// Decodes the bytes, without UTF-8's byte order mark. Error messages do not contain the bytes, which may be a secret.
///
/// # Errors
/// The end of a sentence that begins with the file's name: the encoding, if recognised, and the remedy.
pub fn decode(bytes: &[u8]) -> Result<&str, String> {
    for (mark, shown, name) in OTHER_ENCODINGS {
        if bytes.starts_with(mark) {
            return Err(format!("is {shown}, but must be UTF-8: {}", iconv_remedy(name)));
        }
    }
    let bytes = bytes.strip_prefix(UTF_8_MARK).unwrap_or(bytes);
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(nul_error(bytes, at));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let line = line_of_offset(bytes, error.valid_up_to());
        format!(
            "is not UTF-8 in line {line}: save it as UTF-8; if it is Latin-1, {}",
            iconv_remedy("LATIN1")
        )
    })
}

/// Returns the error for a text with NULs. Recognises UTF-16 by Latin letters, which have a NUL in every second byte.
fn nul_error(bytes: &[u8], at: usize) -> String {
    let nuls = |from: usize| bytes.iter().skip(from).step_by(2).filter(|byte| **byte == 0).count();
    let half = bytes.len() / 2;
    for (from, other, name) in [(1, 0, "UTF-16LE"), (0, 1, "UTF-16BE")] {
        if half > 0 && nuls(from) * 4 >= half * 3 && nuls(other) * 4 < half {
            return format!("looks like {name} without a byte order mark: {}", iconv_remedy(name));
        }
    }
    format!("has a NUL byte in line {}: it is no text", line_of_offset(bytes, at))
}

fn iconv_remedy(encoding: &str) -> String {
    format!("iconv -f {encoding} -t UTF-8 FILE > NEW")
}

/// Returns the line of the byte at offset `at`, from 1.
fn line_of_offset(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[port]]\nname = \"a\"\n";

    fn utf_16(text: &str, unit: impl Fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(unit).collect()
    }

    #[test]
    fn utf_8_is_accepted_with_and_without_mark() {
        for text in ["", TEXT, "name = \"é\"\r\n"] {
            assert_eq!(decode(text.as_bytes()), Ok(text));
            assert_eq!(decode(&[UTF_8_MARK, text.as_bytes()].concat()), Ok(text));
        }
    }

    #[test]
    fn other_encodings_are_refused_with_remedy() {
        let (little, big) = (utf_16(TEXT, u16::to_le_bytes), utf_16(TEXT, u16::to_be_bytes));
        let wide: Vec<u8> = TEXT.chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
        let latin_1 = b"name = \"a\"\nappliance = \"Z\xfcrich\"\n".to_vec();
        for (bytes, sentence) in [
            (
                [b"\xff\xfe".to_vec(), little.clone()].concat(),
                "is UTF-16, little-endian, but must be UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW",
            ),
            (
                [b"\xfe\xff".to_vec(), big.clone()].concat(),
                "is UTF-16, big-endian, but must be UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW",
            ),
            (
                [b"\xff\xfe\0\0".to_vec(), wide.clone()].concat(),
                "is UTF-32, little-endian, but must be UTF-8: iconv -f UTF-32 -t UTF-8 FILE > NEW",
            ),
            (
                little,
                "looks like UTF-16LE without a byte order mark: iconv -f UTF-16LE -t UTF-8 FILE > NEW",
            ),
            (
                big,
                "looks like UTF-16BE without a byte order mark: iconv -f UTF-16BE -t UTF-8 FILE > NEW",
            ),
            (
                latin_1,
                "is not UTF-8 in line 2: save it as UTF-8; if it is Latin-1, iconv -f LATIN1 -t UTF-8 FILE > NEW",
            ),
            (b"a = 1\nb = 2\0\n".to_vec(), "has a NUL byte in line 2: it is no text"),
            (vec![0], "has a NUL byte in line 1: it is no text"),
            (vec![0; 64], "has a NUL byte in line 1: it is no text"),
        ] {
            assert_eq!(decode(&bytes), Err(sentence.to_owned()), "{bytes:02x?}");
        }
        assert!(decode(&wide).unwrap_err().contains("NUL byte in line 1"));
    }

    #[test]
    fn directories_missing_and_endless_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_file(dir.path()), Err("is a directory: name a file".into()));
        let missing = read_file(&dir.path().join("none")).unwrap_err();
        assert_eq!(
            missing,
            "cannot be read: No such file or directory (os error 2); check the path and its permissions"
        );
        let endless = read_file(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(endless, "has more than 16 MiB: it is no text file of ddpd");
    }
}
