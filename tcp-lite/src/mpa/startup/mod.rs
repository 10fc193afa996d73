//! The Startup Phase (RFC 5044 §7.1, draft-culley-iwarp-mpa-03 §8.1): both roles, sans-IO.
//!
//! ```text
//!  initiator (first draft: passive)          responder (first draft: active)
//!     Request / Start Key  ----------------->   AwaitRequest
//!     AwaitReply                                Deciding: the ULP sees the private data
//!     Done                 <-----------------   Reply / Start Key, or a reject; Done
//!     first FPDU           =================>   may send FPDUs from here on
//! ```
//!
//! The TCP listener is the responder. The first 16 bytes of a frame identify its form. Bytes after a frame are FPDUs
//! and are not parsed by this module.
//!
//! In revision 2 (RFC 6581) the private data of both frames begins with enhanced data (IRD, ORD and flags, see
//! [`ddp::enhanced`]), and bit S is set. SMB Direct sends IRD and ORD there in revision 1, without bit S.
//!
//! Not included: time-outs, which the endpoint adds, and the ready-to-receive message, which is an FPDU.

use super::config::{Config, Params, Revision};
use super::error::StartupError;
use super::foreign::ForeignProtocol;
use super::peer::Peer;
use super::smb_direct::SmbDirect;
use ddp::enhanced::{Depths, accept_reply, build_reply, build_request};
use thiserror::Error;
use wire::mpa::{
    ENHANCED_LEN, EnhancedRepr, FRAME_HEADER_LEN, FirstBytes, FrameError, FrameKind, FrameRepr,
    MAX_PRIVATE_DATA, REPLY_KEY, REQUEST_KEY, START_KEY, START_KEY_LEN, StartKeyRepr,
};

/// The private data does not fit the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("private data of {len} bytes, at most {limit} fit")]
pub struct PrivateDataTooLong {
    /// Length of the private data, in bytes.
    pub len: usize,
    /// Maximum length, in bytes: 512 less enhanced data or SMB Direct's IRD and ORD, or the peer's own limit if that is
    /// less. Zero with the first draft's Start Key.
    pub limit: usize,
}

/// Error of [`Startup::accept`]. The state is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AcceptError {
    /// The private data does not fit the reply.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// The initiator's IRD is below `required_ord` (RFC 6581 §9.1). The request must be rejected.
    #[error(transparent)]
    Unsuitable(StartupError),
}

/// A request that awaits the ULP's decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Form and revision of the request.
    pub revision: Revision,
    /// The ULP's private data, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// IRD, ORD and ready-to-receive flags of the request, if any.
    pub enhanced: Option<EnhancedRepr>,
}

/// Result of a complete start-up frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Responder: a request to be answered by [`Startup::accept`] or [`Startup::reject`].
    Request(Request),
    /// Initiator: Full Operation begins.
    Accepted {
        /// Negotiated parameters.
        params: Params,
        /// The responder's private data, at most 512 bytes.
        private_data: Vec<u8>,
    },
    /// Initiator: Full Operation begins, but only to send a Terminate with this error.
    Unsuitable {
        /// Negotiated parameters, for the FPDU with the Terminate.
        params: Params,
        /// Error of the reply: code 6 or 7 of RFC 6581 §8.
        error: StartupError,
    },
    /// Initiator: the responder's ULP has rejected the request.
    Rejected {
        /// The responder's private data, at most 512 bytes.
        private_data: Vec<u8>,
        /// IRD and ORD of the reject, if any (RFC 6581 §9.1).
        enhanced: Option<EnhancedRepr>,
    },
}

/// State machine of the Startup Phase of one end.
#[derive(Debug)]
pub struct Startup {
    config: Config,
    state: State,
    /// Bytes of the peer's start-up frame so far.
    received: Vec<u8>,
    /// All bytes that this end sends before its first FPDU.
    output: Vec<u8>,
}

