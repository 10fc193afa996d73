//! Counters by name, and the names of counters.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use base::metric::Descriptor;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values of counters or gauges by name. Names are stable, and `snake_case` except for counters of devices.
pub type Counters = BTreeMap<CounterName, u64>;

/// Name of a counter. If the program declares the counter, the name includes the counter's descriptor with unit and
/// help text.
#[derive(Clone, Debug)]
pub enum CounterName {
    /// Name of a counter with a descriptor.
    Described(&'static Descriptor),
    /// Name without a descriptor: a reason, a protocol error, a role, or any name read from JSON.
    Plain(String),
}

impl CounterName {
    /// Returns the descriptor of the counter; `None` for a plain name.
    pub fn descriptor(&self) -> Option<&'static Descriptor> {
        match self {
            CounterName::Described(counter) => Some(counter),
            CounterName::Plain(_) => None,
        }
    }
}

/// Dereferences to the text of the name.
impl Deref for CounterName {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            CounterName::Described(counter) => counter.name,
            CounterName::Plain(name) => name,
        }
    }
}

impl From<&'static Descriptor> for CounterName {
    fn from(counter: &'static Descriptor) -> Self {
        CounterName::Described(counter)
    }
}

impl From<String> for CounterName {
    fn from(name: String) -> Self {
        CounterName::Plain(name)
    }
}

impl From<&str> for CounterName {
    fn from(name: &str) -> Self {
        CounterName::Plain(name.to_owned())
    }
}

// `Borrow<str>` requires that names compare as their texts do.

impl PartialEq for CounterName {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for CounterName {}

impl PartialOrd for CounterName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CounterName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(other)
    }
}

impl Borrow<str> for CounterName {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Display for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl Serialize for CounterName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for CounterName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(CounterName::Plain)
    }
}

impl JsonSchema for CounterName {
    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }

    fn inline_schema() -> bool {
        true
    }
}
