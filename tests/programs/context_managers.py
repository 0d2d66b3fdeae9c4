import contextlib
import io
import os

@contextlib.contextmanager
def step(name, log):
    log.append(f"+{name}")
    try:
        yield name.upper()
    except LookupError as error:
        log.append(f"!{error!r}")
    finally:
        log.append(f"-{name}")

log = []
with step("a", log) as a, step("b", log) as b:
    log.append(a + b)
    raise IndexError("gone")
print(log)

class Pool:
    def __init__(self):
        self.open = 0
    def __enter__(self):
        self.open += 1
        return self
    def __exit__(self, kind, value, trace):
        self.open -= 1
        return kind is ValueError

pool = Pool()
with pool:
    raise ValueError
with pool as p, contextlib.suppress(OSError):
    os.remove("/tmp/none")
print(pool.open)

with contextlib.ExitStack() as stack:
    files = [stack.enter_context(open(f"/tmp/f{n}", "w")) for n in range(3)]
    stack.callback(print, "callback")
    for n, file in enumerate(files):
        file.write(str(n))
print([f.closed for f in files], [open(f"/tmp/f{n}").read() for n in range(3)])

out = io.StringIO()
with contextlib.redirect_stdout(out):
    print("captured")
print(repr(out.getvalue()))
with contextlib.nullcontext(5) as five:
    print(five)
with contextlib.chdir("/tmp"):
    print(os.getcwd())

class Deco(contextlib.ContextDecorator):
    def __enter__(self):
        print("in")
    def __exit__(self, *exc):
        print("out")

@Deco()
def body():
    print("body")
body()
