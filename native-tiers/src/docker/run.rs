//! One container, from its making to its removal.
//!
//! Invariant: a container that was made is removed before [`run`] returns,
//! whatever happened; its output is read as it comes and cut at the cap.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, InspectContainerOptions,
    KillContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions, WaitContainerOptions,
};
use fumehood_host_fns::{
    CancelToken, Captured, Missing, NativeCommand, NativeEnd, NativeError, NativeResult,
    OutputSink, Stream, Unavailable,
};
use futures_util::StreamExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;

use super::body::LABEL;
use super::{GRACE, failed};
use crate::helper::name_of;

#[allow(clippy::disallowed_methods, reason = "the clock of native runs")]
fn now() -> Instant {
    Instant::now()
}

/// Names this process, so that another one with the same number later, or in
/// another place, is not taken for it: its number, when it started, which start
/// of which kernel, and whose numbers these are. An engine can have several
/// clients that do not see each other's processes.
pub(super) fn owner() -> String {
    let pid = std::process::id();
    format!("{pid}:{}:{}", started(pid).unwrap_or_default(), place())
}

#[allow(
    clippy::disallowed_methods,
    reason = "the adapter for containers of processes that are gone"
)]
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// This start of the kernel and this namespace of processes.
fn place() -> String {
    let boot = read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |found| found.st_ino);
    format!("{}:{namespace}", boot.trim())
}

/// When a process started, in the kernel's own unit.
fn started(pid: u32) -> Option<String> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')')?;
    // The 22nd field; the third is the first behind the name.
    rest.split_whitespace().nth(19).map(str::to_owned)
}

