//! Tests of the Startup Phase with valid and invalid frames of the peer.

use super::*;
use crate::mpa::{ForeignProtocol, Revisions};
use proptest::prelude::*;

mod enhanced;
mod quirks;

fn config() -> Config {
    Config::default()
}

fn config_with_revision(initiate: Revision) -> Config {
    Config { initiate, ..config() }
}

fn new_initiator(config: &Config, private_data: &[u8]) -> Result<Startup, PrivateDataTooLong> {
    Startup::initiator(config, Depths::NONE, private_data)
}

fn frame(key: &[u8; 16], flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.extend([flags, rev]);
    bytes.extend((private_data.len() as u16).to_be_bytes());
    bytes.extend(private_data);
    bytes
}

fn request(flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    frame(b"MPA ID Req Frame", flags, rev, private_data)
}

fn reply(flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    frame(b"MPA ID Rep Frame", flags, rev, private_data)
}

const DRAFT_MC: &[u8; 16] = b"MPA ident frame\xc0";

/// Returns parameters with markers and CRCs, without enhanced data.
fn params(revision: Revision) -> Params {
    Params { revision, markers_tx: true, markers_rx: true, crc: true, agreed: None }
}

fn plain_request(revision: Revision, private_data: &[u8]) -> Request {
    Request { revision, private_data: private_data.to_vec(), enhanced: None }
}

