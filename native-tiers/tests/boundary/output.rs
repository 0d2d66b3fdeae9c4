//! Output, input, time and cancellation.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fumehood_host_fns::{
    Access, CancelToken, NativeEnd, NativeError, NativeTier, OutputSink, Stream, Variables,
};

use crate::{command, landlock, mount, process, run, run_with, said, try_run, without_namespaces};

fn everywhere(check: impl Fn(&dyn NativeTier) + Sync) {
    check(&landlock());
    check(&process());
    without_namespaces(|| check(&landlock()));
}

#[test]
fn output_survives_the_timeout_and_is_counted_beyond_the_cap() {
    everywhere(|tier| {
        let result = run_with(tier, "echo out; echo err >&2; sleep 60", |c| {
            c.timeout = Duration::from_millis(1500);
        });
        assert!(result.timed_out && !result.cancelled && !result.memory_exceeded);
        assert_eq!(result.stdout.text(), "out\n", "{}", said(&result));
        assert_eq!(result.stderr.text(), "err\n");
        assert!(result.wall < Duration::from_secs(10));
        let result =
            run_with(tier, "head -c 5000000 /dev/zero; head -c 300000 /dev/zero >&2", |c| {
                c.limits.output_bytes = 100_000;
            });
        assert_eq!((result.stdout.bytes.len(), result.stdout.dropped), (100_000, 4_900_000));
        assert_eq!((result.stderr.bytes.len(), result.stderr.dropped), (100_000, 200_000));
        assert_eq!(result.end, NativeEnd::Exited(0));
        assert_eq!(run(tier, "printf 'a\\377b'").stdout.text(), "a\u{fffd}b");
        assert_eq!(run(tier, "exit 7").end, NativeEnd::Exited(7));
        assert_eq!(run(tier, "kill -15 $$").end.code(), -15);
        // A program's own code that means something elsewhere.
        let result = run(tier, "exit 124");
        assert!(!result.timed_out && result.end == NativeEnd::Exited(124));
    });
}

#[test]
fn a_child_in_the_background_is_not_waited_for() {
    everywhere(|tier| {
        let started = Instant::now();
        let result = run(tier, "sleep 50 & (setsid sleep 51 &) ; echo hi");
        assert_eq!(result.stdout.text(), "hi\n");
        assert!(started.elapsed() < Duration::from_secs(20) && !result.timed_out);
        // Also if it never stops writing.
        let result = run_with(tier, "yes & echo hi", |c| c.limits.output_bytes = 10_000);
        assert!(!result.timed_out, "{:?}", result.wall);
    });
}

#[test]
fn a_command_that_ignores_everything_is_ended() {
    everywhere(|tier| {
        let text = "trap '' TERM INT HUP; exec python3 -c '
import os, signal, time
for s in range(1, 32):
    try: signal.signal(s, signal.SIG_IGN)
    except OSError: pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(\"deep\", flush=True)
        time.sleep(70)
time.sleep(70)'";
        let result = run_with(tier, text, |c| c.timeout = Duration::from_secs(2));
        assert!(result.timed_out && result.stdout.text().contains("deep"), "{}", said(&result));
        assert!(result.wall < Duration::from_secs(10));
    });
}

#[test]
fn a_command_can_be_cancelled() {
    everywhere(|tier| {
        let token = Arc::new(CancelToken::new());
        let shared = Arc::clone(&token);
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            shared.cancel();
        });
        let result = tier.run(&command(tier, "echo a; sleep 60"), &token, &crate::NoStreaming);
        let result = result.unwrap();
        canceller.join().unwrap();
        assert!(result.cancelled && !result.timed_out, "{}", said(&result));
        assert!(result.wall < Duration::from_secs(10));
        // One that was cancelled before does not start at all, or ends at once.
        let result = tier.run(&command(tier, "sleep 60"), &token, &crate::NoStreaming).unwrap();
        assert!(result.cancelled && result.wall < Duration::from_secs(10));
    });
}

#[derive(Default)]
struct Kept(Mutex<Vec<(Stream, Instant, Vec<u8>)>>);

impl OutputSink for Kept {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        self.0.lock().unwrap().push((stream, Instant::now(), bytes.to_vec()));
    }
}

#[test]
fn output_is_passed_on_while_the_command_runs() {
    everywhere(|tier| {
        let kept = Kept::default();
        let text = "echo one; sleep 1; echo two";
        tier.run(&command(tier, text), &CancelToken::new(), &kept).unwrap();
        let kept = kept.0.into_inner().unwrap();
        let [(_, first, one), (stream, second, two)] = kept.as_slice() else { panic!("{kept:?}") };
        assert_eq!((one.as_slice(), two.as_slice()), (&b"one\n"[..], &b"two\n"[..]));
        assert!(*stream == Stream::Stdout && second.duration_since(*first).as_millis() > 500);
    });
}

