//! The Startup Phase (RFC 5044 §7.1, draft §8.1), both roles, in octets of the stream.
//!
//! ```text
//!  initiator (draft: passive)                responder (draft: active)
//!     Request / Start Key  ----------------->   AwaitRequest
//!     AwaitReply                                Deciding: the ULP sees the private data
//!     Done                 <-----------------   Reply / Start Key, or a reject; Done
//!     first FPDU           =================>   may send FPDUs from here on
//! ```
//!
//! The TCP listener is the responder. The forms are told apart by the first 16 octets. What comes after
//! a frame is not looked at here: it is the first FPDUs.
//!
//! Left out: time-outs, which the owner of the clock adds, and revision 2.

use super::config::{Config, Params, Revision};
use super::error::StartupError;
use thiserror::Error;
use wire::mpa::{
    FRAME_HEADER_LEN, FirstOctets, FrameError, FrameKind, FrameRepr, MAX_PRIVATE_DATA, REPLY_KEY,
    REQUEST_KEY, START_KEY, START_KEY_LEN, StartKeyRepr,
};

/// The private data does not fit the frame that would carry it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("private data of {len} octets, at most {limit} fit")]
pub struct PrivateDataTooLong {
    /// Octets given.
    pub len: usize,
    /// Octets that fit: 512, or none with the draft's Start Key.
    pub limit: usize,
}

/// A request that awaits the ULP's decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its form.
    pub revision: Revision,
    /// Its private data, at most 512 octets.
    pub private_data: Vec<u8>,
}

/// What a start-up frame brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// To the responder: decide by [`Startup::accept`] or [`Startup::reject`].
    Request(Request),
    /// To the initiator: Full Operation.
    Accepted {
        /// What was agreed on.
        params: Params,
        /// The responder's private data, at most 512 octets.
        private_data: Vec<u8>,
    },
    /// To the initiator: the responder's ULP does not want the connection.
    Rejected {
        /// The responder's private data, at most 512 octets.
        private_data: Vec<u8>,
    },
}

impl Revision {
    /// Octets of private data that its frames carry.
    pub fn private_data_limit(self) -> usize {
        match self {
            Revision::Draft => 0,
            Revision::Zero | Revision::One => MAX_PRIVATE_DATA,
        }
    }
}

/// The state machine of one end.
#[derive(Debug)]
pub struct Startup {
    config: Config,
    state: State,
    received: Vec<u8>,
    output: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    AwaitRequest,
    Deciding { revision: Revision, markers: bool, crc: bool },
    AwaitReply,
    Done,
}

impl Startup {
    /// The end that speaks first, with the revision that the configuration says.
    ///
    /// # Errors
    /// More private data than the frame carries.
    pub fn initiator(config: &Config, private_data: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let mut startup = Startup::new(config, State::AwaitReply);
        let revision = config.initiate;
        startup.put(
            revision,
            FrameKind::Request,
            config.markers,
            config.crc,
            false,
            private_data,
        )?;
        Ok(startup)
    }

    /// The end that waits: it takes the form of the request.
    pub fn responder(config: &Config) -> Self {
        Startup::new(config, State::AwaitRequest)
    }

    /// Everything that this end sends before its first FPDU, from the first octet of the stream on.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// True while more octets of a start-up frame are expected.
    pub fn wants_input(&self) -> bool {
        matches!(self.state, State::AwaitRequest | State::AwaitReply)
    }

    /// The next octets of the stream, in order. Returns how many of them belong to the start-up; the
    /// rest, if any, are FPDUs.
    ///
    /// # Errors
    /// The stream cannot be one; RFC 5044 §8 closes the TCP connection at once.
    pub fn input(&mut self, octets: &[u8]) -> Result<(usize, Option<Progress>), StartupError> {
        let mut used = 0;
        while self.wants_input() {
            let want = self.wanted()?;
            if want == 0 {
                let progress = self.whole_frame()?;
                self.received = Vec::new();
                return Ok((used, Some(progress)));
            }
            let n = want.min(octets.len() - used);
            if n == 0 {
                break;
            }
            self.received.extend_from_slice(&octets[used..used + n]);
            used += n;
        }
        Ok((used, None))
    }

