//! What the beginning of streams needs: listeners and their bounds, SYN cookies, initial sequence numbers, and
//! unpredictable numbers.

use base::Instant;
use siphasher::sip::SipHasher13;
use tcp_lite::tcp::{FourTuple, IsnGenerator, Start};

use super::cookies::Cookies;
use super::listen::Listeners;

/// Listeners, cookies and random numbers of one worker.
pub(super) struct Admission {
    listeners: Listeners,
    cookies: Cookies,
    isn: IsnGenerator,
    random: Random,
}

impl Admission {
    /// `isn`: with the secret that is the same for all workers (RFC 9293 §3.4.1: a stream that moves to another worker
    /// keeps its numbers' order). `random`: the key of this worker's numbers.
    pub(super) fn new(
        listeners: Listeners,
        cookies: Cookies,
        isn: IsnGenerator,
        random: [u8; 16],
    ) -> Self {
        let random = Random { key: SipHasher13::new_with_key(&random), count: 0 };
        Admission { listeners, cookies, isn, random }
    }

    /// The listeners.
    pub(super) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// The listeners, to count.
    pub(super) fn listeners_mut(&mut self) -> &mut Listeners {
        &mut self.listeners
    }

    /// The SYN cookies.
    pub(super) fn cookies(&self) -> &Cookies {
        &self.cookies
    }

    /// The SYN cookies, to send one.
    pub(super) fn cookies_mut(&mut self) -> &mut Cookies {
        &mut self.cookies
    }

    /// The first sequence number of a stream (RFC 9293 §3.4.1), and its clock.
    pub(super) fn start(&self, tuple: &FourTuple, now: Instant) -> Start {
        self.isn.start(tuple, now)
    }

    /// A number that is unpredictable without the secret.
    pub(super) fn random(&mut self) -> u64 {
        self.random.next()
    }
}

/// Numbers that are unpredictable without the secret.
#[derive(Debug)]
struct Random {
    key: SipHasher13,
    count: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.key.hash(&self.count.to_be_bytes())
    }
}
