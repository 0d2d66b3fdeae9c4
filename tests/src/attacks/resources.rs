//! R: programs that use everything they can get.
//!
//! Invariant: each ends with a typed outcome soon after its limit, and the
//! host has its memory back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fumehood::{AuditRecord, AuditSink, Script, Stream};
use fumehood_host_fns::AuditUnavailable;

use crate::harness::{
    Attack, Attempt, Capability, Expected, Observed, Setting, World, machine, run_in,
};

use super::python::OWN_AFFAIR;

const OUT_OF_MEMORY: &[&str] = &["MemoryError", "OverflowError"];

fn out_of_memory() -> Expected {
    Expected::AnyOf(vec![Expected::Ends(&["memory_limit"]), Expected::Exception(OUT_OF_MEMORY)])
}

fn time() -> Vec<Attack> {
    let attack = |id, property, code: &str, reason| {
        Attack::cell(id, property, code)
            .with(Setting::default().wall_ms(400))
            .control_cell("import time\ntime.sleep(0.01)\nprint(sum(range(1000)))", "499500")
            .alone()
            .expect(Expected::Ends(&["timeout"]), reason)
    };
    let epoch = "compiled code checks the epoch in every loop and function";
    vec![
        attack("R-01", "a loop that never ends stops at the deadline", "while True: pass", epoch),
        attack(
            "R-01b",
            "a sleep beyond the deadline stops at the deadline",
            "import time\ntime.sleep(3600)",
            "a parked call wakes at the deadline",
        ),
        attack(
            "R-01c",
            "code that swallows every exception stops at the deadline",
            "while True:\n    try:\n        while True:\n            try:\n                raise SystemExit\n            except BaseException:\n                pass\n            finally:\n                continue\n    except:\n        pass",
            "a stop is a trap, not an exception that code could catch",
        ),
        attack(
            "R-01e",
            "an event loop that never ends stops at the deadline",
            "import asyncio\nasync def main():\n    while True:\n        await asyncio.sleep(0)\nasyncio.run(main())",
            epoch,
        ),
        attack(
            "R-01f",
            "a generator without end inside one call of the interpreter stops at the deadline",
            "import itertools\nsum(itertools.repeat(1))",
            epoch,
        ),
        attack(
            "R-01g",
            "a destructor that never ends stops at the deadline",
            "class D:\n    def __del__(self):\n        while True:\n            pass\nD()\nNone",
            epoch,
        ),
        attack(
            "R-01h",
            "an exit handler that never ends stops at the deadline",
            "import atexit\nimport sys\natexit.register(lambda: [None for _ in iter(int, 1)])\nwhile True: pass",
            epoch,
        ),
        attack("R-04", "a power that no machine can hold stops", "10**10**8", epoch),
        attack(
            "R-04b",
            "the text of a huge number stops",
            "n = 1 << 20_000_000\nimport sys\nsys.set_int_max_str_digits(0)\nstr(n)",
            epoch,
        ),
        attack(
            "R-05",
            "a regular expression that explodes stops at the deadline",
            "import re\nre.match('(a+)+$', 'a' * 100_000 + 'b')",
            "the matcher runs in the guest, under its limits",
        ),
        attack(
            "R-05b",
            "an explosive expression with alternatives stops at the deadline",
            "import re\nre.search('(a|aa|a?)+[bc]$', 'a' * 5000)",
            "the matcher runs in the guest, under its limits",
        ),
        Attack::cell(
            "R-01d",
            "the processor limit ends a run of its own, whatever the wall clock says",
            "while True: pass",
        )
        .with(Setting::default().limit(|limits| limits.cpu = std::time::Duration::from_millis(300)))
        .control_with(
            Setting::default().limit(|limits| limits.cpu = std::time::Duration::from_millis(300)),
            Attempt::Cell("import time\ntime.sleep(0.6)\nprint('waiting is free')".to_owned()),
            Expected::Harmless("waiting is free"),
        )
        .alone()
        .expect(
            Expected::Ends(&["timeout cpu"]),
            "the epoch callback reads the clock of the guest's thread",
        ),
    ]
}

