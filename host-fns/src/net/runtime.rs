//! The threads that carry connections.
//!
//! Why: guests never run on the embedder's runtime, and connections do not
//! depend on whether it has one. The threads start with the first egress and
//! live as long as the process.

use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that carry connections.
const THREADS: usize = 2;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The runtime, started if it is not there.
///
/// # Errors
/// The system gives no threads.
pub(super) fn handle() -> io::Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let started = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("fumehood-egress")
        .enable_all()
        .build()?;
    let handle = started.handle().clone();
    *runtime = Some(started);
    Ok(handle)
}