/// Whether an owner is known to be gone: one of another place cannot be judged
/// here, nor a process that is there and cannot be looked at.
fn is_gone(owner: &str) -> bool {
    let mut parts = owner.splitn(3, ':');
    let (Some(pid), Some(since), Some(there)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    if there != place() {
        return false;
    }
    let number = pid.parse().ok().filter(|number: &i32| *number > 0);
    let Some(number) = number.and_then(rustix::process::Pid::from_raw) else { return false };
    match rustix::process::test_kill_process(number) {
        Err(rustix::io::Errno::SRCH) => true,
        _ => started(number.as_raw_nonzero().get().unsigned_abs())
            .is_some_and(|started| started != since),
    }
}

/// An engine is told names; each must still lead to the directory that was
/// opened.
pub(super) fn check_mounts(command: &NativeCommand) -> Result<(), NativeError> {
    for mount in &command.mounts {
        let name = name_of(&*mount.dir).map_err(|error| failed("a directory", &error))?;
        if name != mount.host {
            return Err(Unavailable {
                tier: "docker".to_owned(),
                missing: vec![Missing {
                    name: "files".to_owned(),
                    reason: format!("{} is called {} now", mount.host.display(), name.display()),
                    remedy: "open the directory again by its real name".to_owned(),
                }],
            }
            .into());
        }
    }
    Ok(())
}

async fn remove(engine: &Docker, id: &str) {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    if let Err(error) = engine.remove_container(id, Some(options)).await {
        tracing::warn!(container = id, %error, "a container could not be removed");
    }
}

/// Runs a command in a container made for it.
pub(super) async fn run(
    engine: &Docker,
    body: ContainerCreateBody,
    command: &NativeCommand,
    cancel: &CancelToken,
    output: &dyn OutputSink,
) -> Result<NativeResult, NativeError> {
    let started = now();
    // Longer than the command has: a container that is made after nobody waits
    // for it stays until `doctor --clean` is told to remove it.
    let patience = command.timeout.saturating_add(GRACE);
    let created = engine.create_container(None::<CreateContainerOptions>, body);
    let created = tokio::time::timeout(patience, created).await;
    let created = created.map_err(|_| failed("making a container", &"the engine is too slow"))?;
    let id = created.map_err(|error| failed("making a container", &error))?.id;
    let result = carry_out(engine, &id, command, cancel, output, started).await;
    remove(engine, &id).await;
    result
}

/// A step before the command runs, as long as the command has time.
async fn in_time<T>(
    step: impl Future<Output = T>,
    command: &NativeCommand,
    started: Instant,
) -> Option<T> {
    let left = command.timeout.saturating_sub(started.elapsed());
    tokio::time::timeout(left, step).await.ok()
}

/// What a command gives whose time was over before it ran.
fn too_late(started: Instant) -> NativeResult {
    NativeResult {
        end: NativeEnd::Signalled(rustix::process::Signal::KILL.as_raw()),
        stdout: Captured::default(),
        stderr: Captured::default(),
        timed_out: true,
        cancelled: false,
        memory_exceeded: false,
        wall: started.elapsed(),
        cpu: Duration::ZERO,
        peak_memory_bytes: 0,
        denials: Vec::new(),
        controls: Vec::new(),
    }
}

async fn carry_out(
    engine: &Docker,
    id: &str,
    command: &NativeCommand,
    cancel: &CancelToken,
    output: &dyn OutputSink,
    started: Instant,
) -> Result<NativeResult, NativeError> {
    let options =
        AttachContainerOptionsBuilder::new().stdin(true).stdout(true).stderr(true).stream(true);
    let attached = engine.attach_container(id, Some(options.build()));
    let Some(attached) = in_time(attached, command, started).await else {
        return Ok(too_late(started));
    };
    let attached = attached.map_err(|error| failed("attaching", &error))?;
    let start = engine.start_container(id, None::<StartContainerOptions>);
    let Some(start) = in_time(start, command, started).await else {
        return Ok(too_late(started));
    };
    if let Err(error) = start {
        // What the engine says names the program or the directory that is wrong.
        return Err(NativeError::Command(format!("the container cannot be started: {error}")));
    }
    let mut reading =
        Reading { output, limit: command.limits.output_bytes, ..Reading::new(output) };
    let (timed_out, cancelled) =
        reading.until_end(engine, id, attached, command, cancel, started).await?;
    let inspected = engine.inspect_container(id, None::<InspectContainerOptions>).await;
    let state = inspected.map_err(|error| failed("the engine", &error))?.state.unwrap_or_default();
    let code = state.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(-1);
    Ok(NativeResult {
        // An engine tells a signal as 128 and its number, as a shell does.
        end: if timed_out || cancelled {
            NativeEnd::Signalled(rustix::process::Signal::KILL.as_raw())
        } else {
            NativeEnd::Exited(code)
        },
        stdout: reading.stdout,
        stderr: reading.stderr,
        timed_out,
        cancelled,
        memory_exceeded: state.oom_killed.unwrap_or(false),
        wall: started.elapsed(),
        cpu: Duration::ZERO,
        peak_memory_bytes: 0,
        denials: Vec::new(),
        controls: Vec::new(),
    })
}

/// Output as it comes.
struct Reading<'o> {
    output: &'o dyn OutputSink,
    limit: u64,
    stdout: Captured,
    stderr: Captured,
}

impl<'o> Reading<'o> {
    fn new(output: &'o dyn OutputSink) -> Self {
        Self { output, limit: 0, stdout: Captured::default(), stderr: Captured::default() }
    }

    fn take(&mut self, piece: &LogOutput) {
        let (stream, captured, bytes) = match piece {
            LogOutput::StdErr { message } => (Stream::Stderr, &mut self.stderr, message),
            LogOutput::StdOut { message } | LogOutput::Console { message } => {
                (Stream::Stdout, &mut self.stdout, message)
            }
            LogOutput::StdIn { .. } => return,
        };
        let kept = captured.take(bytes, self.limit);
        if !kept.is_empty() {
            self.output.write(stream, kept);
        }
    }

