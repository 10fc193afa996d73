//! Rules and parsers of TOML values. An error is the rest of a sentence that begins with the key.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::address::{self, AddressError};
use ddp::advert::is_name;
use ipnet::IpNet;
use port_kind::policy::LocalPorts;
use toml::de::DeValue;

use super::reader::with_article;
use super::rule::{ParseValue, Parsed, Rule, Shape};

fn wrong_type<T>(value: &DeValue<'_>, expected: &str) -> Parsed<T> {
    Err(format!("is {}, but must be {expected}", with_article(value.type_str())))
}

fn parse_text<'v>(value: &'v DeValue<'_>, expected: &str) -> Parsed<&'v str> {
    match value.as_str() {
        Some(text) => Ok(text),
        None => wrong_type(value, expected),
    }
}

fn parse_integer(value: &DeValue<'_>) -> Option<Parsed<i128>> {
    let integer = value.as_integer()?;
    let parsed = i128::from_str_radix(integer.as_str(), integer.radix());
    Some(parsed.map_err(|_| "is too large a number: write a smaller one".to_owned()))
}

/// Parses a string that is not empty.
pub(super) fn parse_string(value: &DeValue<'_>) -> Parsed<String> {
    let text = parse_text(value, "a string in quotes")?;
    if text.is_empty() {
        return Err("is empty: give it a value or remove it".into());
    }
    Ok(text.to_owned())
}

/// Parses a path. Relative paths are relative to the directory in which the program was started.
pub(super) fn parse_path(value: &DeValue<'_>) -> Parsed<PathBuf> {
    let text = parse_string(value)?;
    if text.contains('\0') {
        return Err("has a NUL character in it: remove it".into());
    }
    Ok(PathBuf::from(text))
}

/// Quotes a text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Returns the rule for the path of a Unix socket, limited to the size of `sockaddr_un`.
pub(super) fn socket_path_rule() -> Rule<PathBuf> {
    const MAX: usize = 107;
    let show = |path: &PathBuf| quoted(&path.to_string_lossy());
    Rule::new(Shape::Text("a path of at most 107 bytes"), show, |value| {
        let path = parse_path(value)?;
        let len = path.as_os_str().len();
        if len > MAX {
            return Err(format!(
                "has {len} bytes, but a socket's path has at most {MAX}: choose a shorter one"
            ));
        }
        Ok(path)
    })
}

/// Creates a rule for a key of a section with a hand-written reader. The rule formats every value as an empty string,
/// because `to_tables` formats the values of such sections.
pub(super) fn rule_of_parser<T: 'static>(
    shape: Shape,
    read: fn(&DeValue<'_>) -> Parsed<T>,
) -> Rule<T> {
    Rule::new(shape, |_| String::new(), read)
}

/// Creates the rule for one value or a list of them. Serves only as a descriptor, because the reader parses each
/// element.
pub(super) fn one_or_more_rule<T: 'static>(element: Shape) -> Rule<Vec<T>> {
    list_like_rule(Shape::OneOrMore(Box::new(element)))
}

/// Creates the rule for a list. Serves only as a descriptor, because the reader parses each element, so that an error
/// has the element's line.
pub(super) fn list_rule<T: 'static>(element: Shape) -> Rule<Vec<T>> {
    list_like_rule(Shape::List(Box::new(element)))
}

fn list_like_rule<T: 'static>(shape: Shape) -> Rule<Vec<T>> {
    Rule::new(shape, |_| String::new(), |_| Err("is read element by element".to_owned()))
}

pub(super) fn boolean_rule() -> Rule<bool> {
    Rule::new(Shape::Boolean, bool::to_string, |value| {
        value.as_bool().map_or_else(|| wrong_type(value, "true or false"), Ok)
    })
}

/// Parses the name of a section.
pub(super) fn parse_name(value: &DeValue<'_>) -> Parsed<String> {
    let text = parse_text(value, "a name in quotes")?;
    if is_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "is \"{}\", which is not a valid name: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or \
         digit",
        text.escape_debug()
    ))
}

/// Returns the rule for one of several words, each with its value.
pub(super) fn word_rule<T: Clone + PartialEq + 'static>(words: &[(&'static str, T)]) -> Rule<T> {
    let shape = Shape::Words(words.iter().map(|(word, _)| *word).collect());
    let (words, known) = (words.to_vec(), words.to_vec());
    let show = move |value: &T| {
        let word = known.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word);
        format!("\"{word}\"")
    };
    Rule::new(shape, show, move |value| {
        let list: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let list = list.join(", ");
        let text = parse_text(value, &format!("one of {list}"))?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(value.clone()),
            None => Err(format!("is \"{}\", but must be one of {list}", text.escape_debug())),
        }
    })
}

