//! Start-up in revision 2: bit S, IRD and ORD in both frames (RFC 6581 §6, §9, §10).

use super::*;
use crate::mpa::testing::hex;
use crate::mpa::{Enhanced, NO_LIMIT, Readiness, Rtr, RtrSet};

const LOCAL_DEPTHS: Depths = Depths { ird: 16, ord: 8 };

fn revision_two_config() -> Config {
    Config { initiate: Revision::Two, markers: false, crc: false, ..config() }
}

fn new_initiator(config: &Config, private_data: &[u8]) -> Startup {
    Startup::initiator(config, LOCAL_DEPTHS, private_data).expect("it fits")
}

fn accept_reply(startup: &mut Startup, bytes: &[u8]) -> Params {
    match startup.input(bytes) {
        Ok((_, Some(Progress::Accepted { params, .. }))) => params,
        other => panic!("{other:?}"),
    }
}

/// RFC 6581 §6, §9: both frames have bit S, Rev 2, and the enhanced data before the ULP's data.
#[test]
fn enhanced_startup_completes() {
    let mut initiator = new_initiator(&revision_two_config(), b"hello");
    assert_eq!(initiator.output(), request(0x10, 2, b"\0\x10\0\x08hello"));
    let mut responder = Startup::responder(&revision_two_config());
    let request = accept_request(&mut responder, initiator.output());
    assert_eq!((request.revision, &request.private_data[..]), (Revision::Two, &b"hello"[..]));
    assert_eq!(request.enhanced, Some(EnhancedRepr { ird: 16, ord: 8, rtr: None }));
    let here = responder.accept(Depths { ird: 4, ord: 4 }, b"welcome").expect("it fits");
    assert_eq!(responder.output(), reply(0x10, 2, b"\0\x04\0\x04welcome"));
    let agreed = here.agreed.expect("negotiated");
    assert_eq!((agreed.depths, agreed.peer), (Depths { ird: 4, ord: 4 }, LOCAL_DEPTHS));
    let there = accept_reply(&mut initiator, responder.output());
    let agreed = there.agreed.expect("negotiated");
    assert_eq!(agreed.depths, Depths { ird: 16, ord: 4 });
    assert_eq!(agreed.peer, Depths { ird: 4, ord: 4 });
    assert_eq!(agreed.readiness, Readiness::ClientServer);
}

/// RFC 6581 §10: a request without bit S is answered without bit S, with Rev 1 and with Rev 2.
#[test]
fn request_without_s_gets_reply_without_s() {
    for rev in [1, 2] {
        let mut responder = Startup::responder(&revision_two_config());
        let request = accept_request(&mut responder, &request(0, rev, b"data"));
        assert_eq!((request.enhanced, &request.private_data[..]), (None, &b"data"[..]));
        let params = responder.accept(LOCAL_DEPTHS, b"x").expect("it fits");
        assert_eq!(responder.output(), reply(0, rev, b"x"));
        assert_eq!(params.agreed, None);
        // A reject has no bit S either.
        let mut responder = Startup::responder(&revision_two_config());
        accept_request(&mut responder, &super::request(0, rev, b"data"));
        responder.reject(b"x").expect("it fits");
        assert_eq!(responder.output(), reply(0x20, rev, b"x"));
    }
}

/// RFC 6581 §6: before revision 2, bit S is reserved and not examined.
#[test]
fn s_flag_is_ignored_before_revision_two() {
    for rev in [0, 1] {
        let mut responder = Startup::responder(&revision_two_config());
        let request = accept_request(&mut responder, &request(0x10, rev, b"four"));
        assert_eq!((request.enhanced, &request.private_data[..]), (None, &b"four"[..]));
    }
}