    /// Until the container has ended and its output was read. Whether its time
    /// was over, or it was cancelled.
    async fn until_end(
        &mut self,
        engine: &Docker,
        id: &str,
        attached: AttachContainerResults,
        command: &NativeCommand,
        cancel: &CancelToken,
        started: Instant,
    ) -> Result<(bool, bool), NativeError> {
        let AttachContainerResults { output: mut pieces, mut input } = attached;
        let notify = Arc::new(Notify::new());
        let notifier = Arc::clone(&notify);
        cancel.on_cancel(move || notifier.notify_one());
        let stdin = Arc::clone(&command.stdin);
        // A command need not read what it is given.
        let write = async move {
            let _ = input.write_all(&stdin).await;
            let _ = input.shutdown().await;
            // The other half would go with it.
            std::future::pending::<()>().await;
        };
        let mut write = std::pin::pin!(write);
        let mut end = std::pin::pin!(engine.wait_container(id, None::<WaitContainerOptions>));
        let left = command.timeout.saturating_sub(started.elapsed());
        let mut time = std::pin::pin!(tokio::time::sleep(left));
        let (mut timed_out, mut cancelled, mut over, mut read) = (false, false, false, false);
        while !(over && read) {
            let ending = timed_out || cancelled || over;
            tokio::select! {
                // Its time before all: what is ready at once is a timeout.
                biased;
                () = &mut time => {
                    if ending {
                        // It was told to end and does not; it is removed as it is.
                        break;
                    }
                    timed_out = true;
                    kill(engine, id).await;
                    time.as_mut().reset(tokio::time::Instant::now() + GRACE);
                }
                () = notify.notified(), if !ending => {
                    cancelled = true;
                    kill(engine, id).await;
                    time.as_mut().reset(tokio::time::Instant::now() + GRACE);
                }
                () = &mut write => {}
                ended = end.next(), if !over => {
                    // An exit code other than 0 is an error here; it is read later.
                    let _ = ended;
                    over = true;
                    // What is still in the stream has this long.
                    time.as_mut().reset(tokio::time::Instant::now() + GRACE);
                },
                piece = pieces.next(), if !read => match piece {
                    Some(Ok(piece)) => self.take(&piece),
                    Some(Err(_)) | None => read = true,
                },
            }
        }
        Ok((timed_out, cancelled))
    }
}

async fn kill(engine: &Docker, id: &str) {
    let signal = KillContainerOptions { signal: "SIGKILL".to_owned() };
    // It may have ended in the meantime; a slow engine removes it later.
    let _ = tokio::time::timeout(GRACE, engine.kill_container(id, Some(signal))).await;
}

/// Removes containers whose maker is gone.
pub(super) async fn clean(engine: &Docker) -> Result<Vec<String>, NativeError> {
    let filters = std::collections::HashMap::from([("label".to_owned(), vec![LABEL.to_owned()])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let list = engine.list_containers(Some(options)).await;
    let mut removed = Vec::new();
    for container in list.map_err(|error| failed("the engine", &error))? {
        let owner = container.labels.as_ref().and_then(|labels| labels.get(LABEL));
        if let (Some(id), Some(owner)) = (container.id, owner)
            && is_gone(owner)
        {
            remove(engine, &id).await;
            removed.push(id);
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maker_is_known_by_its_number_and_its_start() {
        assert!(!is_gone(&owner()));
        let (pid, place) = (std::process::id(), place());
        assert!(is_gone(&format!("{pid}:1:{place}")), "another one has the number now");
        assert!(is_gone(&format!("2000000000:1:{place}")));
    }

    #[test]
    fn a_maker_that_cannot_be_seen_from_here_is_not_taken_for_gone() {
        let pid = std::process::id();
        let boot = "00000000-0000-0000-0000-000000000000";
        let elsewhere = [format!("{boot}:1"), format!("{}9", place()), String::new()];
        for place in elsewhere {
            assert!(!is_gone(&format!("{pid}:1:{place}")), "{place}");
            assert!(!is_gone(&format!("2000000000:1:{place}")), "{place}");
        }
        let here = place();
        for owner in ["", "x", "1:1", &format!("{pid}:1"), &format!("x:1:{here}")] {
            assert!(!is_gone(owner), "{owner}");
        }
    }
}
