//! Long sessions and their memory.

use fumehood_tests::harness::machine::resident_bytes;

use crate::support::{rolled_back, session, trap, value};

const LONG_LIFE: &str = "limits::ten_thousand_cells_take_no_more_memory_than_a_thousand";
/// Set in the process that lives it.
const ALONE: &str = "FUMEHOOD_TEST_ALONE";
/// What the allocator may keep for itself, in bytes.
const NOISE: u64 = 32 << 20;

#[test]
fn ten_thousand_cells_take_no_more_memory_than_a_thousand() {
    if std::env::var_os(ALONE).is_some() {
        return long_life();
    }
    // In a process of its own: what other tests take would be counted.
    let own = std::env::current_exe().unwrap();
    let output = std::process::Command::new(own)
        .args(["--exact", LONG_LIFE, "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

fn long_life() {
    let session = session();
    let cell = "rows = [{'n': n, 'text': str(n) * 3} for n in range(50)]\nlen(rows)";
    let mut after_warm_up = None;
    for n in 0..10_000 {
        assert_eq!(value(&session, cell), "50");
        if n % 1000 == 999 {
            rolled_back(&session, trap(cell));
        }
        if n == 999 {
            after_warm_up = Some((session.usage().wait().unwrap(), resident_bytes()));
        }
    }
    let usage = session.usage().wait().unwrap();
    let (before, resident_before) = after_warm_up.unwrap();
    let grown = usage.memory_bytes.saturating_sub(before.memory_bytes);
    assert!(grown <= 1 << 20, "the session has grown by {grown} bytes");
    let pages = usage.changed_pages.saturating_sub(before.changed_pages);
    assert!(pages <= 256, "{pages} more pages differ");
    let grown = usage.checkpoint_bytes.saturating_sub(before.checkpoint_bytes);
    assert!(grown <= 4 << 20, "its checkpoints have grown by {grown} bytes");
    if let (Some(now), Some(before)) = (resident_bytes(), resident_before) {
        let grown = now.saturating_sub(before);
        assert!(grown <= NOISE, "the process has grown by {grown} bytes");
    }
}

#[test]
fn files_and_usage_are_told() {
    let session = session();
    value(&session, "open('/work/a.txt', 'w').write('abc')\nopen('/tmp/b', 'w').write('')");
    let files = session.files().wait().unwrap();
    let listed: Vec<_> = files.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    assert_eq!(listed, [("/tmp/b", 0), ("/work/a.txt", 3)]);
    assert!(!files.more);
    let usage = session.usage().wait().unwrap();
    assert_eq!((usage.cells, usage.rolled_back, usage.checkpoints), (1, 0, 1));
    assert!(usage.memory_bytes > 0 && usage.changed_pages > 0);
}
