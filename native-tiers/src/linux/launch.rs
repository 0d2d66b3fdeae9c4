//! One run of the helper: started, told, read and ended.
//!
//! What: the output of the command comes over two pipes, what the helper has to
//! say over the socket; one loop reads them all until the helper is gone.
//!
//! Invariant: a run ends at its time or its cancellation, whatever the command
//! does: the socket is closed to the helper, and if that does not end it within
//! [`GRACE`] the helper is. What the helper could not end is ended by the control
//! group of the run, or the run is an error. Bytes beyond the cap are read,
//! dropped and counted, so that a command is never stopped by a full pipe.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fumehood_host_fns::{
    CancelToken, Captured, Missing, NativeEnd, NativeError, OutputSink, Stream,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::control_group::ControlGroup;
use crate::helper::Helper;
use crate::protocol::{Boundary, Event, Events, Spec, send_spec};

/// How long the helper has to end everything.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// How long the helper may take to read its spec.
const TELLING: Duration = Duration::from_secs(10);

/// Bytes read at once.
const PIECE: usize = 64 << 10;

/// How a run ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) end: Option<NativeEnd>,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) timed_out: bool,
    pub(crate) cancelled: bool,
    pub(crate) memory_exceeded: bool,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) peak_bytes: u64,
    pub(crate) controls: Vec<String>,
    pub(crate) missing: Vec<Missing>,
    not_started: Option<String>,
    started: bool,
    /// Something that the command started may still be there.
    left: bool,
}

/// What bounds a run from outside.
pub(crate) struct Bounds<'r> {
    pub(crate) timeout: Duration,
    pub(crate) output_bytes: u64,
    pub(crate) cancel: &'r CancelToken,
    pub(crate) output: &'r dyn OutputSink,
    pub(crate) group: Option<ControlGroup>,
}

fn failed(what: &str, error: impl std::fmt::Display) -> NativeError {
    NativeError::Failed(format!("{what}: {error}"))
}

#[allow(clippy::disallowed_methods, reason = "the clock of native runs")]
fn now() -> Instant {
    Instant::now()
}

/// Starts the helper with a socket as its standard input.
fn spawn(helper: &Helper, theirs: OwnedFd) -> io::Result<Child> {
    #[allow(clippy::disallowed_methods, reason = "this is a native tier")]
    let mut command = Command::new(helper.program());
    command.arg0(crate::helper::HELPER_NAME).env_clear();
    command.stdin(Stdio::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn()
}

/// A helper that is running; it is ended and waited for when this is dropped.
struct Running {
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // After an orderly end this finds nothing and returns at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a spec to its end.
///
/// # Errors
/// [`NativeError::Failed`] if the helper cannot be started, told or understood,
/// [`NativeError::Command`] if it could not start the program.
pub(crate) fn run(
    helper: &Helper,
    spec: &Spec,
    fds: &[BorrowedFd<'_>],
    bounds: &Bounds<'_>,
) -> Result<Ended, NativeError> {
    let started = now();
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed("socketpair", error))?;
    let timeout = rustix::net::sockopt::Timeout::Send;
    rustix::net::sockopt::set_socket_timeout(&ours, timeout, Some(TELLING))
        .map_err(|error| failed("setsockopt", error))?;
    let child = spawn(helper, theirs).map_err(|error| failed("the helper", error))?;
    let mut running = Running { child };
    if let Some(group) = &bounds.group {
        group.add(running.child.id()).map_err(|error| failed("the control group", error))?;
    }
    let stdout = running.child.stdout.take().map(OwnedFd::from);
    let stderr = running.child.stderr.take().map(OwnedFd::from);
    let told = send_spec(&ours, spec, fds);
    let mut reading = Reading::new(ours, stdout, stderr, bounds, started)?;
    reading.until_gone(&mut running)?;
    let status = running.child.wait().map_err(|error| failed("the helper", error))?;
    let (mut ended, forced) = (reading.ended, reading.forced);
    ended.wall = started.elapsed();
    // The kernel ends a process namespace with the helper.
    let namespaces = matches!(spec.boundary, Boundary::Kernel { namespaces: true });
    if ended.left || (forced && !namespaces) {
        end_what_is_left(bounds.group.as_ref())?;
    }
    if let Some(reason) = ended.not_started.take() {
        return Err(NativeError::Command(reason));
    }
    let understood = ended.started || !ended.missing.is_empty();
    if !understood && !ended.timed_out && !ended.cancelled {
        let said = ended.stderr.text();
        // That it was gone before it had read everything is what its end says.
        let gone = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
        };
        let told = told.err().filter(|error| !gone(error)).map(|error| format!("{error}; "));
        let told = told.unwrap_or_default();
        return Err(failed("the helper", format!("{status}; {told}{}", said.trim())));
    }
    if let Some(group) = &bounds.group {
        ended.memory_exceeded |= group.memory_exceeded();
        ended.peak_bytes = ended.peak_bytes.max(group.peak_bytes());
    }
    Ok(ended)
}

/// Ends what the helper could not, by the group that holds it.
///
/// # Errors
/// [`NativeError::Failed`] where nothing holds it.
fn end_what_is_left(group: Option<&ControlGroup>) -> Result<(), NativeError> {
    let killed = group.map(ControlGroup::kill);
    match killed {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(failed("processes of a command are left", error)),
        None => Err(failed(
            "processes of a command are left",
            "they start others faster than they can be ended; look for them, and delegate a \
             control group to this user, which ends them all at once",
        )),
    }
}

/// The loop over everything that a run says.
struct Reading<'r> {
    socket: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    cancelled: Arc<OwnedFd>,
    events: Events,
    bounds: &'r Bounds<'r>,
    deadline: Option<Instant>,
    /// When the helper is ended, after it was told to end.
    last: Option<Instant>,
    /// The helper did not end by itself.
    forced: bool,
    ended: Ended,
}

