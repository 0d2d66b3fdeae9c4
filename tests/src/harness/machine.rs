//! The harness's own view of the machine it runs on: time, memory, files and
//! the details that no attack may learn.
//!
//! Invariant: this is the only module of the harness that reads the host's
//! environment; nothing of it is given to a guest.
#![allow(clippy::disallowed_methods, reason = "this module is the adapter of the harness")]

use std::path::{Path, PathBuf};
use std::time::Instant;

/// The file `fumehood-helper` beside this program, or one directory above it,
/// where cargo puts it for a test.
#[must_use]
pub fn helper() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    [Some(directory), directory.parent()]
        .into_iter()
        .flatten()
        .map(|directory| directory.join(HELPER))
        .find(|path| path.is_file())
}

/// The helper's name; of a build with weakened defences it is another.
const HELPER: &str =
    if cfg!(feature = "weaken") { "fumehood-helper-weakened" } else { "fumehood-helper" };

/// Whether the long versions run: `FUMEHOOD_TEST_FULL=1`.
#[must_use]
pub fn is_full() -> bool {
    std::env::var("FUMEHOOD_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Now, on the monotonic clock.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// A figure of this process from `/proc/self/status`, in bytes.
fn status_bytes(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Resident memory of this process that is not shared with files, in bytes.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    status_bytes("RssAnon:")
}

/// The variables whose values no attack may learn. The test binary starts
/// itself with values that occur nowhere else.
pub const HOST_VARIABLES: &[&str] = &["HOME", "USER", "LOGNAME", "FUMEHOOD_ATTACK_CANARY"];

/// Texts that identify this host or its user, where they are distinctive
/// enough to be looked for.
#[must_use]
pub fn host_details() -> Vec<String> {
    let mut details: Vec<String> =
        HOST_VARIABLES.iter().filter_map(|name| std::env::var(name).ok()).collect();
    details.extend(std::env::current_dir().ok().map(|path| path.display().to_string()));
    details.extend(std::env::current_exe().ok().map(|path| path.display().to_string()));
    details.extend(read(Path::new("/proc/sys/kernel/hostname")).map(|name| name.trim().to_owned()));
    details.push(std::env::temp_dir().join("").display().to_string());
    // Too short to be of this host alone, or the guest's own.
    details.retain(|detail| {
        detail.len() >= 8 && !"/home/agent /tmp/ fumehood localhost".contains(detail.as_str())
    });
    details.sort();
    details.dedup();
    details
}

/// Variables of the host that would send requests elsewhere in a program that
/// read them. The test binary starts itself with them.
pub const PROXY_VARIABLES: &[(&str, &str)] = &[
    ("HTTP_PROXY", "http://127.0.0.1:9"),
    ("http_proxy", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "http://127.0.0.1:9"),
    ("ALL_PROXY", "socks5://127.0.0.1:9"),
    ("NO_PROXY", ""),
    ("SSL_CERT_FILE", "/nonexistent/certificates.pem"),
    ("SSL_CERT_DIR", "/nonexistent"),
];

/// A login that a program that read `~/.netrc` would send.
pub const NETRC: &str = "machine api.allowed.test login canary password canary-password\n";

/// The first of those settings that this process does not have.
#[must_use]
pub fn missing_proxy_settings() -> Option<&'static str> {
    if read(&home().join(".netrc")).as_deref() != Some(NETRC) {
        return Some("~/.netrc");
    }
    PROXY_VARIABLES
        .iter()
        .find(|(name, value)| std::env::var(name).as_deref() != Ok(*value))
        .map(|(name, _)| *name)
}

/// The home directory of whoever runs the harness.
#[must_use]
pub fn home() -> PathBuf {
    std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default()
}

/// The text of a file of the host.
#[must_use]
pub fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The bytes of a file of the host.
#[must_use]
pub fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

/// Opens a file of the host to read and to append, and makes it.
///
/// # Errors
/// The system's reason.
pub fn append_to(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().read(true).append(true).create(true).open(path)
}

/// Writes a file of the host.
///
/// # Errors
/// The system's reason.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> std::io::Result<()> {
    std::fs::write(path, contents)
}

