//! A session: cells that share one namespace, with checkpoints to go back to.
//!
//! Why on borrowed threads: a session lives for hours and its cells for
//! milliseconds. What is asked of a session waits in its queue; while there is
//! something in it, one guest thread works it off, and the store moves to that
//! thread. A session that does nothing has no thread.
//!
//! Invariant: what is asked of a session is done one after the other, in the
//! order it was asked. A cell either ends by itself or leaves no trace but what
//! had left the sandbox, which its outcome lists. No budget goes up again,
//! whatever is rolled back.

mod awake;
mod history;
mod kernel;
mod pending;
#[cfg(test)]
mod slot_tests;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood_host_fns::{Budget, MemoryFile};

use crate::control::SessionWaiter;
use crate::outcome::OutcomeKind;
use crate::run::Run;
use crate::sandbox::{Identity, Inner};
use crate::script::Script;
use kernel::{Cell, Kernel};

pub(crate) use awake::Awake;
#[cfg(test)]
pub(crate) use awake::MAX_AWAKE;
pub use history::{CheckpointId, MAX_CHECKPOINT_BYTES, MAX_CHECKPOINTS};
#[cfg(test)]
pub(crate) use kernel::MAX_PREPARATION;
pub use pending::Pending;

/// Cells and other requests that may wait in a session's queue.
pub(crate) const MAX_WAITING: usize = 1024;
/// Files that [`Session::files`] lists.
pub(crate) const MAX_FILES: usize = 10_000;

/// Why something that was asked of a session was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no such checkpoint any more, or there never was.
    #[error(
        "the session has no checkpoint {0}; it keeps {MAX_CHECKPOINTS} and lets the oldest go first"
    )]
    UnknownCheckpoint(CheckpointId),
    /// There are not that many cells to take back.
    #[error("the session can take back {kept} cells and not {asked}; ask for fewer")]
    NotSoFar {
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        kept: usize,
    },
    /// Too much is waiting already.
    #[error("{MAX_WAITING} requests wait for the session; wait for some of them to end")]
    Busy,
    /// The session cannot go on; what it needs is named.
    #[error("the session cannot go on: {0}")]
    Unavailable(String),
}

impl SessionError {
    /// A stable name for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownCheckpoint(_) => "unknown_checkpoint",
            Self::NotSoFar { .. } => "not_so_far",
            Self::Busy => "busy",
            Self::Unavailable(_) => "session_unavailable",
        }
    }
}

/// What a session has used and holds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionUsage {
    /// Cells that ran, those that were rolled back included.
    pub cells: u64,
    /// Cells that were rolled back.
    pub rolled_back: u64,
    /// Size of the linear memory in bytes, the interpreter's own included.
    pub memory_bytes: u64,
    /// Checkpoints that can be gone back to.
    pub checkpoints: usize,
    /// Bytes that they take beyond the present state, linear memory and files in
    /// memory together.
    pub checkpoint_bytes: u64,
    /// Pages of 4 KiB by which the session differs from what it shares with
    /// others.
    pub changed_pages: usize,
    /// How long the last checkpoint took.
    pub last_checkpoint: Duration,
    /// How long the last way back to a checkpoint took.
    pub last_rollback: Duration,
    /// What was used of each budget, and what is left.
    pub budgets: Vec<(Budget, u64, u64)>,
}

/// Files of the in-memory tree, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The first 10 000 of them.
    pub files: Vec<MemoryFile>,
    /// Whether there are more.
    pub more: bool,
}

/// One live Python session.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sandbox = fumehood::Sandbox::builder().timeout(std::time::Duration::from_secs(1)).build()?;
/// let session = sandbox.session();
/// session.exec("x = 41").await;
/// let outcome = session.exec("x = 0\nwhile True: pass").await;
/// assert!(outcome.rolled_back);
/// let outcome = session.exec("x + 1").await;
/// assert_eq!(outcome.result.repr.as_deref(), Some("42"));
/// # Ok(())
/// # }
/// ```
///
/// Dropping it ends the session when the cells that were asked for have ended;
/// it takes milliseconds if the session was large.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    sandbox: Arc<Inner>,
    identity: Identity,
    waiter: Arc<SessionWaiter>,
    queue: Mutex<Queue>,
    kernel: Mutex<Kernel>,
    /// Its place among the sessions that wait with an instance.
    place: Mutex<Option<u64>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.identity.id).finish_non_exhaustive()
    }
}