/// Returns the rule for an integer in an inclusive range.
pub(super) fn integer_rule<T>(min: T, max: T) -> Rule<T>
where
    T: TryFrom<i128> + Into<i128> + Copy + ToString + 'static,
{
    let (min, max) = (min.into(), max.into());
    Rule::new(Shape::Integer { min, max }, T::to_string, move |value| {
        let Some(number) = parse_integer(value) else {
            return wrong_type(value, &format!("a number from {min} to {max}, without quotes"));
        };
        let number = number?;
        if number < min || number > max {
            return Err(format!("is {number}, but must be from {min} to {max}"));
        }
        T::try_from(number).map_err(|_| format!("is {number}, but must be from {min} to {max}"))
    })
}

/// Returns the rule for a power of two in an inclusive range.
pub(super) fn power_of_two_rule(min: u16, max: u16) -> Rule<u16> {
    let within = integer_rule(min, max);
    let shape = Shape::PowerOfTwo { min, max };
    Rule::new(shape, u16::to_string, move |value| {
        let number = within.parse(value)?;
        if number.is_power_of_two() {
            return Ok(number);
        }
        let next = number.checked_next_power_of_two().unwrap_or(max).min(max);
        Err(format!("is {number}, but must be a power of two: write {next}"))
    })
}

/// Returns the rule for a number of bytes in an inclusive range: an integer, or a string with a unit.
pub(super) fn size_rule(min: u64, max: u64) -> Rule<u64> {
    Rule::new(
        Shape::Size { min, max },
        |size: &u64| format_size(*size),
        move |value| {
            const EXAMPLE: &str = "bytes or a size such as \"64 MiB\"";
            let size = match (parse_integer(value), value) {
                (Some(number), _) => u64::try_from(number?)
                    .map_err(|_| format!("is negative or too large, but must be {EXAMPLE}"))?,
                (None, DeValue::String(text)) => text
                    .parse::<bytesize::ByteSize>()
                    .map_err(|_| format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug()))?
                    .as_u64(),
                _ => return wrong_type(value, EXAMPLE),
            };
            if size < min || size > max {
                return Err(format!(
                    "is {}, but must be from {} to {}",
                    show_size(size),
                    show_size(min),
                    show_size(max)
                ));
            }
            Ok(size)
        },
    )
}

/// Returns the rule for a size in bytes that fits a `u32`; otherwise like [`size_rule`].
pub(super) fn size32_rule(min: u32, max: u32) -> Rule<u32> {
    let (min, max) = (u64::from(min), u64::from(max));
    let within = size_rule(min, max);
    Rule::new(
        Shape::Size { min, max },
        |size: &u32| format_size((*size).into()),
        move |value| Ok(within.parse(value)?.min(u32::MAX.into()) as u32),
    )
}

/// Formats a size as in the file: a number of bytes, or a string with a binary unit.
fn format_size(size: u64) -> String {
    match show_size(size) {
        shown if shown.ends_with("bytes") => size.to_string(),
        shown => format!("\"{shown}\""),
    }
}

/// Formats a size for people: exact, in the largest binary unit that divides it.
pub fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// Returns the rule for a UDP port or `"off"`.
pub(super) fn port_or_off_rule() -> Rule<Option<u16>> {
    let port = integer_rule(1, u16::MAX);
    let show = |port: &Option<u16>| port.map_or("\"off\"".to_owned(), |port| port.to_string());
    Rule::new(port.shape().or_off(), show, move |value| match value.as_str() {
        Some("off") => Ok(None),
        Some(_) => Err("must be a UDP port without quotes, such as 9899, or \"off\"".into()),
        None => port.parse(value).map(Some).map_err(|message| format!("{message}, or \"off\"")),
    })
}

/// Returns the rule for the range of local ports of outgoing streams.
pub(super) fn local_ports_rule() -> Rule<LocalPorts> {
    const EXAMPLE: &str = "a first and a last port in quotes, such as \"32768-60999\"";
    let show = |ports: &LocalPorts| quoted(&ports.to_string());
    Rule::new(Shape::Text(EXAMPLE), show, |value| {
        let text = parse_text(value, EXAMPLE)?;
        let wrong = || format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug());
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let port = |text: &str| text.trim().parse().map_err(|_| wrong());
        LocalPorts::new(port(first)?, port(last)?).ok_or_else(|| {
            let fewest = LocalPorts::MIN_COUNT;
            format!("is \"{text}\", but must be {fewest} ports or more from 1 to 65535, the smaller first")
        })
    })
}

