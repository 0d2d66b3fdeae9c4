//! The command `fumehood`, as a user meets it: the real binary in processes of
//! its own.
//!
//! One test program for all of it; `cargo test --release --workspace --test
//! command [FILTER]`. A test has its own directory, home and records
//! ([`support::Place`]) and shares the compiled guest; those in `basics` share
//! records too, which are not the user's.
#![allow(clippy::disallowed_methods, reason = "these tests start the command and make its files")]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod basics;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod native;
mod network;
mod policies;
mod projects;
mod shipped;
mod support;
