//! Tests with conforming streams of the corpus: their data is placed and answered.

use super::*;

/// Runs a corpus file without the final checks of `finish`.
fn play(name: &str) -> End {
    let path = format!("{}/corpus/tcp_endpoint/{name}", env!("CARGO_MANIFEST_DIR"));
    let data = std::fs::read(path).expect("the corpus is there");
    let mut end = End::new(Setup { stream_flags: data[0], tcp_flags: data[1] });
    let mut records = &data[2..];
    while let Some((&[action, len], rest)) = records.split_first_chunk::<2>() {
        let (bytes, next) = rest.split_at(usize::from(len));
        records = next;
        end.input_record(action & 15, action >> 4, Fields(bytes));
    }
    end
}

#[test]
fn good_corpus_streams_are_placed_and_answered() {
    for name in ["ddp_rev1", "ddp_rev1_markers", "ddp_initiator", "ddp_no_options_wrap", "ddp_rev0"]
    {
        let end = play(name);
        let memory = end.regions[0].to_vec();
        assert_eq!(memory[REGION.start..][..100], [b'a'; 100], "{name}");
        assert_eq!(
            end.endpoint.stats().ddp.tagged_delivered,
            if name.ends_with("markers") { 6 } else { 1 },
            "{name}"
        );
        end.finish();
    }
    for name in ["rdmap_send_write", "rdmap_rev2", "rdmap_rev2_initiator", "rdmap_our_read"] {
        let end = play(name);
        let counters = end.endpoint.stats().rdmap;
        assert_eq!(counters.terminates_sent, 0, "{name}");
        assert!(end.received.len() > 60, "{name}");
        end.finish();
    }
}
