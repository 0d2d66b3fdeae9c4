//! Many small programs on all cores.
//!
//! Why: a program of a fraction of a millisecond is over before another thread
//! has been woken for it. Here each core takes the next program when it is done
//! with one, without a hand-off in between.
//!
//! Invariant: every program has an instance, a broker, budgets and an id of its
//! own; nothing of one is seen by another. Results are in the order of the
//! programs. A program that is answered without it keeps its thread, and another
//! worker takes that one's place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::control::Control;
use crate::error::EngineError;
use crate::fault;
use crate::outcome::{Outcome, OutcomeKind};
use crate::sandbox::{Identity, Inner, Sandbox};
use crate::script::Script;
use crate::ticker::{Abandon, HOST_CALL_GRACE};
use crate::workspaces::AttachedProject;

/// Runs many programs under the settings of one sandbox.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = fumehood::Pool::new(&fumehood::Sandbox::builder().build()?);
/// let outcomes = pool.run_many((0..4).map(|n| format!("{n} ** 2")))?.wait();
/// let values: Vec<_> = outcomes.iter().filter_map(|o| o.result.repr.as_deref()).collect();
/// assert_eq!(values, ["0", "1", "4", "9"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    sandbox: Sandbox,
    threads: usize,
}

impl Pool {
    /// A pool on all cores of the machine.
    #[must_use]
    pub fn new(sandbox: &Sandbox) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { sandbox: sandbox.clone(), threads }
    }

    /// Uses so many threads instead, at least one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Starts the programs. Limits are those of the sandbox, for each program
    /// by itself, budgets included.
    ///
    /// # Errors
    /// [`EngineError::Thread`] if the system gives not a single thread.
    pub fn run_many<S: Into<Script>>(
        &self,
        programs: impl IntoIterator<Item = S>,
    ) -> Result<PoolRun, EngineError> {
        let programs: Vec<Script> = programs.into_iter().map(Into::into).collect();
        let count = programs.len();
        let (sender, receiver) = oneshot::channel();
        let work = Arc::new(Work {
            sandbox: Arc::clone(self.sandbox.inner()),
            stopped: AtomicBool::new(false),
            state: Mutex::new(State {
                programs: programs.into_iter().enumerate().collect::<Vec<_>>().into_iter(),
                outcomes: (0..count).map(|_| None).collect(),
                left: count,
                running: Vec::new(),
                sender: Some(sender),
            }),
        });
        work.lock().tell_if_done();
        for number in 0..self.threads.min(count) {
            match work.start_worker() {
                Ok(()) => {}
                Err(error) if number == 0 => return Err(EngineError::Thread(error)),
                // The others do its share.
                Err(_) => break,
            }
        }
        Ok(PoolRun { work, receiver, done: false })
    }
}

/// Programs that have been started; await it for their outcomes, in order.
///
/// Cancel-safe: dropping it stops those that run and starts no other.
#[derive(Debug)]
#[must_use = "programs are cancelled when this is dropped"]
pub struct PoolRun {
    work: Arc<Work>,
    receiver: oneshot::Receiver<Vec<Outcome>>,
    done: bool,
}

impl PoolRun {
    /// Waits on the calling thread, which must not be one of an async runtime.
    #[must_use]
    pub fn wait(mut self) -> Vec<Outcome> {
        let (_, closed) = oneshot::channel();
        let receiver = std::mem::replace(&mut self.receiver, closed);
        let outcomes = receiver.blocking_recv().unwrap_or_default();
        self.done = true;
        outcomes
    }

    /// Stops the programs that run and starts no other; the outcomes of those
    /// are `cancelled`.
    pub fn cancel(&self) {
        self.work.stop();
    }
}

impl Future for PoolRun {
    type Output = Vec<Outcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let outcomes = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.done = true;
        Poll::Ready(outcomes.unwrap_or_default())
    }
}

impl Drop for PoolRun {
    fn drop(&mut self) {
        if !self.done {
            self.work.stop();
        }
    }
}

