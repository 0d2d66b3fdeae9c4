"""Commands in the native tier, where the host offers one."""

import dataclasses
import errno
import math

import _fumehood

# Numbers of errors, as the host has them.
_DENIED, _UNAVAILABLE, _ARGUMENTS, _FAILED = range(4)


@dataclasses.dataclass(frozen=True)
class BashResult:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str
    dropped_stdout: int
    dropped_stderr: int
    timed_out: bool
    memory_exceeded: bool
    denials: list
    tier: str
    controls: list


def available():
    """Tell whether there is a native tier."""
    return _fumehood.bash_tier() is not None


def execute(command, timeout=None, stdin=b"", cwd=None, env=None):
    """Run a command; return the parts of its result, outputs as bytes."""
    if "\0" in command:
        raise ValueError("embedded null byte")
    milliseconds = None if timeout is None else max(1, math.ceil(timeout * 1000))
    pairs = [text for pair in dict(env or {}).items() for text in pair]
    kind, answer = _fumehood.bash(command, milliseconds, stdin, cwd, pairs)
    if kind is None:
        return answer
    if kind == _DENIED:
        raise PermissionError(errno.EACCES, answer)
    if kind == _ARGUMENTS:
        raise ValueError(answer)
    raise OSError(errno.ENOSYS if kind == _UNAVAILABLE else errno.EIO, answer)


def bash(command, timeout=None, *, stdin="", cwd=None, env=None):
    """Run a command in the shell of the native tier and return its BashResult."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    code, stdout, stderr, *rest = execute(command, timeout, stdin, cwd, env)
    stdout, stderr = (text.decode("utf-8", "replace") for text in (stdout, stderr))
    return BashResult(code, stdout, stderr, *rest)
