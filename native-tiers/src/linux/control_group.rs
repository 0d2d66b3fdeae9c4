//! Control groups (cgroup v2), where this process was given one to divide.
//!
//! What: finds a group in which it may make others that bound memory and
//! processes, makes one for a run, tells what the kernel counted, and removes
//! it with everything in it.
//!
//! Invariant: a group that was made is removed when its value is dropped. What
//! is not delegated is not touched.
#![allow(clippy::disallowed_methods, reason = "the adapter for the control group file system")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where Linux puts them.
const MOUNT: &str = "/sys/fs/cgroup";

/// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
const CGROUP2: i64 = 0x6367_7270;

/// How long an emptied group may take to be removable.
const REMOVAL: Duration = Duration::from_millis(1000);

/// A place where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlGroups {
    parent: PathBuf,
}

impl ControlGroups {
    /// The nearest place of this process.
    ///
    /// # Errors
    /// A clause that says why there is none.
    pub(crate) fn find() -> Result<Self, String> {
        let found = rustix::fs::statfs(MOUNT).map_err(|error| format!("{MOUNT}: {error}"))?;
        #[allow(clippy::useless_conversion, reason = "narrower on some architectures")]
        if i64::from(found.f_type) != CGROUP2 {
            return Err("this machine has no unified control groups at /sys/fs/cgroup".to_owned());
        }
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        Self::find_in(Path::new(MOUNT), &own)
    }

    /// The same in a tree, for a process whose `/proc/self/cgroup` is `own`.
    fn find_in(mount: &Path, own: &str) -> Result<Self, String> {
        let path = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .ok_or("this process is in no unified control group")?;
        let relative = Path::new(path);
        if relative.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err("its control group is outside of what is mounted".to_owned());
        }
        let mut why = "no control group above this process passes memory and pids on".to_owned();
        for ancestor in relative.ancestors() {
            let dir = mount.join(ancestor);
            let Ok(passed) = fs::read_to_string(dir.join("cgroup.subtree_control")) else {
                continue;
            };
            let passes = |name: &str| passed.split_whitespace().any(|passed| passed == name);
            if !passes("memory") || !passes("pids") {
                continue;
            }
            let writable = |path: &Path| {
                rustix::fs::accessat(
                    rustix::fs::CWD,
                    path,
                    rustix::fs::Access::WRITE_OK,
                    rustix::fs::AtFlags::EACCESS,
                )
                .is_ok()
            };
            if writable(&dir) && writable(&dir.join("cgroup.procs")) {
                return Ok(Self { parent: dir });
            }
            why = format!("/{} is not delegated to this user", ancestor.display());
        }
        Err(why)
    }

    /// Makes a group with its bounds.
    ///
    /// # Errors
    /// What the kernel says; then nothing is left.
    pub(crate) fn create(&self, memory_bytes: u64, processes: u64) -> io::Result<ControlGroup> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.parent.join(format!("fumehood-{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        let group = ControlGroup { path };
        group.write("memory.max", &memory_bytes.to_string())?;
        // The helper's own processes are in it.
        group.write("pids.max", &processes.saturating_add(3).to_string())?;
        // Swap would be memory beyond the bound; a kernel without has no file.
        let _ = group.write("memory.swap.max", "0");
        let _ = group.write("memory.oom.group", "1");
        Ok(group)
    }
}

/// One group.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(name), value)
    }

    /// Moves a process into it, before it starts others.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn add(&self, process: u32) -> io::Result<()> {
        self.write("cgroup.procs", &process.to_string())
    }

    /// Whether the kernel ended something because of its memory.
    pub(crate) fn memory_exceeded(&self) -> bool {
        let Ok(events) = fs::read_to_string(self.path.join("memory.events")) else { return false };
        let count = |name: &str| {
            let line = events.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        count("oom_kill ").is_some_and(|count| count > 0)
    }

    /// Ends everything in it at once, what forks meanwhile among it.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// The most memory that it had, in bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let peak = fs::read_to_string(self.path.join("memory.peak"));
        peak.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = self.kill();
        let step = Duration::from_millis(5);
        let mut left = REMOVAL;
        while let Err(error) = fs::remove_dir(&self.path) {
            if error.kind() == io::ErrorKind::NotFound {
                return;
            }
            if left.is_zero() {
                tracing::warn!(path = %self.path.display(), %error, "a control group is left");
                return;
            }
            std::thread::sleep(step);
            left = left.saturating_sub(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as the kernel shows it.
    fn tree(groups: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, passed) in groups {
            let dir = root.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cgroup.subtree_control"), passed).unwrap();
            fs::write(dir.join("cgroup.procs"), "").unwrap();
        }
        root
    }

    #[test]
    fn the_nearest_group_that_passes_both_on_is_taken() {
        let root = tree(&[
            ("", "cpu memory pids"),
            ("user.slice", "memory pids\n"),
            ("user.slice/app", "memory\n"),
            ("user.slice/app/run.scope", "\n"),
        ]);
        let found =
            ControlGroups::find_in(root.path(), "1:name=x:/\n0::/user.slice/app/run.scope\n");
        assert_eq!(found.unwrap().parent, root.path().join("user.slice"));
    }

    #[test]
    fn what_is_not_there_is_said() {
        let root = tree(&[("", ""), ("a", "cpu")]);
        let why = |own: &str| ControlGroups::find_in(root.path(), own).unwrap_err();
        assert!(why("0::/a").contains("passes memory and pids on"));
        assert!(why("4:memory:/a").contains("in no unified"));
        assert!(why("0::/../b").contains("outside"));
    }

    #[test]
    fn a_group_has_its_bounds_tells_its_counts_and_is_removed() {
        let root = tree(&[("a", "memory pids")]);
        let groups = ControlGroups::find_in(root.path(), "0::/a").unwrap();
        let group = groups.create(1 << 20, 7).unwrap();
        group.add(4711).unwrap();
        let read = |name: &str| fs::read_to_string(group.path.join(name)).unwrap();
        let set = ["memory.max", "pids.max", "memory.swap.max", "cgroup.procs", "memory.oom.group"];
        assert_eq!(set.map(read), ["1048576", "10", "0", "4711", "1"]);
        assert!(!group.memory_exceeded());
        fs::write(group.path.join("memory.events"), "low 0\noom 3\noom_kill 0\n").unwrap();
        assert!(!group.memory_exceeded());
        fs::write(group.path.join("memory.events"), "low 0\noom 3\noom_kill 2\n").unwrap();
        assert!(group.memory_exceeded());
        fs::write(group.path.join("memory.peak"), "12345\n").unwrap();
        assert_eq!(group.peak_bytes(), 12345);
        let path = group.path.clone();
        // The kernel's files go with the directory; these do not.
        for entry in fs::read_dir(&path).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| drop(group));
            for _ in 0..400 {
                std::thread::sleep(Duration::from_millis(2));
                let _ = fs::remove_file(path.join("cgroup.kill"));
            }
        });
        assert!(!path.exists());
    }
}
