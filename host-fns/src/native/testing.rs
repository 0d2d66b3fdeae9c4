//! A tier for tests that starts no process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::{
    CancelToken, Captured, Guarantee, Missing, NativeCommand, NativeEnd, NativeError, NativeResult,
    NativeTier, Probe, Unavailable,
};
use crate::environment::{OutputSink, Stream};

/// `echo TEXT`, `fail`, `sleep`, `stuck` (which does not keep its time), `panic`,
/// `flood`, `memory`; anything else is a command that is not there.
#[derive(Debug, Default)]
pub(crate) struct FakeTier {
    /// What was run.
    pub(crate) seen: Mutex<Vec<NativeCommand>>,
    /// What is missing.
    pub(crate) missing: Option<&'static str>,
}

impl FakeTier {
    pub(crate) fn last(&self) -> NativeCommand {
        self.seen.lock().unwrap().last().cloned().unwrap()
    }
}

impl NativeTier for FakeTier {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn probe(&self) -> Probe {
        let (reason, remedy) = (String::new(), String::new());
        let available = self.missing.is_none();
        Probe { tier: "fake".to_owned(), available, reason, remedy, guarantees: Vec::new() }
    }

    fn prepare(&self, required: &[Guarantee]) -> Result<(), Unavailable> {
        let required = required.first().map(|guarantee| guarantee.name());
        let missing = self.missing.or(required).map(|name| Missing {
            name: name.to_owned(),
            reason: "the test says so".to_owned(),
            remedy: "nothing".to_owned(),
        });
        match missing {
            Some(missing) => Err(Unavailable { tier: "fake".to_owned(), missing: vec![missing] }),
            None => Ok(()),
        }
    }

    fn run(
        &self,
        command: &NativeCommand,
        cancel: &CancelToken,
        output: &dyn OutputSink,
    ) -> Result<NativeResult, NativeError> {
        self.seen.lock().unwrap().push(command.clone());
        let mut result = NativeResult {
            end: NativeEnd::Exited(0),
            stdout: Captured::default(),
            stderr: Captured::default(),
            timed_out: false,
            cancelled: false,
            memory_exceeded: false,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_memory_bytes: 0,
            denials: Vec::new(),
            controls: self.controls(),
        };
        let text = command.argv.last().cloned().unwrap_or_default();
        match text.split_once(' ').map_or(text.as_str(), |(word, _)| word) {
            "echo" => {
                let said = text.trim_start_matches("echo ").as_bytes();
                let kept = result.stdout.take(said, command.limits.output_bytes);
                output.write(Stream::Stdout, kept);
            }
            "flood" => {
                let limit = command.limits.output_bytes;
                result.stdout.take(&vec![b'x'; 40 << 20], limit);
                result.stderr.take(&vec![b'y'; 40 << 20], limit);
            }
            "fail" => return Err(NativeError::Failed("host detail /etc/secret".to_owned())),
            "panic" => panic!("host detail /etc/secret"),
            "memory" => result.memory_exceeded = true,
            word @ ("sleep" | "stuck") => {
                let own = if word == "stuck" { Duration::from_secs(60) } else { command.timeout };
                let gate = Arc::new((Mutex::new(false), Condvar::new()));
                let opener = Arc::clone(&gate);
                cancel.on_cancel(move || {
                    *opener.0.lock().unwrap() = true;
                    opener.1.notify_all();
                });
                let open = gate.0.lock().unwrap();
                let waited = gate.1.wait_timeout_while(open, own, |open| !*open);
                result.cancelled = *waited.unwrap().0;
                result.timed_out = !result.cancelled;
                result.end = NativeEnd::Signalled(9);
                result.stdout.take(b"part", command.limits.output_bytes);
            }
            _ => result.end = NativeEnd::Exited(127),
        }
        Ok(result)
    }

    fn controls(&self) -> Vec<String> {
        vec!["none".to_owned()]
    }
}
