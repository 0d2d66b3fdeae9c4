//! Requests to the network.
//!
//! What: [`Egress`] carries out one exchange, and [`HttpEgress`] does so over
//! HTTP/1.1 and HTTP/2. The broker canonicalises, decides, records, reserves
//! and follows redirects; the egress looks names up, judges every answer and
//! talks to exactly an address that was judged.
//! Why: there is one place that opens connections, and it cannot be reached
//! with a request that did not go through the pipeline.
//!
//! Invariant: a name is looked up only for a [`crate::Checked`] request; what
//! is connected to is a [`fumehood_policies::DialAddress`]; every queue, head
//! and body has a bound.

mod allowance;
mod client;
mod connect;
mod decode;
mod egress;
mod exchange;
mod headers;
mod hosts;
mod options;
mod pipe;
mod pool;
mod resolve;
mod runtime;

pub use allowance::{Allowance, Exceeded};
pub use client::HttpEgress;
pub use connect::{Connecting, Connector};
pub use egress::{Egress, EgressError, Exchange, Order, OrderBody, ResponseHead};
pub(crate) use headers::latin;
pub use headers::{HeaderProblem, MAX_REQUEST_HEADER_BYTES, MAX_REQUEST_HEADERS, RequestHeaders};
pub(crate) use hosts::HostMeter;
pub use options::{EgressOptions, EgressSetupError, Phases, Proxy};
pub use resolve::{Lookup, Resolver, Unresolved};

/// Most redirects that one request follows.
pub const MAX_REDIRECTS: usize = 20;
/// Most bytes of a URL in the record of a denial because it is none.
pub(crate) const MAX_MALFORMED_URL_BYTES: usize = 256;

/// Constants that bound requests, for the table of the documentation.
#[cfg(test)]
pub(crate) fn constants() -> Vec<(&'static str, u64)> {
    let phases = Phases::default();
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    vec![
        ("MAX_URL_BYTES", fumehood_policies::MAX_URL_BYTES as u64),
        ("MAX_MALFORMED_URL_BYTES", MAX_MALFORMED_URL_BYTES as u64),
        ("MAX_REQUEST_HEADERS", MAX_REQUEST_HEADERS as u64),
        ("MAX_REQUEST_HEADER_BYTES", MAX_REQUEST_HEADER_BYTES as u64),
        ("MAX_REDIRECTS", MAX_REDIRECTS as u64),
        ("MAX_RESPONSE_HEADERS", client::MAX_RESPONSE_HEADERS as u64),
        ("MAX_RESPONSE_HEADER_BYTES", client::MAX_RESPONSE_HEADER_BYTES as u64),
        ("PIPE_BYTES", pipe::PIPE_BYTES as u64),
        ("DECODED_FREE_BYTES", decode::DECODED_FREE_BYTES),
        ("DECODED_RATIO", decode::DECODED_RATIO),
        ("MAX_ZSTD_WINDOW_LOG", u64::from(decode::MAX_ZSTD_WINDOW_LOG)),
        ("MAX_DIALS", client::MAX_DIALS as u64),
        ("MAX_GRANTS", crate::MAX_GRANTS as u64),
        ("MAX_WAITING", crate::MAX_WAITING as u64),
        ("MAX_ANSWERED", crate::MAX_ANSWERED as u64),
        ("MAX_IDLE_CONNECTIONS", pool::MAX_IDLE_CONNECTIONS as u64),
        ("IDLE_CONNECTION", ms(pool::IDLE_CONNECTION)),
        ("PING_INTERVAL", ms(client::PING_INTERVAL)),
        ("PING_TIMEOUT", ms(client::PING_TIMEOUT)),
        ("Phases::resolve", ms(phases.resolve)),
        ("Phases::connect", ms(phases.connect)),
        ("Phases::tls", ms(phases.tls)),
        ("Phases::head", ms(phases.head)),
        ("Phases::idle", ms(phases.idle)),
        ("Phases::total", ms(phases.total)),
    ]
}
