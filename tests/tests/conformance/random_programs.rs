//! Random programs of the kind that could notice that they run again.
//!
//! A program is a list of steps; each prints what it saw. Numbers in a step
//! choose sizes and names, so that a program that fails shrinks to the one step
//! that matters.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// One random program.
#[derive(Clone, Debug)]
pub struct Program {
    /// A cell.
    pub source: String,
    /// It prints a value that the seed decides.
    pub draws: bool,
}

/// What a step does with two numbers.
struct Kind {
    /// Python, with `{a}`, `{b}` for the numbers and `{i}` for the step.
    code: &'static str,
    draws: bool,
}

const fn step(code: &'static str) -> Kind {
    Kind { code, draws: false }
}

const fn draw(code: &'static str) -> Kind {
    Kind { code, draws: true }
}

const KINDS: &[Kind] = &[
    draw("import random\nprint(random.random(), random.sample(range({a} + 5), 3))"),
    draw(
        "import random\nx = list(range({a} % 50 + 9))\nrandom.shuffle(x)\nprint(x, random.gauss(0, 1))",
    ),
    draw("import uuid\nprint(uuid.uuid4(), uuid.uuid1())"),
    draw("import secrets, os\nprint(secrets.token_hex({a} % 40 + 4), os.urandom({b} % 20 + 4))"),
    draw("import tempfile\nprint(tempfile.mkdtemp(), tempfile.NamedTemporaryFile().name)"),
    draw("import random\nprint(random.SystemRandom().getrandbits({a} % 200 + 64))"),
    step("import random\nprint(random.Random({a}).random())"),
    step(
        "import time\nprint(time.time(), time.monotonic(), time.perf_counter_ns(), time.process_time())",
    ),
    step("import datetime\nprint(datetime.datetime.now(), datetime.date.today())"),
    step("import time\nt = time.time()\ntime.sleep({a} / 100)\nprint(time.time() - t)"),
    step(
        "import time\nn, end = 0, time.monotonic() + {a} % 20 / 1000\nwhile time.monotonic() < end:\n    n += 1\nprint(n)",
    ),
    step("import timeit\nprint(timeit.timeit('sum(range({a} % 100))', number=20))"),
    step("print({'s%d' % n for n in range({a} % 20)}, hash('x{b}'), hash({b} / 7))"),
    step("x{i} = [object() for _ in range({a} % 9)]\nprint(id(x{i}), x{i}, hash(object()))"),
    step(
        "import struct, math\nv = [float('inf') - float('inf'), -float('nan'), float('nan') * {a}, math.sqrt({b}) * math.pi]\nprint([struct.pack('<d', f).hex() for f in v])",
    ),
    step("import os\nprint(os.listdir('/data'), os.listdir('/data/sub'))"),
    step(
        "import os\nprint([(e.name, e.inode(), e.is_dir(), tuple(e.stat())) for e in os.scandir('/data')])",
    ),
    step("import os\nprint(list(os.walk('/data')))"),
    step(
        "import os\nprint([tuple(os.stat('/data/' + n)) for n in ('a.txt', 'c', 'sub', 'link')], tuple(os.lstat('/data/link')))",
    ),
    step(
        "import pathlib\nprint(sorted(p.read_text() for p in pathlib.Path('/data').rglob('*') if p.is_file()))",
    ),
    step("import glob\nprint(glob.glob('/data/**', recursive=True))"),
    step(
        "import os\nopen('/work/f%d' % ({a} % 5), 'a').write('x' * {b})\nprint(os.listdir('/work'), tuple(os.stat('/work/f%d' % ({a} % 5))))",
    ),
    step(
        "import os\np = '/out/f%d' % ({a} % 5)\nopen(p, 'a').write('y' * ({b} % 999))\nprint(os.listdir('/out'), tuple(os.stat(p)), os.stat('/out').st_mtime)",
    ),
    step(
        "import os\np, q = '/out/f%d' % ({a} % 5), '/out/f%d' % ({b} % 5)\ntry:\n    os.rename(p, q)\n    print(tuple(os.stat(q)))\nexcept OSError as error:\n    print(error)\nprint([(e.name, e.inode()) for e in os.scandir('/out')])",
    ),
    step(
        "import os\np = '/out/f%d' % ({a} % 5)\ntry:\n    os.utime(p, ({a}, {b}))\n    print(tuple(os.stat(p)))\n    os.remove(p)\nexcept OSError as error:\n    print(error)",
    ),
    step(
        "import asyncio\nasync def one(n):\n    await asyncio.sleep(n * {a} % 7 / 10)\n    print('task', n)\n    return n\nasync def all_of_them():\n    print(await asyncio.gather(*(one(n) for n in range({b} % 6 + 1))))\nasyncio.run(all_of_them())",
    ),
    step(
        "import asyncio\nasync def slow():\n    await asyncio.sleep({a} % 10)\n    return 'slow'\nasync def race():\n    try:\n        print(await asyncio.wait_for(slow(), {b} % 10))\n    except asyncio.TimeoutError:\n        print('too slow')\nasyncio.run(race())",
    ),
    step(
        "import threading\nseen = []\nthreads = [threading.Thread(target=seen.append, args=(n,)) for n in range({a} % 8)]\n[t.start() for t in threads]\n[t.join() for t in threads]\nprint(seen, threading.current_thread().name, threading.get_ident())",
    ),
    step(
        "def g{i}(n):\n    while n:\n        yield n\n        n = n * 3 // 4\nprint(sum(g{i}({a})), sorted((n * {b}) % 97 for n in range(20)))",
    ),
    step(
        "import json\nprint(json.dumps({'b': [{a}, {b} / 3], 'a': None}), 7 ** {a} % 1_000_007, len(str(3 ** {b})))",
    ),
    step(
        "class C{i}:\n    pass\nprint(C{i}, C{i}(), [C{i}()] * 2)\nx{i} = C{i}()\nx{i}.me = x{i}\ndel x{i}\nimport gc\nprint(gc.collect() >= 0)",
    ),
    step(
        "import traceback\ntry:\n    [1][{a}]\n    1 / ({b} % 2)\nexcept Exception:\n    traceback.print_exc()",
    ),
    step("try:\n    open('/nowhere/%d' % {a}).read()\nexcept OSError as error:\n    print(error)"),
    step("try:\n    open('/data/new-%d' % {a}, 'w')\nexcept OSError as error:\n    print(error)"),
    step("import sys\nprint(repr(sys.stdin.readline()))"),
    step(
        "import os, sys, platform\nprint(dict(os.environ), sys.argv, os.getpid(), os.getcwd(), platform.platform(), sys.version)",
    ),
    step(
        "def deep(n):\n    return deep(n + 1)\ntry:\n    deep(0)\nexcept RecursionError as error:\n    print(error)",
    ),
    step(
        "import logging, io\nout = io.StringIO()\nlogging.basicConfig(stream=out, format='%(asctime)s %(created)f %(process)d %(thread)d %(message)s', force=True)\nlogging.warning('w{a}')\nprint(out.getvalue())",
    ),
    step("import sys\nprint('err {a}', file=sys.stderr)\nsys.stdout.flush()"),
    step("x{i} = bytearray({a} * 1000)\nprint(len(x{i}), sum(x{i}))"),
];

