//! Generates the man page and the reference file from the descriptors of the keys.

use std::fmt;

use super::keys::Key;
use super::rule::Shape;
use super::values::show_size;

/// Sections that a file may contain several times.
pub(super) const LISTS: [&str; 8] = [
    "port",
    "interface",
    "interface.routes",
    "region",
    "listener",
    "listener.queue",
    "ipsec.policy",
    "ipsec.sa",
];

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Boolean => f.write_str("true or false"),
            Shape::Integer { min, max } => write!(f, "a number from {min} to {max}"),
            Shape::PowerOfTwo { min, max } => write!(f, "a power of two from {min} to {max}"),
            Shape::Size { min, max } => {
                write!(f, "a size from {} to {}", show_size(*min), show_size(*max))
            }
            Shape::Duration { min, max } => {
                let time = humantime::format_duration;
                write!(f, "a time from {} to {}", time(*min), time(*max))
            }
            Shape::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                write!(f, "one of {}", words.join(", "))
            }
            Shape::Text(what) => f.write_str(what),
            Shape::Name => f.write_str("a name: 1 to 64 of A-Z a-z 0-9 . _ -"),
            Shape::Number(what) => write!(f, "a number: {what}"),
            Shape::List(element) => write!(f, "a list, each {element}"),
            Shape::OneOrMore(shape) => write!(f, "{shape}, or a list"),
            Shape::OrOff(shape) => write!(f, "{shape}, or \"off\""),
        }
    }
}

impl Key {
    /// Returns the default as a sentence, if there is one.
    pub(super) fn describe_default(&self) -> String {
        if self.default.is_empty() { String::new() } else { format!(" Default: {}.", self.default) }
    }
}

/// Returns the header as in a file: `[tcp]`, `[[port]]`.
pub(super) fn header(section: &str) -> String {
    if LISTS.contains(&section) { format!("[[{section}]]") } else { format!("[{section}]") }
}

/// Returns the sections with their keys, in the order of the descriptors.
fn sections(keys: &[Key]) -> Vec<(&'static str, Vec<&Key>)> {
    let mut sections: Vec<(&'static str, Vec<&Key>)> = Vec::new();
    for key in keys {
        match sections.iter_mut().find(|(section, _)| *section == key.section) {
            Some((_, keys)) => keys.push(key),
            None => sections.push((key.section, vec![key])),
        }
    }
    sections
}

/// Returns the man page `ddpd.toml(5)`, in roff.
pub fn render_man(keys: &[Key]) -> String {
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let mut page = String::from(
        ".TH ddpd.toml 5\n.SH NAME\nddpd.toml \\- configuration of ddpd\n.SH DESCRIPTION\nThe file is TOML. Unknown \
         keys are refused; \\fBddpd check\\fR reports all errors. A size is a number of bytes or a string such as \
         \"64 MiB\", a time a string such as \"200 ms\". SIGHUP and \\fBddpctl reload\\fR apply changes of the keys \
         marked \"A reload applies it\"; other changes require a restart.\n",
    );
    for (section, keys) in sections(keys) {
        let title = if section.is_empty() { "TOP LEVEL".to_owned() } else { header(section) };
        page += &format!(".SH {}\n", escape(&title));
        for key in keys {
            let reload = if key.reload { " A reload applies it." } else { "" };
            let (help, default) = (&key.help, key.describe_default());
            let text = format!("{help} Values: {}.{default}{reload}", key.shape);
            page += &format!(".TP\n\\fB{}\\fR\n{}\n", escape(key.name), escape(&text));
        }
    }
    page
}

/// Returns a file that contains all keys as comments.
pub fn render_example(keys: &[Key]) -> String {
    let mut file = String::from(
        "# All keys of ddpd.toml with their defaults. Generated from the descriptors of the keys; see configs/ for files \
         to start from.\n",
    );
    for (section, keys) in sections(keys) {
        if !section.is_empty() {
            file += &format!("\n# {}\n", header(section));
        }
        for key in keys {
            file += &format!("\n# {}\n# Values: {}.", key.help, key.shape);
            file += if key.reload { " A reload applies it.\n" } else { "\n" };
            file += &format!("# {} = {}\n", key.name, key.default).replace(" = \n", " =\n");
        }
    }
    file
}
