//! Runs the calls of an embedder's tools.
//!
//! What: [`TokioExecutor`] polls futures on a tokio runtime: the embedder's own
//! if there is one with several threads, else one of the sandbox's with a
//! single worker.
//! Why: a guest waits for many calls at once on one thread, and a tool finds
//! the timers and sockets of the runtime that its embedder uses.
//!
//! Invariant: a call never runs on a thread that drives the embedder's
//! single-threaded runtime; a call that was given up is dropped, and ending the
//! sandbox waits for none.

use std::pin::Pin;

use fumehood_host_fns::{AbortOnDrop, Executor};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Calls of blocking tools that one sandbox runs at once where its embedder has
/// no runtime with several threads; further ones wait in line.
pub(crate) const MAX_BLOCKING_CALLS: usize = 64;

/// Polls futures on a tokio runtime.
pub(crate) struct TokioExecutor {
    handle: Handle,
    /// `None` if the runtime is the embedder's.
    own: Option<Runtime>,
}

impl TokioExecutor {
    /// Uses the runtime of the calling thread or starts one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn new() -> std::io::Result<Self> {
        if let Ok(handle) = Handle::try_current()
            && handle.runtime_flavor() == RuntimeFlavor::MultiThread
        {
            return Ok(Self { handle, own: None });
        }
        let own = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAX_BLOCKING_CALLS)
            .thread_name("fumehood-tools")
            .enable_all()
            .build()?;
        Ok(Self { handle: own.handle().clone(), own: Some(own) })
    }
}

impl Drop for TokioExecutor {
    fn drop(&mut self) {
        // Waiting for a tool that never returns would never end, and waiting
        // is not allowed on a thread of another runtime.
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

/// A future that runs on a runtime.
struct Spawned(JoinHandle<()>);

impl AbortOnDrop for Spawned {}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Executor for TokioExecutor {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> Box<dyn AbortOnDrop> {
        Box::new(Spawned(self.handle.spawn(future)))
    }

    fn enter(&self, poll: &mut dyn FnMut()) {
        let _entered = self.handle.enter();
        poll();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    struct Tells(mpsc::Sender<()>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn it_has_a_runtime_of_its_own_unless_there_is_one_with_several_threads() {
        let is_own = || TokioExecutor::new().unwrap().own.is_some();
        assert!(is_own());
        let single = Builder::new_current_thread().build().unwrap();
        // Dropping it within another runtime must not panic.
        assert!(single.block_on(async { is_own() }));
        let several = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        assert!(!several.block_on(async { is_own() }));
    }

    #[test]
    fn a_future_runs_until_it_is_given_up() {
        let executor = TokioExecutor::new().unwrap();
        let (sender, told) = mpsc::channel();
        let ended = Tells(sender.clone());
        let kept = executor.spawn(Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(ended);
        }));
        told.recv_timeout(PATIENCE).unwrap();
        drop(kept);
        let never = Tells(sender);
        let kept = executor.spawn(Box::pin(async move {
            let _never = never;
            std::future::pending::<()>().await;
        }));
        assert!(told.recv_timeout(Duration::from_millis(20)).is_err());
        drop(kept);
        told.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn timers_are_there_within_it() {
        let executor = TokioExecutor::new().unwrap();
        let mut made = None;
        executor.enter(&mut || made = Some(tokio::time::sleep(Duration::ZERO)));
        assert!(made.is_some());
    }
}