fn accept_request(startup: &mut Startup, bytes: &[u8]) -> Request {
    match startup.input(bytes) {
        Ok((used, Some(Progress::Request(request)))) => {
            assert_eq!(used, bytes.len());
            request
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the error of a responder that receives these bytes.
fn request_error(config: &Config, bytes: &[u8]) -> StartupError {
    let result = Startup::responder(config).input(bytes);
    result.expect_err("it must be refused")
}

/// Returns the error of an initiator that receives these bytes.
fn reply_error(config: &Config, bytes: &[u8]) -> StartupError {
    let mut startup = new_initiator(config, &[]).expect("no private data");
    startup.input(bytes).expect_err("it must be refused")
}

/// RFC 5044 §7.1.1: request and reply have the specified format, byte by byte.
#[test]
fn revision_one_startup_completes() {
    let mut initiator = new_initiator(&config(), b"hello").expect("it fits");
    assert_eq!(initiator.output(), request(0xc0, 1, b"hello"));
    let mut responder = Startup::responder(&config());
    let asked = accept_request(&mut responder, initiator.output());
    assert_eq!(asked, plain_request(Revision::One, b"hello"));
    assert_eq!(responder.output(), [], "no reply before the ULP has decided");
    let here = responder.accept(Depths::NONE, b"welcome").expect("it fits");
    assert_eq!(responder.output(), reply(0xc0, 1, b"welcome"));
    let there = initiator.input(responder.output());
    let params = params(Revision::One);
    assert_eq!(here, params);
    let private_data = b"welcome".to_vec();
    assert_eq!(there, Ok((27, Some(Progress::Accepted { params, private_data }))));
}

/// RFC 5044 §7.1.1, draft-culley-iwarp-mpa-03 §8.1: bit C of either end turns CRCs on in both directions. Bit M
/// requests markers from the other end only. The peer's frames are written by the test.
#[test]
fn crc_is_on_if_either_end_requests_it() {
    const M: u8 = 0x80;
    const C: u8 = 0x40;
    for (revision, rev) in [(Revision::Zero, 0), (Revision::One, 1), (Revision::Draft, 0)] {
        for (ours, theirs) in (0..16).map(|bits: u8| ((bits & 3) << 6, (bits & 12) << 4)) {
            let config = Config {
                markers: ours & M != 0,
                crc: ours & C != 0,
                ..config_with_revision(revision)
            };
            let scripted = |key: fn(u8, u8, &[u8]) -> Vec<u8>, flags| match revision {
                Revision::Draft => [&DRAFT_MC[..15], &[flags]].concat(),
                _ => key(flags, rev, &[]),
            };
            let expected = Params {
                revision,
                markers_tx: theirs & M != 0,
                markers_rx: ours & M != 0,
                crc: (ours | theirs) & C != 0,
                agreed: None,
            };
            let case = format!("{revision:?}, ours {ours:#x}, theirs {theirs:#x}");

            let mut initiator = new_initiator(&config, &[]).expect("no private data");
            assert_eq!(initiator.output(), scripted(request, ours), "{case}");
            let Ok((_, Some(Progress::Accepted { params, .. }))) =
                initiator.input(&scripted(reply, theirs))
            else {
                panic!("refused: {case}");
            };
            assert_eq!(params, expected, "initiator: {case}");

            let mut responder = Startup::responder(&config);
            accept_request(&mut responder, &scripted(request, theirs));
            assert_eq!(responder.accept(Depths::NONE, &[]), Ok(expected), "responder: {case}");
            let flags = ours & M | (ours | theirs) & C;
            assert_eq!(responder.output(), scripted(reply, flags), "{case}");
        }
    }
}

/// RFC 5044 appendix C: revision 0 uses the frames of revision 1 with Rev 0. The reply has the revision of the request.
#[test]
fn revision_zero_startup_completes() {
    let mut initiator = new_initiator(&config_with_revision(Revision::Zero), &[]).expect("it fits");
    assert_eq!(initiator.output(), request(0xc0, 0, &[]));
    let mut responder = Startup::responder(&config());
    assert_eq!(accept_request(&mut responder, initiator.output()).revision, Revision::Zero);
    responder.accept(Depths::NONE, b"x").expect("it fits");
    assert_eq!(responder.output(), reply(0xc0, 0, b"x"));
    let Ok((21, Some(Progress::Accepted { params, .. }))) = initiator.input(responder.output())
    else {
        panic!("accepted");
    };
    assert_eq!(params.revision, Revision::Zero);
}

/// draft-culley-iwarp-mpa-03 §8.1: one Start Key is sent in each direction.
#[test]
fn start_key_startup_completes() {
    let mut passive = new_initiator(&config_with_revision(Revision::Draft), &[]).expect("it fits");
    assert_eq!(passive.output(), DRAFT_MC);
    let mut active = Startup::responder(&config());
    let request = accept_request(&mut active, passive.output());
    assert_eq!(request, plain_request(Revision::Draft, b""));
    // draft-culley-iwarp-mpa-03 §8.1, rule 2: the key is sent after the peer's key was received and validated.
    assert_eq!(active.output(), []);
    // A Start Key has no room for private data.
    let too_long = PrivateDataTooLong { len: 1, limit: 0 };
    assert_eq!(active.accept(Depths::NONE, b"x"), Err(too_long.into()));
    let params = params(Revision::Draft);
    assert_eq!(active.accept(Depths::NONE, &[]), Ok(params));
    assert_eq!(active.output(), DRAFT_MC);
    let done = passive.input(active.output());
    assert_eq!(done, Ok((16, Some(Progress::Accepted { params, private_data: vec![] }))));
    let too_long = new_initiator(&config_with_revision(Revision::Draft), b"x").map(|_| ());
    assert_eq!(too_long, Err(PrivateDataTooLong { len: 1, limit: 0 }));
}

/// draft-culley-iwarp-mpa-03 §8.1: there is no reject, so the responder sends nothing.
#[test]
fn start_key_cannot_be_rejected() {
    let mut active = Startup::responder(&config());
    accept_request(&mut active, DRAFT_MC);
    assert_eq!(active.reject(&[]), Ok(()));
    assert_eq!(active.output(), []);
}

/// RFC 5044 §7.1.2 (2), (3): a reject is a reply with bit R set, and may carry private data.
#[test]
fn reject_carries_private_data() {
    for rev in [Revision::Zero, Revision::One] {
        let mut initiator = new_initiator(&config_with_revision(rev), &[]).expect("it fits");
        let mut responder = Startup::responder(&config());
        accept_request(&mut responder, initiator.output());
        responder.reject(b"no").expect("it fits");
        assert_eq!(responder.output(), reply(0x60, rev.number(), b"no"));
        let done = initiator.input(responder.output()).expect("a good frame");
        assert_eq!(
            done.1,
            Some(Progress::Rejected { private_data: b"no".to_vec(), enhanced: None })
        );
    }
}

/// RFC 5044 §7.1.1, §4.3: bit M requests markers from the other end.
#[test]
fn markers_are_agreed_per_direction() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let initiate = Config { markers: ours, ..config() };
        let respond = Config { markers: theirs, ..config() };
        let mut initiator = new_initiator(&initiate, &[]).expect("it fits");
        let mut responder = Startup::responder(&respond);
        accept_request(&mut responder, initiator.output());
        let there = responder.accept(Depths::NONE, &[]).expect("it fits");
        let Ok((_, Some(Progress::Accepted { params: here, .. }))) =
            initiator.input(responder.output())
        else {
            panic!("accepted");
        };
        assert_eq!((here.markers_rx, here.markers_tx), (ours, theirs));
        assert_eq!((there.markers_rx, there.markers_tx), (theirs, ours));
    }
}

/// RFC 5044 §7.1.1: CRCs are off only if neither end sets bit C.
#[test]
fn either_c_flag_turns_crcs_on() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut initiator = new_initiator(&Config { crc: ours, ..config() }, &[]).expect("it fits");
        let mut responder = Startup::responder(&Config { crc: theirs, ..config() });
        accept_request(&mut responder, initiator.output());
        let there = responder.accept(Depths::NONE, &[]).expect("it fits");
        let Ok((_, Some(Progress::Accepted { params: here, .. }))) =
            initiator.input(responder.output())
        else {
            panic!("accepted");
        };
        assert_eq!((here.crc, there.crc), (ours || theirs, ours || theirs));
        assert_eq!(responder.output()[16] & 0x40 != 0, ours || theirs);
    }
}

