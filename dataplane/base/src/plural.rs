//! Numbers with the noun that they count, in messages.

use std::fmt::Display;

/// `1 stream`, `2 streams`.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// `1 stream is`, `2 streams are`.
pub fn counted_are<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let verb = if number == N::from(1) { "is" } else { "are" };
    format!("{} {verb}", counted(number, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        assert_eq!([0u32, 1, 2].map(|n| counted(n, "note")), ["0 notes", "1 note", "2 notes"]);
        let streams = [0usize, 1, 2].map(|n| counted_are(n, "stream"));
        assert_eq!(streams, ["0 streams are", "1 stream is", "2 streams are"]);
    }
}
