//! Cookies of posted messages and operations: they identify the poster, who receives the completion.

use core::fmt;

/// Identifier of a posted message or operation; its completion carries it.
///
/// Every record of a posted message holds a cookie, so it has 64 bits only. The reserved values are private to
/// this type; [`poster`](Self::poster) returns the poster of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(u64);

/// The poster of a message or an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poster {
    /// The user of the stream, with the user's number.
    User(u64),
    /// The stack: bare DDP's last message, a start-up's ready-to-receive message. Also a load generator, for
    /// messages that are complete when they are answered. The completion is not reported.
    Stack,
    /// A load generator that shares the stream with the user.
    Load,
    /// A service that shares the stream with the user, in answer to a message of the peer.
    Service,
    /// RDMAP, in answer to a Read or an atomic of the peer.
    Response,
    /// RDMAP: the Terminate.
    Terminate,
}

impl Cookie {
    /// See [`Poster::Stack`].
    pub const STACK: Cookie = Cookie(u64::MAX);
    /// The ready-to-receive message of a start-up; also posted by [`Poster::Stack`].
    pub(crate) const READY: Cookie = Cookie(u64::MAX - 5);
    /// See [`Poster::Load`].
    pub const LOAD: Cookie = Cookie(u64::MAX - 1);
    /// See [`Poster::Service`].
    pub const SERVICE: Cookie = Cookie(u64::MAX - 2);
    /// See [`Poster::Response`].
    pub(crate) const RESPONSE: Cookie = Cookie(u64::MAX - 3);
    /// See [`Poster::Terminate`].
    pub(crate) const TERMINATE: Cookie = Cookie(u64::MAX - 4);
    /// First reserved value: the users' numbers are below it.
    const END: u64 = u64::MAX - 15;

    /// Returns the cookie of the user's `number`, below 2^64 - 16.
    #[inline]
    pub const fn user(number: u64) -> Cookie {
        debug_assert!(number < Self::END);
        Cookie(number)
    }

    /// Returns the poster of the message or operation.
    #[inline]
    pub const fn poster(self) -> Poster {
        if self.0 < Self::END {
            return Poster::User(self.0);
        }
        match self {
            Cookie::LOAD => Poster::Load,
            Cookie::SERVICE => Poster::Service,
            Cookie::RESPONSE => Poster::Response,
            Cookie::TERMINATE => Poster::Terminate,
            _ => Poster::Stack,
        }
    }

    /// Returns the user's number, if the user posted it.
    #[inline]
    pub const fn number(self) -> Option<u64> {
        match self.poster() {
            Poster::User(number) => Some(number),
            _ => None,
        }
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.poster().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_poster_has_a_distinct_cookie() {
        let stack = [
            (Cookie::STACK, Poster::Stack),
            (Cookie::READY, Poster::Stack),
            (Cookie::LOAD, Poster::Load),
            (Cookie::SERVICE, Poster::Service),
            (Cookie::RESPONSE, Poster::Response),
            (Cookie::TERMINATE, Poster::Terminate),
        ];
        for (cookie, poster) in stack {
            assert_eq!((cookie.poster(), cookie.number()), (poster, None));
        }
        for number in [0, 1, Cookie::END - 1] {
            assert_eq!(Cookie::user(number).poster(), Poster::User(number));
            assert_eq!(Cookie::user(number).number(), Some(number));
        }
    }
}