/// RFC 5044 §4.4: the default is to use CRCs.
#[test]
fn crcs_are_on_by_default() {
    assert!(Config::default().crc);
}

/// A start-up frame may arrive in any two pieces. Bytes after the frame are not consumed.
#[test]
fn startup_frames_may_split_at_any_byte() {
    let frames = [request(0xc0, 1, b"private"), request(0x00, 0, &[]), DRAFT_MC.to_vec()];
    for frame in frames {
        for cut in 0..=frame.len() {
            let mut with_fpdu = frame.clone();
            with_fpdu.extend([0xaa; 7]);
            let mut responder = Startup::responder(&config());
            let (used, progress) = responder.input(&with_fpdu[..cut]).expect("good so far");
            assert_eq!((used, progress.is_some()), (cut, cut == frame.len()));
            if progress.is_none() {
                let (used, progress) = responder.input(&with_fpdu[cut..]).expect("good");
                assert_eq!((used, progress.is_some()), (frame.len() - cut, true));
            }
            assert!(!responder.needs_input());
        }
    }
    let frame = reply(0x40, 1, &[7; 512]);
    for cut in 0..frame.len() {
        let mut initiator = new_initiator(&config(), &[]).expect("it fits");
        assert_eq!(initiator.input(&frame[..cut]), Ok((cut, None)));
        let (used, progress) = initiator.input(&frame[cut..]).expect("good");
        assert_eq!(used, frame.len() - cut);
        assert!(matches!(progress, Some(Progress::Accepted { .. })));
    }
}

/// RFC 5044 §7.1.2 (5): the start-up fails without waiting for the rest of the key.
#[test]
fn wrong_key_is_detected_at_first_wrong_byte() {
    assert_eq!(request_error(&config(), b"G"), StartupError::BadKey { at: 0 });
    assert_eq!(request_error(&config(), b"MPA ID Rxq"), StartupError::BadKey { at: 8 });
    assert_eq!(request_error(&config(), b"MPA ident framE\0"), StartupError::BadKey { at: 14 });
    assert_eq!(request_error(&config(), b"MPA ID Req frame"), StartupError::BadKey { at: 11 });
    assert_eq!(reply_error(&config(), b"HTTP"), StartupError::Foreign(ForeignProtocol::Http));
    assert_eq!(
        request_error(&config(), &[0x16, 3, 1, 2, 0, 1]),
        StartupError::Foreign(ForeignProtocol::Tls)
    );
    assert_eq!(StartupError::BadKey { at: 0 }.code(), 4);
}

