//! Replays what the fuzzers kept, and seeds that were written by hand.
#![allow(clippy::disallowed_methods, reason = "tests read the corpora")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fumehood_fuzz_targets::TARGETS;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn names(directory: &Path) -> BTreeSet<String> {
    std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_kept_input_holds() {
    for (name, target) in TARGETS {
        let corpus = fuzz().join("corpus").join(name);
        let inputs = names(&corpus);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            let bytes = std::fs::read(corpus.join(&input)).unwrap();
            let held = std::panic::catch_unwind(|| target(&bytes));
            assert!(held.is_ok(), "the target {name} fails for {input}");
        }
    }
}

#[test]
fn every_target_has_its_fuzzer_and_its_corpus() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz().join("corpus")), targets);
    let fuzzers = names(&fuzz().join("fuzz_targets"));
    let fuzzers: BTreeSet<String> =
        fuzzers.iter().filter_map(|name| name.strip_suffix(".rs")).map(str::to_owned).collect();
    assert_eq!(fuzzers, targets);
    for name in targets {
        let text = std::fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(text.contains(&format!("fumehood_fuzz_targets::{name}(")), "{name}");
    }
}

/// Cheap inputs of every length, so that a target is exercised where its
/// corpus is small.
#[test]
fn arbitrary_bytes_hold() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for (_, target) in TARGETS {
        for length in 0..300 {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            target(&bytes);
        }
    }
}