fn big_numbers() -> Vec<Attack> {
    let attack = |id, property, code: &str| {
        Attack::cell(id, property, code)
            .with(Setting::default().wall_ms(1500))
            .control_cell(
                "import math\nprint(pow(3, 10), 1 << 10, math.factorial(5), int('9' * 10))",
                "59049 1024 120 9999999999",
            )
            .about_memory()
            .expect(
                Expected::AnyOf(vec![
                    Expected::Ends(&["timeout", "memory_limit", "completed"]),
                    Expected::Exception(&["MemoryError", "OverflowError", "ValueError"]),
                ]),
                "arithmetic runs in the guest, under its limits",
            )
    };
    vec![
        attack(
            "R-04c",
            "a shift by a thousand million ends at most the run",
            "len(bin(1 << 10**9))",
        ),
        attack("R-04d", "three to the ten millionth ends at most the run", "pow(3, 10**7) % 7"),
        attack(
            "R-04e",
            "the factorial of a million ends at most the run",
            "import math\nmath.factorial(10**6) % 7",
        ),
        attack(
            "R-04f",
            "a number of ten million digits ends at most the run",
            "import sys\nsys.set_int_max_str_digits(0)\nint('9' * 10**7) % 7",
        ),
        Attack::cell(
            "R-04g",
            "a number with too many digits is refused as text",
            "int('9' * 10**7)",
        )
        .control_cell("print(len(str(int('9' * 4000))))", "4000")
        .with(Setting::default().wall_ms(5000))
        .expect(
            Expected::Exception(&["ValueError"]),
            "conversions between text and numbers have a limit of digits",
        ),
    ]
}

fn memory() -> Vec<Attack> {
    let attack = |id, property, code: &str| {
        Attack::cell(id, property, code)
            .control_cell(
                "print(len('x' * 1000), len([0] * 1000), len(bytearray(1000)))",
                "1000 1000 1000",
            )
            .about_memory()
            .expect(
                out_of_memory(),
                "linear memory has a limit, and the limiter remembers the growth it refused",
            )
    };
    vec![
        attack("R-02", "a text of a million million characters is an error or a typed end", "x = 'x' * 10**12"),
        attack("R-02b", "a list of four thousand million items is an error or a typed end", "x = [0] * (2**32)"),
        attack("R-02c", "two gigabytes at once are an error or a typed end", "x = bytearray(2**31)"),
        attack("R-02f", "a list that multiplies itself is an error or a typed end", "x = [0] * 1000\nwhile True:\n    x *= 10"),
        attack("R-02g", "a program that keeps everything it makes ends typed", "kept = []\nwhile True:\n    kept.append(bytes(1_000_000))"),
        attack("R-02h", "a program that keeps small objects ends typed", "kept = {}\nn = 0\nwhile True:\n    kept[n] = [n]\n    n += 1"),
        attack("R-02i", "a text that doubles itself ends typed", "x = 'x'\nwhile True:\n    x += x"),
        Attack::cell("R-02j", "code that catches the end of memory may go on within its limit",
            "caught = 0\nfor n in range(20):\n    try:\n        x = bytearray(2**31)\n    except (MemoryError, OverflowError):\n        caught += 1\nprint(caught, len(bytearray(1000)))")
            .control_cell("print(len(bytearray(1000)))", "1000")
            .about_memory()
            .expect(Expected::AnyOf(vec![Expected::Harmless("20 1000"), Expected::Ends(&["memory_limit"])]), "a refused growth changes nothing"),
        Attack::cell("R-14b", "making and dropping objects again and again stays within the limit",
            "import random\nrandom.seed(1)\nheld = {}\nfor n in range(200_000):\n    held[random.randrange(500)] = bytes(random.randrange(20_000))\nprint(len(held))")
            .control_cell("print(len({1: bytes(10)}))", "1")
            .about_memory()
            .expect(Expected::AnyOf(vec![Expected::Harmless("500"), Expected::Ends(&["memory_limit"])]), "fragmentation is memory of the guest and counted"),
        Attack::host("R-14c", "the largest memory that a run reports is within its limit", |world, setting| {
            let ran = world.cell(setting, "kept = []\nwhile True:\n    kept.append(bytes(1_000_000))");
            let Some(last) = ran.ran.last() else { return ran };
            let usage = last.outcome.usage;
            let within = usage.peak_memory_bytes <= setting.limits.memory_bytes;
            let near = usage.peak_memory_bytes >= setting.limits.memory_bytes / 2;
            Observed::fact(format!("within: {within}, near: {near}")).seen(ran.ran.clone())
        })
        .control_cell("print(1)", "1")
        .about_memory()
        .expect(Expected::Harmless("within: true, near: true"), "every growth passes the limiter"),
    ]
}