/// RFC 5044 §7.1.2 (8): two initiators, or two responders, are an error.
#[test]
fn same_role_at_both_ends_is_an_error() {
    let request = request(0xc0, 1, &[]);
    assert_eq!(reply_error(&config(), &request), StartupError::BothInitiators);
    let reply = reply(0xc0, 1, &[]);
    assert_eq!(request_error(&config(), &reply), StartupError::BothResponders);
}

/// RFC 5044 §7.1.1: a revision is refused if it is unknown, or not allowed by the configuration.
#[test]
fn unsupported_revision_is_refused() {
    let rev = |seen| StartupError::Revision { seen };
    assert_eq!(request_error(&config(), &request(0xc0, 3, &[])), rev(3));
    assert_eq!(request_error(&config(), &request(0xc0, 255, &[])), rev(255));
    let none = Revisions::NONE;
    let one = Config { revisions: Revisions { one: true, ..none }, ..config() };
    assert_eq!(request_error(&one, &request(0x10, 2, &[0; 4])), rev(2));
    assert_eq!(request_error(&one, &request(0xc0, 0, &[])), rev(0));
    assert_eq!(request_error(&one, DRAFT_MC), rev(0));
    let zero = Config { revisions: Revisions { zero: true, ..none }, ..config() };
    assert_eq!(request_error(&zero, &request(0xc0, 1, &[])), rev(1));
    // draft-culley-iwarp-mpa-03 §8.1.1: Rev of a Start Key is 0.
    assert_eq!(request_error(&config(), b"MPA ident frame\xc1"), rev(1));
    // RFC 5044 §C.2.5: a reply may fall back to revision 0, if the configuration allows it, but not to a later
    // revision.
    assert_eq!(reply_error(&config(), &reply(0xc0, 2, &[])), rev(2));
    assert_eq!(reply_error(&config_with_revision(Revision::Zero), &reply(0xc0, 1, &[])), rev(1));
    assert_eq!(reply_error(&config_with_revision(Revision::Draft), &reply(0xc0, 0, &[])), rev(0));
    assert_eq!(reply_error(&config(), DRAFT_MC), rev(0));
    assert_eq!(reply_error(&one, &reply(0xc0, 0, &[])), rev(0));
    let mut initiator = new_initiator(&config(), &[]).expect("it fits");
    let Ok((_, Some(Progress::Accepted { params, .. }))) = initiator.input(&reply(0xc0, 0, &[]))
    else {
        panic!("accepted");
    };
    assert_eq!(params.revision, Revision::Zero);
}

/// RFC 5044 §7.1.2 (9): PD_Length is checked before the private data is received.
#[test]
fn private_data_length_is_checked_before_arrival() {
    let mut bytes = request(0xc0, 1, &[]);
    bytes[18..20].copy_from_slice(&513_u16.to_be_bytes());
    assert_eq!(request_error(&config(), &bytes), StartupError::PrivateData { seen: 513 });
    bytes[18..20].copy_from_slice(&0xffff_u16.to_be_bytes());
    assert_eq!(request_error(&config(), &bytes), StartupError::PrivateData { seen: 0xffff });
    let mut responder = Startup::responder(&config());
    assert_eq!(accept_request(&mut responder, &request(0xc0, 1, &[9; 512])).private_data, [9; 512]);
    let too_long = PrivateDataTooLong { len: 513, limit: 512 };
    assert_eq!(responder.accept(Depths::NONE, &[0; 513]), Err(too_long.into()));
    assert_eq!(responder.reject(&[0; 513]), Err(too_long));
    assert!(
        responder.accept(Depths::NONE, &[0; 512]).is_ok(),
        "the attempt before has changed nothing"
    );
    assert_eq!(new_initiator(&config(), &[0; 513]).map(|_| ()), Err(too_long));
}