/// How a program ends.
const ENDS: &[&str] = &[
    "None",
    "{a}",
    "[object(), {a}]",
    "import sys; sys.exit({a} % 256)",
    "raise ValueError({a})",
    "import os; os._exit({a} % 120)",
    "import random; random.random()",
];

fn rendered(code: &str, at: usize, (a, b): (u16, u16)) -> String {
    code.replace("{i}", &at.to_string())
        .replace("{a}", &a.to_string())
        .replace("{b}", &b.to_string())
}

fn programs() -> impl Strategy<Value = Program> {
    let numbers = (0..2000_u16, 0..2000_u16);
    let steps = prop::collection::vec((0..KINDS.len(), numbers.clone()), 1..12);
    (steps, 0..ENDS.len(), numbers).prop_map(|(steps, end, last)| {
        let mut source = String::new();
        let mut draws = false;
        for (at, (kind, numbers)) in steps.iter().enumerate() {
            let Kind { code, draws: draw } = &KINDS[*kind];
            draws |= *draw;
            source.push_str(&rendered(code, at, *numbers));
            source.push('\n');
        }
        source.push_str(&rendered(ENDS[end], steps.len(), last));
        Program { source, draws }
    })
}

/// Checks this many programs; the message of a failure has the smallest one.
pub fn check(
    cases: u32,
    mut property: impl FnMut(&Program) -> Result<(), String>,
) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let property = std::cell::RefCell::new(&mut property);
    TestRunner::new(config)
        .run(&programs(), |program| {
            (property.borrow_mut())(&program).map_err(|why| {
                TestCaseError::fail(format!("{why}\nin the program\n{}", program.source))
            })
        })
        .map_err(|error| error.to_string())
}
