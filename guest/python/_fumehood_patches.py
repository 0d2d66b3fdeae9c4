"""Fills in what RustPython leaves out of its native modules on WASI."""

import calendar
import errno
import os
import re
import sys
import time

import _fumehood

HOST_NAME = "fumehood"
# Deeper Python recursion than this needs more stack than the host gives.
MAX_RECURSION = 1000


def needs_native(what):
    """Return the error for something that only a native tier can do."""
    return OSError(errno.ENOTSUP, f"{what} needs a native tier, and this is none")


def install():
    """Patch the modules that others look at when they are imported."""
    _install_errno()
    _install_time()
    _install_signal()
    _install_os()
    _install_sys()


def install_late():
    """Patch the modules that must be complete first."""
    import platform
    import queue
    import site

    import _fumehood_zones

    _fumehood_zones.install()
    _install_socket()
    _install_copy()
    _install_enum()
    _install_frozen_names()
    _install_constants()
    queue.SimpleQueue = queue._PySimpleQueue
    platform.node = lambda: HOST_NAME
    platform.processor = lambda: ""
    site.setquit()
    site.setcopyright()
    site.sethelper()


def _fill(module, **members):
    for name, value in members.items():
        if not hasattr(module, name):
            setattr(module, name, value)


# Errors that only Linux has (asm-generic/errno.h): programs compare with them.
_LINUX_ERRORS = dict(
    ENOTBLK=15, EDEADLOCK=35, ECHRNG=44, EL2NSYNC=45, EL3HLT=46, EL3RST=47, ELNRNG=48,
    EUNATCH=49, ENOCSI=50, EL2HLT=51, EBADE=52, EBADR=53, EXFULL=54, ENOANO=55, EBADRQC=56,
    EBADSLT=57, EBFONT=59, ENOSTR=60, ENODATA=61, ETIME=62, ENOSR=63, ENONET=64, ENOPKG=65,
    EREMOTE=66, EADV=68, ESRMNT=69, ECOMM=70, EDOTDOT=73, ENOTUNIQ=76, EBADFD=77,
    EREMCHG=78, ELIBACC=79, ELIBBAD=80, ELIBSCN=81, ELIBMAX=82, ELIBEXEC=83, ERESTART=85,
    ESTRPIPE=86, EUSERS=87, ESOCKTNOSUPPORT=94, EPFNOSUPPORT=96, ESHUTDOWN=108,
    ETOOMANYREFS=109, EHOSTDOWN=112, EUCLEAN=117, ENOTNAM=118, ENAVAIL=119, EISNAM=120,
    EREMOTEIO=121, ENOMEDIUM=123, EMEDIUMTYPE=124, ENOKEY=126, EKEYEXPIRED=127,
    EKEYREVOKED=128, EKEYREJECTED=129, ERFKILL=132,
)


def _install_errno():
    for name, number in _LINUX_ERRORS.items():
        setattr(errno, name, number)
        errno.errorcode[number] = name


