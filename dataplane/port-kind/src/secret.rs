//! Secret values, whose `Debug` form hides them from log lines and error messages.

use std::fmt;

/// A secret of the operator or of the appliance. Its `Debug` form hides the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Returns the value. Callers must not log it or put it into a message.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Secret<T> {
    fn from(secret: T) -> Self {
        Secret(secret)
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_omits_secret() {
        let (key, word) = (Secret::from([7; 32]), Secret::from("hunter2".to_owned()));
        assert_eq!(format!("{key:?} {word:?}"), "(secret) (secret)");
        assert_eq!((key.expose(), word.expose().as_str()), (&[7; 32], "hunter2"));
    }
}