type Command = Box<dyn FnOnce(&Shared, &mut Kernel) + Send>;

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// Whether a guest thread works it off.
    working: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new(sandbox: Arc<Inner>, identity: Identity) -> Self {
        Self::with(sandbox, identity, Kernel::new())
    }

    fn with(sandbox: Arc<Inner>, identity: Identity, kernel: Kernel) -> Self {
        Self {
            shared: Arc::new(Shared {
                sandbox,
                identity,
                waiter: Arc::new(SessionWaiter::new()),
                queue: Mutex::default(),
                kernel: Mutex::new(kernel),
                place: Mutex::default(),
            }),
        }
    }

    /// Its id, as it is in results and audit records.
    #[must_use]
    pub fn id(&self) -> &str {
        self.shared.id()
    }

    /// Runs a cell after everything that was asked before. Text is a cell; of a
    /// [`Script`], arguments and import directories are not used: the session
    /// has its own. Input that one cell leaves unread in `sys.stdin`'s buffer
    /// is what the next reads first.
    ///
    /// Ends with a trap, such as a time limit, mean that the session is as it
    /// was before the cell: see [`crate::Outcome::rolled_back`]. An exception is no
    /// trap: what the cell did up to it stays, as in any Python session.
    ///
    /// A cell whose time is over while a call to the host goes on is answered
    /// without it. What that cell was denied, and what it did outside the
    /// sandbox, is listed first in the next outcome of the session.
    ///
    /// A returned value that is dropped before it is done cancels the cell.
    pub fn exec(&self, cell: impl Into<Script>) -> Run {
        let control = self.shared.waiter.control();
        let observer = self.shared.sandbox.observer.clone();
        let (run, answer) = Run::new(Arc::clone(&control), self.shared.id().to_owned(), observer);
        let cell = Cell { script: cell.into(), control, answer: answer.clone() };
        let asked = self.shared.ask(Box::new(move |shared, kernel| kernel.run(shared, cell)));
        if let Err(error) = asked {
            let kind = OutcomeKind::Refused { missing: vec![error.to_string()] };
            answer.send(self.shared.sandbox.refusal(kind, error.to_string(), self.shared.id()));
        }
        run
    }

    /// Keeps the present state, to be gone back to with [`Session::restore`].
    pub fn checkpoint(&self) -> Pending<CheckpointId> {
        self.ask(Kernel::checkpoint)
    }

    /// Goes back to a checkpoint. Cells since then are gone, as far as they
    /// stayed in the sandbox; what was used of budgets stays used.
    pub fn restore(&self, checkpoint: CheckpointId) -> Pending<()> {
        self.ask(move |kernel, shared| kernel.restore(shared, checkpoint))
    }

    /// Takes the last `cells` cells back that changed the session: those that
    /// were not rolled back.
    pub fn undo(&self, cells: usize) -> Pending<()> {
        self.ask(move |kernel, shared| kernel.undo(shared, cells))
    }

    /// A second session with the same state; from here on they differ. Memory
    /// is shared until one of them writes, budgets are shared for good.
    /// Generators of random numbers that the program never seeded go on
    /// differently, and its monotonic clock goes on from the parent's. Checkpoints
    /// are not inherited.
    pub fn fork(&self) -> Pending<Session> {
        self.ask(Kernel::fork)
    }

    /// A fork to look at things with: files of the host, requests, tools and
    /// commands are denied to its code, whatever the policy says, and nobody is
    /// asked. What that code uses of the budgets is used.
    pub fn fork_without_effects(&self) -> Pending<Session> {
        self.ask(Kernel::fork_mute)
    }

    /// What was used, and how large the session is.
    pub fn usage(&self) -> Pending<SessionUsage> {
        self.ask(|kernel, shared| Ok(kernel.usage(shared)))
    }

    /// The files in memory.
    pub fn files(&self) -> Pending<Files> {
        self.ask(|kernel, shared| kernel.files(shared, MAX_FILES))
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Kernel, &Shared) -> Result<T, SessionError> + Send + 'static,
    ) -> Pending<T> {
        let (pending, reply) = Pending::new();
        let command: Command = Box::new(move |shared, kernel| reply.send(work(kernel, shared)));
        match self.shared.ask(command) {
            Ok(()) => pending,
            Err(error) => Pending::failed(error),
        }
    }
}

impl Shared {
    fn id(&self) -> &str {
        &self.identity.id
    }

    /// Puts something into the queue and sees that it is worked off.
    fn ask(self: &Arc<Self>, command: Command) -> Result<(), SessionError> {
        let mut queue = lock(&self.queue);
        if queue.commands.len() >= MAX_WAITING {
            return Err(SessionError::Busy);
        }
        queue.commands.push_back(command);
        if queue.working {
            return Ok(());
        }
        queue.working = true;
        drop(queue);
        let shared = Arc::clone(self);
        let started = self.sandbox.engine().threads.spawn(Box::new(move || shared.work()));
        started.map_err(|error| {
            let mut queue = lock(&self.queue);
            queue.working = false;
            queue.commands.clear();
            SessionError::Unavailable(format!("the system gave no thread ({error})"))
        })
    }

    /// Works the queue off; on a guest thread.
    fn work(self: &Arc<Self>) {
        self.work_off();
        self.sandbox.engine().awake.waits(self);
    }

    /// Gives the instance up if nothing is asked of the session now; its state
    /// stays.
    fn sleep(&self) {
        if let Ok(mut kernel) = self.kernel.try_lock() {
            kernel.sleep();
        }
    }

    fn work_off(&self) {
        let mut kernel = lock(&self.kernel);
        loop {
            let command = {
                let mut queue = lock(&self.queue);
                let command = queue.commands.pop_front();
                queue.working = command.is_some();
                command
            };
            let Some(command) = command else { return };
            let kernel = &mut *kernel;
            if catch_unwind(AssertUnwindSafe(|| command(self, kernel))).is_err() {
                // Whoever asked gets a fault because the answer was dropped.
                kernel.give_up();
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let place = lock(&self.place).take();
        self.sandbox.engine().awake.ended(place);
        if let Some(project) = &self.sandbox.project {
            project.forget(self.id());
        }
    }
}
