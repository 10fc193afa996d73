//! Numbers with the noun that they count, for messages.

use std::fmt::Display;
use std::time::Duration;

/// Returns the number and the noun, with an `s` unless the number is 1: `1 stream`, `2 streams`.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// Returns the result of [`counted`] with its verb: `1 stream is`, `2 streams are`.
pub fn counted_are<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let verb = if number == N::from(1) { "is" } else { "are" };
    format!("{} {verb}", counted(number, noun))
}

/// Returns a time in seconds, rounded to hundredths: `3 s`, `0.25 s`. A client sends the remaining time of its
/// `--timeout`. Rounding hides the few milliseconds that have passed.
pub fn seconds(time: Duration) -> String {
    let hundredths = (time.as_millis() + 5) / 10;
    let (whole, part) = (hundredths / 100, hundredths % 100);
    match part {
        0 => format!("{whole} s"),
        _ => format!("{whole}.{part:02} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_hundredths_of_a_second() {
        let times = [1_999_982, 3_000_000, 250_000, 50_001].map(Duration::from_micros);
        assert_eq!(times.map(seconds), ["2 s", "3 s", "0.25 s", "0.05 s"]);
    }

    #[test]
    fn counts_other_than_one_are_plural() {
        assert_eq!([0u32, 1, 2].map(|n| counted(n, "note")), ["0 notes", "1 note", "2 notes"]);
        let streams = [0usize, 1, 2].map(|n| counted_are(n, "stream"));
        assert_eq!(streams, ["0 streams are", "1 stream is", "2 streams are"]);
    }
}
