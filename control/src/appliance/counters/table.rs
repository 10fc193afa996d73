//! The macro that declares tables of counters. A line has name, kind, unit (none for numbers of objects), help, and the
//! source of the value.

use base::metric::Kind;

use api::Counters;

/// Receives the values of a table's counters, in the table's order.
pub(in crate::appliance) trait CounterSink {
    fn put(&mut self, name: &'static str, kind: Kind, value: u64);
}

impl CounterSink for Counters {
    fn put(&mut self, name: &'static str, _: Kind, value: u64) {
        self.insert(name.to_owned(), value);
    }
}

/// Merges values into existing counters of the same names.
pub(super) struct MergeSink<'a>(pub(super) &'a mut Counters);

impl CounterSink for MergeSink<'_> {
    fn put(&mut self, name: &'static str, kind: Kind, value: u64) {
        let sum = self.0.entry(name.to_owned()).or_default();
        *sum = kind.merge(*sum, value);
    }
}

/// Declares a table of descriptors, and a function that passes the counters' values to a [`CounterSink`].
macro_rules! counters {
    ($table:ident, fn $put:ident($($source:ident: $type:ty),+) {
        $($(#[doc = $help:literal])+ $name:ident: $kind:ident $($unit:ident)? = $value:expr,)+
    }) => {
        pub(in crate::appliance) const $table: &[base::metric::Descriptor] =
            &[$(base::descriptor!($name, $kind, [$($unit)?], $($help)+),)+];

        pub(in crate::appliance) fn $put(
            sink: &mut impl crate::appliance::counters::table::CounterSink,
            $($source: $type),+
        ) {
            $(sink.put(stringify!($name), base::metric::Kind::$kind, $value);)+
        }
    };
}

pub(super) use counters;
