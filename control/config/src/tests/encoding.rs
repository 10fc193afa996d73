//! Tests of the encodings of a configuration file.

use super::super::*;
use super::{MINIMAL, parse};

/// Other encodings are tested with the decoder in `text.rs`.
#[test]
fn foreign_encoding_is_refused_with_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    let shown = file.display();
    let wide = MINIMAL.encode_utf16().flat_map(u16::to_le_bytes);
    for (bytes, sentence) in [
        (
            [0xff, 0xfe].into_iter().chain(wide).collect::<Vec<u8>>(),
            "is UTF-16, little-endian, but must be UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW",
        ),
        (
            [MINIMAL.as_bytes(), b"# Z\xfcrich\n"].concat(),
            &*format!(
                "is not UTF-8 in line {}: save it as UTF-8; if it is Latin-1, iconv -f LATIN1 -t UTF-8 FILE > NEW",
                MINIMAL.lines().count() + 1
            ),
        ),
        (
            [MINIMAL.as_bytes(), b"\n\0"].concat(),
            &*format!("has a NUL byte in line {}: it is no text", MINIMAL.lines().count() + 2),
        ),
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(Document::read(&file).unwrap_err().to_string(), format!("{shown}: {sentence}"));
    }
    let errors = Document::read(dir.path()).unwrap_err();
    assert_eq!(
        errors.to_string(),
        format!("{}: is a directory: name a file", dir.path().display())
    );
    std::fs::write(&file, "").unwrap();
    assert!(
        Document::read(&file)
            .unwrap_err()
            .to_string()
            .contains("needs at least one: add an [[interface]]")
    );
}

#[test]
fn utf_8_mark_and_carriage_returns_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::write(&file, MINIMAL).unwrap();
    let plain = Document::read(&file).unwrap().config;
    for text in [format!("\u{feff}{MINIMAL}"), MINIMAL.replace('\n', "\r\n")] {
        std::fs::write(&file, &text).unwrap();
        assert_eq!(Document::read(&file).unwrap().config, plain);
        // `parse` also accepts the byte order mark and carriage returns. They do not change its errors.
        let wrong = format!("{text}\nnone = 1\n");
        let errors = parse(&wrong).unwrap_err();
        assert!(errors.contains("none"), "{errors}");
    }
}
