//! Requests of a guest against real servers on the loopback interface.
//!
//! Only the last step is not the product's: name servers answer with public
//! addresses, which are judged as usual, and the connector of these tests maps
//! a judged address to a port here. What is not mapped is refused and
//! recorded, so that a connection that should not have been made is seen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod addresses;
mod asking;
mod bodies;
mod budgets;
mod python;
mod redirects;
mod requests;
mod sent;
mod support;
mod tls;
mod waiting;