/// State of one end's start-up. `requested`: IRD, ORD and flags of the initiator's request, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    AwaitRequest,
    Deciding { revision: Revision, markers: bool, crc: bool, requested: Option<EnhancedRepr> },
    AwaitReply { requested: Option<EnhancedRepr>, local_depths: Depths },
    Done,
}

/// A start-up frame to write.
struct OutgoingFrame {
    revision: Revision,
    kind: FrameKind,
    markers: bool,
    crc: bool,
    reject: bool,
    enhanced: Option<EnhancedRepr>,
}

/// Bytes in front of the ULP's private data.
enum Prefix {
    Empty,
    Enhanced([u8; ENHANCED_LEN]),
    SmbDirect([u8; SmbDirect::LEN]),
}

impl Prefix {
    /// Encodes IRD and ORD. Enhanced data requires revision 2 (RFC 6581 §6); SMB Direct uses revision 1.
    fn new(revision: Revision, enhanced: Option<EnhancedRepr>) -> Prefix {
        match enhanced {
            None => Prefix::Empty,
            Some(enhanced) if revision == Revision::Two => Prefix::Enhanced(enhanced.emit()),
            Some(enhanced) => Prefix::SmbDirect(SmbDirect::emit(&enhanced)),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Prefix::Empty => &[],
            Prefix::Enhanced(bytes) => bytes,
            Prefix::SmbDirect(bytes) => bytes,
        }
    }
}

impl Startup {
    /// Creates an initiator with the configured revision. `local_depths`: the maximum number of concurrent Reads that
    /// this end can receive (IRD) and issue (ORD), sent in revision 2 and to SMB Direct.
    ///
    /// # Errors
    /// The private data does not fit the frame.
    pub fn initiator(
        config: &Config,
        local_depths: Depths,
        private_data: &[u8],
    ) -> Result<Self, PrivateDataTooLong> {
        let revision = config.initiate;
        let sends_depths = revision == Revision::Two || is_smb_direct(config, revision);
        let requested = sends_depths.then(|| build_request(local_depths, &config.enhanced));
        let mut startup = Startup::new(config, State::AwaitReply { requested, local_depths });
        startup.queue_frame(
            &OutgoingFrame {
                revision,
                kind: FrameKind::Request,
                markers: config.requests_markers(),
                crc: config.crc,
                reject: false,
                enhanced: requested,
            },
            private_data,
        )?;
        Ok(startup)
    }

    /// Creates a responder, which adopts the form of the request.
    pub fn responder(config: &Config) -> Self {
        Startup::new(config, State::AwaitRequest)
    }

    /// Returns all bytes that this end sends before its first FPDU.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Returns true while more bytes of a start-up frame are expected.
    pub fn needs_input(&self) -> bool {
        matches!(self.state, State::AwaitRequest | State::AwaitReply { .. })
    }

    /// Processes the next bytes of the stream, in order. Returns the number of bytes that belong to the start-up. The
    /// others are FPDUs.
    ///
    /// # Errors
    /// The bytes are not a valid start-up. The caller closes the TCP connection at once (RFC 5044 §8).
    pub fn input(&mut self, bytes: &[u8]) -> Result<(usize, Option<Progress>), StartupError> {
        let mut used = 0;
        while self.needs_input() {
            let want = self.missing_bytes()?;
            if want == 0 {
                let progress = self.process_frame()?;
                self.received = Vec::new();
                return Ok((used, Some(progress)));
            }
            let n = want.min(bytes.len() - used);
            if n == 0 {
                break;
            }
            self.received.extend_from_slice(&bytes[used..used + n]);
            used += n;
        }
        Ok((used, None))
    }

