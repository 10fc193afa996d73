//! SAs: their presence and parameters in the data plane.

use std::sync::Arc;

use ipsec::crypto::Algorithm;
use ipsec::policy::Direction;
use ipsec::sa::{Encapsulation, Fragments, Inbound, Mode, Outbound, Parameters};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::state::ModifyMessage;
use netlink_packet_xfrm::*;
use xfrm::{Event, SaId, SequenceState};

use crate::kernel::*;

pub(crate) struct AddedSa {
    pub(crate) id: SaId,
    pub(crate) direction: Direction,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) sequence: SequenceState,
}

pub(crate) fn added_sas(events: &[Event]) -> Vec<AddedSa> {
    let added = |event: &Event| match event {
        Event::AddSa { id, direction, parameters, sequence, .. } => Some(AddedSa {
            id: *id,
            direction: *direction,
            parameters: parameters.clone(),
            sequence: *sequence,
        }),
        _ => None,
    };
    events.iter().filter_map(added).collect()
}

pub(crate) fn removed_ids(events: &[Event]) -> Vec<SaId> {
    let removed = |event: &Event| match event {
        Event::RemoveSa { id } => Some(*id),
        _ => None,
    };
    events.iter().filter_map(removed).collect()
}

pub(crate) fn warning_count(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Warning(_))).count()
}

/// Mirrors one SA with the policies of [`tunnel`]. Asserts that it is added, and returns it.
fn mirror_one(message: ModifyMessage) -> AddedSa {
    let (_, _, events) = synced_mirror(tunnel(1, 1), [message]);
    let mut added = added_sas(&events);
    assert_eq!(added.len(), 1, "{events:?}");
    added.remove(0)
}

fn is_refused(message: ModifyMessage, words: &str) {
    let (_, mirror, events) = synced_mirror(tunnel(1, 1), [message]);
    assert!(added_sas(&events).is_empty());
    let reasons = refusals(&events);
    assert!(reasons.len() == 1 && reasons[0].contains(words), "{reasons:?}");
    let info = mirror.sas().next().unwrap();
    assert_eq!((info.id, info.refused.as_ref()), (None, reasons.first()));
}

/// Returns an inbound SA with these algorithm attributes, and without AES-GCM.
pub(crate) fn sa_with_keys(attributes: impl IntoIterator<Item = XfrmAttrs>) -> ModifyMessage {
    let mut message = bare_sa("192.0.2.2", "192.0.2.1", 256, 1);
    message.nlas.push(XfrmAttrs::ReplayState(Replay::default()));
    message.nlas.extend(attributes);
    message
}

#[test]
fn sa_direction_and_endpoints_follow_policy() {
    let sas = [outbound(300, 1), inbound(400, 1)];
    let (_, mirror, events) = synced_mirror(tunnel(1, 1), sas);
    let [inbound, outbound] = &added_sas(&events)[..] else { panic!("{events:?}") };
    for (added, direction, spi) in [(outbound, Direction::Out, 300), (inbound, Direction::In, 400)]
    {
        assert_eq!((added.direction, added.parameters.spi), (direction, spi));
        let Mode::Tunnel(tunnel) = added.parameters.mode else { panic!() };
        assert_eq!((tunnel.source, tunnel.destination), (ip("192.0.2.1"), ip("192.0.2.2")));
        assert_eq!((tunnel.ttl, tunnel.dscp, tunnel.ecn), (64, None, true));
        assert_eq!(tunnel.fragments, Fragments::Copy);
    }
    assert_eq!(outbound.sequence, SequenceState::Outbound { first: 1, numbers: 1000 });
    assert_eq!(inbound.sequence, SequenceState::Inbound { highest: 0, window: 1024 });
    // The event with the policies precedes the events with the SAs.
    assert!(matches!(events[0], Event::Policies { .. }));
    let infos: Vec<_> = mirror.sas().collect();
    assert_eq!(infos[0].id, Some(outbound.id));
    assert_eq!(infos[0].algorithm, "rfc4106(gcm(aes))");
    assert_eq!((infos[1].spi, infos[1].reqid, infos[1].tunnel), (400, 1, true));
    assert_eq!(infos[1].service.unwrap().0, Direction::In);
    // The data plane accepts the parameters.
    Outbound::new(&outbound.parameters).unwrap();
    Inbound::new(&inbound.parameters, 1024).unwrap();
}

