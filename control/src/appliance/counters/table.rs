//! The macro that declares tables of counters. Each line has a name, kind, unit (none for a plain number), help, and
//! the source of the value.

use api::Counters;
use base::metric::Descriptor;

/// Receives the values of a table's counters, in the table's order.
pub(in crate::appliance) trait CounterSink {
    fn put(&mut self, counter: &'static Descriptor, value: u64);
}

impl CounterSink for Counters {
    fn put(&mut self, counter: &'static Descriptor, value: u64) {
        self.insert(counter.into(), value);
    }
}

/// Merges values into existing counters of the same names.
pub(super) struct MergeSink<'a>(pub(super) &'a mut Counters);

impl CounterSink for MergeSink<'_> {
    fn put(&mut self, counter: &'static Descriptor, value: u64) {
        let sum = self.0.entry(counter.into()).or_default();
        *sum = counter.kind.merge(*sum, value);
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
            let values = [$($value),+];
            $table.iter().zip(values).for_each(|(counter, value)| sink.put(counter, value));
        }
    };
}

pub(super) use counters;