    /// Accepts the request; [`output`](Self::output) then contains the reply. `local_depths`: the maximum number of
    /// concurrent Reads that this end can receive and issue.
    ///
    /// # Errors
    /// The private data does not fit the reply, or the initiator's IRD is too low. The state is unchanged.
    ///
    /// # Panics
    /// If no request awaits a decision.
    pub fn accept(
        &mut self,
        local_depths: Depths,
        private_data: &[u8],
    ) -> Result<Params, AcceptError> {
        let State::Deciding { revision, markers, crc, requested } = self.state else {
            panic!("no MPA request to accept");
        };
        let (markers_rx, crc) = (self.config.requests_markers(), crc || self.config.crc);
        let reply = requested
            .map(|requested| build_reply(&requested, local_depths, &self.config.enhanced))
            .transpose();
        let (enhanced, agreed) =
            reply.map_err(|error| AcceptError::Unsuitable(error.into()))?.unzip();
        // The reply's C is the result of both bits, because some peers check only the reply's C.
        let (kind, reject) = (FrameKind::Reply, false);
        self.queue_frame(
            &OutgoingFrame { revision, kind, markers: markers_rx, crc, reject, enhanced },
            private_data,
        )?;
        self.state = State::Done;
        Ok(Params { revision, markers_tx: markers, markers_rx, crc, agreed })
    }

