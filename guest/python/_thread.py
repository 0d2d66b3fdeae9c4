"""Threads for a world with one thread: each runs to its end when it starts.

A wait that could only be ended by another thread can never end here, so it
raises at once instead of hanging.
"""

__all__ = [
    "LockType",
    "RLock",
    "TIMEOUT_MAX",
    "allocate_lock",
    "daemon_threads_allowed",
    "error",
    "exit",
    "get_ident",
    "get_native_id",
    "interrupt_main",
    "lock",
    "stack_size",
    "start_joinable_thread",
    "start_new_thread",
]

TIMEOUT_MAX = 9223372036.0
error = RuntimeError
_MAIN = 1
_idents = [_MAIN]
_last_ident = _MAIN


def _never(what):
    return RuntimeError(
        f"{what} can never end: a thread runs to its end at start(), so no other"
        " thread is left to wait for; concurrent threads need a native tier"
    )


def get_ident():
    """Return the number of the thread that is running."""
    return _idents[-1]


get_native_id = get_ident


def _run(function, args, kwargs):
    global _last_ident
    _last_ident += 1
    _idents.append(_last_ident)
    try:
        function(*args, **kwargs)
    except SystemExit:
        pass
    except BaseException as exception:
        import sys

        sys.unraisablehook(_Unraisable(exception, function))
    finally:
        _idents.pop()
    return _last_ident


class _Unraisable:
    """What `sys.unraisablehook` is told."""

    def __init__(self, exception, function):
        """Describe an exception that ended a thread."""
        self.exc_type = type(exception)
        self.exc_value = exception
        self.exc_traceback = exception.__traceback__
        self.err_msg = "Exception ignored in thread started by"
        self.object = function


def start_new_thread(function, args, kwargs=None):
    """Run a function to its end as a thread of its own."""
    if not callable(function):
        raise TypeError("first arg must be callable")
    if not isinstance(args, tuple):
        raise TypeError("2nd arg must be a tuple")
    return _run(function, args, kwargs or {})


start_new = start_new_thread


def start_joinable_thread(function, handle=None, daemon=True):
    """Run a function to its end as a thread that can be joined."""
    handle = handle or _ThreadHandle()
    handle._ident = _last_ident + 1
    try:
        _run(function, (), {})
    finally:
        handle._set_done()
    return handle


class _ThreadHandle:
    """A thread that has ended, or is an outer one of the running thread."""

    def __init__(self):
        """Make a handle of a thread that was not started."""
        self._ident = None
        self._done = False

    @property
    def ident(self):
        """The number of the thread."""
        return self._ident

    def _set_done(self):
        self._done = True

    def is_done(self):
        """Tell whether the thread has ended."""
        return self._done

    def join(self, timeout=None):
        """Return at once: the thread has ended."""
        if self._ident is not None and not self._done and timeout is None:
            raise _never("joining a thread that is still running")


def _make_thread_handle(ident):
    handle = _ThreadHandle()
    handle._ident = ident
    return handle


def _get_main_thread_ident():
    return _MAIN


def _is_main_interpreter():
    return True


def _shutdown():
    return None


def _count():
    return len(_idents) - 1


def daemon_threads_allowed():
    """Tell that daemon threads may be made."""
    return True


def exit():
    """End the running thread."""
    raise SystemExit


exit_thread = exit


def interrupt_main(signum=2, /):
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


def stack_size(size=0, /):
    """Return the stack size of new threads, which cannot be chosen."""
    return 0


def set_name(name):
    """Accept the name of the running thread."""


def _wait(what, blocking, timeout):
    """Return False once a wait that nothing can satisfy is over."""
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return False
    if timeout is None or timeout == -1:
        raise _never(what)
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > 0:
        import time

        time.sleep(timeout)
    return False


class lock:
    """A mutual exclusion lock."""

    def __init__(self):
        """Make an unlocked lock."""
        self._locked = False

    def acquire(self, blocking=True, timeout=-1):
        """Lock the lock."""
        if self._locked:
            return _wait("waiting for this lock", blocking, timeout)
        self._locked = True
        return True

    __enter__ = acquire
    acquire_lock = acquire

    def __exit__(self, *details):
        self.release()

    def release(self):
        """Unlock the lock."""
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False

    release_lock = release

    def locked(self):
        """Tell whether the lock is locked."""
        return self._locked

    locked_lock = locked

    def _at_fork_reinit(self):
        self._locked = False

    def __repr__(self):
        state = "locked" if self._locked else "unlocked"
        return f"<{state} _thread.lock object at {id(self):#x}>"


LockType = lock


def allocate_lock():
    """Make an unlocked lock."""
    return lock()


allocate = allocate_lock


class RLock:
    """A lock that its owner may lock again."""

    def __init__(self):
        """Make an unlocked lock."""
        self._owner = None
        self._times = 0

    def acquire(self, blocking=True, timeout=-1):
        """Lock the lock once more."""
        ident = _idents[-1]
        if self._times and self._owner != ident:
            return _wait("waiting for this lock", blocking, timeout)
        self._owner = ident
        self._times += 1
        return True

    __enter__ = acquire

    def __exit__(self, *details):
        self.release()

    def release(self):
        """Unlock the lock once."""
        if not self._times or self._owner != _idents[-1]:
            raise RuntimeError("cannot release un-acquired lock")
        self._times -= 1
        if not self._times:
            self._owner = None

    def locked(self):
        """Tell whether the lock is locked."""
        return self._times > 0

    def _is_owned(self):
        return self._times > 0 and self._owner == _idents[-1]

    def _recursion_count(self):
        return self._times if self._is_owned() else 0

    def _release_save(self):
        state = self._times, self._owner
        self._times, self._owner = 0, None
        return state

    def _acquire_restore(self, state):
        self._times, self._owner = state

    def _at_fork_reinit(self):
        self._times, self._owner = 0, None

    def __repr__(self):
        state = "locked" if self._times else "unlocked"
        return f"<{state} _thread.RLock object owner={self._owner or 0} count={self._times}>"


class _local:
    """Attributes that each thread sees for itself."""

    def __new__(cls, *args, **kwargs):
        """Make an object whose attributes are of the running thread."""
        self = object.__new__(cls)
        object.__setattr__(self, "_local__threads", {})
        object.__setattr__(self, "_local__arguments", (args, kwargs))
        self.__threads[_idents[-1]] = {}
        return self

    def __namespace(self):
        threads = object.__getattribute__(self, "_local__threads")
        ident = _idents[-1]
        if ident not in threads:
            threads[ident] = {}
            args, kwargs = object.__getattribute__(self, "_local__arguments")
            type(self).__init__(self, *args, **kwargs)
        return threads[ident]

    def __getattribute__(self, name):
        if name.startswith("_local__"):
            return object.__getattribute__(self, name)
        namespace = _local.__namespace(self)
        if name == "__dict__":
            return namespace
        if name in namespace:
            return namespace[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        _local.__namespace(self)[name] = value

    def __delattr__(self, name):
        try:
            del _local.__namespace(self)[name]
        except KeyError:
            raise AttributeError(name) from None