struct Work {
    sandbox: Arc<Inner>,
    stopped: AtomicBool,
    state: Mutex<State>,
}

struct State {
    programs: std::vec::IntoIter<(usize, Script)>,
    outcomes: Vec<Option<Outcome>>,
    /// Programs without an outcome.
    left: usize,
    running: Vec<Arc<Control>>,
    sender: Option<oneshot::Sender<Vec<Outcome>>>,
}

impl State {
    /// Hands the outcomes over if there are all of them.
    fn tell_if_done(&mut self) {
        if self.left == 0
            && let Some(sender) = self.sender.take()
        {
            let outcomes = std::mem::take(&mut self.outcomes);
            // Nobody waits for programs that were dropped.
            let _ = sender.send(outcomes.into_iter().flatten().collect());
        }
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        for control in &self.lock().running {
            control.cancel();
        }
    }

    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let of_worker = Arc::clone(self);
        self.sandbox.engine().threads.spawn(Box::new(move || of_worker.work()))
    }

    /// The next program and what stops it.
    fn next(&self) -> Option<(usize, Script, Arc<Control>)> {
        let mut state = self.lock();
        let (at, script) = state.programs.next()?;
        let control = Arc::new(Control::new());
        state.running.push(Arc::clone(&control));
        Some((at, script, control))
    }

    /// Where the outcome of a program goes.
    fn answer(self: &Arc<Self>, at: usize, session: String) -> Answer {
        let work = Arc::clone(self);
        let receive = move |outcome| {
            let mut state = work.lock();
            if let Some(slot) = state.outcomes.get_mut(at) {
                *slot = Some(outcome);
            }
            state.left = state.left.saturating_sub(1);
            state.tell_if_done();
        };
        Answer::through(Box::new(receive), session, self.sandbox.observer.clone())
    }

    /// Runs programs until there is none left or another worker has this one's
    /// place.
    fn work(self: &Arc<Self>) {
        while let Some((at, script, control)) = self.next() {
            let identity = self.sandbox.new_identity();
            let answer = self.answer(at, identity.id.clone());
            let replaced = Arc::new(AtomicBool::new(false));
            let overdue = self.overdue(&answer, &identity, &replaced);
            let run = AssertUnwindSafe(|| self.run(script, &control, &identity, overdue));
            let outcome = catch_unwind(run).unwrap_or_else(|_| {
                let reference = fault::report("a program of a pool panicked outside the guest");
                Outcome::empty(OutcomeKind::SandboxFault { reference }, &identity.id)
            });
            self.lock().running.retain(|running| !Arc::ptr_eq(running, &control));
            answer.send(outcome);
            if replaced.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Answers a program that its thread does not come back from.
    fn overdue(
        self: &Arc<Self>,
        answer: &Answer,
        identity: &Identity,
        replaced: &Arc<AtomicBool>,
    ) -> Abandon {
        let (work, answer) = (Arc::clone(self), answer.clone());
        let (id, replaced) = (identity.id.clone(), Arc::clone(replaced));
        Box::new(move |kind| {
            replaced.store(work.start_worker().is_ok(), Ordering::Release);
            answer.send(Outcome::empty(kind, &id));
        })
    }

    fn run(
        &self,
        script: Script,
        control: &Arc<Control>,
        identity: &Identity,
        overdue: Abandon,
    ) -> Outcome {
        if self.stopped.load(Ordering::Acquire) {
            return Outcome::empty(OutcomeKind::Cancelled, &identity.id);
        }
        let using = self.sandbox.project.as_ref().map(AttachedProject::begin);
        let watch = self.sandbox.engine().ticker.watch(control, HOST_CALL_GRACE, overdue);
        let mut outcome = self.sandbox.run_once(script, control, identity).0;
        drop(watch);
        if let Some(using) = using {
            using.end(&mut outcome, &identity.id, Vec::new());
        }
        outcome
    }
}
