//! Start-up with peers that deviate from the specifications.

use super::*;

const LOCAL_DEPTHS: Depths = Depths { ird: 16, ord: 8 };

fn peer_config(peer: Peer, initiate: Revision) -> Config {
    Config { peer, initiate, crc: false, ..config() }
}

/// siw and Chelsio's adapters accept 256 bytes of private data, enhanced data included.
#[test]
fn private_data_is_limited_for_siw_and_cxgb4() {
    for peer in [Peer::Siw, Peer::Cxgb4] {
        for revision in [Revision::One, Revision::Two] {
            let config = peer_config(peer, revision);
            assert!(Startup::initiator(&config, LOCAL_DEPTHS, &[0; 252]).is_ok());
            let too_long = PrivateDataTooLong { len: 253, limit: 252 };
            let refused = Startup::initiator(&config, LOCAL_DEPTHS, &[0; 253]).map(|_| ());
            assert_eq!(refused, Err(too_long));
            let mut responder = Startup::responder(&config);
            let rev = revision.number();
            accept_request(&mut responder, &request(0x10, rev, b"\0\0\0\0"));
            assert_eq!(responder.accept(LOCAL_DEPTHS, &[0; 253]), Err(too_long.into()));
            assert!(responder.accept(LOCAL_DEPTHS, &[0; 252]).is_ok());
            assert!(responder.output().len() <= 20 + 256);
        }
    }
}

/// siw rejects a request for markers, so neither role sets bit M for siw.
#[test]
fn siw_gets_no_marker_request() {
    let config = peer_config(Peer::Siw, Revision::Two);
    assert!(config.markers);
    let startup = Startup::initiator(&config, LOCAL_DEPTHS, b"").expect("it fits");
    assert_eq!(startup.output()[16], 0x10);
    let mut responder = Startup::responder(&config);
    accept_request(&mut responder, &request(0x10, 2, b"\0\0\0\0"));
    let params = responder.accept(LOCAL_DEPTHS, b"").expect("it fits");
    assert_eq!((params.markers_rx, responder.output()[16]), (false, 0x10));
}

/// SMB Direct uses revision 1. The private data of both frames begins with IRD and ORD.
#[test]
fn smb_direct_startup_completes() {
    let config = peer_config(Peer::SmbDirect, Revision::One);
    let mut initiator = Startup::initiator(&config, LOCAL_DEPTHS, b"smb").expect("it fits");
    assert_eq!(initiator.output(), request(0x80, 1, b"\0\0\0\x10\0\0\0\x08smb"));
    let mut responder = Startup::responder(&config);
    let request = accept_request(&mut responder, initiator.output());
    assert_eq!(request.private_data, b"smb");
    assert_eq!(request.enhanced, Some(EnhancedRepr { ird: 16, ord: 8, rtr: None }));
    let params = responder.accept(Depths { ird: 4, ord: 1 }, b"").expect("it fits");
    assert_eq!(responder.output(), reply(0x80, 1, b"\0\0\0\x04\0\0\0\x01"));
    let depths = params.agreed.map(|agreed| agreed.depths);
    assert_eq!(depths, Some(Depths { ird: 4, ord: 1 }));
    let Ok((_, Some(Progress::Accepted { params, .. }))) = initiator.input(responder.output())
    else {
        panic!("accepted");
    };
    assert_eq!(params.agreed.map(|agreed| agreed.depths), Some(Depths { ird: 16, ord: 4 }));
    // IRD and ORD take 8 of the 512 bytes of private data.
    assert!(Startup::initiator(&config, LOCAL_DEPTHS, &[0; 504]).is_ok());
    assert!(Startup::initiator(&config, LOCAL_DEPTHS, &[0; 505]).is_err());
}

/// Private data shorter than IRD and ORD belongs to the ULP. The reply then has no IRD and ORD either.
#[test]
fn smb_direct_without_depths_keeps_private_data() {
    let config = peer_config(Peer::SmbDirect, Revision::One);
    let mut responder = Startup::responder(&config);
    let request = accept_request(&mut responder, &request(0, 1, b"seven.."));
    assert_eq!((request.enhanced, &request.private_data[..]), (None, &b"seven.."[..]));
    responder.accept(LOCAL_DEPTHS, b"").expect("it fits");
    assert_eq!(responder.output(), reply(0x80, 1, b""));
    // Revision 2 has the standard enhanced data instead.
    let two = peer_config(Peer::SmbDirect, Revision::Two);
    let startup = Startup::initiator(&two, LOCAL_DEPTHS, b"").expect("it fits");
    assert_eq!(startup.output(), super::request(0x90, 2, b"\0\x10\0\x08"));
}
