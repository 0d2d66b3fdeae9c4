//! Each number of a command ends or refuses what it is for, and one that is
//! large enough does not.

use std::time::{Duration, Instant};

use fumehood_host_fns::{NativeEnd, NativeResult, NativeTier};

use crate::{landlock, process, run_with, said, without_namespaces};

/// Both boundaries and none.
fn everywhere(check: impl Fn(&dyn NativeTier) + Sync) {
    check(&landlock());
    check(&process());
    without_namespaces(|| check(&landlock()));
}

fn quick(change: impl FnOnce() -> NativeResult) -> NativeResult {
    let started = Instant::now();
    let result = change();
    assert!(started.elapsed() < Duration::from_secs(30), "{}", said(&result));
    result
}

#[test]
fn processor_time() {
    everywhere(|tier| {
        let spin = |cpu: u64| {
            quick(|| {
                run_with(
                    tier,
                    "python3 -c 'import time\nwhile time.process_time() < 1.6: pass'",
                    |c| {
                        c.limits.cpu = Duration::from_secs(cpu);
                    },
                )
            })
        };
        let ended = spin(1);
        assert!(
            matches!(ended.end, NativeEnd::Signalled(24 | 9) | NativeEnd::Exited(152 | 137)),
            "{}",
            said(&ended)
        );
        assert!(ended.cpu >= Duration::from_millis(500), "{:?}", ended.cpu);
        assert_eq!(spin(30).end, NativeEnd::Exited(0));
    });
}

#[test]
fn memory_of_one_process_and_of_many() {
    // Touches 40 MiB a step, so that the watch has time to look.
    let one = "python3 -c 'import time\nk=[]\nfor i in range(12):\n k.append(bytearray([1])*(40<<20)); time.sleep(.03)\nprint(1)'";
    let many = "for i in 1 2 3 4 5; do python3 -c 'import time; k=bytearray([1])*(80<<20); time.sleep(5)' & done; wait; echo done";
    everywhere(|tier| {
        for (text, limit) in [(one, 200_u64 << 20), (many, 250 << 20)] {
            let result = quick(|| run_with(tier, text, |c| c.limits.memory_bytes = limit));
            assert!(result.memory_exceeded, "{text}: {}", said(&result));
            assert!(result.peak_memory_bytes > limit / 2, "{}", result.peak_memory_bytes);
            assert!(!result.timed_out && !result.stdout.text().contains("done"));
        }
        let enough = quick(|| run_with(tier, one, |_| {}));
        assert!(!enough.memory_exceeded && enough.end == NativeEnd::Exited(0), "{}", said(&enough));
        // What is ended by its own hand is not the memory limit's doing.
        let killed = quick(|| run_with(tier, "kill -9 $$", |_| {}));
        assert!(!killed.memory_exceeded && killed.end == NativeEnd::Signalled(9));
        // More at once than there is at all: the program is told.
        let huge = "python3 -c 'bytearray(10**12)'";
        let huge = quick(|| run_with(tier, huge, |c| c.limits.memory_bytes = 200 << 20));
        assert!(huge.stderr.text().contains("MemoryError"), "{}", said(&huge));
    });
}

#[test]
fn processes_and_threads() {
    let bomb = "f() { f | f & }; f; sleep 2; echo alive";
    let threads = "python3 -c '
import threading, time
n = 0
try:
    for i in range(2000):
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start(); n += 1
except RuntimeError:
    pass
print(\"many\" if n > 1000 else \"few\", flush=True)
import os; os._exit(0)'";
    let tier = landlock();
    let result = quick(|| {
        run_with(&tier, bomb, |c| {
            c.limits.processes = 40;
            c.timeout = Duration::from_secs(5);
        })
    });
    let text = result.stderr.text();
    let told = text.contains("fork") || text.contains("Resource");
    // The kernel's own limit does not bind root: there the watch may be first,
    // and what it does is to end the run.
    let ended = rustix::process::geteuid().is_root() && result.end == NativeEnd::Signalled(9);
    assert!(told || ended, "{}", said(&result));
    let few = quick(|| run_with(&tier, threads, |c| c.limits.processes = 40));
    let bounded = few.stdout.text().contains("few");
    let ended = rustix::process::geteuid().is_root() && few.end == NativeEnd::Signalled(9);
    assert!(bounded || ended, "{}", said(&few));
    let many = quick(|| {
        run_with(&tier, threads, |c| {
            c.limits.processes = 4000;
            // Address space for the stacks; little of it is touched.
            c.limits.memory_bytes = 6 << 30;
        })
    });
    assert!(many.stdout.text().contains("many"), "{}", said(&many));
    // Without a process namespace the watch ends it all.
    for_alone(|tier| {
        let result = quick(|| {
            run_with(tier, "for i in $(seq 60); do sleep 20 & done; sleep 20; echo end", |c| {
                c.limits.processes = 40;
            })
        });
        assert!(!result.stdout.text().contains("end"), "{}", said(&result));
        assert!(result.wall < Duration::from_secs(15));
    });
}

fn for_alone(check: impl Fn(&dyn NativeTier) + Sync) {
    check(&process());
    without_namespaces(|| check(&landlock()));
}

#[test]
fn length_of_a_file() {
    everywhere(|tier| {
        let write = |limit: u64| {
            run_with(tier, "head -c 3000000 /dev/zero > f; echo $?; stat -c %s f", |c| {
                c.limits.file_bytes = limit;
            })
        };
        let small = write(1_000_000).stdout.text();
        assert!(small.ends_with("1000000\n") && !small.starts_with("0\n"), "{small}");
        assert_eq!(write(5_000_000).stdout.text(), "0\n3000000\n");
    });
}

#[test]
fn open_files() {
    let open = "python3 -c '
n, k = 0, []
try:
    while n < 300:
        k.append(open(\"/dev/null\")); n += 1
except OSError:
    pass
print(n)'";
    everywhere(|tier| {
        let opened = |limit: u64| -> u64 {
            let result = run_with(tier, open, |c| c.limits.open_files = limit);
            result.stdout.text().trim().parse().unwrap_or_else(|_| panic!("{}", said(&result)))
        };
        assert!(opened(64) < 64);
        assert_eq!(opened(1024), 300);
    });
}

#[test]
fn private_directories_share_one_bound() {
    let tier = landlock();
    let fill = "for d in /tmp /dev/shm /home/agent /work; do head -c 3000000 /dev/zero > $d/f || echo full; done";
    let text = |bytes: u64| run_with(&tier, fill, |c| c.limits.scratch_bytes = bytes).stdout.text();
    assert!(text(8 << 20).contains("full"));
    assert_eq!(text(64 << 20), "");
    let files = "python3 -c '
import os
n = 0
try:
    while n < 150000:
        open(\"/tmp/%d\" % n, \"w\").close(); n += 1
except OSError as e:
    print(n < 150000)'";
    assert_eq!(run_with(&tier, files, |_| {}).stdout.text().trim(), "True");
    // Nothing of one run is there in the next.
    run_with(&tier, "echo x > /tmp/left; echo x > /work/left", |_| {});
    let result = run_with(&tier, "ls /tmp /work", |_| {});
    assert!(!result.stdout.text().contains("left"), "{}", said(&result));
}
