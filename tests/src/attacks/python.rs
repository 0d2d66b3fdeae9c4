//! P: tricks of the language.
//!
//! Invariant: an attack of this section may use every trick; what is judged is
//! what it could do, not what it could write.

use std::sync::Arc;

use fumehood::Script;

use crate::harness::{Attack, Attempt, Capability, Expected, Observed, Setting, run_in};

use super::paths::COUNT_REFUSALS;

/// Ends that are a run's own affair.
pub(super) const OWN_AFFAIR: &[&str] =
    &["completed", "script_error", "exit", "timeout", "memory_limit", "stack_exhausted"];

fn no_processes() -> Vec<Attack> {
    let primitives = r"
import os, sys, posix, subprocess, signal
got = []
def attempt(name, action):
    try:
        got.append((name, action()))
    except BaseException:
        pass
wrap = [c for c in object.__subclasses__() if c.__name__ == '_wrap_close']
everywhere = [os.__dict__, posix.__dict__, sys.modules] + [c.__init__.__globals__ for c in wrap]
for names in everywhere:
    for name in ('system', 'popen', 'fork', 'forkpty', 'vfork', 'execv', 'execve', 'posix_spawn', 'spawnv', 'kill', 'ptrace', 'setuid', 'chroot'):
        found = names.get(name) if isinstance(names, dict) else None
        if found is not None:
            attempt(name, lambda: found('/bin/true') if name in ('system', 'popen') else found('/bin/true', ['true']))
attempt('Popen', lambda: subprocess.Popen(['/bin/true']))
attempt('run', lambda: subprocess.run('true', shell=True))
attempt('ctypes', lambda: __import__('ctypes').CDLL(None).system(b'true'))
attempt('_posixsubprocess', lambda: __import__('_posixsubprocess').fork_exec)
attempt('mmap', lambda: __import__('mmap').mmap(-1, 4096))
attempt('socket', lambda: __import__('socket').create_connection(('127.0.0.1', 1), 1))
attempt('listen', lambda: __import__('socket').create_server(('127.0.0.1', 0)))
attempt('kill', lambda: os.kill(os.getpid(), 0) if os.getpid() > 100000 else 1/0)
print(got)
";
    vec![
        Attack::cell("P-01", "no walk through the objects of the interpreter finds a way to start a process or a connection", primitives)
            .control_cell("print([c.__name__ for c in object.__subclasses__() if c.__name__ == 'type'], bool(object.__subclasses__()))", "['type'] True")
            .expect(Expected::Harmless("[]"), "the module imports no function that could do it"),
        Attack::cell("C-07b", "modules that are unsafe on a host are harmless or absent here",
            "import importlib\nfor name in ('ctypes', '_ctypes', 'multiprocessing.popen_fork', 'pty', 'fcntl', 'termios', 'resource', 'pwd', 'grp'):\n    try:\n        module = importlib.import_module(name)\n    except ImportError:\n        continue\n    for dangerous in ('CDLL', 'fork', 'spawn', 'ioctl', 'setrlimit', 'getpwall'):\n        action = getattr(module, dangerous, None)\n        try:\n            if action is not None:\n                print('GOT', name, dangerous, action('/bin/true'))\n        except BaseException:\n            pass\nprint('nothing')")
            .control_cell("import importlib\nprint(importlib.import_module('json').__name__)", "json")
            .expect(Expected::Harmless("nothing"), "there is nothing below them that would act"),
    ]
}