#[test]
fn input_is_read_and_without_it_there_is_nothing() {
    everywhere(|tier| {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let result = run_with(tier, "wc -c; cat > /dev/null", |c| c.stdin = bytes.into());
        assert_eq!(result.stdout.text().trim(), "3000000");
        assert_eq!(run(tier, "cat; echo $?").stdout.text(), "0\n");
    });
}

#[test]
fn input_cannot_be_run_or_changed() {
    let program: std::sync::Arc<[u8]> = std::fs::read("/usr/bin/printf").unwrap().into();
    everywhere(|tier| {
        for text in [
            "chmod 755 /proc/self/fd/0; exec /proc/self/fd/0 REACHED",
            "python3 -c 'import os; os.fchmod(0, 0o755); os.execve(0, [\"printf\", \"REACHED\"], {})'",
            "python3 -c 'import os; os.ftruncate(0, 1); print(\"REACHED\")'",
            "python3 -c 'import os; os.write(0, b\"x\"); print(\"REACHED\")'",
        ] {
            let result = run_with(tier, text, |c| c.stdin = std::sync::Arc::clone(&program));
            assert!(!result.stdout.text().contains("REACHED"), "{text}");
        }
        // It is the program that it is.
        let result = run_with(tier, "cmp - /usr/bin/printf && echo same", |c| {
            c.stdin = std::sync::Arc::clone(&program);
        });
        assert_eq!(result.stdout.text(), "same\n", "{}", said(&result));
    });
}

#[test]
fn a_command_gets_its_own_environment_and_nothing_else() {
    everywhere(|tier| {
        let variables = [("GREETING", "hi"), ("PATH", "/usr/bin:/bin")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let result = run_with(tier, "env", |c| c.variables = Variables::new(variables).unwrap());
        let text = result.stdout.text();
        let names: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).collect();
        for (name, _) in &names {
            let known = [
                "GREETING",
                "HOME",
                "LANG",
                "PATH",
                "PYTHONDONTWRITEBYTECODE",
                "PYTHONUNBUFFERED",
                "TERM",
                "TMPDIR",
                "PWD",
                "SHLVL",
                "_",
                "OLDPWD",
            ];
            assert!(known.contains(name), "{text}");
        }
        assert!(names.contains(&("PATH", "/usr/bin:/bin")) && names.contains(&("GREETING", "hi")));
    });
}

#[test]
fn what_cannot_start_is_said_and_is_no_result() {
    everywhere(|tier| {
        let mut command = command(tier, "true");
        command.cwd = "/nowhere/at/all".to_owned();
        let error = try_run(tier, &command).unwrap_err();
        assert!(matches!(&error, NativeError::Command(text) if text.contains("working directory")));
        command.cwd = "/work".to_owned();
        command.argv = vec!["/nowhere/program".to_owned()];
        let error = try_run(tier, &command).unwrap_err();
        assert!(matches!(&error, NativeError::Command(text) if text.contains("/nowhere/program")));
    });
}

#[test]
fn directories_are_given_as_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "content\n").unwrap();
    let tier = landlock();
    let text = "cat f; echo more > g && echo written; cp /usr/bin/printf p; ./p ran";
    let result = |access, execute| {
        let _ = std::fs::remove_file(dir.path().join("p"));
        let mount = mount(dir.path(), "/work/data", access, execute);
        let result = run_with(&tier, text, |c| {
            c.mounts = vec![mount];
            c.cwd = "/work/data".to_owned();
        });
        result.stdout.text()
    };
    assert_eq!(result(Access::ReadOnly, true), "content\n");
    assert_eq!(result(Access::ReadWrite, false), "content\nwritten\n");
    assert_eq!(result(Access::ReadWrite, true), "content\nwritten\nran");
    assert_eq!(std::fs::read_to_string(dir.path().join("g")).unwrap(), "more\n");
    // Under its own name it can be given everywhere.
    let host = dir.path().to_str().unwrap();
    everywhere(|tier| {
        let own = mount(dir.path(), host, Access::ReadWrite, true);
        let result = run_with(tier, "cat f", |c| {
            c.mounts = vec![own];
            c.cwd = host.to_owned();
        });
        assert_eq!(result.stdout.text(), "content\n", "{}", said(&result));
    });
    // A directory that is not the one that was opened any more is not mounted.
    let moved = mount(dir.path(), "/work/data", Access::ReadOnly, false);
    let elsewhere = dir.path().with_extension("moved");
    std::fs::rename(dir.path(), &elsewhere).unwrap();
    std::fs::create_dir(dir.path()).unwrap();
    let result = run_with(&tier, "cat /work/data/f", |c| c.mounts = vec![moved]);
    assert_eq!(result.stdout.text(), "content\n", "{}", said(&result));
    std::fs::remove_dir_all(&elsewhere).unwrap();
}