#[test]
fn every_algorithm_of_the_data_plane_is_mapped() {
    let separate = |cipher, cipher_bytes, mac, mac_bytes, bits| {
        let mac = authentication(mac, mac_bytes, bits);
        sa_with_keys(mac.into_iter().chain([encryption(cipher, cipher_bytes)]))
    };
    let aead = |name, bytes| sa_with_keys([aead(name, vec![KEY; bytes], 128)]);
    let all = [
        (aead("rfc4106(gcm(aes))", 20), Algorithm::AesGcm128),
        (aead("rfc4106(gcm(aes))", 36), Algorithm::AesGcm256),
        (aead("rfc7539esp(chacha20,poly1305)", 36), Algorithm::ChaCha20Poly1305),
        (aead("rfc4543(gcm(aes))", 20), Algorithm::AesGmac128),
        (aead("rfc4543(gcm(aes))", 36), Algorithm::AesGmac256),
        (separate("cbc(aes)", 16, "hmac(sha256)", 32, 128), Algorithm::AesCbc128HmacSha256),
        (separate("cbc(aes)", 32, "hmac(sha256)", 32, 128), Algorithm::AesCbc256HmacSha256),
        (separate("cbc(aes)", 16, "hmac(sha1)", 20, 96), Algorithm::AesCbc128HmacSha1),
        (separate("cbc(aes)", 32, "hmac(sha1)", 20, 96), Algorithm::AesCbc256HmacSha1),
        (separate("ecb(cipher_null)", 0, "hmac(sha256)", 32, 128), Algorithm::NullHmacSha256),
        (separate("cipher_null", 0, "sha1", 20, 96), Algorithm::NullHmacSha1),
    ];
    assert_eq!(all.each_ref().map(|(_, algorithm)| *algorithm), Algorithm::ALL);
    for (message, algorithm) in all {
        let added = mirror_one(message);
        assert_eq!(added.parameters.algorithm, algorithm);
        // The data plane accepts the lengths of the keys.
        Inbound::new(&added.parameters, 64).unwrap();
    }
}

#[test]
fn unknown_algorithms_are_refused() {
    is_refused(sa_with_keys([aead("rfc4106(gcm(aes))", vec![KEY; 20], 96)]), "96 bits");
    is_refused(sa_with_keys([aead("rfc4106(gcm(aes))", vec![KEY; 28], 128)]), "28 bytes");
    is_refused(sa_with_keys([aead("rfc4309(ccm(aes))", vec![KEY; 19], 128)]), "rfc4309(ccm(aes))");
    is_refused(sa_with_keys([aead("rfc4106(gcm(aes))", vec![0; 20], 128)]), "lockdown");
    is_refused(sa_with_keys([encryption("cbc(aes)", 16)]), "authentication");
    let mac = |name, bytes, bits| {
        let mac = authentication(name, bytes, bits);
        sa_with_keys(mac.into_iter().chain([encryption("cbc(aes)", 16)]))
    };
    is_refused(mac("hmac(sha256)", 32, 96), "96 bits");
    is_refused(mac("hmac(sha512)", 64, 256), "hmac(sha512)");
    is_refused(mac("digest_null", 0, 0), "digest_null");
    let mut zero = authentication("hmac(sha256)", 32, 128);
    for nla in &mut zero {
        if let XfrmAttrs::AuthenticationAlgTrunc(algo) = nla {
            algo.alg_key.fill(0);
        }
    }
    is_refused(sa_with_keys(zero.into_iter().chain([encryption("cbc(aes)", 16)])), "lockdown");
    let des = authentication("hmac(sha256)", 32, 128).into_iter();
    is_refused(sa_with_keys(des.chain([encryption("cbc(des3_ede)", 24)])), "cbc(des3_ede)");
}

