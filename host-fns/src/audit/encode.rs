//! The line of a record.
//!
//! Invariant: an outcome is at most [`OUTCOME_EXTRA_BYTES`] longer than its
//! intent, and a sum at most [`MAX_SUM_LINE_BYTES`] long, because that much
//! room is reserved for them.

use fumehood_policies::Verdict;

use crate::audit::chain::Chain;
use crate::audit::line::{Bytes, Hash, Line};
use crate::audit::record::{AuditRecord, Outcome, Phase};

/// Longest line of a sum, with its newline; a target that does not fit is cut,
/// the record of the call that it is part of has it whole.
pub const MAX_SUM_LINE_BYTES: u64 = 1024;
/// What an outcome may be longer than its intent, in bytes.
pub(super) const OUTCOME_EXTRA_BYTES: u64 = 256;
/// What is left of a target that is cut, in bytes.
const CUT_TARGET_BYTES: usize = 48;
/// Longest rule in a record, in bytes; what is beyond is cut.
const MAX_RULE_BYTES: usize = 256;

/// Where a record comes to stand.
pub(super) struct Place<'p> {
    pub(super) chain: &'p Chain,
    /// The policy of the header.
    pub(super) policy: &'p Hash,
    pub(super) time_us: u64,
}

/// Writes the line of a record, without a newline, into an empty buffer.
pub(super) fn encode(record: &AuditRecord, place: &Place<'_>, to: &mut Vec<u8>) {
    let target = match record.target.first() {
        Some(first) => first.to_string(),
        None => record.target.to_string(),
    };
    line_of(record, place, &target).write(to);
    let is_sum = matches!(record.phase, Phase::Sum { .. });
    if is_sum && to.len() as u64 >= MAX_SUM_LINE_BYTES {
        let end = target.floor_char_boundary(CUT_TARGET_BYTES);
        let cut = format!("{}…", target.get(..end).unwrap_or_default());
        to.clear();
        let mut line = line_of(record, place, &cut);
        line.to = None;
        line.write(to);
    }
}

fn line_of<'l>(record: &'l AuditRecord, place: &Place<'_>, target: &'l str) -> Line<'l> {
    let AuditRecord { policy, phase, draw, .. } = record;
    let rule = record.rule.get(..record.rule.floor_char_boundary(MAX_RULE_BYTES));
    let digest = Bytes(policy.digest);
    let mut line = Line {
        seq: Some(place.chain.next),
        time_us: Some(place.time_us),
        session: Some((&*record.session).into()),
        policy: (digest != *place.policy).then_some(digest),
        tier: Some(record.tier.into()),
        call: Some(record.call),
        parent: Some(record.parent),
        operation: Some(record.operation.into()),
        target: Some(target.into()),
        to: record.target.second().map(|to| to.to_string().into()),
        decision: Some(decision(record.verdict).into()),
        rule: Some(rule.unwrap_or_default().into()),
        generation: Some(policy.generation),
        budget: Some(draw.budget.into()),
        before: Some(draw.before),
        after: Some(draw.after),
        bytes_in: Some(record.bytes_in),
        bytes_out: Some(record.bytes_out),
        prev: Some(place.chain.hash),
        ..Line::default()
    };
    match phase {
        Phase::Intent => {
            line.kind = Some("intent".into());
            line.sha256 = record.digest.map(Bytes);
            line.preview = record.preview.as_deref().map(Into::into);
        }
        Phase::Outcome(outcome) => {
            line.kind = Some("outcome".into());
            line.ended = Some(outcome.name().into());
            if let Outcome::Failed(errno) = outcome {
                line.error = Some(errno.name().into());
            }
            line.sha256 = record.digest.map(Bytes);
            line.duration_us = record.duration_us;
        }
        Phase::Sum { count, failed } => {
            line.kind = Some("sum".into());
            line.count = Some(*count);
            line.failed = Some(*failed);
        }
    }
    line
}

fn decision(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Ask => "ask",
    }
}