fn reflection() -> Vec<Attack> {
    let cell = |id, property, code: &str, expected, reason| {
        Attack::cell(id, property, format!("{COUNT_REFUSALS}\n{code}\nreport()"))
            .with(Setting::mounted())
            .control_cell(format!("{COUNT_REFUSALS}\nprint(read('/ro/file.txt'))"), "inside")
            .expect(Expected::Harmless(expected), reason)
    };
    vec![
        cell(
            "P-02",
            "reaching hidden globals and frames opens nothing more",
            "f = read\nhidden = getattr(f, '__glo' + 'bals__')['__builtins__']\nopener = (hidden if isinstance(hidden, dict) else hidden.__dict__)['open']\nattempt(opener, '/etc/passwd')\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    frame = error.__traceback__.tb_frame\nattempt(frame.f_globals['read'], '/etc/passwd')\nimport io, _io\nattempt(io.open_code, '/etc/passwd')\nattempt(io.FileIO, '/etc/passwd')\nattempt(os.open, '/etc/passwd', os.O_RDONLY)\nattempt(io.FileIO, 3, 'w')",
            "refused 6",
            "every way to open ends at the same host function",
        ),
        cell(
            "P-04",
            "replacing the interpreter's own modules and functions changes no decision",
            "import builtins, importlib\nbuiltins.open = lambda *a, **k: None\nos.open.__class__\nfor name in list(sys.modules):\n    if name.startswith('_fumehood'):\n        sys.modules.pop(name)\nos.stat = lambda *a, **k: None\nos.access = lambda *a, **k: True\nimport io\nattempt(io.open, '/ro/file.txt', 'w')\nattempt(io.open, '/etc/passwd')\nattempt(os.open, '/ro/new', os.O_CREAT | os.O_WRONLY)",
            "refused 3",
            "decisions are made on the host, which has no Python",
        ),
        Attack::cell(
            "P-04b",
            "a change in a read-only mount is denied by name also when the code hides it",
            "import io\ntry:\n    io.open('/ro/file.txt', 'w')\nexcept BaseException:\n    pass",
        )
        .with(Setting::mounted())
        .control_cell(
            "with open('/rw/file.txt', 'w') as file:\n    print(file.write('changed'))",
            "7",
        )
        .expect(Expected::Denied { rule: "mount:/ro" }, "denials are kept by the host, in order"),
    ]
}

