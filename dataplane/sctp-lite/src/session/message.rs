//! Parsing of a received user message (RFC 5043 §5.2), without its session.

use super::error::SessionError;
use crate::seam::ReceivedMessage;
use arrayvec::ArrayVec;
use ddp::enhanced::{ENHANCED_LEN, EnhancedRepr};
use smallvec::SmallVec;
use wire::sctp::ddp::{
    CONTROL_HEADER_LEN, ControlRepr, DdpSsn, Function, MAX_PRIVATE_DATA, PPID_CONTROL,
    PPID_SEGMENT, SEGMENT_HEADER_LEN, ssn,
};

/// Length of the longest control message plus one, bytes. The excess byte reveals a message that is too long.
const CONTROL_BYTES: usize = CONTROL_HEADER_LEN + MAX_PRIVATE_DATA + 1;

/// Consecutive pieces of a DDP segment; more than one if the message was fragmented.
pub(super) type Pieces<'a> = SmallVec<[&'a [u8]; 4]>;

/// A user message of RFC 5043.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    pub(super) ssn: DdpSsn,
    pub(super) body: Body<'a>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body<'a> {
    Segment(Pieces<'a>),
    Control(Box<Control>),
}

/// A session control message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Control {
    pub(super) function: Function,
    /// Private data of the ULP, without the enhanced data.
    pub(super) private_data: Vec<u8>,
    pub(super) enhanced: Option<EnhancedRepr>,
}

impl<'a> Message<'a> {
    /// Parses a received user message.
    ///
    /// # Errors
    /// The bytes are not a message of RFC 5043.
    pub fn parse(received: &ReceivedMessage<'a>) -> Result<Message<'a>, SessionError> {
        // RFC 5043 §10: all messages are unordered.
        if !received.unordered {
            return Err(SessionError::Ordered);
        }
        let ssn = parse_ssn(received)?;
        let body = match received.ppid {
            PPID_SEGMENT => Body::Segment(segment_pieces(received.pieces)),
            PPID_CONTROL => Body::Control(Control::parse(received.pieces)?),
            seen => return Err(SessionError::Ppid { seen }),
        };
        Ok(Message { ssn, body })
    }

    /// Returns the DDP-SSN of a message, if it is long enough; its content is not checked.
    pub fn ssn(received: &ReceivedMessage<'_>) -> Option<DdpSsn> {
        parse_ssn(received).ok()
    }

    /// Returns the control message if it begins a session: an Initiate of either form with DDP-SSN 0.
    pub(super) fn initiate(&self) -> Option<&Control> {
        let Body::Control(control) = &self.body else { return None };
        let begins = matches!(control.function, Function::Initiate | Function::EnhancedInitiate);
        (begins && self.ssn == DdpSsn::FIRST).then_some(&**control)
    }

    /// Returns true for a Terminate.
    pub(super) fn is_terminate(&self) -> bool {
        matches!(&self.body, Body::Control(control) if control.function == Function::Terminate)
    }
}

impl Control {
    fn parse(pieces: &[&[u8]]) -> Result<Box<Control>, SessionError> {
        let mut bytes = ArrayVec::<u8, CONTROL_BYTES>::new();
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        bytes.extend(pieces.iter().flat_map(|piece| piece.iter()).copied().take(CONTROL_BYTES));
        let ControlRepr { function, private_data, .. } = ControlRepr::parse(&bytes)?;
        let (mut enhanced, mut rest) = (None, private_data);
        if function.is_enhanced() {
            let data = private_data.split_first_chunk::<ENHANCED_LEN>();
            match data {
                Some((data, after)) => {
                    (enhanced, rest) = (Some(EnhancedRepr::parse(data)), after);
                }
                // RFC 6581 §7 requires enhanced data in Initiate and Accept.
                None if function == Function::EnhancedReject => {}
                None => {
                    return Err(SessionError::EnhancedData { seen: len - CONTROL_HEADER_LEN });
                }
            }
        }
        Ok(Box::new(Control { function, private_data: rest.to_vec(), enhanced }))
    }
}

/// Returns the DDP-SSN of a segment or control message.
fn parse_ssn(received: &ReceivedMessage<'_>) -> Result<DdpSsn, SessionError> {
    if let [whole] = received.pieces
        && let Some(ssn) = ssn(whole)
    {
        return Ok(ssn);
    }
    let bytes: ArrayVec<u8, SEGMENT_HEADER_LEN> = received
        .pieces
        .iter()
        .flat_map(|piece| piece.iter())
        .copied()
        .take(SEGMENT_HEADER_LEN)
        .collect();
    ssn(&bytes).ok_or(SessionError::Short { seen: bytes.len() })
}

fn segment_pieces<'a>(pieces: &[&'a [u8]]) -> Pieces<'a> {
    if let [whole] = pieces
        && whole.len() > SEGMENT_HEADER_LEN
    {
        let mut one = Pieces::new();
        one.push(&whole[SEGMENT_HEADER_LEN..]);
        return one;
    }
    let mut skip = SEGMENT_HEADER_LEN;
    let without_header = |piece: &&'a [u8]| {
        let n = skip.min(piece.len());
        skip -= n;
        &piece[n..]
    };
    pieces.iter().map(without_header).filter(|piece| !piece.is_empty()).collect()
}
