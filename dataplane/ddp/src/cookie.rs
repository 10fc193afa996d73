//! Cookies of posted messages and operations. A cookie identifies the poster, which receives the completion.

use core::fmt;

/// Identifier of a posted message or operation. The completion carries the identifier.
///
/// A cookie has only 64 bits, because each record of a posted message contains one. The highest 16 values are reserved
/// for posters other than the user; [`poster`](Self::poster) translates them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(u64);

/// The poster of a message or an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poster {
    /// The user of the stream, with the user's number.
    User(u64),
    /// The stack, for bare DDP's last message and for the ready-to-receive message of a start-up. Also a load generator
    /// that waits for the peer's answer and not for the completion. Completions are not reported.
    Stack,
    /// A load generator that shares the stream with the user.
    Load,
    /// A service that shares the stream with the user, for its answer to a message of the peer.
    Service,
    /// RDMAP, for its answer to a Read or an atomic of the peer.
    Response,
    /// RDMAP, for its Terminate.
    Terminate,
}

impl Cookie {
    /// Cookie of [`Poster::Stack`].
    pub const STACK: Cookie = Cookie(u64::MAX);
    /// Cookie of the ready-to-receive message of a start-up; its poster is [`Poster::Stack`].
    pub(crate) const READY: Cookie = Cookie(u64::MAX - 5);
    /// Cookie of [`Poster::Load`].
    pub const LOAD: Cookie = Cookie(u64::MAX - 1);
    /// Cookie of [`Poster::Service`].
    pub const SERVICE: Cookie = Cookie(u64::MAX - 2);
    /// Cookie of [`Poster::Response`].
    pub(crate) const RESPONSE: Cookie = Cookie(u64::MAX - 3);
    /// Cookie of [`Poster::Terminate`].
    pub(crate) const TERMINATE: Cookie = Cookie(u64::MAX - 4);
    /// First reserved value: numbers of users are below it.
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

    /// Returns the user's number, if the poster is the user.
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