    /// Accepts the request; the reply is in [`output`](Self::output).
    ///
    /// # Errors
    /// More private data than the reply carries; nothing has changed.
    ///
    /// # Panics
    /// When no request awaits a decision.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<Params, PrivateDataTooLong> {
        let State::Deciding { revision, markers, crc } = self.state else {
            panic!("no MPA request to accept");
        };
        let (markers_rx, crc) = (self.config.markers, crc || self.config.crc);
        // C says what will be used: peers exist that look at the reply's alone.
        self.put(revision, FrameKind::Reply, markers_rx, crc, false, private_data)?;
        self.state = State::Done;
        Ok(Params { revision, markers_tx: markers, markers_rx, crc })
    }

    /// Rejects the request (RFC 5044 §7.1.2 (2)). The draft has no reject: nothing is sent, and the
    /// connection is to be closed.
    ///
    /// # Errors
    /// More private data than the reply carries; nothing has changed.
    ///
    /// # Panics
    /// When no request awaits a decision.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), PrivateDataTooLong> {
        let State::Deciding { revision, crc, .. } = self.state else {
            panic!("no MPA request to reject");
        };
        if revision != Revision::Draft {
            self.put(revision, FrameKind::Reply, false, crc, true, private_data)?;
        }
        self.state = State::Done;
        Ok(())
    }

    fn new(config: &Config, state: State) -> Self {
        Startup { config: config.clone(), state, received: Vec::new(), output: Vec::new() }
    }

    fn put(
        &mut self,
        revision: Revision,
        kind: FrameKind,
        markers: bool,
        crc: bool,
        reject: bool,
        private_data: &[u8],
    ) -> Result<(), PrivateDataTooLong> {
        let (len, limit) = (private_data.len(), revision.private_data_limit());
        if len > limit {
            return Err(PrivateDataTooLong { len, limit });
        }
        let number = revision.number();
        if revision == Revision::Draft {
            let key = StartKeyRepr { markers, crc, revision: number };
            self.output.extend_from_slice(&key.emit());
            return Ok(());
        }
        let mut header = [0; FRAME_HEADER_LEN];
        let repr = FrameRepr {
            kind,
            markers,
            crc,
            reject,
            enhanced: false,
            revision: number,
            private_data_len: len as u16,
        };
        repr.emit(&mut header);
        self.output.extend_from_slice(&header);
        self.output.extend_from_slice(private_data);
        Ok(())
    }

    /// Octets still missing of what can be judged next; zero when the frame is whole.
    fn wanted(&self) -> Result<usize, StartupError> {
        let have = self.received.len();
        let Some(first) = self.received.first_chunk::<START_KEY_LEN>() else {
            check_prefix(&self.received)?;
            return Ok(START_KEY_LEN - have);
        };
        match FirstOctets::parse(first) {
            Some(FirstOctets::StartKey(_)) => Ok(0),
            Some(FirstOctets::Frame(kind)) => {
                self.check_kind(kind)?;
                if have < FRAME_HEADER_LEN {
                    return Ok(FRAME_HEADER_LEN - have);
                }
                Ok(self.frame(kind)?.len() - have)
            }
            None => Err(check_prefix(first).err().unwrap_or(StartupError::BadKey { at: 15 })),
        }
    }

    /// RFC 5044 §7.1.2 (8): the two keys tell when both ends took the same role.
    fn check_kind(&self, kind: FrameKind) -> Result<(), StartupError> {
        match (self.state, kind) {
            (State::AwaitRequest, FrameKind::Reply) => Err(StartupError::BothResponders),
            (State::AwaitReply, FrameKind::Request) => Err(StartupError::BothInitiators),
            _ => Ok(()),
        }
    }

    /// The frame's header, if what it says is acceptable.
    fn frame(&self, kind: FrameKind) -> Result<FrameRepr, StartupError> {
        let seen = wire::mpa::Frame::new(&self.received[..]).map(|frame| frame.revision());
        let seen = seen.map_err(|_| StartupError::BadKey { at: 0 })?;
        if !self.speaks(seen) {
            return Err(StartupError::Revision { seen });
        }
        FrameRepr::parse(&self.received, kind).map_err(|error| match error {
            FrameError::PrivateDataLength(seen) => StartupError::PrivateData { seen: seen as u16 },
            FrameError::Key | FrameError::Truncated(_) => StartupError::BadKey { at: 0 },
        })
    }

    /// True when frames with this Rev are acceptable to this end.
    fn speaks(&self, rev: u8) -> bool {
        let set = self.config.revisions;
        match (self.state, rev) {
            (State::AwaitRequest, 0) => set.zero,
            (State::AwaitRequest, 1) => set.one,
            // RFC 5044 §C.2.5: a reply may carry an older revision than the request, never a newer.
            (State::AwaitReply, 0) => match self.config.initiate {
                Revision::Zero => true,
                Revision::One => set.zero,
                Revision::Draft => false,
            },
            (State::AwaitReply, 1) => self.config.initiate == Revision::One,
            _ => false,
        }
    }

    fn whole_frame(&mut self) -> Result<Progress, StartupError> {
        let first = self.received.first_chunk::<START_KEY_LEN>().and_then(FirstOctets::parse);
        match first {
            Some(FirstOctets::StartKey(key)) => self.start_key(key),
            Some(FirstOctets::Frame(kind)) => {
                let frame = self.frame(kind)?;
                let private_data = self.received[FRAME_HEADER_LEN..].to_vec();
                Ok(self.whole_repr(frame, private_data))
            }
            None => Err(StartupError::BadKey { at: 0 }),
        }
    }

    fn whole_repr(&mut self, frame: FrameRepr, private_data: Vec<u8>) -> Progress {
        let revision = if frame.revision == 0 { Revision::Zero } else { Revision::One };
        let (markers, crc) = (frame.markers, frame.crc);
        if self.state == State::AwaitRequest {
            // RFC 5044 §7.1.1: R and the reserved bits of a request are not checked.
            self.state = State::Deciding { revision, markers, crc };
            return Progress::Request(Request { revision, private_data });
        }
        self.state = State::Done;
        if frame.reject {
            return Progress::Rejected { private_data };
        }
        Progress::Accepted { params: self.params(revision, markers, crc), private_data }
    }

    /// Draft §8.1: one key each way, and Rev must be zero.
    fn start_key(&mut self, key: StartKeyRepr) -> Result<Progress, StartupError> {
        let expected = match self.state {
            State::AwaitRequest => self.config.revisions.draft,
            _ => self.config.initiate == Revision::Draft,
        };
        if key.revision != 0 || !expected {
            return Err(StartupError::Revision { seen: key.revision });
        }
        let (revision, private_data) = (Revision::Draft, Vec::new());
        if self.state == State::AwaitRequest {
            self.state = State::Deciding { revision, markers: key.markers, crc: key.crc };
            return Ok(Progress::Request(Request { revision, private_data }));
        }
        self.state = State::Done;
        let params = self.params(revision, key.markers, key.crc);
        Ok(Progress::Accepted { params, private_data })
    }

    /// What the initiator has agreed on with a reply that carries these flags.
    fn params(&self, revision: Revision, markers: bool, crc: bool) -> Params {
        Params {
            revision,
            // RFC 5044 §7.1.1: M asks the other end to send markers, in each direction.
            markers_tx: markers,
            markers_rx: self.config.markers,
            // RFC 5044 §7.1.1: either C turns CRCs on, both ways.
            crc: self.config.crc || crc,
        }
    }
}

/// A peer that does not speak MPA is known by its first wrong octet.
fn check_prefix(octets: &[u8]) -> Result<(), StartupError> {
    let common = |key: &[u8]| octets.iter().zip(key).take_while(|(a, b)| a == b).count();
    let best = common(&REQUEST_KEY).max(common(&REPLY_KEY)).max(common(&START_KEY));
    if best == octets.len() { Ok(()) } else { Err(StartupError::BadKey { at: best as u8 }) }
}

#[cfg(test)]
mod tests;