#[test]
fn unsupported_sa_properties_are_refused() {
    let change = |change: fn(&mut UserSaInfo)| {
        let mut message = inbound(256, 1);
        change(&mut message.user_sa_info);
        message
    };
    is_refused(with(inbound(256, 1), XfrmAttrs::Mark(Mark { value: 1, mask: 1 })), "mark");
    is_refused(with(inbound(256, 1), XfrmAttrs::IfId(2)), "XFRM interface 2");
    let device = XfrmAttrs::OffloadDevice(UserOffloadDev { ifindex: 2, flags: 0 });
    is_refused(with(inbound(256, 1), device), "hardware offload");
    is_refused(with(inbound(256, 1), XfrmAttrs::TfcPadding(1400)), "TFC");
    is_refused(change(|info| info.lifetime_cfg.soft_use_expires_seconds = 1), "first use");
    is_refused(change(|info| info.lifetime_cfg.hard_use_expires_seconds = 1), "first use");
    is_refused(change(|info| info.flags |= XFRM_STATE_WILDRECV), "wildrecv");
    is_refused(change(|info| info.selector.proto = 6), "selector");
    is_refused(change(|info| info.selector.ifindex = 6), "device 6");
    is_refused(change(|info| info.mode = XFRM_MODE_BEET), "BEET");
    is_refused(change(|info| info.mode = 5), "mode 5");
    is_refused(change(|info| info.flags |= XFRM_STATE_ESN), "ESN");
    is_refused(change(|info| info.id.spi = 255), "reserved");
    is_refused(change(|info| info.id.proto = IPPROTO_AH), "only ESP");
    is_refused(change(|info| info.family = 99), "neither of IPv4 nor of IPv6");
    let tcp = EncapTmpl { encap_type: TCP_ENCAP_ESPINTCP, ..EncapTmpl::default() };
    is_refused(with(inbound(256, 1), XfrmAttrs::EncapsulationTemplate(tcp)), "type 7");
    let mut none = inbound(256, 1);
    none.nlas.retain(|nla| !matches!(nla, XfrmAttrs::ReplayState(_)));
    is_refused(none, "no sequence numbers");
}

#[test]
fn sa_flags_set_parameters() {
    let tunnel = |message| match mirror_one(message).parameters.mode {
        Mode::Tunnel(tunnel) => tunnel,
        Mode::Transport => panic!(),
    };
    let mut message = inbound(256, 1);
    message.user_sa_info.flags = XFRM_STATE_NOECN | XFRM_STATE_NOPMTUDISC | XFRM_STATE_DECAP_DSCP;
    let got = tunnel(with(message, XfrmAttrs::ExtraFlags(XFRM_SA_XFLAG_DONT_ENCAP_DSCP)));
    assert_eq!((got.ecn, got.fragments, got.dscp), (false, Fragments::Allowed, Some(0)));
    // Mark 0 matches packets without a mark, so the SA is accepted.
    tunnel(with(inbound(256, 1), XfrmAttrs::Mark(Mark { value: 0, mask: 1 })));
}

#[test]
fn transport_mode_serves_two_hosts() {
    let template = template("0.0.0.0", "0.0.0.0", 1, XFRM_MODE_TRANSPORT);
    let hosts = policy(XFRM_POLICY_OUT, "192.0.2.1/32", "192.0.2.2/32");
    let mut message = outbound(256, 1);
    message.user_sa_info.mode = XFRM_MODE_TRANSPORT;
    let (_, _, events) = synced_mirror([protect(hosts, template)], [message, outbound(257, 1)]);
    // An SA in another mode does not serve the policy.
    let [added] = &added_sas(&events)[..] else { panic!("{events:?}") };
    assert_eq!((added.parameters.spi, added.parameters.mode), (256, Mode::Transport));
}

