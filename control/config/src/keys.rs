//! Descriptors of configuration keys: type, default, range, whether a reload applies it, and help.
//!
//! `section!` declares a section whose keys are independent of each other. It generates the struct, the reader, the
//! descriptors and the effect of a reload. A field that is read from several keys, a list or a sub-table has its own
//! reader function (`by_hand`). `keys!` declares the rules of a section in which the presence or the default of a key
//! depends on another key. A function reads such a section.

use super::rule::{Rule, Shape};

/// The descriptor of one key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Section, such as `port` or `listener.limits`; empty for top-level keys.
    pub section: &'static str,
    /// Name of the key.
    pub name: &'static str,
    /// Permitted values.
    pub shape: Shape,
    /// Default, as written in the file or described in words; empty if the key is required or has no default.
    pub default: String,
    /// True if a reload applies a change; otherwise it requires a restart.
    pub reload: bool,
    /// Description for operators, in whole sentences: meaning, unit, range.
    pub help: String,
}

impl Key {
    pub(super) fn new<T: 'static>(
        section: &'static str,
        name: &'static str,
        rule: &Rule<T>,
        default: String,
        reload: bool,
        help: &[&str],
    ) -> Self {
        let help = help.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        Self { section, name, shape: rule.shape().clone(), default, reload, help }
    }
}

/// Evaluates to true if the marker `[reload]` is present.
macro_rules! reloads {
    () => {
        false
    };
    (reload) => {
        true
    };
}

/// Defines a section: its struct, its reader, its keys, and the effect of a reload on changed keys.
macro_rules! section {
    ($(#[$meta:meta])* $vis:vis struct $Section:ident in $path:literal {
        $($(#[doc = $help:literal])+ $([$reload:ident])? $key:ident: $type:ty = $rule:expr, or $default:expr;)+
    } $(by_hand {
        $($(#[$field_meta:meta])+
            $field:ident: $field_type:ty = $field_read:path, $field_keys:path, $field_written:path;)+
    })?) => {
        $(#[$meta])*
        $vis struct $Section {
            $($(#[doc = $help])+ pub $key: $type,)+
            $($($(#[$field_meta])+ pub $field: $field_type,)+)?
        }

        impl $Section {
            /// Reads the keys of the section, each independently of the others.
            pub(crate) fn read(
                section: &mut $crate::reader::Section<'_, '_>,
            ) -> Self {
                Self {
                    $($key: section.or_default(stringify!($key), $default, $rule),)+
                    $($($field: $field_read(section),)+)?
                }
            }

            /// Returns the descriptors of the section's keys.
            pub(crate) fn keys() -> Vec<$crate::keys::Key> {
                let keys = vec![$({
                    let (rule, default): ($crate::rule::Rule<$type>, $type) = ($rule, $default);
                    $crate::keys::Key::new(
                        $path, stringify!($key),
                        &rule,
                        rule.format(&default),
                        $crate::keys::reloads!($($reload)?),
                        &[$($help),+],
                    )
                },)+];
                $($(let keys = [keys, $field_keys()].concat();)+)?
                keys
            }

            /// Returns the section's keys that have a value, formatted as in a file.
            pub(crate) fn written(&self) -> $crate::key_values::KeyValues {
                let mut keys = Vec::new();
                $({
                    let rule: $crate::rule::Rule<$type> = $rule;
                    $crate::key_values::push(&mut keys, stringify!($key), &rule.format(&self.$key));
                })+
                $($($field_written(&self.$field, &mut keys);)+)?
                keys
            }

            /// Returns the names of the keys whose values differ: with `reload`, keys that a reload applies, otherwise
            /// keys that need a restart.
            #[allow(dead_code, reason = "some sections are compared as a whole")]
            pub(crate) fn differences(&self, other: &Self, reload: bool) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if $crate::keys::reloads!($($reload)?) == reload && self.$key != other.$key {
                    names.push(stringify!($key));
                })+
                $($(if !reload && self.$field != other.$field {
                    names.push(stringify!($field));
                })+)?
                names
            }

            /// Copies from `other` the values of the keys that a reload applies.
            #[allow(dead_code, reason = "some sections are compared as a whole")]
            pub(crate) fn apply_reload(&mut self, other: &Self) {
                $(if $crate::keys::reloads!($($reload)?) {
                    self.$key = other.$key.clone();
                })+
            }
        }
    };
}

/// Defines one function per key, of the key's name, that returns the key's rule. Also defines the function `$list`,
/// which returns the descriptors of all keys.
macro_rules! keys {
    ($list:ident in $path:literal, reload: $reload:literal {
        $($(#[doc = $help:literal])+ $key:ident: $type:ty = $rule:expr, $default:literal;)+
    }) => {
        $(
            $(#[doc = $help])+
            pub(crate) fn $key() -> $crate::rule::Rule<$type> {
                $rule
            }
        )+

        /// Returns the descriptors of the keys.
        pub(crate) fn $list() -> Vec<$crate::keys::Key> {
            vec![$($crate::keys::Key::new(
                $path, stringify!($key),
                &$key(),
                $default.to_owned(),
                $reload,
                &[$($help),+],
            ),)+]
        }
    };
}

pub(super) use {keys, reloads, section};
