//! The processes of one run, from the first to the last.
//!
//! Invariant: a process of the command ends before the helper does, on every
//! path: with namespaces the kernel ends all when the first process of theirs
//! ends; without, the helper adopts every orphan and ends its children until it
//! has none, or says that it could not.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use fumehood_host_fns::{Missing, NativeEnd};
use fumehood_native_tiers::protocol::{Boundary, Event, Spec, Work, receive_spec, send_event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open,
    pidfd_send_signal,
};

use crate::attempts;
use crate::boundary::{self, Refusal};
use crate::raw::{self, Fork};
use crate::view::{self, View};
use crate::watch::{MemoryWatch, Processes, WATCH_INTERVAL};
use fumehood_policies::weaken;

/// How often orphans that ended are waited for, at least.
const REAP_INTERVAL: Duration = Duration::from_millis(500);

/// How long what a command left may take to end, without namespaces; less than
/// the other side waits for this program.
const END_WITHIN: Duration = Duration::from_millis(1500);

/// Of so many looks at the children one is at everything below them.
const LOOKS: u32 = 16;

#[allow(clippy::disallowed_methods, reason = "the clock of the helper")]
fn now() -> Instant {
    Instant::now()
}

/// Everything that a run was given.
pub(crate) struct Given {
    pub(crate) spec: Spec,
    pub(crate) mounts: Vec<OwnedFd>,
    /// The parts of those that are overlays, in the order of the mounts.
    pub(crate) overlays: Vec<Option<[OwnedFd; 3]>>,
    pub(crate) scratch: Option<OwnedFd>,
    stdin: OwnedFd,
    /// The other side.
    socket: OwnedFd,
}

impl Given {
    fn tell(&self, event: &Event) -> io::Result<()> {
        send_event(&self.socket, event)
    }
}

/// Receives the spec, runs it and tells how it ended.
pub(crate) fn run() -> io::Result<()> {
    raw::close_inherited()?;
    // From here on the socket is another descriptor, closed at `exec`.
    let socket = rustix::io::fcntl_dupfd_cloexec(raw::standard_input(), 3)?;
    let (spec, mut fds) = receive_spec(&socket)?;
    #[cfg(feature = "weaken")]
    weaken::set_bits(spec.weakened);
    let scratch = if spec.scratch.is_some() { fds.pop() } else { None };
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let stdin = next()?;
    let (mut mounts, mut overlays) = (Vec::new(), Vec::new());
    for mount in &spec.mounts {
        mounts.push(next()?);
        overlays.push(if mount.overlay { Some([next()?, next()?, next()?]) } else { None });
    }
    let given = Given { spec, mounts, overlays, scratch, stdin, socket };
    // A session of its own: no terminal, and signals of a terminal go by it.
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(&given.stdin)?;
    let namespaces = matches!(given.spec.boundary, Boundary::Kernel { namespaces: true });
    let ended = if namespaces { with_namespaces(&given) } else { without_namespaces(&given) };
    if let Err(refusal) = ended {
        given.tell(&Event::Refused { missing: refusal.missing })?;
    }
    let (cpu, peak_bytes) = raw::children_usage();
    let cpu_us = u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
    given.tell(&Event::Reaped { cpu_us, peak_bytes })
}

fn failed(what: &str, error: &io::Error) -> Refusal {
    Refusal::one("process-tree", format!("{what}: {error}"), "see which limit of processes binds")
}

/// The first process: outside of the namespaces, waits for the socket.
fn with_namespaces(given: &Given) -> Result<(), Refusal> {
    view::leave_namespaces()?;
    // What follows cannot be traced or read by a process of the same user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| failed("prctl", &error.into()))?;
    match raw::fork().map_err(|error| failed("fork", &error))? {
        Fork::Child => {
            let code = match inside(given) {
                Ok(()) => 0,
                Err(refusal) => {
                    let _ = given.tell(&Event::Refused { missing: refusal.missing });
                    1
                }
            };
            leave(code)
        }
        Fork::Parent(first) => guard(given, first).map_err(|error| failed("poll", &error)),
    }
}