#[test]
fn udp_encapsulation_has_local_port_first() {
    let udp = |encap_sport, encap_dport| {
        let encap_type = UDP_ENCAP_ESPINUDP;
        let encap_oa = Address::default();
        XfrmAttrs::EncapsulationTemplate(EncapTmpl {
            encap_type,
            encap_sport,
            encap_dport,
            encap_oa,
        })
    };
    let both = Encapsulation { source: 4500, destination: 61000 };
    let out = mirror_one(with(outbound(256, 1), udp(4500, 61000)));
    assert_eq!(out.parameters.encapsulation, Some(both));
    // The kernel's inbound SA has the ports of received packets: the source port is the peer's.
    let back = mirror_one(with(inbound(256, 1), udp(61000, 4500)));
    assert_eq!(back.parameters.encapsulation, Some(both));
}

#[test]
fn lifetimes_are_remaining_amounts() {
    let mut message = inbound(256, 1);
    let info = &mut message.user_sa_info;
    info.lifetime_cfg.soft_byte_limit = 1000;
    info.lifetime_cfg.hard_byte_limit = 2000;
    info.lifetime_cfg.hard_packet_limit = 3;
    (info.lifetime_cur.bytes, info.lifetime_cur.packets) = (1500, 1);
    let parameters = mirror_one(message).parameters;
    assert_eq!((parameters.soft.bytes, parameters.soft.packets), (Some(0), None));
    assert_eq!((parameters.hard.bytes, parameters.hard.packets), (Some(500), Some(2)));
    assert_eq!(parameters.hard.until, None);
}

#[test]
fn windows_and_sequence_numbers_continue() {
    let inbound_of = |message| mirror_one(message).sequence;
    let esn = with_esn(inbound(256, 1), 0, 5 << 32 | 7, 2048);
    assert_eq!(inbound_of(esn), SequenceState::Inbound { highest: 5 << 32 | 7, window: 2048 });
    let large = with_esn(inbound(256, 1), 0, 0, 1 << 15);
    assert_eq!(inbound_of(large), SequenceState::Inbound { highest: 0, window: 4096 });
    let short = with_replay(inbound(256, 1), 0, 99);
    assert_eq!(inbound_of(short), SequenceState::Inbound { highest: 99, window: 1024 });
    // The kernel uses the 64-bit state for a large window without ESN. The high half is then not part of the sequence
    // number.
    let mut wide = with_esn(inbound(256, 1), 0, 1 << 32 | 8, 64);
    wide.user_sa_info.flags &= !XFRM_STATE_ESN;
    let added = mirror_one(wide);
    assert_eq!(added.sequence, SequenceState::Inbound { highest: 8, window: 1024 });
    assert!(!added.parameters.esn);
    let added = mirror_one(with_esn(outbound(256, 1), 1 << 33, 0, 64));
    assert_eq!(added.sequence, SequenceState::Outbound { first: (1 << 33) + 1, numbers: 1000 });
    assert!(added.parameters.esn);
    // Near the end of the number space fewer numbers are left, or none.
    let last = with_replay(outbound(256, 1), u32::MAX - 2, 0);
    assert_eq!(
        mirror_one(last).sequence,
        SequenceState::Outbound { first: u64::from(u32::MAX) - 1, numbers: 2 }
    );
    is_refused(with_replay(outbound(256, 1), u32::MAX, 0), "used up");
}

#[test]
fn sa_serves_only_matching_endpoints_reqid_and_mode() {
    let mut transport = outbound(300, 1);
    transport.user_sa_info.mode = XFRM_MODE_TRANSPORT;
    let others = [
        outbound(301, 2),
        sa("192.0.2.1", "192.0.2.3", 302, 1),
        sa("192.0.2.3", "192.0.2.1", 303, 1),
        transport,
        // XFRMA_SA_DIR contradicts the direction of the addresses.
        with(outbound(304, 1), sa_direction(1)),
        with(inbound(305, 1), sa_direction(2)),
    ];
    let (_, _, events) = synced_mirror(tunnel(1, 1), others);
    assert!(added_sas(&events).is_empty());
    assert_eq!(mirror_one(with(outbound(306, 1), sa_direction(2))).direction, Direction::Out);
    assert_eq!(mirror_one(with(inbound(306, 1), sa_direction(1))).direction, Direction::In);
}

