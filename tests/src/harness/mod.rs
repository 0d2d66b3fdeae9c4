//! The attack harness: attacks as data, and one way to judge them.
//!
//! What: an [`Attack`] states a property, an attempt to break it, a control
//! that shows the attempt would matter, and what is expected; [`run`] carries
//! it out and gives a [`Verdict`].
//! Why: a green board must mean that something was tried. A control that fails
//! is an error, never a success; an attack that got through is never a skip.
//!
//! Invariant: after every attempt the harness looks at the host too: no panic,
//! the next run works, nothing outside the mounts changed, and no detail of
//! the host is in anything the attack could see or return.

mod attack;
mod canaries;
mod container;
mod judge;
pub mod machine;
mod observed;
mod report;
mod run;
mod stage;
#[cfg(test)]
mod tests;
pub mod wat;
mod world;

pub use attack::{
    Attack, Attempt, Capability, Control, Expected, HostAttempt, REACHED, STOPPED, Setting, Tier,
};
pub use canaries::{STARTED, start_again};
pub use judge::judge;
pub use observed::{Observed, Ran};
pub use report::{Bucket, Finding, Summary, Verdict, check_suite};
pub use run::run;
pub use stage::Stage;
pub use world::{INSIDE, OUTSIDE, World, run_in};
