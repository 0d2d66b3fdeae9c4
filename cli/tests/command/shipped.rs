//! What must not be in the command that is shipped.

use std::process::Command;

use crate::support::BINARY;

/// `fumehood_policies::weaken::MARK`, which only a build with that feature has;
/// the test `weaken` compares both and finds it in its own programs.
const MARK: &str = "fumehood-weakened-build-not-for-use-5d1c";

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn no_switch_for_defences_is_in_the_command() {
    let bytes = std::fs::read(BINARY).unwrap();
    // The control: text of the command is found in this way.
    assert!(contains(&bytes, "FUMEHOOD_CACHE_DIR"));
    assert!(!contains(&bytes, MARK), "the command was built with the feature `weaken`");
}

#[test]
fn the_attackers_are_not_in_the_command() {
    let bytes = std::fs::read(BINARY).unwrap();
    for text in ["canary-outside-every-mount", "FUMEHOOD_ATTACK_CANARY"] {
        assert!(!contains(&bytes, text), "the command was built with the feature `eval`");
    }
    let output = Command::new(BINARY).args(["eval", "attacks"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}