fn compressed() -> Vec<Attack> {
    let bomb = |module: &str, unpack: &str| {
        format!(
            "import {module}\ndata = {module}.compress(bytes(1 << 20) * 64)\nchunks = []\nfor _ in range(100):\n    chunks.append({unpack})"
        )
    };
    let attack = |id, property, code: String| {
        Attack::cell(id, property, code)
            .control_cell(
                "import zlib\nprint(len(zlib.decompress(zlib.compress(bytes(1000)))))",
                "1000",
            )
            .about_memory()
            .expect(
                Expected::AnyOf(vec![
                    out_of_memory(),
                    Expected::Ends(&["timeout"]),
                    Expected::Exception(&["ImportError", "ModuleNotFoundError"]),
                ]),
                "decompression runs in the guest, under its limits",
            )
    };
    vec![
        attack(
            "R-16",
            "a compressed bomb ends typed when it unpacks",
            bomb("zlib", "zlib.decompress(data)"),
        ),
        attack(
            "R-16b",
            "a bomb of another format ends typed when it unpacks",
            bomb("bz2", "bz2.decompress(data)"),
        ),
        attack(
            "R-16c",
            "a bomb of a third format ends typed when it unpacks",
            bomb("lzma", "lzma.decompress(data)"),
        ),
        attack(
            "R-16d",
            "a bomb in an archive of files ends typed when it unpacks",
            bomb("gzip", "gzip.decompress(data)"),
        ),
    ]
}

fn deep() -> Vec<Attack> {
    let attack = |id, property, action: &str| {
        Attack::cell(id, property, format!("import copy, json, pickle\nx = []\nfor _ in range(100_000):\n    x = [x]\ny = []\nfor _ in range(100_000):\n    y = [y]\n{action}"))
            .with(Setting::default().wall_ms(6000))
            .control_cell("import copy, json, pickle\nx = [[[]]]\nprint(repr(x), x == copy.deepcopy(x), json.dumps(x), pickle.loads(pickle.dumps(x)))", "[[[]]] True [[[]]] [[[]]]")
            .expect(
                Expected::AnyOf(vec![
                    Expected::Ends(&["stack_exhausted", "memory_limit", "completed"]),
                    Expected::Exception(&["RecursionError", "MemoryError", "ValueError"]),
                ]),
                "Python's limit or the end of the guest's stack comes first, and both are typed",
            )
    };
    vec![
        attack("R-07", "the text of a list nested a hundred thousand times ends typed", "repr(x)"),
        attack("R-07b", "comparing lists nested a hundred thousand times ends typed", "x == y"),
        attack("R-07c", "a deep list as JSON ends typed", "json.dumps(x)"),
        attack("R-07d", "a copy of a deep list ends typed", "copy.deepcopy(x)"),
        attack("R-07e", "a deep list as a pickle ends typed", "pickle.dumps(x)"),
        attack("R-07f", "a deep list as the value of a cell ends typed", "x"),
        attack(
            "R-07g",
            "a hash of a deep tuple ends typed",
            "t = ()\nfor _ in range(100_000):\n    t = (t,)\nhash(t)",
        ),
        attack(
            "R-07h",
            "reading deeply nested JSON ends typed",
            "json.loads('[' * 100_000 + ']' * 100_000)",
        ),
        attack(
            "R-08",
            "dropping a deep structure touches nothing of the host",
            "d = {}\nfor _ in range(200_000):\n    d = {1: d}\ndel d\ndel x, y",
        ),
        attack(
            "R-08b",
            "dropping a long chain of objects touches nothing of the host",
            "class N: pass\nn = None\nfor _ in range(200_000):\n    m = N()\n    m.next = n\n    n = m\ndel n, m",
        ),
    ]
}

