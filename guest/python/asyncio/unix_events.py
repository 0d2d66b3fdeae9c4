"""The event loop of the sandbox: timers, callbacks, what the host carries out.

It takes the place of the selector loop of Unix. All that `asyncio` builds on
timers works: tasks, `sleep`, timeouts, queues, locks, task groups.
"""

import time

import _fumehood_wait
from _fumehood_patches import needs_native

from . import base_events, events

__all__ = ("SelectorEventLoop", "EventLoop")


class _Sleeper:
    """Stands where a selector is expected; there is nothing to select from."""

    def select(self, timeout):
        """Wait until the next timer, or until the host tells of something."""
        if _fumehood_wait.is_waiting():
            _fumehood_wait.wait(timeout)
            return ()
        if timeout is None:
            raise RuntimeError(
                "every task waits for something that nothing in this program will"
                " ever do; concurrent threads and sockets need a native tier"
            )
        if timeout > 0:
            time.sleep(timeout)
        return ()


class SelectorEventLoop(base_events.BaseEventLoop):
    """An event loop that is driven by its timers alone."""

    def __init__(self, selector=None):
        """Make a loop; a selector would have nothing to watch."""
        super().__init__()
        self._selector = _Sleeper()

    def _process_events(self, event_list):
        """Do nothing: there are no events but timers."""

    def _write_to_self(self):
        """Do nothing: the loop never waits while a callback is ready."""

    def add_signal_handler(self, sig, callback, *args):
        """Accept a handler; nothing ever sends a signal."""

    def remove_signal_handler(self, sig):
        """Tell that there was no handler."""
        return False

    def _refuse(self, *args, **kwargs):
        raise needs_native("a socket, pipe or process")

    add_reader = add_writer = remove_reader = remove_writer = _refuse

    async def _refuse_later(self, *args, **kwargs):
        self._refuse()

    create_connection = create_server = create_datagram_endpoint = _refuse_later
    create_unix_connection = create_unix_server = _refuse_later
    connect_read_pipe = connect_write_pipe = _refuse_later
    subprocess_exec = subprocess_shell = getaddrinfo = getnameinfo = _refuse_later
    sock_recv = sock_sendall = sock_connect = sock_accept = _refuse_later


EventLoop = SelectorEventLoop


class _DefaultEventLoopPolicy(events._BaseDefaultEventLoopPolicy):
    """Makes the one kind of loop there is."""

    _loop_factory = SelectorEventLoop
