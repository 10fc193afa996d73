//! Descriptors of counters: name, kind, unit and help. The API, `ddpctl` and the metrics are derived from the
//! descriptors. A new counter is therefore one line in the declaration of its group.

/// Description of one counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Stable name, `snake_case`.
    pub name: &'static str,
    /// Behaviour over time, which determines how the values of several owners are merged.
    pub kind: Kind,
    /// Unit of the value.
    pub unit: Unit,
    /// Help text for operators: one sentence.
    pub help: &'static str,
}

/// Behaviour of a value over time. The kind determines the rule that merges the values of several owners, such as
/// workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A value that only grows. Merged by the sum.
    Counter,
    /// A value that rises and falls. Merged by the sum.
    Gauge,
    /// The largest value so far. Merged by the maximum.
    Maximum,
}

/// Unit of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Items: frames, messages, events.
    Count,
    /// A number of bytes.
    Bytes,
    /// A duration in nanoseconds.
    Nanoseconds,
}

impl Kind {
    /// Merges the values of two owners. A sum saturates at `u64::MAX`.
    pub fn merge(self, a: u64, b: u64) -> u64 {
        match self {
            Kind::Counter | Kind::Gauge => a.saturating_add(b),
            Kind::Maximum => a.max(b),
        }
    }
}

/// Makes a [`Descriptor`] from the name, kind, unit (default: `Count`) and doc comment of a counter.
#[macro_export]
macro_rules! descriptor {
    ($name:ident, $kind:ident, [$($unit:ident)?], $($help:literal)+) => {
        $crate::metric::Descriptor {
            name: stringify!($name),
            kind: $crate::metric::Kind::$kind,
            unit: match [$($crate::metric::Unit::$unit,)? $crate::metric::Unit::Count] {
                [unit, ..] => unit,
            },
            help: concat!($($help),+).trim_ascii(),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_macro_fills_every_field() {
        const ROOM: Descriptor = descriptor!(room, Maximum, [Bytes], " Most room," " so far.");
        assert_eq!((ROOM.name, ROOM.unit, ROOM.help), ("room", Unit::Bytes, "Most room, so far."));
        assert_eq!(descriptor!(turns, Counter, [], " Turns.").unit, Unit::Count);
    }

    #[test]
    fn merge_keeps_larger_maximum() {
        assert_eq!(Kind::Maximum.merge(7, 5), 7);
        assert_eq!(Kind::Counter.merge(7, 5), 12);
        assert_eq!(Kind::Gauge.merge(u64::MAX, 5), u64::MAX);
    }
}
