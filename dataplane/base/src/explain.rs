//! Explanations for operators of drop reasons, refusals, notes and events: meaning, usual cause and remedy. `ddpctl
//! explain` and `docs/reasons.md` are generated from them.

/// Explanation of one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// Stable name, `snake_case`.
    pub name: &'static str,
    /// Meaning, from the doc comment of the enum value.
    pub meaning: &'static str,
    /// The usual cause.
    pub cause: &'static str,
    /// Action that the operator should take.
    pub remedy: &'static str,
}

/// Declares an enum without fields, with an [`Explanation`] for each value. The doc comment of a value becomes
/// `meaning`. Name, cause and remedy are in the attribute `explain`. Generates `ALL`, `explanation` and `name`.
///
/// ```
/// base::explained! {
///     /// Reason for a drop.
///     #[derive(Clone, Copy)]
///     pub enum Reason {
///         /// The checksum is wrong.
///         #[explain("checksum", cause = "A bad cable.", remedy = "Replace it.")]
///         Checksum,
///     }
/// }
/// assert_eq!(Reason::ALL[0].explanation().meaning, "The checksum is wrong.");
/// ```
#[macro_export]
macro_rules! explained {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $enum:ident {
            $(
                $(#[doc = $doc:literal])+
                #[explain($name:literal, cause = $cause:literal, remedy = $remedy:expr $(,)?)]
                $variant:ident,
            )+
        }
    ) => {
        $(#[$attribute])*
        $visible enum $enum {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $enum {
            /// All values, in the order of declaration.
            $visible const ALL: [$enum; [$($enum::$variant),+].len()] = [$($enum::$variant),+];

            /// Returns the value's explanation.
            $visible const fn explanation(self) -> &'static $crate::explain::Explanation {
                match self {
                    $($enum::$variant => const {
                        &$crate::explain::Explanation {
                            name: $name,
                            meaning: concat!($($doc),+).trim_ascii(),
                            cause: $cause,
                            remedy: $remedy,
                        }
                    },)+
                }
            }

            /// Returns a stable name for output and metrics.
            $visible const fn name(self) -> &'static str {
                self.explanation().name
            }
        }
    };
}

#[cfg(test)]
mod tests {
    explained! {
        /// Two values.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Two {
            /// The first,
            /// on two lines.
            #[explain("first", cause = "a", remedy = "b")]
            First,
            /// The second.
            #[explain("second", cause = "c", remedy = "d")]
            Second,
        }
    }

    #[test]
    fn values_are_declared_with_their_explanations() {
        assert_eq!(Two::ALL, [Two::First, Two::Second]);
        assert_eq!(Two::ALL.map(Two::name), ["first", "second"]);
        let first = Two::First.explanation();
        assert_eq!((first.meaning, first.cause), ("The first, on two lines.", "a"));
        assert_eq!(Two::Second.explanation().remedy, "d");
    }
}