impl<'r> Reading<'r> {
    fn new(
        socket: OwnedFd,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
        bounds: &'r Bounds<'r>,
        started: Instant,
    ) -> Result<Self, NativeError> {
        for pipe in [&stdout, &stderr].into_iter().flatten() {
            rustix::io::ioctl_fionbio(pipe, true).map_err(|error| failed("a pipe", error))?;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed("eventfd", error))?;
        let cancelled = Arc::new(wake);
        let wake = Arc::clone(&cancelled);
        bounds.cancel.on_cancel(move || {
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        });
        Ok(Self {
            socket: Some(socket),
            stdout,
            stderr,
            cancelled,
            events: Events::default(),
            bounds,
            deadline: started.checked_add(bounds.timeout),
            last: None,
            forced: false,
            ended: Ended::default(),
        })
    }

    /// Reads until the helper has closed its socket, and then what is left in
    /// the pipes. Who holds them after that is not waited for.
    fn until_gone(&mut self, running: &mut Running) -> Result<(), NativeError> {
        let mut piece = vec![0; PIECE];
        while self.socket.is_some() {
            self.wait()?;
            self.check_time(running);
            self.drain(&mut piece);
            self.listen(&mut piece)?;
        }
        self.drain(&mut piece);
        Ok(())
    }

    /// Waits until there is something to read, or the next time is reached.
    fn wait(&self) -> Result<(), NativeError> {
        let streams = [&self.socket, &self.stdout, &self.stderr].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> =
            streams.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        if self.last.is_none() {
            fds.push(PollFd::from_borrowed_fd(self.cancelled.as_fd(), PollFlags::IN));
        }
        let next = if self.last.is_some() { self.last } else { self.deadline };
        let left = next.map(|next| {
            let left = next.saturating_duration_since(now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(failed("poll", error)),
        }
    }

    fn check_time(&mut self, running: &mut Running) {
        let now = now();
        if let Some(last) = self.last {
            if now >= last {
                // It does not answer.
                self.forced = true;
                let _ = running.child.kill();
                self.last = now.checked_add(GRACE);
            }
            return;
        }
        let over = self.deadline.is_some_and(|deadline| now >= deadline);
        let cancelled = self.bounds.cancel.is_cancelled();
        if over || cancelled {
            // Who cancels what is over already only helps the time along.
            self.ended.timed_out = over;
            self.ended.cancelled = cancelled && !over;
            if let Some(socket) = &self.socket {
                let _ = shutdown(socket, Shutdown::Write);
            }
            self.last = now.checked_add(GRACE);
        }
    }

    /// Takes everything that is in the pipes now.
    fn drain(&mut self, piece: &mut [u8]) {
        let limit = self.bounds.output_bytes;
        for (pipe, stream, captured) in [
            (&mut self.stdout, Stream::Stdout, &mut self.ended.stdout),
            (&mut self.stderr, Stream::Stderr, &mut self.ended.stderr),
        ] {
            // Not for ever: a command that never stops writing has its time.
            for _ in 0..16 {
                let Some(open) = &*pipe else { break };
                match rustix::io::read(open, &mut *piece) {
                    Ok(0) => *pipe = None,
                    Ok(got) => {
                        let kept = captured.take(piece.get(..got).unwrap_or_default(), limit);
                        if !kept.is_empty() {
                            self.bounds.output.write(stream, kept);
                        }
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => break,
                    Err(_) => *pipe = None,
                }
            }
        }
    }

    /// Takes what the helper says, if it says something.
    fn listen(&mut self, piece: &mut [u8]) -> Result<(), NativeError> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let received = rustix::net::recv(socket, &mut *piece, rustix::net::RecvFlags::DONTWAIT);
        let got = match received {
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => {
                self.socket = None;
                return Ok(());
            }
            Ok((_, got)) => got,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(failed("the helper's socket", error)),
        };
        let bytes = piece.get(..got).unwrap_or_default();
        let events = self.events.take(bytes).map_err(|error| failed("the helper", error))?;
        for event in events {
            self.hear(event);
        }
        Ok(())
    }

    fn hear(&mut self, event: Event) {
        let ended = &mut self.ended;
        match event {
            Event::Started { controls } => {
                ended.started = true;
                ended.controls = controls;
            }
            Event::Refused { missing } => ended.missing.extend(missing),
            Event::NotStarted { reason } => ended.not_started = Some(reason),
            Event::Ended { end, memory_exceeded, peak_bytes, left } => {
                ended.left |= left;
                ended.end = Some(end);
                ended.memory_exceeded = memory_exceeded;
                ended.peak_bytes = ended.peak_bytes.max(peak_bytes);
            }
            Event::Reaped { cpu_us, peak_bytes } => {
                ended.cpu = Duration::from_micros(cpu_us);
                ended.peak_bytes = ended.peak_bytes.max(peak_bytes);
            }
        }
    }
}
