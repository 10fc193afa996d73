//! Fuzz targets for single headers and messages: a parsed value must be equal after it is written and parsed again.

use tcp_lite::tcp::Segment;
use wire::ddp::{HeaderRepr, TAGGED_HEADER_LEN, UNTAGGED_HEADER_LEN};
use wire::mpa::{FRAME_HEADER_LEN, FirstBytes, FrameKind, FrameRepr, START_KEY_LEN};

pub(crate) fn mpa_frame(data: &[u8]) {
    if let Some(first) = data.first_chunk::<START_KEY_LEN>()
        && let Some(FirstBytes::StartKey(key)) = FirstBytes::parse(first)
    {
        assert_eq!(FirstBytes::parse(&key.emit()), Some(FirstBytes::StartKey(key)));
    }
    for kind in [FrameKind::Request, FrameKind::Reply] {
        if let Ok(frame) = FrameRepr::parse(data, kind) {
            let mut bytes = [0; FRAME_HEADER_LEN];
            frame.emit(&mut bytes);
            assert_eq!(FrameRepr::parse(&bytes, kind), Ok(frame));
        }
    }
}

pub(crate) fn ddp_header(data: &[u8]) {
    match HeaderRepr::parse(data) {
        Ok(HeaderRepr::Tagged(header)) => {
            let mut bytes = [0; TAGGED_HEADER_LEN];
            header.emit(&mut bytes);
            assert_eq!(HeaderRepr::parse(&bytes), Ok(HeaderRepr::Tagged(header)));
        }
        Ok(HeaderRepr::Untagged(header)) => {
            let mut bytes = [0; UNTAGGED_HEADER_LEN];
            header.emit(&mut bytes);
            assert_eq!(HeaderRepr::parse(&bytes), Ok(HeaderRepr::Untagged(header)));
        }
        Err(_) => {}
    }
}

pub(crate) fn advert(data: &[u8]) {
    if let Ok(regions) = ddp::advert::decode(data) {
        let bytes = ddp::advert::encode(&regions);
        assert!(bytes.len() <= data.len(), "the encoded advertisement is longer than its input");
        assert_eq!(ddp::advert::decode(&bytes), Ok(regions));
    }
}

pub(crate) fn last_message(data: &[u8]) {
    if let Ok(message) = ddp::last_message::LastMessage::parse(data) {
        assert_eq!(ddp::last_message::LastMessage::parse(&message.emit()), Ok(message));
    }
}

pub(crate) fn tcp_segment(data: &[u8]) {
    if let Ok(mut segment) = Segment::parse(data) {
        let mut bytes = vec![0; segment.wire_len()];
        let written = segment.emit(&mut bytes);
        let again = Segment::parse(&bytes[..written]);
        // Options are written with alignment, so some SACK blocks may not fit if the options of a SYN are present.
        let blocks = again.as_ref().map_or(0, |again| again.options.sack.len());
        let options = &segment.options;
        let of_a_syn =
            options.sack_permitted || options.mss.is_some() || options.window_scale.is_some();
        assert!(blocks == options.sack.len() || of_a_syn);
        segment.options.sack.truncate(blocks);
        assert_eq!(again, Ok(segment));
    }
}