/// Ends a child of this program without its parent's way out.
#[allow(clippy::disallowed_methods, reason = "a process that must not return")]
pub(crate) fn leave(code: i32) -> ! {
    std::process::exit(code)
}

/// Waits until the first process of the namespaces has ended, and ends it when
/// the other side goes away.
fn guard(given: &Given, first: Pid) -> io::Result<()> {
    let pidfd = pidfd_open(first, PidfdFlags::empty())?;
    let mut ended = false;
    while !ended {
        let mut fds = [
            PollFd::new(&pidfd, PollFlags::IN),
            PollFd::new(&given.socket, PollFlags::IN | PollFlags::RDHUP),
        ];
        retry(|| poll(&mut fds, None))?;
        let [process, socket] = &fds;
        ended = !process.revents().is_empty();
        if !ended && !socket.revents().is_empty() {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            ended = true;
        }
    }
    retry(|| rustix::process::waitpid(Some(first), WaitOptions::empty())).map(|_| ())
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

/// The first process of the namespaces: makes the file system, starts the
/// command, adopts every orphan, and takes everything with it when it ends.
fn inside(given: &Given) -> Result<(), Refusal> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("prctl", &error.into()))?;
    let view = view::build(given)?;
    let processes = view.proc.as_ref().map(Processes::of_namespace).transpose();
    let processes = processes.map_err(|error| {
        Refusal::one("process-tree", format!("/proc: {error}"), "see `doctor` for this kernel")
    })?;
    let command = start(given, Some(&view))?;
    supervise(given, command, processes.as_ref())
}

/// No namespaces: the helper adopts every orphan itself.
fn without_namespaces(given: &Given) -> Result<(), Refusal> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| failed("prctl", &error.into()))?;
    let processes = Processes::below_this_one().map_err(|error| {
        let remedy = "mount /proc, without which processes cannot be found to be ended";
        Refusal::one("process-tree", error.to_string(), remedy)
    })?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| failed("prctl", &error.into()))?;
    let command = start(given, None)?;
    let ended = supervise(given, command, Some(&processes));
    if ended.is_err() {
        end_all(&processes, command);
    }
    ended
}

/// Starts the command in a child.
fn start(given: &Given, view: Option<&View>) -> Result<Pid, Refusal> {
    match raw::fork().map_err(|error| failed("fork", &error))? {
        Fork::Parent(pid) => Ok(pid),
        Fork::Child => {
            let event = become_command(given, view);
            let _ = given.tell(&event);
            leave(127)
        }
    }
}

/// Puts the boundary around this process and becomes the command. Returns what
/// went wrong.
fn become_command(given: &Given, view: Option<&View>) -> Event {
    // A session and a group of its own: `kill 0` does not reach the helper.
    if let Err(error) = rustix::process::setsid() {
        return Event::NotStarted { reason: format!("a session cannot be made: {error}") };
    }
    let mut controls = match boundary::install(given, view) {
        Ok(controls) => controls,
        Err(refusal) => return Event::Refused { missing: refusal.missing },
    };
    controls.sort_unstable();
    match &given.spec.work {
        Work::Nothing => match given.tell(&Event::Started { controls }) {
            Ok(()) => leave(0),
            Err(error) => Event::NotStarted { reason: error.to_string() },
        },
        Work::Attempts => {
            if let Err(error) = given.tell(&Event::Started { controls }) {
                return Event::NotStarted { reason: error.to_string() };
            }
            leave(attempts::run());
        }
        Work::Command { argv, env, cwd } => {
            if let Err(error) = rustix::process::chdir(cwd.as_str()) {
                let reason = format!("the working directory {cwd:?} cannot be used: {error}");
                return Event::NotStarted { reason };
            }
            let Some((program, arguments)) = argv.split_first() else {
                return Event::NotStarted { reason: "there is no program".to_owned() };
            };
            if let Err(error) = given.tell(&Event::Started { controls }) {
                return Event::NotStarted { reason: error.to_string() };
            }
            #[allow(clippy::disallowed_methods, reason = "this is what a helper is for")]
            let mut command = std::process::Command::new(program);
            command.args(arguments).env_clear();
            command.envs(env.iter().map(|(name, value)| (name, value)));
            let error = command.exec();
            Event::NotStarted { reason: format!("{program:?} cannot be started: {error}") }
        }
    }
}

