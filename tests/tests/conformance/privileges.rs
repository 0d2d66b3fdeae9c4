//! The command needs no privileges of the operating system: it runs as an
//! ordinary user, on a read-only root, without HOME, without `/proc`, with
//! `/tmp` mounted noexec and under a container's system call filter, given a
//! file of compiled code.
//!
//! The test binary confines itself (`__confined`, then exec), in a mount
//! namespace of its own. A kernel feature that is missing is named; with
//! `CI=true` that is a failure, else the case is shown as ignored.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use rustix::mount::{MountFlags, MountPropagationFlags};
use serde::{Deserialize, Serialize};

use crate::seccomp;
use crate::support::command_binary;

/// Where the staged files are seen inside; exists on every Linux.
const STAGE: &str = "/mnt";
const NOBODY: u32 = 65534;
/// Exit code of the helper when the kernel lacks something.
const MISSING: u8 = 77;

/// What is taken away before the command starts.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Confinement {
    ordinary_user: bool,
    read_only_root: bool,
    no_home: bool,
    no_proc: bool,
    noexec_tmp: bool,
    seccomp: bool,
}

const NONE: Confinement = Confinement {
    ordinary_user: false,
    read_only_root: false,
    no_home: false,
    no_proc: false,
    noexec_tmp: false,
    seccomp: false,
};
const ALL: Confinement = Confinement {
    ordinary_user: true,
    read_only_root: true,
    no_home: true,
    no_proc: true,
    noexec_tmp: true,
    seccomp: true,
};

const CASES: &[(&str, Confinement)] = &[
    ("control_nothing_taken_away", NONE),
    ("ordinary_user", Confinement { ordinary_user: true, ..NONE }),
    ("read_only_root", Confinement { read_only_root: true, ..NONE }),
    ("no_home", Confinement { no_home: true, ..NONE }),
    ("no_proc", Confinement { no_proc: true, ..NONE }),
    ("noexec_tmp", Confinement { noexec_tmp: true, ..NONE }),
    ("container_seccomp_filter", Confinement { seccomp: true, ..NONE }),
    ("all_at_once", ALL),
];

/// Each line fails inside full confinement; a shell prints what did not.
const CONTROL: &str = r#"
[ "$(id -u)" = 0 ] && echo "is root"
( : > /usr/written ) 2>/dev/null && echo "the root can be written"
[ -n "${HOME+set}" ] && echo "HOME is set"
[ -e /proc/self ] && echo "/proc is there"
printf '#!/bin/sh\nexit 0\n' > /tmp/script || echo "/tmp cannot be written"
chmod +x /tmp/script && /tmp/script 2>/dev/null && echo "/tmp is not noexec"
unshare --user true 2>/dev/null && echo "namespaces can be made"
echo checked
"#;

/// All cases.
pub fn trials() -> Vec<Trial> {
    let missing = probe();
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut trials = Vec::new();
    let mut add = |name: &str, run: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        let name = format!("no_privileges::{name}");
        trials.push(match &missing {
            Some(missing) if is_ci => {
                let text = format!("missing on this machine: {missing}");
                Trial::test(name, move || Err(text.into()))
            }
            Some(missing) => Trial::test(name, run)
                .with_kind(format!("missing: {missing}"))
                .with_ignored_flag(true),
            None => Trial::test(name, run),
        });
    };
    for (name, confinement) in CASES {
        add(name, Box::new(|| prints_the_right_result(*confinement)));
    }
    add("memory_takes_the_plain_path_without_proc", Box::new(plain_without_proc));
    add("compiled_code_on_a_noexec_mount", Box::new(compiled_on_noexec));
    add("a_deterministic_run_has_the_same_digest", Box::new(same_digest));
    add("control_the_confinement_confines", Box::new(control));
    trials
}

/// What the machine lacks for these cases.
fn probe() -> Option<String> {
    let stage = match stage(false) {
        Ok(stage) => stage,
        Err(error) => return Some(error),
    };
    match confine(ALL, stage.path(), Path::new("/bin/true"), &[]) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error),
    }
}

struct Staged(tempfile::TempDir);