    /// Rejects the request (RFC 5044 §7.1.2 (2)). The first draft has no reject: nothing is sent, and the caller closes
    /// the connection.
    ///
    /// # Errors
    /// The private data does not fit the reply. The state is unchanged.
    ///
    /// # Panics
    /// If no request awaits a decision.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), PrivateDataTooLong> {
        let State::Deciding { revision, crc, requested, .. } = self.state else {
            panic!("no MPA request to reject");
        };
        let required_ord = self.config.enhanced.required_ord;
        let enhanced = requested.map(|requested| match requested.ird < required_ord {
            // RFC 6581 §9.1: the reject carries the required ORD.
            true => EnhancedRepr { ord: required_ord, ..requested },
            false => requested,
        });
        if revision != Revision::Draft {
            let kind = FrameKind::Reply;
            let out = OutgoingFrame { revision, kind, markers: false, crc, reject: true, enhanced };
            self.queue_frame(&out, private_data)?;
        }
        self.state = State::Done;
        Ok(())
    }

    fn new(config: &Config, state: State) -> Self {
        Startup { config: config.clone(), state, received: Vec::new(), output: Vec::new() }
    }

    fn queue_frame(
        &mut self,
        out: &OutgoingFrame,
        private_data: &[u8],
    ) -> Result<(), PrivateDataTooLong> {
        let prefix = Prefix::new(out.revision, out.enhanced);
        let prefix = prefix.bytes();
        let limit = match out.revision {
            Revision::Draft => 0,
            // RFC 6581 §9: the enhanced data counts as private data.
            _ => self.config.peer.private_data_limit().min(MAX_PRIVATE_DATA - prefix.len()),
        };
        let len = private_data.len();
        if len > limit {
            return Err(PrivateDataTooLong { len, limit });
        }
        let (markers, crc, revision) = (out.markers, out.crc, out.revision.number());
        if out.revision == Revision::Draft {
            let key = StartKeyRepr { markers, crc, revision };
            self.output.extend_from_slice(&key.emit());
            return Ok(());
        }
        let mut header = [0; FRAME_HEADER_LEN];
        let repr = FrameRepr {
            kind: out.kind,
            markers,
            crc,
            reject: out.reject,
            // RFC 6581 §6: S announces enhanced data at the start of the private data.
            enhanced: out.revision == Revision::Two && out.enhanced.is_some(),
            revision,
            private_data_len: (prefix.len() + len) as u16,
        };
        repr.emit(&mut header);
        self.output.extend_from_slice(&header);
        self.output.extend_from_slice(prefix);
        self.output.extend_from_slice(private_data);
        Ok(())
    }

    /// Returns the number of missing bytes of the next part of the frame; zero if the frame is complete.
    fn missing_bytes(&self) -> Result<usize, StartupError> {
        let have = self.received.len();
        let Some(first) = self.received.first_chunk::<START_KEY_LEN>() else {
            check_prefix(&self.received)?;
            return Ok(START_KEY_LEN - have);
        };
        match FirstBytes::parse(first) {
            Some(FirstBytes::StartKey(_)) => Ok(0),
            Some(FirstBytes::Frame(kind)) => {
                self.check_kind(kind)?;
                if have < FRAME_HEADER_LEN {
                    return Ok(FRAME_HEADER_LEN - have);
                }
                Ok(self.frame_header(kind)?.len() - have)
            }
            None => Err(check_prefix(first).err().unwrap_or(StartupError::BadKey { at: 15 })),
        }
    }

    /// Returns an error if the key of the peer's frame shows that both ends took the same role (RFC 5044 §7.1.2 (8)).
    fn check_kind(&self, kind: FrameKind) -> Result<(), StartupError> {
        match (self.state, kind) {
            (State::AwaitRequest, FrameKind::Reply) => Err(StartupError::BothResponders),
            (State::AwaitReply { .. }, FrameKind::Request) => Err(StartupError::BothInitiators),
            _ => Ok(()),
        }
    }

    /// Returns the header of the frame, if its revision and length are acceptable.
    fn frame_header(&self, kind: FrameKind) -> Result<FrameRepr, StartupError> {
        let seen = wire::mpa::Frame::new(&self.received[..]).map(|frame| frame.revision());
        let seen = seen.map_err(|_| StartupError::BadKey { at: 0 })?;
        if !self.accepts_revision(seen) {
            return Err(StartupError::Revision { seen });
        }
        FrameRepr::parse(&self.received, kind).map_err(|error| match error {
            FrameError::PrivateDataLength(seen) => StartupError::PrivateData { seen: seen as u16 },
            FrameError::Key | FrameError::Truncated(_) => StartupError::BadKey { at: 0 },
        })
    }

    /// Returns true if this end accepts a frame with this Rev.
    fn accepts_revision(&self, rev: u8) -> bool {
        let set = self.config.revisions;
        match (self.state, rev) {
            (State::AwaitRequest, 0) => set.zero,
            (State::AwaitRequest, 1) => set.one,
            (State::AwaitRequest, 2) => set.two,
            // RFC 5044 §C.2.5: a reply may have an older revision than the request, never a newer revision. RFC 6581
            // §10: the reply to an enhanced request is enhanced or an error.
            (State::AwaitReply { .. }, 0) => match self.config.initiate {
                Revision::Zero => true,
                Revision::One => set.zero,
                Revision::Draft | Revision::Two => false,
            },
            (State::AwaitReply { .. }, 1) => self.config.initiate == Revision::One,
            (State::AwaitReply { .. }, 2) => self.config.initiate == Revision::Two,
            _ => false,
        }
    }

    fn process_frame(&mut self) -> Result<Progress, StartupError> {
        let first = self.received.first_chunk::<START_KEY_LEN>().and_then(FirstBytes::parse);
        match first {
            Some(FirstBytes::StartKey(key)) => self.process_start_key(key),
            Some(FirstBytes::Frame(kind)) => {
                let frame = self.frame_header(kind)?;
                let private_data = self.received.split_off(FRAME_HEADER_LEN);
                self.process_frame_repr(frame, private_data)
            }
            None => Err(StartupError::BadKey { at: 0 }),
        }
    }

    fn process_frame_repr(
        &mut self,
        frame: FrameRepr,
        private_data: Vec<u8>,
    ) -> Result<Progress, StartupError> {
        let revision = match frame.revision {
            0 => Revision::Zero,
            1 => Revision::One,
            _ => Revision::Two,
        };
        let (markers, crc) = (frame.markers, frame.crc);
        let (enhanced, private_data) = self.split_enhanced(&frame, revision, private_data)?;
        let State::AwaitReply { requested, local_depths: here } = self.state else {
            // RFC 5044 §7.1.1: R and the reserved bits of a request are not checked.
            self.state = State::Deciding { revision, markers, crc, requested: enhanced };
            return Ok(Progress::Request(Request { revision, private_data, enhanced }));
        };
        self.state = State::Done;
        if frame.reject {
            return Ok(Progress::Rejected { private_data, enhanced });
        }
        let preference = self.config.peer.rtr_preference();
        let agreed = match (requested, enhanced) {
            (Some(requested), Some(reply)) => {
                accept_reply(&requested, &reply, here, preference).map(Some)
            }
            // RFC 6581 §10: an enhanced request requires an enhanced reply.
            (Some(_), None) if revision == Revision::Two => return Err(StartupError::NotEnhanced),
            _ => Ok(None),
        };
        let params = self.params(revision, StartFlags { markers, crc });
        Ok(match agreed {
            Ok(agreed) => Progress::Accepted { params: Params { agreed, ..params }, private_data },
            Err(error) => Progress::Unsuitable { params, error: error.into() },
        })
    }

    /// Splits private data into IRD and ORD, if any, and the ULP's part.
    fn split_enhanced(
        &self,
        frame: &FrameRepr,
        revision: Revision,
        mut private_data: Vec<u8>,
    ) -> Result<(Option<EnhancedRepr>, Vec<u8>), StartupError> {
        let (enhanced, len) = if revision == Revision::Two && frame.enhanced {
            match private_data.first_chunk() {
                Some(words) => (EnhancedRepr::parse(words), ENHANCED_LEN),
                // A reject is valid without enhanced data.
                None if frame.kind == FrameKind::Reply && frame.reject => {
                    return Ok((None, private_data));
                }
                None => {
                    return Err(StartupError::EnhancedData { seen: frame.private_data_len });
                }
            }
        } else if is_smb_direct(&self.config, revision)
            && let Some(words) = private_data.first_chunk()
        {
            (SmbDirect::parse(words), SmbDirect::LEN)
        } else {
            return Ok((None, private_data));
        };
        private_data.drain(..len);
        Ok((Some(enhanced), private_data))
    }

    /// Processes a Start Key of the first draft (§8.1): one is sent in each direction, with Rev 0.
    fn process_start_key(&mut self, key: StartKeyRepr) -> Result<Progress, StartupError> {
        let expected = match self.state {
            State::AwaitRequest => self.config.revisions.draft,
            _ => self.config.initiate == Revision::Draft,
        };
        if key.revision != 0 || !expected {
            return Err(StartupError::Revision { seen: key.revision });
        }
        let (revision, private_data) = (Revision::Draft, Vec::new());
        if self.state == State::AwaitRequest {
            let (markers, crc) = (key.markers, key.crc);
            self.state = State::Deciding { revision, markers, crc, requested: None };
            return Ok(Progress::Request(Request { revision, private_data, enhanced: None }));
        }
        self.state = State::Done;
        let params = self.params(revision, StartFlags { markers: key.markers, crc: key.crc });
        Ok(Progress::Accepted { params, private_data })
    }

    /// Returns an initiator's parameters after a reply with these flags.
    fn params(&self, revision: Revision, reply: StartFlags) -> Params {
        Params {
            revision,
            // RFC 5044 §7.1.1: M requests markers from the other end, separately per direction.
            markers_tx: reply.markers,
            markers_rx: self.config.requests_markers(),
            // RFC 5044 §7.1.1: C of either end turns CRCs on in both directions.
            crc: self.config.crc || reply.crc,
            agreed: None,
        }
    }
}

/// M and C of a reply.
#[derive(Clone, Copy)]
struct StartFlags {
    markers: bool,
    crc: bool,
}

/// Returns true if SMB Direct's IRD and ORD precede the private data, without bit S.
fn is_smb_direct(config: &Config, revision: Revision) -> bool {
    config.peer == Peer::SmbDirect && revision == Revision::One
}

/// Returns an error if the bytes are not a prefix of an MPA key.
fn check_prefix(bytes: &[u8]) -> Result<(), StartupError> {
    let common = |key: &[u8]| bytes.iter().zip(key).take_while(|(a, b)| a == b).count();
    let best = common(&REQUEST_KEY).max(common(&REPLY_KEY)).max(common(&START_KEY));
    if best == bytes.len() {
        return Ok(());
    }
    let foreign = ForeignProtocol::detect(bytes).map(StartupError::Foreign);
    Err(foreign.unwrap_or(StartupError::BadKey { at: best as u8 }))
}

#[cfg(test)]
mod tests;