/// Waits for the command, keeps its memory within bounds, and ends everything
/// that it left.
fn supervise(given: &Given, command: Pid, processes: Option<&Processes>) -> Result<(), Refusal> {
    let namespaces = matches!(given.spec.boundary, Boundary::Kernel { namespaces: true });
    let pidfd = pidfd_open(command, PidfdFlags::empty())
        .map_err(|error| failed("pidfd_open", &error.into()))?;
    let watched = (!given.spec.control_group).then_some(processes).flatten();
    let mut watch =
        watched.map(|processes| MemoryWatch::new(processes, given.spec.limits.memory_bytes));
    let (mut end, mut left) = (None, None);
    while end.is_none() && left.is_none() {
        end = reap(command).map_err(|error| failed("waitpid", &error))?;
        if end.is_some() {
            break;
        }
        let mut fds = vec![PollFd::new(&pidfd, PollFlags::IN)];
        if !namespaces {
            fds.push(PollFd::new(&given.socket, PollFlags::IN | PollFlags::RDHUP));
        }
        // Orphans are waited for also where nothing is watched.
        let interval = timespec(if watch.is_some() { WATCH_INTERVAL } else { REAP_INTERVAL });
        retry(|| poll(&mut fds, Some(&interval))).map_err(|error| failed("poll", &error))?;
        let gone = fds.get(1).is_some_and(|socket| !socket.revents().is_empty());
        let most = given.spec.limits.processes;
        let too_much = watch.as_mut().is_some_and(|watch| watch.exceeded(most))
            && !weaken::off(weaken::Defence::MemoryWatch);
        if gone || too_much {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            match processes {
                // The end of this process ends what is left.
                Some(processes) if namespaces => processes.end(),
                Some(processes) => {
                    let swept = end_all(processes, command);
                    (end, left) = (swept.end, Some(swept.left));
                }
                None => {}
            }
        }
    }
    let left = match (left, processes) {
        (Some(left), _) => left,
        (None, Some(processes)) if !namespaces => end_all(processes, command).left,
        (None, _) => false,
    };
    let (peak_bytes, memory_exceeded) =
        watch.map_or((0, false), |watch| (watch.peak(), watch.was_exceeded()));
    let end = end.unwrap_or(NativeEnd::Signalled(Signal::KILL.as_raw()));
    let _ = given.tell(&Event::Ended { end, memory_exceeded, peak_bytes, left });
    Ok(())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Takes the end of every child that has ended; that of the command, if it has.
fn reap(command: Pid) -> io::Result<Option<NativeEnd>> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == command => return Ok(Some(end_of(status))),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn end_of(status: WaitStatus) -> NativeEnd {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => NativeEnd::Exited(code),
        (None, Some(signal)) => NativeEnd::Signalled(signal),
        (None, None) => NativeEnd::Signalled(0),
    }
}

/// What came of ending everything.
struct Swept {
    /// The end of the command, if it was among it.
    end: Option<NativeEnd>,
    /// Something is still there.
    left: bool,
}

/// Ends every process below this one. Each orphan becomes a child of this
/// process, so that there is none left when it has no child. A child that forks
/// and exits faster than `/proc` can be gone through is ended as a child: only
/// its number is needed.
fn end_all(processes: &Processes, command: Pid) -> Swept {
    let started = now();
    let mut swept = Swept { end: None, left: true };
    let mut looks = 0_u32;
    while started.elapsed() < END_WITHIN {
        let known = processes.end_children();
        if !known || looks.is_multiple_of(LOOKS) {
            processes.end();
        }
        looks = looks.wrapping_add(1);
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == command => swept.end = Some(end_of(status)),
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                // No child is left.
                Err(_) => return Swept { left: false, ..swept },
            }
        }
        std::thread::yield_now();
    }
    swept
}

/// One thing that is missing, for the modules of the boundary.
pub(crate) fn missing(name: &str, reason: impl Into<String>, remedy: &str) -> Missing {
    Missing { name: name.to_owned(), reason: reason.into(), remedy: remedy.to_owned() }
}