def _install_time():
    native_strftime = time.strftime
    # What these stand for in the locale C, where everything is in UTC.
    meanings = {
        "%c": "%a %b %e %H:%M:%S %Y",
        "%r": "%I:%M:%S %p",
        "%x": "%m/%d/%y",
        "%Z": "UTC",
        "%z": "+0000",
    }

    def strftime(format, *moment):
        """Convert a time tuple to a string according to a format."""

        def meaning(found):
            directive = found.group()
            if directive == "%s":
                return str(calendar.timegm(moment[0] if moment else time.localtime()))
            return meanings.get(directive, directive)

        if isinstance(format, str) and "%" in format:
            format = re.sub("%.", meaning, format, flags=re.DOTALL)
        return native_strftime(format, *moment)

    time.strftime = strftime
    _fill(time, tzname=("UTC", "UTC"), timezone=0, altzone=0, daylight=0)
    _fill(time, tzset=lambda: None)
    # There is no clock of the processor; the monotonic one comes nearest.
    time.process_time = time.thread_time = time.perf_counter
    time.process_time_ns = time.thread_time_ns = time.perf_counter_ns
    names = "REALTIME MONOTONIC PROCESS_CPUTIME_ID THREAD_CPUTIME_ID MONOTONIC_RAW".split()
    _fill(time, **{"CLOCK_" + name: number for number, name in enumerate(names)})

    def clock_gettime_ns(clock, /):
        """Return the time of a clock in nanoseconds."""
        if not 0 <= clock < len(names):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return time.monotonic_ns() if clock else time.time_ns()

    def clock_gettime(clock, /):
        """Return the time of a clock in seconds."""
        return clock_gettime_ns(clock) / 1e9

    def clock_getres(clock, /):
        """Return the step of a clock in seconds."""
        clock_gettime_ns(clock)
        return 1e-6

    _fill(time, clock_gettime_ns=clock_gettime_ns, clock_gettime=clock_gettime)
    _fill(time, clock_getres=clock_getres)


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
        os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def lchmod(path, mode):
        """Accept the mode of an existing file or link; the sandbox keeps none."""
        os.lstat(path)

    def chown(path, uid, gid, *, dir_fd=None, follow_symlinks=True):
        """Accept the owner of an existing file; the sandbox keeps none."""
        os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

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

    def symlink(src, dst, target_is_directory=False, *, dir_fd=None):
        """Create a symbolic link pointing to src named dst."""
        try:
            _fumehood.symlink(os.fsencode(src), os.fsencode(dst))
        except OSError as error:
            raise OSError(error.errno, error.strerror, src, None, dst) from None

    members = {
        "chmod": chmod,
        "fchmod": lambda fd, mode: None,
        "lchmod": lchmod,
        "chown": chown,
        "fchown": lambda fd, uid, gid: None,
        "lchown": lambda path, uid, gid: chown(path, uid, gid, follow_symlinks=False),
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
    members.update(_system_calls())
    for name in "fork system popen execv execve posix_spawn waitpid".split():
        members[name] = refuse(name)
    for module in (posix, os):
        _fill(module, **members)
    posix.access = os.access = access
    posix.symlink = os.symlink = symlink
    os.cpu_count = lambda: 1
    _fill(os, supports_effective_ids=set())
    os.supports_follow_symlinks.add(os.utime)
    if not hasattr(os, "uname"):
        os.uname = posix.uname = _uname


def _system_calls():
    """Return what needs no more than the calls that are there."""
    import posix

    times_result = _structure("times_result", "user system children_user children_system elapsed")

    def times():
        """Return process times; there is no clock of the processor."""
        now = time.monotonic()
        return times_result(now, 0.0, 0.0, 0.0, now)

    def get_terminal_size(fd=1, /):
        """Return the size of the terminal; there is none."""
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    def getloadavg():
        """Return the load of the system, which nobody may know here."""
        raise OSError("Load averages are unobtainable")

    def pread(fd, n, offset, /):
        """Read at an offset and leave the position of the file as it is."""
        return _at(fd, offset, lambda: os.read(fd, n))

    def pwrite(fd, data, offset, /):
        """Write at an offset and leave the position of the file as it is."""
        return _at(fd, offset, lambda: os.write(fd, data))

    def waitstatus_to_exitcode(status):
        """Convert a wait status to an exit code."""
        return -(status & 0x7F) if status & 0x7F else status >> 8 & 0xFF

    def sysconf(name, /):
        """Return a number that describes the system."""
        if isinstance(name, str) and name not in sysconf_names:
            raise ValueError("unrecognized configuration name")
        number = sysconf_names[name] if isinstance(name, str) else name
        if number not in sysconf_values:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return sysconf_values[number]

    # Numbers of Linux; the page is that of WebAssembly.
    known = {
        "SC_ARG_MAX": (0, 131072),
        "SC_CLK_TCK": (2, 100),
        "SC_OPEN_MAX": (4, 1024),
        "SC_PAGESIZE": (30, 65536),
        "SC_PAGE_SIZE": (30, 65536),
        "SC_NPROCESSORS_CONF": (83, 1),
        "SC_NPROCESSORS_ONLN": (84, 1),
    }
    codes = """USAGE DATAERR NOINPUT NOUSER NOHOST UNAVAILABLE SOFTWARE OSERR OSFILE
    CANTCREAT IOERR TEMPFAIL PROTOCOL NOPERM CONFIG""".split()
    sysconf_names = {name: number for name, (number, _) in known.items()}
    sysconf_values = dict(known.values())
    return {
        "EX_OK": 0,
        **{"EX_" + name: number for number, name in enumerate(codes, 64)},
        "WNOHANG": 1,
        "times": times,
        "times_result": times_result,
        "get_terminal_size": get_terminal_size,
        "getloadavg": getloadavg,
        "pread": pread,
        "pwrite": pwrite,
        "sysconf": sysconf,
        "sysconf_names": sysconf_names,
        "fdatasync": posix.fsync,
        "sched_yield": lambda: None,
        "GRND_NONBLOCK": 1,
        "GRND_RANDOM": 2,
        "getrandom": lambda size, flags=0: os.urandom(size),
        "getpgrp": lambda: 1,
        "getpgid": lambda pid: 1,
        "getsid": lambda pid: 1,
        "major": lambda device: device >> 8 & 0xFFF,
        "minor": lambda device: device & 0xFF,
        "makedev": lambda major, minor: major << 8 | minor,
        "get_inheritable": lambda fd: os.fstat(fd) and False,
        "set_inheritable": lambda fd, inheritable: os.fstat(fd) and None,
        "waitstatus_to_exitcode": waitstatus_to_exitcode,
        "WIFEXITED": lambda status: status & 0x7F == 0,
        "WEXITSTATUS": lambda status: status >> 8 & 0xFF,
        "WIFSIGNALED": lambda status: status & 0x7F not in (0, 0x7F),
        "WTERMSIG": lambda status: status & 0x7F,
    }


def _at(fd, offset, act):
    before = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, offset, os.SEEK_SET)
    try:
        return act()
    finally:
        os.lseek(fd, before, os.SEEK_SET)


