//! `bench audit`: what it costs to record, and to verify.

use std::path::PathBuf;
use std::sync::Arc;

use fumehood::audit::{AuditSink, Durability, LogHeader, MemorySink};
use fumehood::records::{Home, SessionStart};
use fumehood_host_fns::{Broker, BrokerConfig, HostCall};
use serde_json::json;

use super::clock::Stopwatch;
use super::show;
use crate::error::CliError;

/// Records of one audited operation: intent and outcome.
const RECORDS_A_CALL: u32 = 2;

pub(super) fn run(calls: u32, records: u32, as_json: bool) -> Result<i32, CliError> {
    let place = Place::new()?;
    let plain = microseconds_a_call(calls, "fh-bench-0", Arc::new(MemorySink::default()))?;
    let audited = place.audited(calls, "fh-bench-1")?;
    place.audited(records / RECORDS_A_CALL, "fh-bench-2")?;
    let start = Stopwatch::start();
    let report = place.home.verify("fh-bench-2")?;
    let verify = start.elapsed().as_secs_f64();
    show(
        as_json,
        &json!({
            "bench": "audit",
            "call_us": plain,
            "audited_call_us": audited,
            "verify_s": verify,
            "lines": report.lines,
            "calls": calls,
        }),
        &format!(
            "an operation recorded in memory {plain:.2} us, in a file {audited:.2} us   ({calls} calls)\n\
             verifying {} lines {verify:.2} s\n",
            report.lines
        ),
    );
    Ok(0)
}

/// Microseconds that an operation takes whose audit goes to a file, with its
/// share of checkpoints and of the close.
///
/// # Errors
/// One sentence.
pub(super) fn audited_call_us(calls: u32) -> Result<f64, CliError> {
    Place::new()?.audited(calls, "fh-bench-1")
}

/// A home beside the real one, on the same disk.
struct Place {
    path: PathBuf,
    home: Home,
}

impl Place {
    fn new() -> Result<Self, CliError> {
        let records = fumehood::records_location().ok_or_else(|| {
            CliError::cannot_tell("there is no place for records; set FUMEHOOD_HOME")
        })?;
        let path = records.join(format!("bench-{}", std::process::id()));
        let home = Home::open(&path, true)?;
        Ok(Self { path, home })
    }

    fn audited(&self, calls: u32, session: &str) -> Result<f64, CliError> {
        let header = LogHeader {
            session: session.to_owned(),
            tier: "wasm",
            guest: [0; 32],
            policy: [0; 32],
            program: None,
        };
        let name = "bench".to_owned();
        let start = SessionStart { header, name, durability: Durability::Checkpoint };
        let record = self.home.begin(&start)?;
        microseconds_a_call(calls, session, record.sink())
    }
}

impl Drop for Place {
    #[allow(clippy::disallowed_methods, reason = "a bench takes its own files away")]
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn microseconds_a_call(
    calls: u32,
    session: &str,
    sink: Arc<dyn AuditSink>,
) -> Result<f64, CliError> {
    let failed = |what: String| CliError::cannot_tell(format!("the bench failed: {what}"));
    let mut config = BrokerConfig::new(session);
    config.audit = Arc::clone(&sink);
    let mut broker = Broker::new(config).map_err(|error| failed(error.to_string()))?;
    let path = b"/tmp/directory".as_slice();
    let start = Stopwatch::start();
    for call in 0..calls {
        let call = if call % 2 == 0 {
            HostCall::PathCreateDirectory { dir: 3, path }
        } else {
            HostCall::PathRemoveDirectory { dir: 3, path }
        };
        broker.dispatch(call).map_err(|refusal| failed(format!("{refusal:?}")))?;
    }
    drop(broker);
    sink.close().map_err(|error| failed(error.to_string()))?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls.max(1)))
}