fn output() -> Vec<Attack> {
    let megabytes = if machine::is_full() { 1024 } else { 128 };
    let flood = |id, property, stream: &'static str| {
        Attack::host(id, property, move |world, setting| {
            let ran = world.cell(setting, &format!("import sys\nline = 'x' * ((1 << 20) - 1) + '\\n'\nfor _ in range({megabytes}):\n    sys.{stream}.write(line)"));
            let Some(last) = ran.ran.last() else { return ran };
            let (kept, dropped) = match stream {
                "stdout" => (last.outcome.stdout.len(), last.outcome.dropped.stdout),
                _ => (last.outcome.stderr.len(), last.outcome.dropped.stderr),
            };
            let all = dropped.saturating_add(kept as u64) == megabytes << 20;
            Observed::fact(format!("{} kept {kept}, all counted: {all}", last.outcome.kind.as_str())).seen(ran.ran.clone())
        })
        .with(Setting::default().limit(|limits| limits.broker.output_bytes = 1 << 20))
        .control_cell("print('x')", "x")
        .about_memory()
        .expect(Expected::Harmless("completed kept 1048576, all counted: true"), "output has a cap, and what does not fit is counted")
    };
    vec![
        flood("R-11", "a flood of output is cut, counted and costs no memory", "stdout"),
        flood("R-11b", "a flood of error output is cut, counted and costs no memory", "stderr"),
        Attack::cell(
            "R-11c",
            "output in single bytes uses up the budget of host calls",
            "import os\nfor _ in range(10_000_000):\n    os.write(1, b'x')",
        )
        .with(Setting::default().limit(|limits| limits.broker.host_calls = 100_000))
        .control_cell("import os\nprint(os.write(1, b''))", "0")
        .expect(Expected::Ends(&["budget_exceeded"]), "every call of the host is charged"),
        Attack::host(
            "R-19b",
            "a listener that is slow slows its own run and is inside its deadline",
            |world, setting| {
                let sandbox = match world.sandbox(setting) {
                    Ok(sandbox) => sandbox,
                    Err(error) => return Observed::broken(error),
                };
                let script = Script::cell("while True: print('x' * 100, flush=True)").on_output(
                    |_: Stream, _| std::thread::sleep(std::time::Duration::from_millis(20)),
                );
                Observed::run(run_in(&sandbox, setting.limits.wall, script))
            },
        )
        .with(Setting::default().wall_ms(400))
        .control_cell("print('x')", "x")
        .alone()
        .expect(Expected::Ends(&["timeout"]), "a run is over when its listener has its output"),
    ]
}

fn host_functions() -> Vec<Attack> {
    vec![
        Attack::host(
            "R-19c",
            "a listener that does not return does not keep the caller from its answer and its output",
            |world, setting| {
                let sandbox = match world.sandbox(setting) {
                    Ok(sandbox) => sandbox,
                    Err(error) => return Observed::broken(error),
                };
                let script = Script::cell("print('x')").on_output(|_: Stream, _| {
                    std::thread::sleep(std::time::Duration::from_secs(3));
                });
                let ran = run_in(&sandbox, setting.limits.wall, script);
                // The ticker would answer for a stuck run half a second later.
                let soon = ran.took.as_millis() < 700;
                let (kind, output) = (ran.outcome.kind.as_str(), ran.outcome.stdout_text());
                Observed::fact(format!("{kind} soon: {soon} {output:?}"))
                    .note(format!("answered after {:?}", ran.took))
            },
        )
        .with(Setting::default().wall_ms(300))
        .control_cell("print('x')", "x")
        .alone()
        .expect(
            Expected::Harmless("timeout soon: true \"x\\n\""),
            "a listener is called on a thread of its own, and waited for until the deadline",
        ),
        Attack::cell(
            "R-20b",
            "many recorded effects keep a bounded log in memory",
            "import os\nfor n in range(100_000):\n    open('/tmp/' + 'n' * 200, 'w').close()\nprint('done')",
        )
        .with(Setting::default().wall_ms(60_000).limit(|limits| limits.cpu = limits.wall))
        .control_cell("open('/tmp/n', 'w').close()\nprint('done')", "done")
        .about_memory()
        .expect(
            Expected::Harmless("done"),
            "the log in memory keeps the last records and counts the others",
        ),
    ]
}

/// A sink that takes no record.
struct FullSink {
    /// Records that it still takes.
    room: AtomicU32,
}

impl AuditSink for FullSink {
    fn record(&self, _: AuditRecord) -> Result<(), AuditUnavailable> {
        let less = |room: u32| room.checked_sub(1);
        match self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(AuditUnavailable("it takes nothing")),
        }
    }
}

/// Creates a file of the host while the audit takes `room` records.
fn unrecorded(world: &World<'_>, setting: &Setting, room: u32) -> Observed {
    let sink = Arc::new(FullSink { room: AtomicU32::new(room) });
    let built = world.builder(setting).map(|builder| builder.audit(sink).build());
    let Ok(Ok(sandbox)) = built else { return Observed::broken("no sandbox") };
    let code = "try:\n    open('/rw/new', 'w')\nexcept OSError:\n    print('refused')";
    let ran = run_in(&sandbox, setting.limits.wall, code);
    let made = world.path("rw/new").exists();
    if made { Observed::fact("made").seen([ran]) } else { Observed::run(ran) }
}

