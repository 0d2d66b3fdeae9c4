"""Runs commands in the native tier; says what is missing where there is none."""

import errno
import io
import os
import shlex
import sys

import _fumehood_bash
from _fumehood_patches import needs_native

__all__ = [
    "CalledProcessError",
    "CompletedProcess",
    "DEVNULL",
    "PIPE",
    "Popen",
    "STDOUT",
    "SubprocessError",
    "TimeoutExpired",
    "call",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "list2cmdline",
    "run",
]

PIPE = -1
STDOUT = -2
DEVNULL = -3


class SubprocessError(Exception):
    """The base of the errors of this module."""


class CalledProcessError(SubprocessError):
    """Raised when a process ended with another code than zero."""

    def __init__(self, returncode, cmd, output=None, stderr=None):
        """Describe the process."""
        self.returncode = returncode
        self.cmd = cmd
        self.output = output
        self.stderr = stderr

    def __str__(self):
        return f"Command {self.cmd!r} returned non-zero exit status {self.returncode}."

    @property
    def stdout(self):
        """The output of the process."""
        return self.output


class TimeoutExpired(SubprocessError):
    """Raised when a process did not end in time."""

    def __init__(self, cmd, timeout, output=None, stderr=None):
        """Describe the process."""
        self.cmd = cmd
        self.timeout = timeout
        self.output = output
        self.stderr = stderr

    def __str__(self):
        return f"Command {self.cmd!r} timed out after {self.timeout} seconds"


class CompletedProcess:
    """A process that has ended."""

    def __init__(self, args, returncode, stdout=None, stderr=None):
        """Describe the process."""
        self.args = args
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr

    def __repr__(self):
        parts = [f"args={self.args!r}", f"returncode={self.returncode!r}"]
        parts += [f"stdout={self.stdout!r}"] if self.stdout is not None else []
        parts += [f"stderr={self.stderr!r}"] if self.stderr is not None else []
        return f"CompletedProcess({', '.join(parts)})"

    def check_returncode(self):
        """Raise CalledProcessError if the process failed."""
        if self.returncode:
            raise CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


class Popen:
    """A command of the native tier, which runs to its end when it is started.

    It is started at once, or, if it reads from a pipe, when its input is
    complete: by `communicate`, `wait`, or closing `stdin`.
    """

    def __init__(
        self,
        args,
        bufsize=-1,
        executable=None,
        stdin=None,
        stdout=None,
        stderr=None,
        preexec_fn=None,
        close_fds=True,
        shell=False,
        cwd=None,
        env=None,
        universal_newlines=None,
        startupinfo=None,
        creationflags=0,
        restore_signals=True,
        start_new_session=False,
        pass_fds=(),
        *,
        text=None,
        encoding=None,
        errors=None,
        _timeout=None,
        **options,
    ):
        """Start the command."""
        if not _fumehood_bash.available():
            raise needs_native("starting a process")
        self.args = args
        self.pid = 0
        self.returncode = None
        self._words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        self._words = [os.fsdecode(word) for word in self._words]
        self._command = self._words[0] if shell else shlex.join(self._words)
        self._shell = shell
        self._cwd = None if cwd is None else os.fsdecode(cwd)
        self._env = env
        self._targets = stdout, stderr
        self._text = bool(text or universal_newlines or encoding or errors)
        self._encoding = encoding or "utf-8", errors or "strict"
        self._input = b""
        self.stdin = self.stdout = self.stderr = None
        if stdin == PIPE:
            self.stdin = _Input(self)
            if self._text:
                self.stdin = io.TextIOWrapper(self.stdin, *self._encoding, write_through=True)
        else:
            if stdin not in (None, DEVNULL):
                given = stdin.read()
                self._input = given.encode() if isinstance(given, str) else given
            self._start(_timeout)

    def _start(self, timeout):
        if self.returncode is not None:
            return
        stdout, stderr = self._targets
        command = self._command
        if stderr == STDOUT:
            command = f"{{ {command}\n}} 2>&1"
        code, out, err, _, _, timed_out, *_ = _fumehood_bash.execute(
            command, timeout, self._input, self._cwd, self._env
        )
        if code == 127 and not self._shell and b"not found" in err:
            name = self._words[0]
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self.returncode = code
        self.stdout = self._deliver(stdout, out, sys.stdout)
        self.stderr = None if stderr == STDOUT else self._deliver(stderr, err, sys.stderr)
        if timed_out:
            raise TimeoutExpired(self.args, timeout, out, err)

    def _deliver(self, target, data, inherited):
        if target == PIPE:
            stream = io.BytesIO(data)
            return io.TextIOWrapper(stream, *self._encoding) if self._text else stream
        if target is None:
            inherited.flush()
            inherited.write(data.decode("utf-8", "replace"))
            inherited.flush()
        elif isinstance(target, int):
            if target != DEVNULL:
                os.write(target, data)
        elif isinstance(target, io.TextIOBase):
            target.flush()
            target.write(data.decode("utf-8", "replace"))
            target.flush()
        else:
            target.write(data)
            target.flush()
        return None

    def communicate(self, input=None, timeout=None):
        """Give the input and return the output."""
        if input:
            self._input += input.encode(self._encoding[0]) if self._text else bytes(input)
        self._start(timeout)
        return tuple(stream and stream.read() for stream in (self.stdout, self.stderr))

    def wait(self, timeout=None):
        """Return the exit code."""
        self._start(timeout)
        return self.returncode

    def poll(self):
        """Return the exit code, or None before the command was started."""
        return self.returncode

    def send_signal(self, sig):
        """Do nothing: a command that was started has ended."""

    terminate = kill = lambda self: None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.wait()


class _Input(io.RawIOBase):
    """Collects the input of a command that has not started."""

    def __init__(self, process):
        self._process = process

    def writable(self):
        return True

    def write(self, data):
        """Collect bytes."""
        self._process._input += bytes(data)
        return len(data)

    def close(self):
        """Start the command."""
        if not self.closed:
            super().close()
            self._process._start(None)


def run(
    *args, input=None, capture_output=False, timeout=None, check=False, **options
):
    """Run a command and return a CompletedProcess."""
    if input is not None or options.get("stdin") is None:
        # Started below, with the time limit.
        options["stdin"] = PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = PIPE
    process = Popen(*args, _timeout=timeout, **options)
    try:
        stdout, stderr = process.communicate(input, timeout)
    except TimeoutExpired as expired:
        expired.cmd, expired.timeout = process.args, timeout
        raise
    if check and process.returncode:
        raise CalledProcessError(process.returncode, process.args, stdout, stderr)
    return CompletedProcess(process.args, process.returncode, stdout, stderr)


def call(*args, timeout=None, **options):
    """Run a command and return its exit code."""
    return run(*args, timeout=timeout, **options).returncode


def check_call(*args, **options):
    """Run a command; raise CalledProcessError if it failed."""
    return run(*args, check=True, **options).returncode


def check_output(*args, **options):
    """Run a command and return its output."""
    return run(*args, stdout=PIPE, check=True, **options).stdout


def getstatusoutput(cmd, *, encoding=None, errors=None):
    """Run a command in the shell and return its exit code and output."""
    options = {"encoding": encoding, "errors": errors, "text": True}
    done = run(cmd, shell=True, stdout=PIPE, stderr=STDOUT, **options)
    return done.returncode, done.stdout.removesuffix("\n")


def getoutput(cmd, *, encoding=None, errors=None):
    """Run a command in the shell and return its output."""
    return getstatusoutput(cmd, encoding=encoding, errors=errors)[1]


def list2cmdline(seq):
    """Join arguments to one line of text."""
    return shlex.join(seq)
