//! The engine, and what the user is told while it is compiled for the first
//! time.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fumehood::{Engine, EngineBuilder, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// What is said before the first use takes its time.
const COMPILING: &str = "Compiling the Python guest, once; this takes about 15 seconds.";
/// The same for a file of compiled code.
pub(crate) const COMPILING_BOTH: &str =
    "Compiling the Python guest in its two builds; this takes about 30 seconds.";

/// Files and bytes of a copy that is not worth a word.
const FEW_FILES: u64 = 100;
const FEW_BYTES: u64 = 32 << 20;

/// Settings for the engine of this command.
pub(crate) fn engine(compiled: Option<&Path>) -> EngineBuilder {
    let builder = Engine::builder();
    let builder = match compiled {
        Some(file) => builder.compiled(file),
        None => builder,
    };
    let shown = Arc::new(Mutex::new(None));
    builder.on_progress(move |progress| {
        show(progress, &mut shown.lock().unwrap_or_else(PoisonError::into_inner));
    })
}

fn show(progress: Progress, waiting: &mut Option<Waiting>) {
    match progress {
        Progress::Compiling => *waiting = Some(Waiting::start(COMPILING)),
        Progress::Compiled { took, kept } => {
            drop(waiting.take());
            let took = took.as_secs_f64();
            output::note(&match kept {
                Some(kept) => format!(
                    "compiled in {took:.1} s and kept in {} for the next time",
                    kept.display()
                ),
                None => format!(
                    "compiled in {took:.1} s and not kept, so the next run compiles again; set \
                     FUMEHOOD_CACHE_DIR to a directory of your own, or make a file with `fumehood \
                     cache build --out FILE` and run with `--compiled FILE`"
                ),
            });
        }
        Progress::CacheUnusable { path, reason } => output::note(&match path {
            Some(path) => format!(
                "compiled code in {} cannot be used: {reason}; it is compiled afresh",
                path.display()
            ),
            None => format!("compiled code cannot be kept: {reason}; it is compiled afresh"),
        }),
        _ => {}
    }
}

/// Hears how far the copying of a project is and shows it on a terminal, until
/// it is dropped.
pub(crate) fn copying() -> impl Fn(u64, u64) + Send + Sync + 'static {
    let shown: Mutex<Option<Waiting>> = Mutex::new(None);
    move |files, bytes| {
        if (files < FEW_FILES && bytes < FEW_BYTES) || !output::stderr_is_terminal() {
            return;
        }
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = shown.get_or_insert_with(|| Waiting::start("Copying the project."));
        waiting.say(copied(files, bytes));
    }
}

fn copied(files: u64, bytes: u64) -> String {
    format!("Copying the project: {files} files, {} MiB.", bytes >> 20)
}

/// Shows that something takes a while, until it is dropped.
pub(crate) struct Waiting(Option<ProgressBar>);

impl Waiting {
    /// A spinner on a terminal, one line elsewhere.
    pub(crate) fn start(text: &'static str) -> Self {
        if !output::stderr_is_terminal() {
            let _ = output::write_all(fumehood::Stream::Stderr, format!("{text}\n").as_bytes());
            return Self(None);
        }
        let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.set_message(text);
        spinner.enable_steady_tick(Duration::from_millis(100));
        Self(Some(spinner))
    }

    /// Says something else, on a terminal.
    fn say(&self, text: String) {
        if let Some(spinner) = &self.0 {
            spinner.set_message(text);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(spinner) = &self.0 {
            spinner.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_small_or_unseen_is_not_told() {
        assert_eq!(copied(1200, 5 << 20), "Copying the project: 1200 files, 5 MiB.");
        let tell = copying();
        tell(1, 1);
        tell(FEW_FILES - 1, FEW_BYTES - 1);
    }
}