/// Returns the rule for a time with a unit, in an inclusive range.
pub(super) fn duration_rule(min: Duration, max: Duration) -> Rule<Duration> {
    Rule::new(
        Shape::Duration { min, max },
        |time: &Duration| format_time(*time),
        move |value| {
            const EXAMPLE: &str = "a time with a unit in quotes, such as \"5 s\" or \"200 ms\"";
            let text = parse_text(value, EXAMPLE)?;
            let time = humantime::parse_duration(text)
                .map_err(|_| format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug()))?;
            if time < min || time > max {
                return Err(format!(
                    "is {}, but must be from {} to {}",
                    humantime::format_duration(time),
                    humantime::format_duration(min),
                    humantime::format_duration(max)
                ));
            }
            Ok(time)
        },
    )
}

/// Formats a time as in the file: a string with units.
fn format_time(time: Duration) -> String {
    format!("\"{}\"", humantime::format_duration(time))
}

/// Returns the rule for a time with a unit, or `"off"`, parsed as `None`.
pub(super) fn duration_or_off_rule(min: Duration, max: Duration) -> Rule<Option<Duration>> {
    let time = duration_rule(min, max);
    let show = |time: &Option<Duration>| time.map_or("\"off\"".to_owned(), format_time);
    Rule::new(time.shape().or_off(), show, move |value| match value.as_str() {
        Some("off") => Ok(None),
        _ => time.parse(value).map(Some).map_err(|message| format!("{message}, or \"off\"")),
    })
}

/// Returns the rule for a probability: a number from 0 to 1, or a string in per cent.
pub(super) fn probability_rule() -> Rule<f64> {
    Rule::new(
        Shape::Number("a probability from 0 to 1, or in per cent"),
        f64::to_string,
        read_probability,
    )
}

fn read_probability(value: &DeValue<'_>) -> Parsed<f64> {
    const EXAMPLE: &str = "a probability from 0 to 1 such as 0.01, or \"1 %\"";
    let number = match value {
        DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
        DeValue::Integer(_) => {
            parse_integer(value).and_then(Result::ok).map(|number| number as f64)
        }
        DeValue::String(text) => {
            let percent = text.strip_suffix('%').map(str::trim_end).map(str::parse::<f64>);
            percent.and_then(Result::ok).map(|percent| percent / 100.0)
        }
        _ => return wrong_type(value, EXAMPLE),
    };
    match number {
        Some(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err(format!("must be {EXAMPLE}")),
    }
}

/// Returns the rule for a rate: a string with a unit such as `Gbit/s`. The value is in bits per second.
pub(super) fn rate_rule() -> Rule<u64> {
    let show = |rate: &u64| format!("\"{rate} bit/s\"");
    Rule::new(Shape::Text("a rate such as 10 Gbit/s"), show, read_rate)
}

fn read_rate(value: &DeValue<'_>) -> Parsed<u64> {
    const EXAMPLE: &str = "a rate such as \"10 Gbit/s\" or \"100 Mbit/s\"";
    let text = parse_text(value, EXAMPLE)?;
    let wrong = || format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug());
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..split].parse().map_err(|_| wrong())?;
    let unit = match text[split..].trim() {
        "bit/s" => 1,
        "kbit/s" => 1_000,
        "Mbit/s" => 1_000_000,
        "Gbit/s" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    match number.checked_mul(unit) {
        Some(rate) if rate > 0 => Ok(rate),
        _ => Err(wrong()),
    }
}

/// Parses a unicast IP address.
pub(super) fn parse_host_ip(value: &DeValue<'_>) -> Parsed<IpAddr> {
    const EXAMPLE: &str = "an address such as \"192.0.2.1\" or \"2001:db8::1\"";
    let text = parse_text(value, EXAMPLE)?;
    let address = address::parse(text).map_err(|error| address_error(text, error, EXAMPLE))?;
    check_host(address)?;
    Ok(address)
}

/// Returns the error for a text that cannot be parsed as an address, a prefix or a socket address.
pub(super) fn address_error(text: &str, error: AddressError, example: &str) -> String {
    let text = text.escape_debug();
    match error {
        AddressError::Syntax => format!("is \"{text}\", but must be {example}"),
        named => format!("is \"{text}\", {named}"),
    }
}

fn check_host(address: IpAddr) -> Parsed<()> {
    address::check_host(address).map_err(|error| format!("is {address}, {error}: choose another"))
}