impl Staged {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A directory that anyone may read, with the command and its compiled code.
fn stage(filled: bool) -> Result<Staged, String> {
    let text = |error: std::io::Error| error.to_string();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(text)?;
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
    open(directory.path(), 0o755).map_err(text)?;
    if filled {
        for (from, name, mode) in
            [(command_binary()?, "fumehood", 0o755), (compiled()?, "compiled.code", 0o644)]
        {
            let to = directory.path().join(name);
            std::fs::copy(from, &to).map_err(text)?;
            open(&to, mode).map_err(text)?;
        }
    }
    Ok(Staged(directory))
}

/// The file of `fumehood cache build`, made once per test run.
fn compiled() -> Result<PathBuf, String> {
    static COMPILED: OnceLock<Result<(PathBuf, tempfile::TempPath), String>> = OnceLock::new();
    let built = COMPILED.get_or_init(|| {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))
            .map_err(|error| error.to_string())?
            .into_temp_path();
        let output = Command::new(command_binary()?)
            .args(["cache", "build", "--out"])
            .arg(&file)
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!(
                "`cache build` failed: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Ok((file.to_path_buf(), file))
    });
    built.as_ref().map(|(path, _)| path.clone()).map_err(Clone::clone)
}

fn confine(
    what: Confinement,
    stage: &Path,
    program: &Path,
    arguments: &[&str],
) -> Result<Output, String> {
    let what = serde_json::to_string(&what).map_err(|error| error.to_string())?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Command::new(own)
        .arg("__confined")
        .arg(what)
        .arg(stage)
        .arg(program)
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())
}

/// Another user, another root, nothing of the host: the same run.
fn same_digest() -> Result<(), Failed> {
    let stage = stage(true)?;
    let program = Path::new(STAGE).join("fumehood");
    let code = "import os, random, time, uuid; print(uuid.uuid4(), random.random(), time.time(), os.getcwd(), os.stat('/tmp'))";
    let compiled = format!("{STAGE}/compiled.code");
    let mut digests = Vec::new();
    for what in [NONE, Confinement { ordinary_user: true, ..NONE }, ALL] {
        let arguments = [
            "run",
            "--deterministic",
            "--no-record",
            "--json",
            "--timeout",
            "3600",
            "--compiled",
            &compiled,
            "-c",
            code,
        ];
        let output = confine(what, stage.path(), &program, &arguments)?;
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
        match json["digest"].as_str() {
            Some(digest) => digests.push(digest.to_owned()),
            None => return Err(format!("{what:?}: no digest in {json:#}").into()),
        }
    }
    digests.dedup();
    match digests.as_slice() {
        [_] => Ok(()),
        _ => Err(format!("the digests differ: {digests:?}").into()),
    }
}

fn run_code(what: Confinement, compiled: &str) -> Result<(), Failed> {
    let stage = stage(true)?;
    let program = Path::new(STAGE).join("fumehood");
    let code = "import json, re; print(6 * 7, json.dumps([1]), re.sub('a', 'b', 'aha'))";
    let mut arguments = vec!["run", "--compiled", compiled, "-c", code];
    if what.no_home {
        // There is no place for a record.
        let refused = confine(what, stage.path(), &program, &arguments)?;
        let told = String::from_utf8_lossy(&refused.stderr);
        let names_both = ["--no-record", "FUMEHOOD_HOME"].iter().all(|name| told.contains(name));
        if refused.status.code() != Some(66) || !names_both || !refused.stdout.is_empty() {
            return Err(format!("not refused: {} {told}", refused.status).into());
        }
        arguments.insert(1, "--no-record");
    }
    let output = confine(what, stage.path(), &program, &arguments)?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() && stdout == "42 [1] bhb\n" {
        Ok(())
    } else {
        Err(format!("{}\nstdout: {stdout}\nstderr: {stderr}", output.status).into())
    }
}

/// Without `/proc` nothing tells which pages have changed: the command says
/// that it takes the plain path. What that gives is the case `no_proc`.
fn plain_without_proc() -> Result<(), Failed> {
    let stage = stage(true)?;
    let program = Path::new(STAGE).join("fumehood");
    for (what, expected) in [
        (NONE, fumehood::memory_path()),
        (Confinement { no_proc: true, ..NONE }, fumehood::MemoryPath::Plain.as_str()),
    ] {
        let output = confine(what, stage.path(), &program, &["version", "--json"])?;
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
        if json["memory_path"] != expected {
            return Err(format!("{what:?}: {expected} was expected in {json:#}").into());
        }
    }
    Ok(())
}

