//! One line per counter: name, kind, unit where it is not things, help, and where its value is read.

/// A table of descriptors, and a function that puts the values of its counters among others.
macro_rules! counters {
    ($table:ident, fn $put:ident($($source:ident: $type:ty),+) {
        $($(#[doc = $help:literal])+ $name:ident: $kind:ident $($unit:ident)? = $value:expr,)+
    }) => {
        pub(in crate::appliance) const $table: &[base::metric::Descriptor] =
            &[$(base::descriptor!($name, $kind, [$($unit)?], $($help)+),)+];

        pub(in crate::appliance) fn $put(counters: &mut crate::api::Counters, $($source: $type),+) {
            $(counters.insert(stringify!($name).to_owned(), $value);)+
        }
    };
}

pub(super) use counters;
