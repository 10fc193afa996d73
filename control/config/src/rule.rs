//! The syntax of a value in the file: permitted values, a parser and a formatter.

use std::time::Duration;

use toml::de::DeValue;

/// The parsed value, or an error: the rest of a sentence that begins with the key.
pub(super) type Parsed<T> = Result<T, String>;

/// The permitted values of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// An integer.
    Integer {
        /// Smallest permitted value.
        min: i128,
        /// Largest permitted value.
        max: i128,
    },
    /// An integer that is a power of two.
    PowerOfTwo {
        /// Smallest permitted value.
        min: u16,
        /// Largest permitted value.
        max: u16,
    },
    /// A number of bytes: an integer, or a string with a unit.
    Size {
        /// Smallest permitted size, bytes.
        min: u64,
        /// Largest permitted size, bytes.
        max: u64,
    },
    /// A time: a string with numbers and units.
    Duration {
        /// Shortest permitted time.
        min: Duration,
        /// Longest permitted time.
        max: Duration,
    },
    /// One of these words.
    Words(Vec<&'static str>),
    /// The name of a section: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, the first a letter or a digit.
    Name,
    /// A string; the text describes its values.
    Text(&'static str),
    /// A number or a string; the text describes its values.
    Number(&'static str),
    /// A list of values.
    List(Box<Shape>),
    /// One value, or a list of values.
    OneOrMore(Box<Shape>),
    /// The value, or `"off"`.
    OrOff(Box<Shape>),
}

impl Shape {
    pub(super) fn or_off(&self) -> Shape {
        Shape::OrOff(Box::new(self.clone()))
    }
}

type FormatFn<T> = Box<dyn Fn(&T) -> String>;
type ParseFn<T> = Box<dyn Fn(&DeValue<'_>) -> Parsed<T>>;

/// Parser and formatter of a key's value.
pub(super) struct Rule<T> {
    shape: Shape,
    show: FormatFn<T>,
    read: ParseFn<T>,
}

impl<T: 'static> Rule<T> {
    pub(super) fn new(
        shape: Shape,
        show: impl Fn(&T) -> String + 'static,
        read: impl Fn(&DeValue<'_>) -> Parsed<T> + 'static,
    ) -> Self {
        Self { shape, show: Box::new(show), read: Box::new(read) }
    }

    /// Returns the permitted values.
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Formats the value as in the file.
    pub(super) fn format(&self, value: &T) -> String {
        (self.show)(value)
    }

    /// Returns the rule of an optional key. An absent value is formatted as an empty string.
    pub(super) fn optional(self) -> Rule<Option<T>> {
        let Rule { shape, show, read } = self;
        let show = move |value: &Option<T>| value.as_ref().map_or(String::new(), &show);
        Rule::new(shape, show, move |value| read(value).map(Some))
    }
}

/// A parser of values: a [`Rule`] or a function.
pub(super) trait ParseValue<T> {
    fn parse(&self, value: &DeValue<'_>) -> Parsed<T>;
}

impl<T, F: Fn(&DeValue<'_>) -> Parsed<T>> ParseValue<T> for F {
    fn parse(&self, value: &DeValue<'_>) -> Parsed<T> {
        self(value)
    }
}

impl<T> ParseValue<T> for Rule<T> {
    fn parse(&self, value: &DeValue<'_>) -> Parsed<T> {
        (self.read)(value)
    }
}

impl<T> ParseValue<T> for &Rule<T> {
    fn parse(&self, value: &DeValue<'_>) -> Parsed<T> {
        (self.read)(value)
    }
}