/// Makes a directory and those above it.
///
/// # Errors
/// The system's reason.
pub fn make_directory(path: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Makes a symbolic link at `link`.
///
/// # Errors
/// The system's reason.
pub fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Moves a file or directory of the host.
///
/// # Errors
/// The system's reason.
pub fn rename(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::rename(from, to)
}

/// Removes a file of the host.
///
/// # Errors
/// The system's reason.
pub fn remove(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(path)
}

/// Everything below a directory, names and contents, in a comparable form.
#[must_use]
pub fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path.clone());
                found.push((path, Vec::new()));
            } else {
                let contents = std::fs::read(&path).unwrap_or_default();
                found.push((path, contents));
            }
        }
    }
    found.sort();
    found
}

/// The top of the source tree, if this runs from one.
#[must_use]
pub fn source_tree() -> Option<PathBuf> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    tree.join("runtime/src").is_dir().then(|| tree.to_owned())
}

/// A process of this user that an attack may want to reach; it is ended with
/// this value.
pub struct Victim(std::process::Child);

impl Victim {
    /// With one variable.
    ///
    /// # Errors
    /// The system's reason.
    pub fn start((name, value): (&str, &str)) -> std::io::Result<Self> {
        std::process::Command::new("/bin/sleep")
            .arg("600")
            .env_clear()
            .env(name, value)
            .stdin(std::process::Stdio::null())
            .spawn()
            .map(Self)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Standard output of a command of the shell that is a plain child.
///
/// # Errors
/// It could not be started.
pub fn shell_output(text: &str) -> std::io::Result<String> {
    let output = std::process::Command::new("/bin/bash")
        .args(["-c", text])
        .stdin(std::process::Stdio::null())
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sets the mode of a file of the host.
///
/// # Errors
/// The system's reason.
pub fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

/// Copies a file of the host.
///
/// # Errors
/// The system's reason.
pub fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::copy(from, to).map(drop)
}

/// Opens a directory of the host.
///
/// # Errors
/// The system's reason.
pub fn open_directory(path: &Path) -> std::io::Result<std::os::fd::OwnedFd> {
    std::fs::File::open(path).map(Into::into)
}

/// A number that no other process has as an argument.
#[must_use]
pub fn number_of_its_own() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    format!("7{:05}{:02}", std::process::id().checked_rem(100_000).unwrap_or(0), next)
}

/// Numbers of the processes with this name whose first argument begins with a
/// text.
fn processes(name: &str, argument: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let mut parts = line.split(|byte| *byte == 0);
        let program = parts.next()?.rsplit(|byte| *byte == b'/').next()?;
        let first = parts.next().unwrap_or_default();
        (program == name.as_bytes() && first.starts_with(argument.as_bytes())).then_some(pid)
    };
    entries.filter_map(number).collect()
}

/// How many processes have this name and a first argument that begins so.
#[must_use]
pub fn processes_named(name: &str, argument: &str) -> usize {
    processes(name, argument).len()
}

/// Ends them.
pub fn end_processes_named(name: &str, argument: &str) {
    for pid in processes(name, argument) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Runs on a thread whose system calls of these numbers fail with these errors,
/// and those of every process it starts.
///
/// # Errors
/// The filter could not be set.
pub fn with_failing<T: Send>(
    calls: &[(i64, i32)],
    work: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let filter = |(number, errno): &(i64, i32)| -> Result<BpfProgram, String> {
        let text = |error: seccompiler::BackendError| error.to_string();
        let arch = std::env::consts::ARCH.try_into().map_err(text)?;
        let rules = [(*number, Vec::new())].into_iter().collect();
        let error = SeccompAction::Errno(errno.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, error, arch).map_err(text)?;
        filter.try_into().map_err(text)
    };
    let filters: Vec<BpfProgram> = calls.iter().map(filter).collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            for filter in &filters {
                seccompiler::apply_filter(filter).map_err(|error| error.to_string())?;
            }
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
