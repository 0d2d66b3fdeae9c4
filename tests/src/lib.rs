//! The test harness of fumehood: attacks as data, what judges them, and the
//! board of what came of them.
//!
//! Invariant: nothing here is part of the product; it may panic where a panic
//! is a failed test, and it never weakens a case to make it pass.
#![allow(
    clippy::panic,
    clippy::result_large_err,
    reason = "a harness that provokes panics, and is not on any hot path"
)]

pub mod attacks;
pub mod board;
pub mod evaluate;
pub mod harness;