fn inputs() -> Vec<Attack> {
    vec![
        Attack::host("R-13c", "source text beyond its limit is refused and nothing runs", |world, setting| {
            world.cell(setting, &"#".repeat(setting.limits.source_bytes + 1))
        })
        .with(Setting::default().limit(|limits| limits.source_bytes = 1 << 20))
        .control_cell("print(1)", "1")
        .expect(Expected::Refused(&["source"]), "lengths are checked before the guest is made"),
        Attack::host("R-13d", "inputs beyond their limit are refused and nothing runs", |world, setting| {
            let inputs = serde_json::json!({ "text": "x".repeat(setting.limits.input_bytes) });
            let (Ok(sandbox), Some(inputs)) = (world.sandbox(setting), inputs.as_object()) else {
                return Observed::broken("no sandbox");
            };
            Observed::run(run_in(&sandbox, setting.limits.wall, Script::cell("print(len(text))").inputs(inputs)))
        })
        .with(Setting::default().limit(|limits| limits.input_bytes = 1 << 20))
        .control_cell("print(1)", "1")
        .expect(Expected::Refused(&["inputs"]), "lengths are checked before the guest is made"),
        Attack::host("R-13e", "inputs that are nested deeply end at most the run", |world, setting| {
            let mut value = serde_json::Value::Null;
            for _ in 0..100 {
                value = serde_json::Value::Array(vec![value]);
            }
            let inputs = serde_json::json!({ "x": value, "__builtins__": {}, "__name__": "evil", "": 1, "a b": 2 });
            let (Ok(sandbox), Some(inputs)) = (world.sandbox(setting), inputs.as_object()) else {
                return Observed::broken("no sandbox");
            };
            Observed::run(run_in(&sandbox, setting.limits.wall, Script::cell("1").inputs(inputs)))
        })
        .control_cell("print(1)", "1")
        .expect(Expected::Ends(OWN_AFFAIR), "inputs are data of the guest"),
        Attack::host("R-20", "no effect happens that the audit log does not take", |world, setting| {
            unrecorded(world, setting, 1)
        })
        .with(Setting::mounted())
        .control_cell("open('/rw/new', 'w').close()\nprint('made')", "made")
        .expect(Expected::Denied { rule: "audit" }, "the intent is recorded before the effect"),
        Attack::host("R-20c", "nothing runs whose start the audit log does not take", |world, setting| {
            unrecorded(world, setting, 0)
        })
        .with(Setting::mounted())
        .control_cell("open('/rw/new', 'w').close()\nprint('made')", "made")
        .expect(Expected::Refused(&["audit"]), "a run is an effect like others"),
        Attack::cell("R-22", "compiling huge sources again and again is time of the guest",
            "source = 'x = [1, 2, 3]\\n' * 350_000\nfor n in range(200):\n    compile(source + str(n), 'x', 'exec')")
            .with(Setting::default().wall_ms(1500).limit(|limits| limits.memory_bytes = 1 << 30))
            .control_cell("compile('x = 1', 'x', 'exec')\nprint('ok')", "ok")
            .about_memory()
            .expect(Expected::Ends(&["timeout", "memory_limit"]), "the compiler is inside the guest"),
        Attack::host("R-01i", "a wall-clock limit of no time or of ages is refused", |world, setting| {
            let zero = world.builder(setting).map(|builder| builder.timeout(std::time::Duration::ZERO).build());
            let ages = world.builder(setting).map(|builder| builder.timeout(std::time::Duration::MAX).build());
            match (zero, ages) {
                (Ok(Err(zero)), Ok(Err(_))) => Observed::refused(zero.to_string()),
                _ => Observed::fact("accepted"),
            }
        })
        .control_cell("print(1)", "1")
        .expect(Expected::Refused(&["wall", "limit"]), "every limit has a least and a greatest value"),
    ]
}

/// Cases of this section whose capability is not there.
pub(super) const WAITING: &[(&str, Capability)] =
    &[("R-17", Capability::Server), ("R-19", Capability::Server)];

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = time();
    all.extend(big_numbers());
    all.extend(memory());
    all.extend(compressed());
    all.extend(deep());
    all.extend(output());
    all.extend(inputs());
    all.extend(host_functions());
    all
}
