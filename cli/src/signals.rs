//! Ctrl-C and SIGTERM stop the run instead of the process, so that its outcome
//! is still told; a second one ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output::Stop;

/// Starts to listen; `interrupted` is set with the first signal. Without a thread for it, signals end the process as ever.
pub(crate) fn listen(stop: Arc<Stop>, interrupted: Arc<AtomicBool>) {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag not yet set.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            Arc::clone(&again),
        );
        let _ = signal_hook::flag::register(signal, Arc::clone(&again));
    }
    let listener = move || {
        for _ in signals.forever() {
            interrupted.store(true, Ordering::SeqCst);
            stop.stop();
        }
    };
    // Without the thread the first signal does nothing and the second ends
    // the process.
    let _ = std::thread::Builder::new()
        .name("fumehood-signals".to_owned())
        .stack_size(64 << 10)
        .spawn(listener);
}