fn prints_the_right_result(what: Confinement) -> Result<(), Failed> {
    run_code(what, &format!("{STAGE}/compiled.code"))
}

/// Code cannot be mapped from there, only read.
fn compiled_on_noexec() -> Result<(), Failed> {
    run_code(ALL, "/tmp/compiled.code")
}

fn control() -> Result<(), Failed> {
    let stage = stage(false)?;
    let output = confine(ALL, stage.path(), Path::new("/bin/sh"), &["-c", CONTROL])?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if stdout == "checked\n" {
        Ok(())
    } else {
        Err(format!("{stdout}{}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// Helper mode: gives up what the first argument names, then becomes the
/// program. Returns only when something is missing.
pub fn confined(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let what = arguments.next().and_then(|json| serde_json::from_str(&json).ok());
    let (Some(what), Some(stage), Some(program)) = (what, arguments.next(), arguments.next())
    else {
        eprintln!("__confined CONFINEMENT STAGE PROGRAM ARGUMENTS…");
        return ExitCode::from(64);
    };
    match give_up(what, Path::new(&stage)) {
        Err(missing) => eprintln!("{missing}"),
        Ok(is_root) => {
            let mut command = Command::new(&program);
            command.args(arguments).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
            if !what.no_home {
                command.env("HOME", "/tmp");
            }
            if what.ordinary_user && is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            eprintln!("{program}: {}", command.exec());
        }
    }
    ExitCode::from(MISSING)
}

/// Whether this process is root, and may therefore become another user.
fn give_up(what: Confinement, stage: &Path) -> Result<bool, String> {
    let is_root = rustix::process::geteuid().is_root();
    namespace(is_root)?;
    let failed = |what: &'static str| move |error: rustix::io::Errno| format!("{what} ({error})");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(failed("private mounts"))?;
    rustix::mount::mount_bind(stage, STAGE).map_err(failed("bind mounts"))?;
    if what.read_only_root {
        read_only_everywhere().map_err(|error| format!("mount_setattr ({error})"))?;
    }
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let tmpfs = |at: &'static str, flags, mode: &std::ffi::CStr| {
        rustix::mount::mount("none", at, "tmpfs", flags, mode).map_err(failed("tmpfs"))
    };
    let exec = if what.noexec_tmp { MountFlags::NOEXEC } else { MountFlags::empty() };
    tmpfs("/tmp", plain | exec, c"mode=1777")?;
    let compiled = Path::new(STAGE).join("compiled.code");
    if what.noexec_tmp && compiled.exists() {
        std::fs::copy(compiled, "/tmp/compiled.code")
            .map_err(|error| format!("room in /tmp ({error})"))?;
    }
    if what.no_proc {
        tmpfs("/proc", plain | MountFlags::RDONLY, c"mode=555")?;
    }
    if what.seccomp {
        seccomp::apply().map_err(|error| format!("seccomp filters ({error})"))?;
    }
    Ok(is_root)
}

#[allow(unsafe_code, reason = "namespaces are left to this single-threaded helper")]
fn namespace(is_root: bool) -> Result<(), String> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let flags = rustix::thread::UnshareFlags::NEWNS;
    let flags = if is_root { flags } else { flags | rustix::thread::UnshareFlags::NEWUSER };
    // SAFETY: this process has one thread, and no file descriptor table is
    // unshared.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|error| {
        format!("mount namespaces{} ({error})", if is_root { "" } else { " of users" })
    })?;
    if !is_root {
        let write = |file: &str, text: String| {
            std::fs::write(file, text).map_err(|error| format!("user namespaces ({error})"))
        };
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    Ok(())
}

/// Makes every mount of this namespace read-only.
#[allow(unsafe_code, reason = "no crate at hand wraps mount_setattr")]
fn read_only_everywhere() -> std::io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a C string and the structure has the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
