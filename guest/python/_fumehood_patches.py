"""Fills in what RustPython leaves out of its native modules on WASI."""

import errno
import io
import os
import sys
import time

HOST_NAME = "fumehood"
# Deeper Python recursion than this needs more stack than the host gives.
MAX_RECURSION = 1000


def needs_native(what):
    """Return the error for something that only a native tier can do."""
    return OSError(errno.ENOTSUP, f"{what} needs a native tier, and this is none")


def install():
    """Patch the modules that others look at when they are imported."""
    _install_time()
    _install_signal()
    _install_os()
    _install_sys()


def install_late():
    """Patch the modules that must be complete first."""
    import platform
    import queue
    import site
    import socket
    import zoneinfo._common as zones

    load_tzdata = zones.load_tzdata
    zones.load_tzdata = lambda key: _utc_zone(key) or load_tzdata(key)
    queue.SimpleQueue = queue._PySimpleQueue
    socket.gethostname = lambda: HOST_NAME
    platform.node = lambda: HOST_NAME
    platform.processor = lambda: ""
    site.setquit()
    site.setcopyright()
    site.sethelper()


def _utc_zone(key):
    """Return the one time zone there is data for, as a file of that format."""
    if key not in ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu"):
        return None
    counts = b"\0" * 16 + b"\0\0\0\1" + b"\0\0\0\4"
    block = b"TZif2" + b"\0" * 15 + counts + b"\0" * 6 + b"UTC\0"
    return io.BytesIO(block + block + b"\nUTC0\n")


def _fill(module, **members):
    for name, value in members.items():
        if not hasattr(module, name):
            setattr(module, name, value)


def _install_time():
    _fill(time, tzname=("UTC", "UTC"), timezone=0, altzone=0, daylight=0)
    _fill(time, tzset=lambda: None)
    # There is no clock of the processor; the monotonic one comes nearest.
    time.process_time = time.thread_time = time.perf_counter
    time.process_time_ns = time.thread_time_ns = time.perf_counter_ns


def _install_signal():
    import _signal

    names = """HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM
    TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH
    IO PWR SYS""".split()
    numbers = {"SIG" + name: number for number, name in enumerate(names, 1)}
    handlers = {}

    def set_handler(signalnum, handler):
        """Remember a handler; nothing outside ever sends a signal."""
        number = _number(signalnum)
        previous = get_handler(number)
        handlers[number] = handler
        return previous

    def get_handler(signalnum):
        """Return the handler that was set last."""
        number = _number(signalnum)
        if number == _signal.SIGINT:
            return handlers.get(number, _signal.default_int_handler)
        return handlers.get(number, _signal.SIG_DFL)

    def raise_signal(signalnum):
        """Call the handler at once."""
        number = _number(signalnum)
        handler = get_handler(number)
        if callable(handler):
            handler(number, sys._getframe(1))
        elif handler == _signal.SIG_DFL and number not in (17, 18, 23, 28):
            raise SystemExit(128 + number)

    def default_int_handler(signalnum, frame):
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt

    def _number(signalnum):
        number = int(signalnum)
        if not 1 <= number < _signal.NSIG:
            raise ValueError("signal number out of range")
        return number

    _fill(_signal, SIG_DFL=0, SIG_IGN=1, NSIG=65, SIG_BLOCK=0, SIG_UNBLOCK=1)
    _fill(_signal, SIG_SETMASK=2, default_int_handler=default_int_handler)
    _fill(_signal, **numbers)
    _fill(_signal, alarm=lambda seconds: 0, siginterrupt=lambda number, flag: None)
    _fill(_signal, pthread_sigmask=lambda how, mask: [], set_wakeup_fd=lambda fd: -1)
    _fill(_signal, strsignal=lambda number: None)
    _fill(_signal, valid_signals=lambda: set(range(1, _signal.NSIG)))
    _signal.signal = set_handler
    _signal.getsignal = get_handler
    _signal.raise_signal = raise_signal


def _install_os():
    import posix

    def chmod(path, mode, *, dir_fd=None, follow_symlinks=True):
        """Accept the mode of an existing file; the sandbox keeps none."""
        os.stat(path)

    def access(path, mode, **options):
        """Tell whether the path exists; modes are not kept."""
        try:
            os.stat(path)
        except OSError:
            return False
        return True

    def refuse(name):
        def refused(*args, **kwargs):
            raise needs_native(f"os.{name}")

        refused.__name__ = name
        return refused

    def kill(pid, number):
        """Send a signal to this program itself."""
        if pid != os.getpid():
            raise ProcessLookupError(errno.ESRCH, "No such process")
        import signal

        signal.raise_signal(number)

    members = {
        "chmod": chmod,
        "fchmod": lambda fd, mode: None,
        "lchmod": chmod,
        "chown": lambda path, uid, gid, **options: os.stat(path) and None,
        "umask": lambda mask: 0o022,
        "getuid": lambda: 1000,
        "geteuid": lambda: 1000,
        "getgid": lambda: 1000,
        "getegid": lambda: 1000,
        "getgroups": lambda: [1000],
        "getpid": lambda: 42,
        "register_at_fork": lambda **hooks: None,
        "getppid": lambda: 1,
        "getlogin": lambda: "agent",
        "kill": kill,
        "sched_getaffinity": lambda pid: {0},
    }
    for name in "fork system popen execv execve posix_spawn waitpid".split():
        members[name] = refuse(name)
    for module in (posix, os):
        _fill(module, **members)
    posix.access = os.access = access
    os.cpu_count = lambda: 1
    if not hasattr(os, "uname"):
        os.uname = posix.uname = _uname


def _uname():
    import collections

    kind = collections.namedtuple("uname_result", "sysname nodename release version machine")
    kind.__module__ = "posix"
    return kind("wasi", HOST_NAME, "0", "fumehood", "wasm32")


def _install_sys():
    set_limit = sys.setrecursionlimit

    def setrecursionlimit(limit, /):
        """Set the recursion limit, up to what the stack of the sandbox allows."""
        set_limit(min(limit, MAX_RECURSION))

    sys.setrecursionlimit = setrecursionlimit
    sys.path[:] = []
    sys.executable = ""
