//! Numbers, payloads and key-value arguments of a step.
//!
//! A number consists of terms with `+` or `-` between them: decimal or hexadecimal (`0x`) numbers, words (`on` = 1,
//! `off` = 0, ...) and variables (`$write.stag`). Results wrap at 64 bits.

use dialogue::streams::parse_hex;
use std::collections::BTreeMap;

/// Variables of a session: facts about the device, by name without `$`.
pub type Variables = BTreeMap<String, u64>;

/// Longest payload of a step, bytes: the largest ULPDU.
pub const MAX_DATA: u64 = 65535;

/// Words with a numeric value.
const WORDS: [(&str, u64); 8] = [
    ("on", 1),
    ("off", 0),
    ("yes", 1),
    ("no", 0),
    ("good", 1),
    ("bad", 0),
    ("none", 0),
    ("any", 1),
];

/// Comparison between a received field and a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    Unequal,
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
}

impl Operator {
    /// Returns the operator as written in case files.
    pub fn symbol(self) -> &'static str {
        match self {
            Operator::Equal => "=",
            Operator::Unequal => "!=",
            Operator::AtMost => "<=",
            Operator::AtLeast => ">=",
        }
    }

    /// Compares a received number with the expected one.
    pub fn holds(self, received: u64, expected: u64) -> bool {
        match self {
            Operator::Equal => received == expected,
            Operator::Unequal => received != expected,
            Operator::AtMost => received <= expected,
            Operator::AtLeast => received >= expected,
        }
    }
}

/// One `KEY=VALUE` argument, or a condition with another operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument {
    /// Key before the operator.
    pub key: String,
    /// Comparison; only `=` in sent frames.
    pub operator: Operator,
    /// Value as written: a number, a variable, or text.
    pub value: String,
}

/// Key-value arguments of a step, in the order of the line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arguments(pub Vec<Argument>);

impl Arguments {
    /// Parses words of the form `KEY=VALUE`, `KEY!=VALUE`, `KEY<=VALUE`, `KEY>=VALUE`.
    ///
    /// # Errors
    /// A word has another form, or is `KEY=VALUE` with a key that has occurred before.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        for word in words {
            let (key, value) = word.split_once('=').ok_or(format!("`{word}` is not KEY=VALUE"))?;
            let (key, operator) = match key.as_bytes().last() {
                Some(b'!') => (&key[..key.len() - 1], Operator::Unequal),
                Some(b'<') => (&key[..key.len() - 1], Operator::AtMost),
                Some(b'>') => (&key[..key.len() - 1], Operator::AtLeast),
                _ => (key, Operator::Equal),
            };
            if operator == Operator::Equal && arguments.get(key).is_some() {
                return Err(format!("`{key}` is given twice"));
            }
            arguments.0.push(Argument { key: key.into(), operator, value: value.into() });
        }
        Ok(arguments)
    }

    /// Returns the value of `key` as written.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|a| a.key == key).map(|a| a.value.as_str())
    }

    /// Returns the number after `key=`, or `default` if the key is missing.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn number(&self, key: &str, default: u64, variables: &Variables) -> Result<u64, String> {
        self.get(key).map_or(Ok(default), |text| number(text, variables))
    }

    /// Checks that all keys are in `known`.
    ///
    /// # Errors
    /// An unknown key.
    pub fn check(&self, known: &[&str]) -> Result<(), String> {
        match self.0.iter().find(|a| !known.contains(&a.key.as_str())) {
            Some(a) => Err(format!("`{}` is none of {}", a.key, known.join(", "))),
            None => Ok(()),
        }
    }
}

/// Computes the number that `text` describes.
///
/// # Errors
/// The text is not a number, or a variable is not set.
pub fn number(text: &str, variables: &Variables) -> Result<u64, String> {
    let mut sum = 0u64;
    let mut rest = text;
    let mut negative = false;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let value = term(&rest[..end], variables).ok_or(format!("`{text}` is not a number"))?;
        sum = if negative { sum.wrapping_sub(value) } else { sum.wrapping_add(value) };
        if end == rest.len() {
            return Ok(sum);
        }
        negative = rest.as_bytes()[end] == b'-';
        rest = &rest[end + 1..];
    }
}

fn term(text: &str, variables: &Variables) -> Option<u64> {
    if let Some(name) = text.strip_prefix('$') {
        return variables.get(name).copied();
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    text.parse().ok().or_else(|| WORDS.iter().find(|(word, _)| *word == text).map(|&(_, n)| n))
}

/// Returns `length` bytes of the pattern, starting at `offset`. Each byte depends on its offset, so that misplaced
/// bytes are detected.
pub fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| offset.wrapping_add(i))
        .map(|o| (o.wrapping_mul(31) >> 3) as u8 ^ o as u8)
        .collect()
}

/// Builds the payload that `text` describes: `pattern`, `pattern:OFFSET`, `fill:BYTE`, `hex:DIGITS`, `text:WORD`.
/// `length` bytes for `pattern` and `fill`; otherwise `length` has no effect. For `pattern` without OFFSET, `offset` is
/// the offset of the first byte.
///
/// # Errors
/// The text has another form.
pub fn payload(
    text: &str,
    length: usize,
    offset: u64,
    variables: &Variables,
) -> Result<Vec<u8>, String> {
    match text.split_once(':') {
        None if text == "pattern" => Ok(pattern(offset, length)),
        Some(("pattern", offset)) => Ok(pattern(number(offset, variables)?, length)),
        Some(("fill", byte)) => Ok(vec![number(byte, variables)? as u8; length]),
        Some(("hex", digits)) => parse_hex(digits),
        Some(("text", word)) => Ok(word.as_bytes().to_vec()),
        _ => Err(format!(
            "`{text}` is none of pattern, pattern:OFFSET, fill:BYTE, hex:DIGITS, text:WORD"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sums_of_terms_are_numbers() {
        let variables = Variables::from([("a.b".to_string(), 5)]);
        assert_eq!(number("12", &variables), Ok(12));
        assert_eq!(number("$a.b+0x10-1", &variables), Ok(20));
        assert_eq!(number("on", &variables), Ok(1));
        assert_eq!(number("0-1", &variables), Ok(u64::MAX));
        assert!(number("$c", &variables).is_err());
        assert!(number("", &variables).is_err());
    }

    #[test]
    fn arguments_have_operators() {
        let a = Arguments::parse(["x=1", "y!=2", "z<=3", "w>=4"]).expect("good");
        let operators: Vec<Operator> = a.0.iter().map(|a| a.operator).collect();
        assert_eq!(
            operators,
            [Operator::Equal, Operator::Unequal, Operator::AtMost, Operator::AtLeast]
        );
        assert!(Arguments::parse(["x=1", "x=2"]).is_err());
        assert!(Arguments::parse(["x"]).is_err());
        assert!(a.check(&["x", "y", "z"]).is_err());
    }

    #[test]
    fn payloads() {
        let none = Variables::new();
        assert_eq!(payload("pattern", 3, 8, &none), Ok(pattern(8, 3)));
        assert_eq!(payload("pattern:8", 3, 0, &none), Ok(pattern(8, 3)));
        assert_eq!(payload("fill:0x5a", 2, 0, &none), Ok(vec![0x5a; 2]));
        assert_eq!(payload("hex:00ff", 0, 0, &none), Ok(vec![0, 255]));
        assert!(payload("hex:0", 0, 0, &none).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in ".{0,40}") {
            let none = Variables::new();
            let _ = number(&text, &none);
            let _ = payload(&text, 4, 0, &none);
            let _ = Arguments::parse(text.split_whitespace());
        }
    }
}