/// RFC 6581 §6: bit S announces four bytes of enhanced data.
#[test]
fn s_flag_without_enhanced_data_is_an_error() {
    let error = StartupError::EnhancedData { seen: 3 };
    assert_eq!(request_error(&revision_two_config(), &request(0x10, 2, b"abc")), error);
    assert_eq!(error.code(), 4);
    let mut initiator = new_initiator(&revision_two_config(), b"");
    assert_eq!(initiator.input(&reply(0x10, 2, b"abc")), Err(error));
    // A reject without enhanced data is still a reject.
    let mut initiator = new_initiator(&revision_two_config(), b"");
    let done = initiator.input(&reply(0x30, 2, b"no")).expect("a reject");
    let rejected = Progress::Rejected { private_data: b"no".to_vec(), enhanced: None };
    assert_eq!(done.1, Some(rejected));
}

/// RFC 6581 §10: an enhanced request requires an enhanced reply of revision 2.
#[test]
fn unenhanced_reply_to_enhanced_request_is_an_error() {
    for (bytes, error) in [
        (reply(0, 2, b""), StartupError::NotEnhanced),
        (reply(0, 1, b""), StartupError::Revision { seen: 1 }),
        (reply(0, 0, b""), StartupError::Revision { seen: 0 }),
        (reply(0x10, 3, b"\0\0\0\0"), StartupError::Revision { seen: 3 }),
    ] {
        let mut initiator = new_initiator(&revision_two_config(), b"");
        assert_eq!(initiator.input(&bytes), Err(error));
    }
}

/// RFC 6581 §9: the 512 bytes of private data include the enhanced data.
#[test]
fn enhanced_data_counts_as_private_data() {
    assert!(Startup::initiator(&revision_two_config(), LOCAL_DEPTHS, &[0; 508]).is_ok());
    let too_long = PrivateDataTooLong { len: 509, limit: 508 };
    assert_eq!(
        Startup::initiator(&revision_two_config(), LOCAL_DEPTHS, &[0; 509]).map(|_| ()),
        Err(too_long)
    );
    let mut responder = Startup::responder(&revision_two_config());
    let request = accept_request(&mut responder, &request(0x10, 2, &[0; 512]));
    assert_eq!(request.private_data.len(), 508);
    assert_eq!(responder.accept(LOCAL_DEPTHS, &[0; 509]), Err(too_long.into()));
    assert_eq!(responder.reject(&[0; 509]), Err(too_long));
    responder.accept(LOCAL_DEPTHS, &[0; 508]).expect("it fits");
    assert_eq!(responder.output().len(), 20 + 512);
}

/// RFC 6581 §9.1: a depth of 0x3FFF (no limit) is answered by 0x3FFF. This end's own limits stay in force.
#[test]
fn no_limit_depth_is_echoed() {
    let mut responder = Startup::responder(&revision_two_config());
    accept_request(&mut responder, &request(0x10, 2, b"\x3f\xff\x3f\xff"));
    let params = responder.accept(LOCAL_DEPTHS, b"").expect("it fits");
    assert_eq!(responder.output(), reply(0x10, 2, b"\x3f\xff\x3f\xff"));
    assert_eq!(params.agreed.map(|agreed| agreed.depths), Some(LOCAL_DEPTHS));
    let mut initiator = new_initiator(&revision_two_config(), b"");
    let params = accept_reply(&mut initiator, &reply(0x10, 2, b"\x3f\xff\x3f\xff"));
    let agreed = params.agreed.expect("negotiated");
    assert_eq!(agreed.depths, LOCAL_DEPTHS);
    assert_eq!(agreed.peer, Depths { ird: NO_LIMIT, ord: NO_LIMIT });
}

/// RFC 6581 §9.1: the initiator's ULP receives the required ORD.
#[test]
fn reject_carries_required_ord() {
    let enhanced = Enhanced { required_ord: 5, ..Enhanced::default() };
    let mut responder = Startup::responder(&Config { enhanced, ..revision_two_config() });
    accept_request(&mut responder, &request(0x10, 2, b"\0\x04\0\x02"));
    let error = StartupError::InsufficientIrd { offered: 4, needed: 5 };
    assert_eq!(responder.accept(LOCAL_DEPTHS, b""), Err(AcceptError::Unsuitable(error)));
    responder.reject(b"reads").expect("it fits");
    assert_eq!(responder.output(), reply(0x30, 2, b"\0\x04\0\x05reads"));
    let mut initiator = new_initiator(&revision_two_config(), b"");
    let done = initiator.input(responder.output()).expect("a reject");
    let enhanced = Some(EnhancedRepr { ird: 4, ord: 5, rtr: None });
    let rejected = Progress::Rejected { private_data: b"reads".to_vec(), enhanced };
    assert_eq!(done.1, Some(rejected));
}

