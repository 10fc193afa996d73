//! Checks the effects of the named inputs, so that the target is known to reach the code under test.

use std::path::Path;

use dataplane::{ProgramEvent, QueuePairError};
use verbs_layout::completion::CompletionError;
use verbs_layout::ring::RingError;
use verbs_layout::work::DescriptorError;

use super::world::HOSTILE;
use super::{Outcome, program::pair_id, run};

fn run_named(name: &str) -> Outcome {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/hostile_program");
    run(&std::fs::read(corpus.join(name)).expect("a named input"))
}

#[test]
fn named_inputs_end_the_hostile_pair_for_their_reason() {
    use QueuePairError::*;
    for (name, expected) in [
        ("source-of-the-good-program", SendProtection),
        ("sink-of-the-good-program", SendProtection),
        ("secret-of-the-good-program", SendProtection),
        ("source-beyond-the-region", SendProtection),
        ("receive-into-the-good-program", ReceiveProtection),
        ("local-invalidate", SendProtection),
        ("lying-index-of-sends", SendQueue(RingError::LyingIndex)),
        ("lying-index-goes-back", SendQueue(RingError::LyingIndex)),
        ("lying-index-of-receives", ReceiveQueue(RingError::LyingIndex)),
        ("units-of-zero", SendQueue(RingError::UnitCount(0))),
        ("truncated-descriptor", SendQueue(RingError::Truncated { units: 3, available: 1 })),
        ("unknown-opcode", SendDescriptor(DescriptorError::Opcode(99))),
    ] {
        let outcome = run_named(name);
        let event = ProgramEvent::QueuePairFailed { id: pair_id(HOSTILE), reason: expected };
        assert_eq!(outcome.failures, [event], "{name}");
        assert!(outcome.is_closed, "{name}");
    }
}

#[test]
fn named_inputs_fail_the_completion_queue() {
    for (name, expected) in [
        ("cq-overflows", CompletionError::Full),
        ("lying-index-of-completions", CompletionError::LyingIndex),
    ] {
        let failures = run_named(name).failures;
        let [ProgramEvent::CompletionQueueFailed { reason, .. }, _] = failures[..] else {
            panic!("{name}: {failures:?}")
        };
        assert_eq!(reason, expected, "{name}");
    }
}

#[test]
fn refused_access_to_the_peers_memory_ends_the_stream_without_a_failure() {
    for name in [
        "read-of-the-peers-secret",
        "write-to-the-peers-secret",
        "write-to-the-witness",
        "read-of-the-witness",
        "sends-without-receives",
    ] {
        let outcome = run_named(name);
        assert!(outcome.failures.is_empty() && outcome.is_closed, "{name}");
    }
}

#[test]
fn valid_operations_keep_the_pair() {
    for name in [
        "sends-fill-receives",
        "writes-to-the-peer",
        "reads-of-the-peer",
        "atomics",
        "fence-after-reads",
        "cq-is-polled",
        "armed-cq",
        "doorbells-without-queues",
        "sleeping-flag",
    ] {
        let outcome = run_named(name);
        assert!(outcome.failures.is_empty(), "{name}: {:?}", outcome.failures);
        assert!(!outcome.is_closed, "{name}");
    }
}
