//! The processes of a run, as `/proc` shows them.
//!
//! What: finds them to end them, and sums their memory where no control group
//! bounds it.
//!
//! Invariant: a process is signalled through a descriptor of it, after it was
//! looked at through that descriptor's own number, so that no other process
//! that got the number later is hit. A child of this process is signalled by its
//! number, which is its own until this process has waited for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// How often the memory of a run is summed.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Most bytes of a file of `/proc` that are read.
const MOST: usize = 4096;

/// Which processes of a `/proc` belong to the run.
enum Which {
    /// All but the first one.
    OfNamespace,
    /// Those below this one.
    Below(i32),
}

/// The processes of a run.
pub(crate) struct Processes {
    proc: OwnedFd,
    which: Which,
}

impl Processes {
    /// Those of a process namespace, by its own `/proc`.
    pub(crate) fn of_namespace(proc: &OwnedFd) -> io::Result<Self> {
        // What a mount gives can be walked through but not listed.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = openat(proc, ".", flags, Mode::empty())?;
        let processes = Self { proc, which: Which::OfNamespace };
        processes.list().map(|_| processes)
    }

    /// Those below this process, by the `/proc` of the machine.
    pub(crate) fn below_this_one() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open("/proc", flags, Mode::empty())?;
        let this = rustix::process::getpid().as_raw_nonzero().get();
        let processes = Self { proc, which: Which::Below(this) };
        processes.read(this, "stat").map(|_| processes)
    }

    fn read(&self, pid: i32, name: &str) -> io::Result<Vec<u8>> {
        let path = format!("{pid}/{name}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&self.proc, path.as_str(), flags, Mode::empty())?;
        let mut bytes = vec![0; MOST];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match rustix::io::read(&file, rest) {
                Ok(0) => break,
                Ok(got) => filled = filled.saturating_add(got),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn all(&self) -> io::Result<Vec<i32>> {
        let mut all = Vec::new();
        for entry in Dir::read_from(&self.proc)? {
            let entry = entry?;
            all.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(all)
    }

    /// The parent, which `stat` has behind the name in parentheses.
    fn parent(&self, pid: i32) -> Option<i32> {
        let text = self.read(pid, "stat").ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let (_, rest) = text.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse().ok()
    }

    /// The processes of the run, at this moment.
    pub(crate) fn list(&self) -> io::Result<Vec<i32>> {
        Ok(match self.which {
            Which::OfNamespace => self.all()?.into_iter().filter(|pid| *pid != 1).collect(),
            Which::Below(top) => {
                let all = self.all()?;
                let parents: BTreeMap<i32, i32> =
                    all.iter().filter_map(|pid| Some((*pid, self.parent(*pid)?))).collect();
                let below = |pid: &i32| {
                    let mut at = *pid;
                    for _ in 0..=parents.len() {
                        match parents.get(&at) {
                            Some(parent) if *parent == top => return true,
                            Some(parent) => at = *parent,
                            None => return false,
                        }
                    }
                    false
                };
                all.into_iter().filter(below).collect()
            }
        })
    }

    /// Sends SIGKILL to every one of them.
    pub(crate) fn end(&self) {
        let Ok(list) = self.list() else { return };
        let found: Vec<(i32, OwnedFd)> = list
            .into_iter()
            .filter_map(|pid| {
                let open = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
                Some((pid, open))
            })
            .collect();
        // The second look tells that what was opened is still of the run.
        let Ok(still) = self.list() else { return };
        for (pid, open) in found {
            if still.contains(&pid) {
                let _ = pidfd_send_signal(open.as_fd(), Signal::KILL);
            }
        }
    }

    /// Children of this process that were not waited for, of all its threads;
    /// as many as fit into one reading. None where the kernel does not tell.
    fn children(&self) -> Option<Vec<Pid>> {
        let Which::Below(top) = self.which else { return None };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = format!("{top}/task");
        let threads = openat(&self.proc, path.as_str(), flags, Mode::empty()).ok()?;
        let mut children = Vec::new();
        for thread in Dir::read_from(&threads).ok()? {
            let thread = thread.ok()?;
            let Ok(number) = thread.file_name().to_str().unwrap_or_default().parse::<i32>() else {
                continue;
            };
            let text = self.read(top, &format!("task/{number}/children")).ok()?;
            children.extend(numbers(&text).into_iter().filter_map(Pid::from_raw));
        }
        Some(children)
    }

    /// Sends SIGKILL to every child of this process at once. Whether they could
    /// be found: a kernel without `CONFIG_PROC_CHILDREN` does not tell.
    pub(crate) fn end_children(&self) -> bool {
        let Some(children) = self.children() else { return false };
        for child in children {
            let _ = kill_process(child, Signal::KILL);
        }
        true
    }

    /// Memory of a process that is its own, in bytes, and its threads, from
    /// `status`: a page that several have counts for each of them.
    fn look(&self, pid: i32) -> (u64, u64) {
        let Ok(text) = self.read(pid, "status") else { return (0, 0) };
        let kilobytes = fields(&text, &["RssAnon:", "RssShmem:"]);
        (kilobytes.saturating_mul(1024), fields(&text, &["Threads:"]))
    }

    /// The same, of shared pages its part only; slower.
    fn proportional(&self, pid: i32) -> u64 {
        match self.read(pid, "smaps_rollup") {
            Ok(text) => fields(&text, &["Pss_Anon:", "Pss_Shmem:"]).saturating_mul(1024),
            Err(_) => self.look(pid).0,
        }
    }
}

/// The numbers of a list, each with a space behind it: one that was cut is left
/// out, since what is left of it is the number of another process.
fn numbers(text: &[u8]) -> Vec<i32> {
    let text = String::from_utf8_lossy(text);
    let whole = text.rsplit_once(' ').map_or("", |(whole, _)| whole);
    whole
        .split(' ')
        .filter_map(|number| number.parse::<i32>().ok())
        .filter(|number| *number > 1)
        .collect()
}

/// The sum of the numbers of fields.
fn fields(text: &[u8], names: &[&str]) -> u64 {
    let text = String::from_utf8_lossy(text);
    let value = |line: &str| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(value).fold(0_u64, u64::saturating_add)
}

/// Sums the memory of a run.
pub(crate) struct MemoryWatch<'p> {
    processes: &'p Processes,
    limit: u64,
    peak: u64,
    exceeded: bool,
}

impl<'p> MemoryWatch<'p> {
    pub(crate) fn new(processes: &'p Processes, limit: u64) -> Self {
        Self { processes, limit, peak: 0, exceeded: false }
    }

    /// Whether all processes together have more than the limit now, or are with
    /// their threads more than `most`, which the kernel prevents where it can
    /// (for root it does not), or cannot be looked at any more.
    pub(crate) fn exceeded(&mut self, most: u64) -> bool {
        let Ok(list) = self.processes.list() else { return true };
        if list.len() as u64 > most {
            return true;
        }
        let (mut now, mut threads) = (0_u64, 0_u64);
        for pid in &list {
            let (bytes, of_process) = self.processes.look(*pid);
            now = now.saturating_add(bytes);
            threads = threads.saturating_add(of_process);
        }
        if threads > most {
            return true;
        }
        if now > self.limit && list.len() > 1 {
            let parts = list.iter().map(|pid| self.processes.proportional(*pid));
            now = parts.fold(0_u64, u64::saturating_add);
        }
        self.peak = self.peak.max(now);
        self.exceeded |= now > self.limit;
        now > self.limit
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    pub(crate) fn was_exceeded(&self) -> bool {
        self.exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_summed_by_name() {
        let text = b"VmPeak:\t  99 kB\nRssAnon:\t     10 kB\nRssFile:\t 5 kB\nRssShmem:\t 2 kB\n";
        assert_eq!(fields(text, &["RssAnon:", "RssShmem:"]), 12);
        assert_eq!(fields(b"", &["RssAnon:"]), 0);
    }

    #[test]
    fn children_are_found_and_this_process_is_not() {
        let processes = Processes::below_this_one().unwrap();
        #[allow(clippy::disallowed_methods, reason = "a test needs a child")]
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let list = processes.list().unwrap();
        assert!(list.contains(&i32::try_from(child.id()).unwrap()));
        assert!(!list.contains(&i32::try_from(std::process::id()).unwrap()));
        processes.end();
        child.wait().unwrap();
    }

    #[test]
    fn a_number_that_was_cut_is_nobodys() {
        assert_eq!(numbers(b"12 345 6789 "), [12, 345, 6789]);
        assert_eq!(numbers(b"12 345 67"), [12, 345]);
        assert!(numbers(b"12").is_empty() && numbers(b"").is_empty());
        // Never everything, and never the first process.
        assert_eq!(numbers(b"-1 0 1 7 "), [7]);
    }

    #[test]
    fn children_of_every_thread_are_told() {
        use std::os::unix::process::ExitStatusExt as _;
        let processes = Processes::below_this_one().unwrap();
        #[allow(clippy::disallowed_methods, reason = "a test needs a child")]
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        if let Some(children) = processes.children() {
            assert!(children.contains(&Pid::from_raw(number).unwrap()), "{children:?}");
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