/// RFC 6581 §9.1, §9.2: after an unsuitable reply the initiator enters Full Operation to send a Terminate.
#[test]
fn unsuitable_reply_allows_a_terminate() {
    let rtr = RtrSet { write: true, ..RtrSet::default() };
    let enhanced = Enhanced { peer_to_peer: true, rtr, required_ord: 0 };
    let p2p = Config { enhanced, ..revision_two_config() };
    for (words, error) in [
        (b"\x80\x04\x80\x20", StartupError::InsufficientIrd { offered: 16, needed: 32 }),
        (b"\x80\x04\x40\x04", StartupError::NoRtr),
        (b"\0\x04\0\x04", StartupError::NoRtr),
    ] {
        let mut initiator = new_initiator(&p2p, b"");
        assert_eq!(&initiator.output()[20..], b"\x80\x10\x80\x08");
        let done = initiator.input(&reply(0x50, 2, words)).expect("a good frame");
        let Some(Progress::Unsuitable { params, error: seen }) = done.1 else { panic!("{done:?}") };
        assert_eq!((seen, params.crc), (error, true));
    }
}

/// Frames of siw as initiator and as responder, also in the peer-to-peer model.
#[test]
fn captured_siw_enhanced_frames_are_parsed() {
    let captured = hex("4d504120494420526571204672616d655002000400040004");
    let mut responder = Startup::responder(&config());
    let request = accept_request(&mut responder, &captured);
    assert_eq!(request.enhanced, Some(EnhancedRepr { ird: 4, ord: 4, rtr: None }));
    responder.accept(LOCAL_DEPTHS, b"").expect("it fits");
    assert_eq!(responder.output(), reply(0xd0, 2, b"\0\x04\0\x04"));
    // Requests of rping (one Read in each direction) and perftest (none).
    for (words, here) in [(b"\0\x01\0\x01", (1, 1)), (b"\0\0\0\0", (0, 0))] {
        let mut responder = Startup::responder(&revision_two_config());
        accept_request(&mut responder, &super::request(0x10, 2, words));
        let params = responder.accept(LOCAL_DEPTHS, b"").expect("it fits");
        let depths = params.agreed.map(|agreed| (agreed.depths.ird, agreed.depths.ord));
        assert_eq!(depths, Some(here));
    }
    // The request offers Write and Read; siw's reply selects Write.
    let rtr = RtrSet { send: false, ..RtrSet::ALL };
    let enhanced = Enhanced { peer_to_peer: true, rtr, required_ord: 0 };
    let four = Depths { ird: 4, ord: 4 };
    let mut initiator =
        Startup::initiator(&Config { enhanced, ..revision_two_config() }, four, b"")
            .expect("it fits");
    assert_eq!(&initiator.output()[20..], hex("8004c004"));
    let params = accept_reply(&mut initiator, &reply(0x10, 2, &hex("80048004")));
    let readiness = params.agreed.map(|agreed| agreed.readiness);
    assert_eq!(readiness, Some(Readiness::SendsRtr(Rtr::Write)));
    let mut responder = Startup::responder(&Config { enhanced, ..revision_two_config() });
    accept_request(&mut responder, &super::request(0x10, 2, &hex("8004c004")));
    let params = responder.accept(four, b"").expect("it fits");
    assert_eq!(&responder.output()[20..], hex("8004c004"));
    assert_eq!(params.agreed.map(|agreed| agreed.readiness), Some(Readiness::AwaitsRtr(rtr)));
}

/// siw may set bit C in its reply to a request without bit C. CRCs are then on in both directions.
#[test]
fn reply_may_turn_crcs_on() {
    let mut initiator = new_initiator(&revision_two_config(), b"");
    assert!(accept_reply(&mut initiator, &reply(0x50, 2, b"\0\0\0\0")).crc);
}
