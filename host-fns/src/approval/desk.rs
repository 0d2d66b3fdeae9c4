//! Answers that come from elsewhere: a page, another command.
//!
//! Invariant: a question is answered at most once, with the token of exactly
//! what was shown; whatever comes later has no effect and says why.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Answer, ApprovalRequest, Approver, Approving};

/// Most questions that wait; a further one is denied.
pub const MAX_WAITING: usize = 1000;
/// Most answered questions that are remembered, to say what became of them.
pub const MAX_ANSWERED: usize = 1000;

/// A question that waits, and the token that its answer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The question.
    pub request: ApprovalRequest,
    /// For the reviewer only.
    pub token: String,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalStatus {
    /// It was taken.
    Applied,
    /// There is no such question.
    Unknown,
    /// The token is not of what is asked.
    Stale,
    /// It was approved before.
    AlreadyApproved,
    /// It was denied before.
    AlreadyDenied,
    /// Nobody waits for it any more: its time is over, or its run has ended.
    Expired,
}

impl ApprovalStatus {
    /// A stable identifier.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unknown => "unknown",
            Self::Stale => "stale_token",
            Self::AlreadyApproved => "already_approved",
            Self::AlreadyDenied => "already_denied",
            Self::Expired => "expired",
        }
    }
}

struct Question {
    request: ApprovalRequest,
    answer: Option<Answer>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, Question>,
    /// How questions ended, the oldest first.
    ended: VecDeque<(u64, ApprovalStatus)>,
}

impl State {
    fn end(&mut self, number: u64, how: ApprovalStatus) {
        if self.ended.len() >= MAX_ANSWERED {
            self.ended.pop_front();
        }
        self.ended.push_back((number, how));
    }
}

/// An approver whose questions are listed and answered by number. Cloning
/// shares it.
#[derive(Clone, Default)]
pub struct ApprovalDesk(Arc<Mutex<State>>);

impl std::fmt::Debug for ApprovalDesk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ApprovalDesk").finish_non_exhaustive()
    }
}

impl ApprovalDesk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits, by number.
    #[must_use]
    pub fn waiting(&self) -> Vec<(u64, Waiting)> {
        let state = self.lock();
        let open = state.waiting.iter().filter(|(_, question)| question.answer.is_none());
        open.map(|(number, question)| {
            let request = question.request.clone();
            (*number, Waiting { token: request.token(), request })
        })
        .collect()
    }

    /// Answers a question.
    pub fn answer(&self, number: u64, token: &str, answer: Answer) -> ApprovalStatus {
        let waker = {
            let mut state = self.lock();
            let how = match answer {
                Answer::Deny { .. } => ApprovalStatus::AlreadyDenied,
                Answer::Once | Answer::Grant(_) => ApprovalStatus::AlreadyApproved,
            };
            let Some(question) = state.waiting.get_mut(&number).filter(|q| q.answer.is_none())
            else {
                let ended = state.ended.iter().find(|(known, _)| *known == number);
                return ended.map_or(ApprovalStatus::Unknown, |(_, how)| *how);
            };
            if question.request.token() != token {
                return ApprovalStatus::Stale;
            }
            question.answer = Some(answer);
            let waker = question.waker.take();
            state.end(number, how);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        ApprovalStatus::Applied
    }
}

impl Approver for ApprovalDesk {
    fn ask(&self, request: ApprovalRequest) -> Approving {
        let mut state = self.lock();
        if state.waiting.len() >= MAX_WAITING {
            let reason = "too many questions wait for an answer".to_owned();
            return Box::pin(std::future::ready(Answer::Deny { reason }));
        }
        state.next = state.next.saturating_add(1);
        let number = state.next;
        state.waiting.insert(number, Question { request, answer: None, waker: None });
        Box::pin(Asked { number, desk: self.clone() })
    }
}

/// The asking side of a question.
struct Asked {
    number: u64,
    desk: ApprovalDesk,
}

impl Future for Asked {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.desk.lock();
        let Some(question) = state.waiting.get_mut(&self.number) else {
            return Poll::Ready(Answer::Deny { reason: String::new() });
        };
        match question.answer.clone() {
            Some(answer) => Poll::Ready(answer),
            None => {
                question.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        let unanswered =
            state.waiting.remove(&self.number).is_some_and(|question| question.answer.is_none());
        if unanswered {
            state.end(self.number, ApprovalStatus::Expired);
        }
    }
}