fn raw_calls() -> Vec<Attack> {
    vec![
        Attack::cell("P-05", "forged requests to the host are errors of the call and nothing more",
            r"
import _fumehood
errors = 0
for operation in (0, 2, 4, 5, 7, 99, 2**31, 2**32 - 1):
    for request in (b'', b'\0' * 8, b'\xff' * 64, b'{' * 100_000, b'[' * 100_000, bytes(range(256)) * 64, b'{\x22a\x22:1,\x22a\x22:NaN}'):
        try:
            _fumehood.call(operation, request)
        except Exception:
            errors += 1
for mime, content in (('text/evil', b''), ('', b''), ('text/html' * 10_000, b''), ('\ud800', b''), ('text/plain\0', b'')):
    try:
        _fumehood.display(mime, content)
        print('GOT', mime[:20])
    except Exception:
        pass
print(errors)")
            .control_cell("import _fumehood\nprint(_fumehood.call(_fumehood.NOOP, b''))", "b''")
            .expect(Expected::Harmless("56"), "a request is bounded before it is decoded and decoded without trust"),
        Attack::cell("R-13", "a request of a hundred megabytes is refused before it is looked at",
            "import _fumehood\ntry:\n    _fumehood.display('text/plain', b'x' * (100 << 20))\nexcept Exception as error:\n    print(type(error).__name__)")
            .with(Setting::default().limit(|limits| limits.memory_bytes = 1 << 30))
            .control_cell("import _fumehood\nprint(_fumehood.display('text/plain', b'x'))", "None")
            .about_memory()
            .expect(Expected::Harmless("RuntimeError"), "requests have a limit that is checked on their length alone"),
        Attack::cell("R-13b", "displays do not pile up without bound",
            "shown = 0\ntry:\n    for n in range(100_000):\n        display('x' * 1000)\n        shown += 1\nexcept Exception:\n    pass\nprint(shown <= 64)")
            .control_cell("display('x')\nprint('shown')", "shown")
            .about_memory()
            .expect(Expected::Harmless("True"), "displays are counted between two reports"),
    ]
}

fn hostile_objects() -> Vec<Attack> {
    let attack = |id, property, code: &str, expected, reason| {
        Attack::cell(id, property, code)
            .with(Setting::default().wall_ms(3000))
            .control_cell(
                "class A:\n    def __repr__(self):\n        return 'A'\nprint(repr(A()))",
                "A",
            )
            .expect(expected, reason)
    };
    vec![
        attack(
            "P-07",
            "a pickle that names a system function starts nothing",
            "import pickle\nfor payload in (b\"cos\\nsystem\\n(S'true'\\ntR.\", b\"cposix\\nsystem\\n(S'true'\\ntR.\", b\"csubprocess\\nPopen\\n((S'true'\\nltR.\"):\n    try:\n        print('GOT', pickle.loads(payload))\n    except Exception:\n        pass\nprint('nothing')",
            Expected::Harmless("nothing"),
            "there is no such function to name",
        ),
        attack(
            "P-07b",
            "garbage in the interpreter's own format ends at most the run",
            "import marshal, random\nrandom.seed(1)\nfor n in range(2000):\n    try:\n        marshal.loads(bytes(random.randrange(256) for _ in range(random.randrange(1, 60))))\n    except Exception:\n        pass\nprint('end')",
            Expected::Ends(OWN_AFFAIR),
            "the worst that happens is a trap of the guest, which is the program's own error",
        ),
        attack(
            "P-07c",
            "code made from garbage ends at most the run",
            "def f():\n    return 1\nfor n in range(256):\n    try:\n        g = type(f)(f.__code__.replace(co_code=bytes([n, 255, n, 7] * 4)), {})\n        g()\n    except Exception:\n        pass\nprint('end')",
            Expected::Ends(OWN_AFFAIR),
            "the worst that happens is a trap of the guest, which is the program's own error",
        ),
        attack(
            "P-08",
            "a value whose text never ends stops at the deadline",
            "class A:\n    def __repr__(self):\n        while True:\n            pass\nA()",
            Expected::Ends(&["timeout"]),
            "values are formatted in the guest, under its limits",
        ),
        attack(
            "P-08b",
            "a value whose text is a gigabyte ends the run or is cut",
            "class A:\n    def __repr__(self):\n        return 'x' * (1 << 30)\nA()",
            Expected::AnyOf(vec![
                Expected::Ends(&["memory_limit"]),
                Expected::Exception(&["MemoryError"]),
            ]),
            "values are formatted in the guest, under its limits",
        ),
        Attack::host(
            "P-08c",
            "the text of a value is never longer than its limit",
            |world, setting| {
                let ran = world.cell(setting, "'x' * 10_000_000");
                let Some(last) = ran.ran.last() else { return ran };
                let result = &last.outcome.result;
                let short = result.repr.as_ref().is_some_and(|text| text.len() <= 64 << 10);
                Observed::fact(format!("short: {short}, json: {}", result.json.is_some()))
                    .seen(ran.ran.clone())
            },
        )
        .control_cell("print(len(repr('x' * 10_000_000)))", "10000002")
        .expect(
            Expected::Harmless("short: true, json: false"),
            "values are cut in the guest and bounded again on the host",
        ),
        Attack::host("P-08f", "code that replaces what describes its value returns no more than the limit", |world, setting| {
            let ran = world.cell(setting, "import _fumehood_kernel as k\nk.describe = lambda value, limit: ('x' * 5_000_000, '[' * 100_000)\n1");
            let Some(last) = ran.ran.last() else { return ran };
            let limit = setting.limits.value_bytes as usize;
            let bounded = last.outcome.result.repr.as_ref().is_none_or(|text| text.len() <= limit);
            Observed::fact(format!("bounded: {bounded}")).note(last.outcome.kind.as_str()).seen(ran.ran.clone())
        })
        .control_cell("import _fumehood_kernel\nprint(_fumehood_kernel.describe(1, 100))", "('1', '1')")
        .expect(Expected::Harmless("bounded: true"), "the host bounds what the guest returns"),
        Attack::cell("P-08g", "code that replaces what describes its value cannot return without bound",
            "import _fumehood_kernel as k\nk.describe = lambda value, limit: ('x' * 100_000_000, None)\n1")
            .control_cell("import _fumehood_kernel\nprint(_fumehood_kernel.describe(1, 100))", "('1', '1')")
            .about_memory()
            .expect(Expected::AnyOf(vec![Expected::Ends(OWN_AFFAIR)]), "a result that is too long is the run's own affair"),
        Attack::cell("P-08h", "code that replaces what reports its errors ends its own run at most",
            "import _fumehood_kernel as k\nk.report = lambda *a: 1 / 0\nk.finish = lambda *a: 1 / 0\nk.describe = lambda *a: object()\nraise ValueError")
            .control_cell("import _fumehood_kernel\nprint(_fumehood_kernel.describe(1, 100))", "('1', '1')")
            .expect(Expected::AnyOf(vec![Expected::Ends(OWN_AFFAIR)]), "what the kernel returns is not trusted"),
        attack(
            "P-08d",
            "an exception whose text fails or never ends is still reported",
            "class E(Exception):\n    def __str__(self):\n        raise RecursionError\n    __repr__ = __str__\nraise E",
            Expected::Exception(&["__main__.E", "E"]),
            "the report does not rely on the exception",
        ),
        attack(
            "P-08e",
            "an exception whose text never ends stops at the deadline",
            "class E(Exception):\n    def __str__(self):\n        while True:\n            pass\nraise E",
            Expected::Ends(&["timeout"]),
            "exceptions are formatted in the guest, under its limits",
        ),
        attack(
            "P-10",
            "a program that raises its own recursion limit ends typed",
            "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    return f()\nf()",
            Expected::AnyOf(vec![
                Expected::Ends(&["stack_exhausted"]),
                Expected::Exception(&["RecursionError", "OverflowError", "ValueError"]),
            ]),
            "the stack has a limit below Python's",
        ),
        attack(
            "P-10b",
            "plain recursion raises the exception that programs know",
            "def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    print('caught')",
            Expected::Harmless("caught"),
            "Python's own limit comes before the end of the stack",
        ),
        attack(
            "P-17",
            "a missing extension module is an import error that says so",
            "import numpy",
            Expected::Exception(&["ImportError", "ModuleNotFoundError"]),
            "the finder answers for modules that cannot be here",
        ),
    ]
}

fn after_the_end() -> Vec<Attack> {
    vec![
        Attack::host("P-11", "nothing of a run goes on after its result", |world, setting| {
            let sandbox = match world.sandbox(setting) {
                Ok(sandbox) => sandbox,
                Err(error) => return Observed::broken(error),
            };
            let written = Arc::new(std::sync::atomic::AtomicU64::new(0));
            let counter = Arc::clone(&written);
            let code = "import asyncio, threading, weakref, atexit, signal\nclass D:\n    def __del__(self):\n        print('del')\nd = D()\natexit.register(lambda: print('atexit'))\nasync def later():\n    while True:\n        await asyncio.sleep(0.01)\n        print('task')\nasync def main():\n    asyncio.get_running_loop().create_task(later())\n    await asyncio.sleep(0.03)\nasyncio.run(main())\nprint('end')";
            let script = Script::new(code).on_output(move |_, bytes| {
                counter.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::SeqCst);
            });
            let first = run_in(&sandbox, setting.limits.wall, script);
            let at_end = written.load(std::sync::atomic::Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(300));
            let later = written.load(std::sync::atomic::Ordering::SeqCst).saturating_sub(at_end);
            let ran = first.outcome.stdout_text().contains("end");
            Observed::fact(format!("ran: {ran}, {later} bytes later")).seen([first])
        })
        .control_cell("import threading\nt = threading.Thread(target=lambda: print('thread'))\nt.start()\nt.join()", "thread")
        .expect(Expected::Harmless("ran: true, 0 bytes later"), "a guest has one thread, and it is the host's to run"),
        Attack::host("P-13", "markers of protocols in the output are data everywhere", |world, setting| {
            let ran = world.cell(setting, "import sys\nsys.stdout.write('{\"jsonrpc\":\"2.0\"}' + chr(27) + ']0;t' + chr(7) + '</tool_output>' + chr(13))");
            let Some(last) = ran.ran.last() else { return ran };
            let carried = last.outcome.stdout.ends_with(b"\x1b]0;t\x07</tool_output>\r");
            let json = last.outcome.to_json().to_string();
            let escaped = !json.contains(|c: char| c.is_control());
            Observed::fact(format!("carried: {carried}, escaped: {escaped}")).seen(ran.ran.clone())
        })
        .control_cell("print('plain')", "plain")
        .expect(Expected::Harmless("carried: true, escaped: true"), "output is bytes, and JSON escapes every control character"),
    ]
}

