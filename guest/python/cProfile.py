"""A profiler with the interface of CPython's compiled one, on `sys.setprofile`."""

import marshal
import sys
import time
import types

import profile as _profile

__all__ = ["run", "runctx", "Profile"]


def run(statement, filename=None, sort=-1):
    """Profile a statement, and print the figures or save them."""
    return _profile._Utils(Profile).run(statement, filename, sort)


def runctx(statement, globals, locals, filename=None, sort=-1):
    """Profile a statement in these namespaces."""
    return _profile._Utils(Profile).runctx(statement, globals, locals, filename, sort)


class _Function:
    """What is known of one function, altogether or as one caller calls it."""

    def __init__(self):
        self.calls = self.outer_calls = self.running = 0
        self.own = self.total = 0.0
        # What it calls, by name.
        self.called = {}

    def count(self, own, total):
        """Count a call that ended."""
        self.running -= 1
        self.calls += 1
        self.own += own
        if not self.running:
            self.outer_calls += 1
            self.total += total


def _entry(functions, name):
    function = functions.get(name)
    if function is None:
        function = functions[name] = _Function()
    return function


class Profile:
    """Collects calls and their times between `enable` and `disable`."""

    def __init__(self, timer=None, timeunit=0.0, subcalls=True, builtins=True):
        unit = timeunit or 1.0
        self._timer = time.perf_counter if timer is None else lambda: timer() * unit
        self._builtins = builtins
        self.clear()

    def clear(self):
        """Forget everything."""
        self._functions = {}
        # Of each running call: name, function, the same below its caller, start,
        # time in calls that it made.
        self._running = []

    def enable(self, subcalls=True, builtins=True):
        """Start collecting."""
        self._builtins = builtins
        sys.setprofile(self._event)

    def disable(self):
        """Stop collecting; what still runs is counted up to now."""
        sys.setprofile(None)
        while self._running:
            self._leave()

    def _event(self, frame, event, arg):
        if event == "call":
            if frame.f_code is not _DISABLE:
                self._enter(_name(frame.f_code))
        elif event == "return":
            self._leave()
        elif self._builtins and arg is not sys.setprofile:
            if event == "c_call":
                self._enter(("~", 0, _builtin(arg)))
            else:
                self._leave()

    def _enter(self, name):
        function = _entry(self._functions, name)
        function.running += 1
        called = None
        if self._running:
            # The function as this caller calls it, with a depth of its own.
            caller = self._running[-1]
            called = _entry(caller[1].called, name)
            called.running += 1
        self._running.append([name, function, called, self._timer(), 0.0])

    def _leave(self):
        if not self._running:
            # It was called before collecting began.
            return
        _, function, called, start, below = self._running.pop()
        total = self._timer() - start
        function.count(total - below, total)
        if called is not None:
            called.count(total - below, total)
            self._running[-1][4] += total

    def create_stats(self):
        """Stop, and make `stats` as `pstats` reads them."""
        self.disable()
        self.snapshot_stats()

    def snapshot_stats(self):
        """Make `stats` as `pstats` reads them."""
        self.stats = {
            name: (entry.outer_calls, entry.calls, entry.own, entry.total, {})
            for name, entry in self._functions.items()
        }
        for name, function in self._functions.items():
            for below, entry in function.called.items():
                figures = entry.calls, entry.outer_calls, entry.own, entry.total
                self.stats[below][4][name] = figures

    def print_stats(self, sort=-1):
        """Print the figures."""
        import pstats

        sort = sort if isinstance(sort, tuple) else (sort,)
        pstats.Stats(self).strip_dirs().sort_stats(*sort).print_stats()

    def dump_stats(self, file):
        """Save the figures for `pstats`."""
        self.create_stats()
        with open(file, "wb") as opened:
            marshal.dump(self.stats, opened)

    def run(self, cmd):
        """Profile a statement in `__main__`."""
        import __main__

        return self.runctx(cmd, __main__.__dict__, __main__.__dict__)

    def runctx(self, cmd, globals, locals):
        """Profile a statement in these namespaces."""
        self.enable()
        try:
            exec(cmd, globals, locals)
        finally:
            self.disable()
        return self

    def runcall(self, func, /, *args, **kw):
        """Profile one call and return its result."""
        self.enable()
        try:
            return func(*args, **kw)
        finally:
            self.disable()

    def __enter__(self):
        self.enable()
        return self

    def __exit__(self, *_):
        self.disable()


_DISABLE = Profile.disable.__code__


def _name(code):
    return code.co_filename, code.co_firstlineno, code.co_name


def _builtin(function):
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", repr(function))
    if owner is None or isinstance(owner, types.ModuleType):
        return f"<built-in method {getattr(function, '__module__', None) or 'builtins'}.{name}>"
    return f"<method {name!r} of {type(owner).__name__!r} objects>"
