//! K-14 to K-19: what a command may use up, and what is left of it.
//!
//! Invariant: a limit is shown twice: with a small number it ends or refuses,
//! with a large one the same program does its work.

use std::sync::Arc;
use std::time::Duration;

use fumehood_host_fns::{NativeCommand, NativeEnd, NativeResult};

use super::{run_in, said};
use crate::harness::machine;
use crate::harness::{Attack, Attempt, Expected, Observed, REACHED, STOPPED, Tier, World};

const BOTH: [Tier; 2] = [Tier::Landlock, Tier::Process];
const REASON: &str = "the limit is set before the program starts, by the kernel or by the watch";

/// A program that uses something up.
#[derive(Clone, Copy)]
struct Limit {
    id: &'static str,
    property: &'static str,
    text: &'static str,
    /// The number that stops it, and the one that does not.
    small: fn(&mut NativeCommand),
    large: fn(&mut NativeCommand),
    /// Whether it was stopped by the limit.
    stopped: fn(&NativeResult) -> bool,
    tiers: &'static [Tier],
}

fn printed(result: &NativeResult, text: &str) -> bool {
    result.stdout.text().contains(text)
}

const LIMITS: &[Limit] = &[
    Limit {
        id: "K-17",
        property: "a bomb of processes is bounded by a number and leaves the host alone",
        text: "python3 -c '
import os, time
n = 0
try:
    while n < 80:
        if os.fork() == 0:
            time.sleep(8); os._exit(0)
        n += 1
    time.sleep(2)
except OSError:
    print(\"refused\", flush=True)
print(\"all\" if n == 80 else \"few\", flush=True)'",
        small: |c| {
            c.limits.processes = 40;
            c.timeout = Duration::from_secs(20);
        },
        large: |_| {},
        stopped: |result| {
            (printed(result, "refused") && printed(result, "few"))
                || result.end == NativeEnd::Signalled(9)
        },
        tiers: &BOTH,
    },
    Limit {
        id: "K-17b",
        property: "a bomb of threads is bounded by a number and leaves the host alone",
        text: "python3 -c '
import threading, time, os
n = 0
try:
    while n < 300:
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start(); n += 1
    time.sleep(1)
except RuntimeError:
    print(\"refused\", flush=True)
print(\"all\" if n == 300 else \"few\", flush=True)
os._exit(0)'",
        small: |c| c.limits.processes = 40,
        large: |c| {
            c.limits.processes = 1000;
            c.limits.memory_bytes = 4 << 30;
        },
        stopped: |result| {
            (printed(result, "refused") && printed(result, "few"))
                || result.end == NativeEnd::Signalled(9)
        },
        tiers: &BOTH,
    },
    Limit {
        id: "K-19",
        property: "a program that takes memory is ended at its limit and the result says so",
        text: "python3 -c 'import time\nk=[]\nfor i in range(12):\n k.append(bytearray([1])*(40<<20)); time.sleep(.03)\nprint(\"all\")'",
        small: |c| c.limits.memory_bytes = 200 << 20,
        large: |_| {},
        stopped: |result| result.memory_exceeded && !printed(result, "all"),
        tiers: &BOTH,
    },
    Limit {
        id: "K-19b",
        property: "memory of several processes counts together",
        text: "for i in 1 2 3 4 5; do python3 -c 'import time; k=bytearray([1])*(80<<20); time.sleep(2)' & done; wait; echo all",
        small: |c| c.limits.memory_bytes = 250 << 20,
        large: |_| {},
        stopped: |result| result.memory_exceeded && !printed(result, "all"),
        tiers: &BOTH,
    },
    Limit {
        id: "K-19e",
        property: "processor time is bounded whatever the wall clock says",
        text: "python3 -c 'import time\nwhile time.process_time() < 1.6: pass\nprint(\"all\")'",
        small: |c| c.limits.cpu = Duration::from_secs(1),
        large: |_| {},
        stopped: |result| {
            matches!(result.end, NativeEnd::Signalled(24 | 9) | NativeEnd::Exited(152 | 137))
                && !printed(result, "all")
        },
        tiers: &BOTH,
    },
    Limit {
        id: "K-19f",
        property: "a file does not grow beyond its limit",
        text: "cd \"$TMPDIR\"; head -c 3000000 /dev/zero > f && echo all; stat -c 'size %s' f",
        small: |c| c.limits.file_bytes = 1_000_000,
        large: |_| {},
        stopped: |result| printed(result, "size 1000000") && !printed(result, "all"),
        tiers: &BOTH,
    },
    Limit {
        id: "K-19g",
        property: "a process does not hold more descriptors than its limit",
        text: "python3 -c '
n, k = 0, []
try:
    while n < 300:
        k.append(open(\"/dev/null\")); n += 1
except OSError as error:
    print(\"refused\", error.errno)
print(\"all\" if n == 300 else \"few\")'",
        small: |c| c.limits.open_files = 64,
        large: |_| {},
        stopped: |result| printed(result, "refused 24") && printed(result, "few"),
        tiers: &BOTH,
    },
    Limit {
        id: "K-19h",
        property: "the private directories do not hold more bytes together than their limit",
        text: "for d in /tmp /dev/shm /home/agent /work; do head -c 3000000 /dev/zero > $d/f || exit 3; done; echo all",
        small: |c| c.limits.scratch_bytes = 8 << 20,
        large: |_| {},
        stopped: |result| {
            result.end == NativeEnd::Exited(3) && result.stderr.text().contains("No space left")
        },
        tiers: &[Tier::Landlock],
    },
    Limit {
        id: "K-19i",
        property: "a flood of output is cut and what did not fit is counted",
        text: "head -c 3000000 /dev/zero | tr '\\0' x; echo all",
        small: |c| c.limits.output_bytes = 1_000_000,
        large: |_| {},
        stopped: |result| {
            result.stdout.bytes.len() == 1_000_000 && result.stdout.dropped == 2_000_004
        },
        tiers: &BOTH,
    },
];

pub(super) fn all() -> Vec<Attack> {
    let mut all: Vec<Attack> = LIMITS.iter().flat_map(limit).collect();
    all.extend(BOTH.map(descendants));
    all.push(daemon_of_the_timeout());
    all
}

fn limit(limit: &'static Limit) -> Vec<Attack> {
    let attempt = move |world: &World<'_>, tier, change: fn(&mut NativeCommand)| match run_in(
        world.stage(),
        tier,
        limit.text,
        change,
    ) {
        Ok(result) if (limit.stopped)(&result) => Observed::fact(STOPPED),
        Ok(result) if printed(&result, "all") => Observed::fact(REACHED),
        Ok(result) => Observed::fact(said(&result)),
        Err(observed) => observed,
    };
    let one = |tier: Tier| {
        let enough = Attempt::Host(Arc::new(move |world: &World<'_>, _: &_| {
            attempt(world, tier, limit.large)
        }));
        Attack::host(limit.id, limit.property, move |world, _| attempt(world, tier, limit.small))
            .tier(tier)
            .control(enough, Expected::Harmless(REACHED))
            .expect(Expected::Stopped, REASON)
            .alone()
    };
    limit.tiers.iter().copied().map(one).collect()
}

/// Daemons of a command, by a number that occurs nowhere else.
fn daemons(mark: &str) -> String {
    format!(
        "sleep {mark}1 & setsid sleep {mark}2 & (setsid nohup sleep {mark}3 >/dev/null 2>&1 &); \
         python3 -c 'import os
for n in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(\"/bin/sleep\", [\"sleep\", \"{mark}4\"])
        os._exit(0)'"
    )
}

/// Whether all six daemons are there at once before a time is over.
fn appear(mark: &str) -> bool {
    let start = machine::now();
    while start.elapsed() < Duration::from_secs(20) {
        if machine::processes_named("sleep", mark) >= 6 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Runs a command with daemons; whether they appeared while it ran and whether
/// any of them is left one second after.
fn with_daemons(
    world: &World<'_>,
    tier: Tier,
    after: &str,
    change: impl FnOnce(&mut NativeCommand),
) -> Observed {
    let mark = machine::number_of_its_own();
    let text = format!("{}; {after}", daemons(&mark));
    let (ran, appeared) = std::thread::scope(|scope| {
        let appeared = scope.spawn(|| appear(&mark));
        let ran = run_in(world.stage(), tier, &text, change);
        (ran, appeared.join().unwrap_or(false))
    });
    if let Err(observed) = ran {
        return observed;
    }
    if !appeared {
        return Observed::broken("the daemons never started");
    }
    let start = machine::now();
    while start.elapsed() < Duration::from_secs(1) {
        if machine::processes_named("sleep", &mark) == 0 {
            return Observed::fact(STOPPED);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Observed::fact(REACHED)
}

/// The same as plain children; what is left is ended here.
fn plain_daemons() -> Observed {
    let mark = machine::number_of_its_own();
    if let Err(error) = machine::shell_output(&format!("{{ {}; }} >/dev/null 2>&1", daemons(&mark)))
    {
        return Observed::broken(error.to_string());
    }
    let appeared = appear(&mark);
    machine::end_processes_named("sleep", &mark);
    Observed::fact(if appeared { REACHED } else { "the daemons never started" })
}

fn descendants(tier: Tier) -> Attack {
    Attack::host(
        "K-16",
        "nothing that a command started is left one second after it",
        move |w, _| with_daemons(w, tier, "sleep 2", |_| {}),
    )
    .tier(tier)
    .control(Attempt::Host(Arc::new(|_, _| plain_daemons())), Expected::Harmless(REACHED))
    .expect(Expected::Stopped, "the first process of a run ends with it and takes its descendants")
}

fn daemon_of_the_timeout() -> Attack {
    Attack::host("K-16b", "nothing that a command started is left after its timeout", |w, _| {
        with_daemons(w, Tier::Landlock, "sleep 60", |c| c.timeout = Duration::from_secs(4))
    })
    .tier(Tier::Landlock)
    .control(Attempt::Host(Arc::new(|_, _| plain_daemons())), Expected::Harmless(REACHED))
    .expect(Expected::Stopped, "the first process of a run ends with it and takes its descendants")
}
