//! What a run did, as the embedder gets it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fumehood_guest_abi::Display;
use fumehood_policies::Verdict;

use crate::audit::Target;
use crate::lasting::LastingEffect;
use crate::pipeline::Refused;

/// Something that was refused, once or many times.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Denial {
    /// Stable name of the operation.
    pub operation: String,
    /// What it would have acted on, escaped.
    pub target: String,
    /// The rule that refused; `budget` for an exhausted budget.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// What the operator could change.
    pub hint: String,
    /// How often.
    pub count: u64,
}

/// Paths whose content differs from the last report, escaped, sorted; a
/// directory ends in `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// Not there at the last report.
    pub created: Vec<String>,
    /// There at both, and written to.
    pub modified: Vec<String>,
    /// There at the last report only.
    pub deleted: Vec<String>,
    /// Changes beyond the limit that are in none of the lists.
    pub not_listed: u64,
}

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Calls of the host, each poll subscription counted as one more.
    pub host_calls: u64,
    /// Bytes that went to the guest: files, standard input, randomness,
    /// brokered responses.
    pub bytes_in: u64,
    /// Bytes that came from the guest: files, output (dropped bytes too),
    /// brokered requests.
    pub bytes_out: u64,
    /// Descriptors opened.
    pub files_opened: u64,
    /// Files, directories and links created.
    pub entries_created: u64,
    /// Calls of tools that were carried out.
    pub tool_calls: u64,
}

/// Everything since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Bytes of standard output beyond the limit.
    pub dropped_stdout: u64,
    /// Bytes of standard error beyond the limit.
    pub dropped_stderr: u64,
    /// Rich outputs, in order.
    pub displays: Vec<Display>,
    /// Refusals, in the order of their first occurrence.
    pub denials: Vec<Denial>,
    /// Refusals beyond the limit that are not in `denials`.
    pub denials_not_listed: u64,
    /// Changed files.
    pub files: FileChanges,
    /// What was done outside the sandbox, by operation and target.
    pub effects: Vec<LastingEffect>,
    /// Such effects beyond the limit that are not in `effects`.
    pub effects_not_listed: u64,
    /// What was used.
    pub usage: Usage,
}

/// Denials since the last report, equal ones counted in one.
#[derive(Debug)]
pub(crate) struct Denials {
    limit: usize,
    seen: BTreeMap<DenialKey, Seen>,
    list: Vec<Denial>,
    not_listed: u64,
}

type DenialKey = (&'static str, Target, Arc<str>);

#[derive(Debug)]
struct Seen {
    /// Its place in the list.
    at: usize,
    verdict: Verdict,
    /// How many of its repetitions were given as [`Repeated`].
    summed: u64,
}

/// A denial that came again, so often after its first time.
pub(crate) struct Repeated {
    pub(crate) operation: &'static str,
    pub(crate) target: Target,
    pub(crate) rule: Arc<str>,
    pub(crate) verdict: Verdict,
    pub(crate) times: u64,
}

impl Denials {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit: limit as usize, seen: BTreeMap::new(), list: Vec::new(), not_listed: 0 }
    }

    /// Whether it is the first of its kind, or one beyond the limit.
    pub(crate) fn add(
        &mut self,
        operation: &'static str,
        target: &Target,
        verdict: Verdict,
        why: &Refused,
    ) -> bool {
        let key = (operation, target.clone(), Arc::clone(&why.rule));
        if let Some(denial) = self.seen.get(&key).and_then(|seen| self.list.get_mut(seen.at)) {
            denial.count = denial.count.saturating_add(1);
            return false;
        }
        if self.list.len() >= self.limit {
            self.not_listed = self.not_listed.saturating_add(1);
        } else {
            self.seen.insert(key, Seen { at: self.list.len(), verdict, summed: 0 });
            self.list.push(Denial {
                operation: operation.to_owned(),
                target: target.to_string(),
                rule: why.rule.to_string(),
                reason: why.reason.clone().into_owned(),
                hint: why.hint.clone().into_owned(),
                count: 1,
            });
        }
        true
    }

    /// Those that came again since this was asked last, in a fixed order.
    pub(crate) fn repeated(&mut self) -> Vec<Repeated> {
        let Self { seen, list, .. } = self;
        let again = |((operation, target, rule), seen): (&DenialKey, &mut Seen)| {
            let repetitions = list.get(seen.at)?.count.saturating_sub(1);
            let times = repetitions.saturating_sub(seen.summed);
            seen.summed = repetitions;
            let (target, rule) = (target.clone(), Arc::clone(rule));
            let verdict = seen.verdict;
            (times != 0).then_some(Repeated { operation, target, rule, verdict, times })
        };
        seen.iter_mut().filter_map(again).collect()
    }

    pub(crate) fn take(&mut self) -> (Vec<Denial>, u64) {
        self.seen.clear();
        (std::mem::take(&mut self.list), std::mem::take(&mut self.not_listed))
    }
}
