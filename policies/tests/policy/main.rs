//! Tests of policies as a user writes them.
//!
//! Invariant: one binary; every test uses public functions only.

#[cfg(test)]
mod combining;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod reviewing;
