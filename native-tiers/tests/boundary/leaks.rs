//! Nothing is left of a run.

use std::collections::BTreeSet;
use std::time::Duration;

use fumehood_host_fns::{Access, NativeEnd, NativeTier};

use crate::{landlock, mount, process, run, run_with, said, without_namespaces};

/// Numbers of processes whose name is `program` and whose first argument, if
/// there is one, begins with a text.
fn processes(program: &str, argument: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let number = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let mut parts = line.split(|byte| *byte == 0);
        let name = parts.next()?.rsplit(|byte| *byte == b'/').next()?;
        let first = parts.next().unwrap_or_default();
        (name == program.as_bytes() && first.starts_with(argument.as_bytes())).then_some(pid)
    };
    entries.filter_map(number).collect()
}

fn processes_with(mark: &str) -> Vec<u32> {
    processes("sleep", mark)
}

#[test]
fn descendants_end_with_the_command_however_they_hide() {
    for (number, tier) in ["boundary", "none", "alone"].into_iter().enumerate() {
        let mark = format!("7{}{:05}", number, std::process::id() % 100_000);
        let text = format!(
            "sleep {mark}1 & setsid sleep {mark}2 & (setsid nohup sleep {mark}3 >/dev/null 2>&1 &); \
             python3 -c 'import os,time
for n in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(\"/bin/sleep\", [\"sleep\", \"{mark}4\"])
        os._exit(0)'; sleep 1; echo started"
        );
        let go = |tier: &dyn NativeTier| {
            std::thread::scope(|scope| {
                let seen = scope.spawn(|| {
                    // The positive control: they are there while it runs.
                    (0..400).any(|_| {
                        std::thread::sleep(Duration::from_millis(10));
                        processes_with(&format!("{mark}4")).len() >= 3
                    })
                });
                let result = run(tier, &text);
                (result, seen.join().unwrap())
            })
        };
        let (result, seen) = match tier {
            "boundary" => go(&landlock()),
            "none" => go(&process()),
            _ => without_namespaces(|| go(&landlock())),
        };
        assert!(result.stdout.text().contains("started"), "{tier}: {}", said(&result));
        assert!(seen, "{tier}: they never started");
        let left: Vec<u32> = processes_with(&mark);
        assert!(left.is_empty(), "{tier}: {left:?}");
    }
}

/// Every tier, with its name.
fn everywhere(check: impl Fn(&str, &dyn NativeTier) + Sync) {
    check("boundary", &landlock());
    check("none", &process());
    without_namespaces(|| check("alone", &landlock()));
}

#[test]
fn a_chain_of_processes_that_fork_and_exit_does_not_outlive_its_run() {
    // It ends by itself after 25 seconds or 50 000 processes, and tells how far
    // it is in a file of the host.
    let chain = "python3 -c '
import os, time
end, n = time.monotonic() + 25, 0
while time.monotonic() < end and n < 50000:
    if os.fork():
        os._exit(0)
    n += 1
    if n % 8 == 0:
        with open(\"next\", \"w\") as f: f.write(str(n))
        os.replace(\"next\", \"beat\")'";
    everywhere(|name, tier| {
        let begun = "until [ -s beat ]; do sleep 0.1; done; echo started";
        for (rest, timeout) in [(begun, 60), ("sleep 60", 8)] {
            let dir = tempfile::tempdir().unwrap();
            let host = dir.path().canonicalize().unwrap();
            let at = host.to_str().unwrap();
            let result = run_with(tier, &format!("cd {at}; {chain} & {rest}"), |c| {
                c.timeout = Duration::from_secs(timeout);
                c.mounts.push(mount(&host, at, Access::ReadWrite, false));
            });
            let beat = || std::fs::read_to_string(host.join("beat")).unwrap_or_default();
            let last = beat();
            assert!(!last.is_empty(), "{name}: it never started: {}", said(&result));
            assert_eq!(result.timed_out, timeout == 8, "{name}: {}", said(&result));
            assert!(result.wall < Duration::from_secs(14), "{name}: {:?}", result.wall);
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(beat(), last, "{name}: it goes on");
        }
    });
}

#[test]
fn a_command_that_signals_its_whole_group_reaches_itself_only() {
    everywhere(|name, tier| {
        let mark = format!("9{:05}", std::process::id() % 100_000);
        // `kill 0` ends what started the command, if it is of the same group.
        let text = format!("sleep {mark}1 & trap '' TERM; kill 0; echo alive; exit 3");
        let result = run(tier, &text);
        assert_eq!(result.end, NativeEnd::Exited(3), "{name}: {}", said(&result));
        assert_eq!(result.stdout.text(), "alive\n", "{name}");
        let text = format!("trap 'kill 0' EXIT; (setsid sleep {mark}2 &); sleep {mark}3 & exit 3");
        let result = run(tier, &text);
        let natural = matches!(result.end, NativeEnd::Exited(3) | NativeEnd::Signalled(15));
        assert!(natural && !result.timed_out, "{name}: {}", said(&result));
        assert!(processes_with(&mark).is_empty(), "{name}: {:?}", processes_with(&mark));
    });
}

#[test]
fn a_temporary_directory_is_removed_also_if_it_was_shut() {
    let gone = |tier: &dyn NativeTier, text: &str| {
        let result = run(tier, text);
        let place = result.stdout.text();
        let place = std::path::Path::new(place.trim());
        assert!(place.is_absolute(), "{}", said(&result));
        assert!(!place.exists(), "{} is left", place.display());
    };
    gone(&process(), "mkdir -p \"$TMPDIR/a/b\"; chmod 0 \"$TMPDIR/a\"; echo \"$TMPDIR\"");
    without_namespaces(|| {
        gone(&landlock(), "cd \"$TMPDIR\"; mkdir a; (umask 777; mkdir a/b); echo \"$TMPDIR\"");
    });
}

#[test]
fn the_end_of_the_host_ends_the_command() {
    // A host of its own, which is ended in the middle of a command.
    let mark = format!("8{:05}", std::process::id() % 100_000);
    if let Ok(mark) = std::env::var("FUMEHOOD_TEST_MARK") {
        run(&landlock(), &format!("setsid sleep {mark}1 & sleep {mark}2"));
        return;
    }
    let name = "leaks::the_end_of_the_host_ends_the_command";
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("FUMEHOOD_TEST_MARK", &mark)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let within = |done: &dyn Fn() -> bool| {
        (0..600).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            done()
        })
    };
    assert!(within(&|| processes_with(&mark).len() == 2), "the command never started");
    host.kill().unwrap();
    host.wait().unwrap();
    let gone = within(&|| processes_with(&mark).is_empty());
    assert!(gone, "{:?}", processes_with(&mark));
}

/// Control groups of this process below a directory; none where the machine
/// has no tree of them.
fn groups(at: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(at).into_iter().flatten().filter_map(Result::ok);
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below
        .map(|entry| {
            let name = format!("fumehood-{}-", std::process::id());
            let own = entry.file_name().to_string_lossy().starts_with(&name);
            usize::from(own) + groups(&entry.path())
        })
        .sum()
}

/// What a run could leave, counted.
fn state() -> (usize, usize, BTreeSet<String>, usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let files: BTreeSet<String> = std::fs::read_dir(std::env::temp_dir())
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("fumehood-"))
        .collect();
    let pid = std::process::id().to_string();
    let children = processes("fumehood-helper", "")
        .into_iter()
        .filter(|child| {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.split_whitespace().nth(1) == Some(&pid))
        })
        .count();
    let groups = groups(std::path::Path::new("/sys/fs/cgroup"));
    (count("/proc/self/fd"), mounts, files, children, groups)
}

/// In a process of its own, since other tests open and close things meanwhile.
#[test]
fn a_thousand_runs_leave_nothing() {
    if std::env::var_os("FUMEHOOD_TEST_RUNS").is_none() {
        let name = "leaks::a_thousand_runs_leave_nothing";
        let place = tempfile::tempdir().unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("FUMEHOOD_TEST_RUNS", "1000")
            .env("TMPDIR", place.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("all of them"), "{text} {output:?}");
        return;
    }
    let tier = landlock();
    run(&tier, "true");
    let before = state();
    for number in 0..1000 {
        let result = match number % 10 {
            9 => run_with(&tier, "sleep 5 & sleep 5", |c| c.timeout = Duration::from_millis(30)),
            _ => run(&tier, "setsid true & echo x > /tmp/f; mkdir /work/d; exit 3"),
        };
        assert!(result.timed_out == (number % 10 == 9), "{number}: {}", said(&result));
    }
    assert_eq!(state(), before);
    println!("all of them");
}