#[test]
fn template_spi_selects_one_sa() {
    let mut of = template("192.0.2.1", "192.0.2.2", 1, XFRM_MODE_TUNNEL);
    of.id.spi = 301;
    let policy = protect(policy(XFRM_POLICY_OUT, "10.1.0.0/16", "10.2.0.0/16"), of);
    let (_, _, events) = synced_mirror([policy], [outbound(300, 1), outbound(301, 1)]);
    let added = added_sas(&events);
    assert_eq!(added.iter().map(|added| added.parameters.spi).collect::<Vec<_>>(), [301]);
}

#[test]
fn larval_sas_and_other_protocols_are_ignored() {
    let larval = bare_sa("192.0.2.2", "192.0.2.1", 256, 1);
    let acquired = inbound(0, 1);
    let mut ipip = inbound(257, 1);
    ipip.user_sa_info.id.proto = 4;
    let (_, mirror, events) = synced_mirror(tunnel(1, 1), [larval, acquired, ipip]);
    assert_eq!(events.len(), 1);
    assert_eq!(mirror.sas().count(), 0);
}

#[test]
fn attribute_with_wrong_length_is_malformed() {
    let (mut kernel, mut mirror, _) = synced_mirror(tunnel(1, 1), []);
    let mut short = inbound(400, 1);
    for nla in &mut short.nlas {
        if let XfrmAttrs::EncryptionAlgAead(algo) = nla {
            algo.alg_key_len = 36 * 8;
        }
    }
    let mut bitmap = with_esn(inbound(401, 1), 0, 0, 64);
    for nla in &mut bitmap.nlas {
        if let XfrmAttrs::ReplayStateEsn(replay) = nla {
            replay.bmp_len = 3;
        }
    }
    kernel.add_sa(short);
    kernel.add_sa(bitmap);
    let events = kernel.run(&mut mirror);
    assert_eq!(
        (mirror.counters().malformed, warning_count(&events), mirror.sas().count()),
        (2, 2, 0)
    );
}

#[test]
fn bytes_after_key_are_ignored() {
    let mut message = inbound(400, 1);
    for nla in &mut message.nlas {
        if let XfrmAttrs::EncryptionAlgAead(algo) = nla {
            algo.alg_key.extend([7; 4]);
        }
    }
    assert_eq!(mirror_one(message).parameters.algorithm, Algorithm::AesGcm128);
}

#[test]
fn sas_are_distinguished_by_mark() {
    let mark = || XfrmAttrs::Mark(Mark { value: 1, mask: 1 });
    let sas = [inbound(400, 1), with(inbound(400, 1), mark())];
    let (mut kernel, mut mirror, events) = synced_mirror(tunnel(1, 1), sas);
    assert_eq!((added_sas(&events).len(), mirror.sas().count()), (1, 2));
    kernel.delete_sa(0);
    assert!(kernel.run(&mut mirror).is_empty());
    assert_eq!(mirror.sas().count(), 1);
}

#[test]
fn debug_output_hides_keys() {
    let (_, mirror, events) =
        synced_mirror(tunnel(1, 1), [outbound(300, 1), sa_with_keys([encryption("x", 16)])]);
    let shown =
        format!("{events:?} {:?} {:?}", mirror.sas().collect::<Vec<_>>(), mirror.counters());
    assert!(shown.contains("Keys(..)"));
    for form in ["165, 165", "a5a5", "0xa5"] {
        assert!(!shown.contains(form), "{shown}");
    }
}
