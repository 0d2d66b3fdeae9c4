"""Stands where `subprocess` is expected: its names import, its calls explain."""

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

    def check_returncode(self):
        """Raise CalledProcessError if the process failed."""
        if self.returncode:
            raise CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


def _refuse(*args, **kwargs):
    """Say what starting a process needs."""
    raise needs_native("starting a process")


class Popen:
    """Cannot be made here."""

    __init__ = _refuse


run = call = check_call = check_output = getoutput = getstatusoutput = _refuse


def list2cmdline(seq):
    """Join arguments to one line of text."""
    import shlex

    return shlex.join(seq)
