//! Resources for opening streams: listeners with their limits, SYN cookies, initial sequence numbers, random numbers.

use std::time::Duration;

use base::Instant;
use siphasher::sip::SipHasher13;
use tcp_lite::tcp::{FourTuple, InitialNumbers, IsnGenerator, SynCookies};

use super::listeners::Listeners;
use crate::api::SynCookieMode;

/// Listeners, cookies and random numbers of one worker.
pub(in crate::worker) struct Admission {
    listeners: Listeners,
    cookies: Cookies,
    isn: IsnGenerator,
    random: Random,
}

impl Admission {
    /// Creates the resources. `isn` uses the secret shared by all workers, so that initial sequence numbers keep
    /// increasing when a flow moves to another worker (RFC 9293 §3.4.1). `random` is the key of this worker's random
    /// numbers.
    pub(in crate::worker) fn new(
        listeners: Listeners,
        cookies: Cookies,
        isn: IsnGenerator,
        random: [u8; 16],
    ) -> Self {
        let random = Random { key: SipHasher13::new_with_key(&random), count: 0 };
        Admission { listeners, cookies, isn, random }
    }

    pub(in crate::worker) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    pub(in crate::worker) fn listeners_mut(&mut self) -> &mut Listeners {
        &mut self.listeners
    }

    pub(in crate::worker) fn cookies(&self) -> &Cookies {
        &self.cookies
    }

    pub(in crate::worker) fn cookies_mut(&mut self) -> &mut Cookies {
        &mut self.cookies
    }

    /// Returns the initial sequence number of a connection (RFC 9293 §3.4.1) and the offset of its timestamp clock.
    pub(in crate::worker) fn start(&self, tuple: &FourTuple, now: Instant) -> InitialNumbers {
        self.isn.generate(tuple, now)
    }

    /// Returns a random number that is unpredictable without the key.
    pub(in crate::worker) fn random(&mut self) -> u64 {
        self.random.next()
    }
}

/// Time after the last sent cookie during which unmatched ACKs are checked for cookies. Cookies expire earlier.
const COOKIE_CHECK_TIME: Duration = Duration::from_secs(130);

#[derive(Debug)]
pub(in crate::worker) struct Cookies {
    codec: SynCookies,
    mode: SynCookieMode,
    last_sent: Option<Instant>,
}

impl Cookies {
    /// Creates the state. `secret` is the same for all workers.
    pub(in crate::worker) fn new(
        secret: [u8; 16],
        starts: IsnGenerator,
        mode: SynCookieMode,
    ) -> Self {
        Cookies { codec: SynCookies::new(secret, starts), mode, last_sent: None }
    }

    pub(in crate::worker) fn mode(&self) -> SynCookieMode {
        self.mode
    }

    pub(in crate::worker) fn codec(&self) -> &SynCookies {
        &self.codec
    }

    pub(in crate::worker) fn note_sent(&mut self, now: Instant) {
        self.last_sent = Some(now);
    }

    /// Returns true if an unmatched ACK may return a cookie: a cookie was sent within the last [`COOKIE_CHECK_TIME`].
    pub(in crate::worker) fn are_outstanding(&self, now: Instant) -> bool {
        self.last_sent.is_some_and(|at| now.saturating_since(at) <= COOKIE_CHECK_TIME)
    }
}

/// Generator of random numbers that are unpredictable without the key.
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