def _structure(name, fields):
    import collections

    kind = collections.namedtuple(name, fields)
    kind.__module__ = "posix"
    return kind


def _install_socket():
    import socket

    def refused(cls, *args, **options):
        raise needs_native("a socket")

    socket.socket.__new__ = refused
    socket.has_ipv6 = False
    socket.gethostname = lambda: HOST_NAME


def _install_copy():
    import copy
    import re

    # They cannot change, so a copy is the thing itself.
    unchanging = {re.Pattern, re.Match}
    copy._copy_atomic_types.update(unchanging)
    copy._atomic_types.update(unchanging)


def _install_enum():
    import enum

    def from_bytes(cls, bytes, byteorder="big", *, signed=False):
        """Return the member whose value the bytes are."""
        return cls(int.from_bytes(bytes, byteorder, signed=signed))

    # The interpreter makes an object of the class without looking for a member.
    for kind in (enum.IntEnum, enum.IntFlag):
        kind.from_bytes = classmethod(from_bytes)


def _install_frozen_names():
    import functools
    import zipfile

    # Their warnings leave out the frames below the directory of `__file__`,
    # and frozen modules have none.
    for module in (functools, zipfile):
        module.__file__ = f"<frozen {module.__name__}/__init__.py"


def _install_constants():
    import array
    import fcntl

    _fill(array, typecodes="bBuwhHiIlLqQfd")
    # Nobody else is there who could hold a lock.
    _fill(fcntl, LOCK_SH=1, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8, F_RDLCK=0, F_WRLCK=1, F_UNLCK=2)
    _fill(fcntl, flock=lambda fd, operation: _open(fd))
    _fill(fcntl, lockf=lambda fd, cmd, len=0, start=0, whence=0: _open(fd))


def _open(file):
    os.fstat(file if isinstance(file, int) else file.fileno())


def _uname():
    kind = _structure("uname_result", "sysname nodename release version machine")
    return kind("wasi", HOST_NAME, "0", "fumehood", "wasm32")


def _install_sys():
    set_limit = sys.setrecursionlimit

    def setrecursionlimit(limit, /):
        """Set the recursion limit, up to what the stack of the sandbox allows."""
        set_limit(min(limit, MAX_RECURSION))

    sys.setrecursionlimit = setrecursionlimit
    sys.path[:] = []
    sys.executable = ""
