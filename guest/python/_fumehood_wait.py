"""Waits for operations that the host carries out, many at once.

An operation that cannot be answered at once has a number. `wait` parks the
program until the host tells of a number, and hands what came to whoever
registered it.
"""

import _fumehood

_waiting = {}


def register(number, callback):
    """Call `callback(kind, value)` once when the host tells of a number.

    `kind` is `None` and `value` bytes, or `kind` is the number of an error and
    `value` its message.
    """
    _waiting[number] = callback


def forget(number):
    """Drop a registration; what still comes is ignored."""
    _waiting.pop(number, None)


def is_waiting():
    """Tell whether anything is registered."""
    return bool(_waiting)


def wait(timeout):
    """Park until something came or the time in seconds is over."""
    for number, kind, value in _fumehood.wait(None if timeout is None else float(timeout)):
        callback = _waiting.pop(number, None)
        if callback is not None:
            callback(kind, value)
