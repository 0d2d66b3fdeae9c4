//! The time of a run's host calls, from the library's own spans.
//!
//! What: between the entry and the return of an import (`import`), what its
//! executors took (`execute`); the rest is the broker's.
//!
//! Invariant: no other span is enabled, so that measuring costs two looks at
//! the clock for each.
#![allow(clippy::disallowed_methods, reason = "this module is the clock adapter of evaluations")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// The names of the spans, in the order of their numbers.
const NAMES: [&str; 2] = ["import", "execute"];

thread_local! {
    static OPEN: RefCell<Vec<(u64, Instant)>> = const { RefCell::new(Vec::new()) };
}

/// Sums of the spans of this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Arc<[AtomicU64; 2]>);

/// What the spans of a run add up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostTime {
    pub(super) imports: Duration,
    pub(super) executors: Duration,
}

impl HostTime {
    /// What was spent on deciding, recording and counting.
    pub(super) fn broker(&self) -> Duration {
        self.imports.saturating_sub(self.executors)
    }
}

impl Spans {
    /// Listens from now on; `None` if something else does already.
    pub(super) fn start() -> Option<Self> {
        let spans = Self::default();
        tracing::subscriber::set_global_default(spans.clone()).ok().map(|()| spans)
    }

    /// What was added since the last call.
    pub(super) fn take(&self) -> HostTime {
        let [imports, executors] = self.0.each_ref().map(|sum| sum.swap(0, Ordering::Relaxed));
        HostTime {
            imports: Duration::from_nanos(imports),
            executors: Duration::from_nanos(executors),
        }
    }

    fn number(metadata: &Metadata<'_>) -> Option<u64> {
        let at = NAMES.iter().position(|name| metadata.is_span() && *name == metadata.name())?;
        u64::try_from(at).ok()?.checked_add(1)
    }
}

impl Subscriber for Spans {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::number(metadata).is_some() { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::number(metadata).is_some()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        Id::from_u64(Self::number(span.metadata()).unwrap_or(u64::MAX))
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, _event: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        OPEN.with_borrow_mut(|open| open.push((span.into_u64(), Instant::now())));
    }

    fn exit(&self, span: &Id) {
        let entered = OPEN.with_borrow_mut(Vec::pop);
        let Some((number, since)) = entered.filter(|(number, _)| *number == span.into_u64()) else {
            return;
        };
        // An executor within another one is part of it.
        let nested = OPEN.with_borrow(|open| open.iter().any(|(outer, _)| *outer == number));
        let sum = usize::try_from(number.saturating_sub(1)).ok().and_then(|at| self.0.get(at));
        if let (Some(sum), false) = (sum, nested) {
            let took = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            sum.fetch_add(took, Ordering::Relaxed);
        }
    }
}