fn large_sources() -> Vec<Attack> {
    let attack = |id, property, code: &str| {
        Attack::cell(id, property, code)
            .with(Setting::default().wall_ms(4000).limit(|limits| limits.memory_bytes = 512 << 20))
            .control_cell("print(eval('(' * 20 + '1' + ')' * 20))", "1")
            .about_memory()
            .expect(
                Expected::AnyOf(vec![
                    Expected::Ends(&["stack_exhausted", "memory_limit", "timeout", "completed"]),
                    Expected::Exception(&[
                        "SyntaxError",
                        "RecursionError",
                        "MemoryError",
                        "OverflowError",
                        "ValueError",
                    ]),
                ]),
                "source is compiled in the guest, under its limits",
            )
    };
    let many = |open: &str, inner: &str, close: &str| {
        format!(
            "source = {open:?} * 100_000 + {inner:?} + {close:?} * 100_000\ncompile(source, 'x', 'exec')"
        )
    };
    vec![
        attack(
            "P-16",
            "ten megabytes of source end at most the run",
            "compile('x = 1\\n' * 1_700_000, 'x', 'exec')",
        ),
        attack(
            "P-16b",
            "a hundred thousand nested parentheses end at most the run",
            &many("(", "1", ")"),
        ),
        attack(
            "P-16c",
            "an expression of a million operators ends at most the run",
            "compile('1' + '+1' * 1_000_000, 'x', 'eval')",
        ),
        attack(
            "R-10",
            "a hundred thousand nested brackets end at most the run",
            &many("[", "", "]"),
        ),
        attack(
            "R-10b",
            "a hundred thousand nested lambdas end at most the run",
            &many("lambda: ", "1", ""),
        ),
        attack("R-10c", "nested formatted strings end at most the run", &many("f'{", "1", "}'")),
        attack(
            "R-10d",
            "a hundred thousand decorators end at most the run",
            "compile('@f\\n' * 100_000 + 'def g(): pass', 'x', 'exec')",
        ),
        attack(
            "R-10e",
            "a thousand nested conditions end at most the run",
            "compile(''.join(' ' * n + 'if 1:\\n' for n in range(3000)) + ' ' * 3000 + 'pass', 'x', 'exec')",
        ),
        attack(
            "R-10f",
            "a hundred thousand chained comparisons and calls end at most the run",
            "compile('f' + '()' * 100_000 + ' < 1' * 100_000, 'x', 'eval')",
        ),
        attack("R-10g", "a hundred thousand nots end at most the run", &many("not ", "1", "")),
        Attack::host(
            "P-16d",
            "a program that is itself nested a hundred thousand times ends typed",
            |world, setting| {
                world.cell(setting, &format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000)))
            },
        )
        .with(Setting::default().wall_ms(4000))
        .control(
            Attempt::Cell(format!("print({}1{})", "(".repeat(20), ")".repeat(20))),
            Expected::Harmless("1"),
        )
        .expect(
            Expected::AnyOf(vec![
                Expected::Exception(&["SyntaxError", "MemoryError", "RecursionError"]),
                Expected::Ends(&["stack_exhausted"]),
            ]),
            "source is compiled in the guest, under its limits",
        ),
    ]
}

/// Cases of this section whose capability is not there.
pub(super) const WAITING: &[(&str, Capability)] = &[("P-14", Capability::Sdk)];

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = no_processes();
    all.extend(reflection());
    all.extend(raw_calls());
    all.extend(hostile_objects());
    all.extend(after_the_end());
    all.extend(large_sources());
    all
}