/// Parses an address of an interface with its prefix length.
pub(super) fn parse_interface_address(value: &DeValue<'_>) -> Parsed<IpNet> {
    let net = parse_prefix(value)?;
    check_host(net.addr())?;
    if net.prefix_len() == 0 {
        return Err(format!(
            "is {net}: prefix length 0 is the whole Internet, write the network's"
        ));
    }
    if let IpNet::V6(v6) = net
        && v6.prefix_len() + 1 < v6.max_prefix_len()
        && v6.addr() == v6.network()
    {
        // The Subnet-Router anycast address (RFC 4291 §2.6.1). With prefix length 127 it is a host's address (RFC 6164
        // §6).
        return Err(format!("is {net}, the address of any router of the network: choose another"));
    }
    if let IpNet::V4(v4) = net
        && v4.prefix_len() + 1 < v4.max_prefix_len()
        && (v4.addr() == v4.network() || v4.addr() == v4.broadcast())
    {
        return Err(format!(
            "is {net}, the network's own address or its broadcast: choose another"
        ));
    }
    Ok(net)
}

/// Parses a network: address and prefix length, host bits zero.
pub(super) fn parse_network(value: &DeValue<'_>) -> Parsed<IpNet> {
    let net = parse_prefix(value)?;
    if net.addr() != net.network() {
        return Err(format!("is {net}, which has host bits set: write {}", net.trunc()));
    }
    Ok(net)
}

fn parse_prefix(value: &DeValue<'_>) -> Parsed<IpNet> {
    const EXAMPLE: &str =
        "an address with its prefix length, such as \"192.0.2.1/24\" or \"2001:db8::1/64\"";
    let text = parse_text(value, EXAMPLE)?;
    let (address, len) =
        address::parse_prefix(text).map_err(|error| address_error(text, error, EXAMPLE))?;
    IpNet::new(address, len).map_err(|_| address_error(text, AddressError::Syntax, EXAMPLE))
}

/// Parses a unicast hardware address.
pub(super) fn parse_mac(value: &DeValue<'_>) -> Parsed<[u8; 6]> {
    const EXAMPLE: &str = "a hardware address such as \"02:00:00:00:00:01\"";
    let text = parse_text(value, EXAMPLE)?;
    let wrong = || format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug());
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        // `from_str_radix` would accept a sign.
        let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        let part = parts.next().filter(is_byte).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if parts.next().is_some() {
        return Err(wrong());
    }
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(format!("is {text}, which no device can have: choose a unicast address"));
    }
    Ok(mac)
}

/// Parses a PCI address with its domain.
pub(super) fn parse_pci_address(value: &DeValue<'_>) -> Parsed<String> {
    const EXAMPLE: &str = "a PCI address as lspci -D prints it, such as \"0000:03:00.0\"";
    let text = parse_text(value, EXAMPLE)?;
    let has_place = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b':',
        10 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    if text.len() != 12 || !text.bytes().enumerate().all(has_place) {
        return Err(format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug()));
    }
    Ok(text.to_ascii_lowercase())
}

/// Parses a name that Linux accepts for a network interface.
pub(super) fn parse_device(value: &DeValue<'_>) -> Parsed<String> {
    let text = parse_text(value, "the name of a network interface such as \"eth1\"")?;
    let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
    if fits && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':' && b != b',') {
        return Ok(text.to_owned());
    }
    Err(format!(
        "is \"{}\", which no network interface can be called: see ip link",
        text.escape_debug()
    ))
}

/// Returns the rule for the seed of a random number generator.
pub(super) fn seed_rule() -> Rule<u64> {
    // TOML's integers end at 2^63 - 1. Larger seeds are written as strings.
    let show = |seed: &u64| match i64::try_from(*seed) {
        Ok(seed) => seed.to_string(),
        Err(_) => format!("\"{seed}\""),
    };
    Rule::new(Shape::Number("from 0 to 2^64 - 1"), show, u64_or_string)
}

/// Parses a 64-bit number: an integer, or a string in decimal or `0x` notation (TOML's integers end at 2^63 - 1).
pub(super) fn u64_or_string(value: &DeValue<'_>) -> Parsed<u64> {
    const EXAMPLE: &str = "a number from 0 to 2^64 - 1, such as 4096 or \"0xffff000000000000\"";
    match (parse_integer(value), value) {
        (Some(number), _) => u64::try_from(number?).map_err(|_| format!("must be {EXAMPLE}")),
        (None, DeValue::String(text)) => parse_u64(text)
            .ok_or_else(|| format!("is \"{}\", but must be {EXAMPLE}", text.escape_debug())),
        _ => wrong_type(value, EXAMPLE),
    }
}

/// Parses decimal digits, or hexadecimal digits after `0x`, without a sign. `None` for any other text, or a number of
/// more than 64 bits.
pub fn parse_u64(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}
