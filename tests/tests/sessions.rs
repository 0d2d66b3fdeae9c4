//! What sessions and pools promise, against the real guest.
//!
//! `cargo test --release --workspace --test sessions [FILTER]`. The longer
//! versions run with `FUMEHOOD_TEST_FULL=1`.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test program lives on the host and fails by panicking"
)]

#[path = "sessions/cells.rs"]
mod cells;
#[path = "sessions/clock.rs"]
mod clock;
#[path = "sessions/limits.rs"]
mod limits;
#[path = "sessions/random_life.rs"]
mod random_life;
#[path = "sessions/rollback.rs"]
mod rollback;
#[path = "sessions/support.rs"]
mod support;