/// RFC 5044 §7.1.1: bit R of a request and the reserved bits are not checked and not echoed.
#[test]
fn reserved_bits_are_ignored() {
    let mut responder = Startup::responder(&config());
    let request = accept_request(&mut responder, &request(0xff, 1, &[]));
    assert_eq!(request.revision, Revision::One);
    responder.accept(Depths::NONE, &[]).expect("it fits");
    assert_eq!(responder.output()[16], 0xc0);
    let mut initiator = new_initiator(&config(), &[]).expect("it fits");
    let done = initiator.input(&reply(0x1f, 1, &[])).expect("reserved bits do not matter");
    assert!(matches!(done.1, Some(Progress::Accepted { .. })));
    let mut active = Startup::responder(&config());
    assert_eq!(accept_request(&mut active, b"MPA ident frame\xf8").revision, Revision::Draft);
}

/// Start-up frames captured from Linux's siw are parsed, and requests equal siw's.
#[test]
fn captured_siw_startup_frames_are_parsed() {
    use crate::mpa::testing::hex;
    let no_crc = Config { crc: false, markers: false, ..config() };
    for (rev, captured) in [
        (Revision::One, "4d504120494420526571204672616d6500010000"),
        (Revision::Zero, "4d504120494420526571204672616d6500000000"),
    ] {
        let mut responder = Startup::responder(&no_crc);
        assert_eq!(accept_request(&mut responder, &hex(captured)).revision, rev);
        let params = Params { markers_tx: false, markers_rx: false, crc: false, ..params(rev) };
        assert_eq!(responder.accept(Depths::NONE, &[]), Ok(params));
        let initiator = new_initiator(&Config { initiate: rev, ..no_crc.clone() }, &[]);
        assert_eq!(initiator.expect("it fits").output(), hex(captured));
    }
    let captured = "4d504120494420526570204672616d65\
                    0001001400007ff81c2db000cc6587000010000036ae5100";
    let mut initiator = new_initiator(&no_crc, &[]).expect("it fits");
    let done = initiator.input(&hex(captured)).expect("a good frame");
    let Some(Progress::Accepted { params, private_data }) = done.1 else { panic!("accepted") };
    assert_eq!((params.crc, params.markers_tx, private_data.len()), (false, false, 20));
    // siw answers a request with bit M by a reject.
    let mut initiator = new_initiator(&config(), &[]).expect("it fits");
    let done = initiator.input(&reply(0x20, 1, &[])).expect("a good frame");
    assert_eq!(done.1, Some(Progress::Rejected { private_data: vec![], enhanced: None }));
}

proptest! {
    /// For any bytes in pieces of any length, at most one frame is stored, and errors have code 4.
    #[test]
    fn random_startup_bytes_give_result_or_error(
        prefix in 0usize..21,
        bytes in prop::collection::vec(any::<u8>(), 0..700),
        piece in 1usize..100,
        initiator: bool,
    ) {
        let mut startup = match initiator {
            true => new_initiator(&config(), &[]).expect("it fits"),
            false => Startup::responder(&config()),
        };
        let good = if initiator { reply(0xc0, 1, &[]) } else { request(0xc0, 1, &[]) };
        let mut stream = good[..prefix.min(20)].to_vec();
        stream.extend(bytes);
        for piece in stream.chunks(piece) {
            match startup.input(piece) {
                Ok((used, None)) => prop_assert_eq!(used, piece.len()),
                Ok((used, Some(_))) => {
                    prop_assert!(used <= piece.len());
                    break;
                }
                Err(error) => {
                    prop_assert_eq!(error.code(), 4);
                    break;
                }
            }
            prop_assert!(startup.received.len() <= 20 + 512);
        }
    }
}
