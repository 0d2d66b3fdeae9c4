"""Awaiting the embedder's tools, and finding them."""

import json
from asyncio import events, futures

import _fumehood
import _fumehood_wait


class _Call(futures.Future):
    """The future of one call of a tool."""

    _number = None

    def cancel(self, msg=None):
        """Give the call up."""
        if not super().cancel(msg):
            return False
        if self._number is not None:
            _fumehood_wait.forget(self._number)
            _fumehood.tool_cancel(self._number)
        return True

    def settle(self, value, error):
        """End with a value or an exception."""
        if self.done():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


def _future(number, value, error):
    """Make the future of a call that runs as `number`, or has ended."""
    call = _Call(loop=events.get_running_loop())
    if number is None:
        call.settle(value, error)
        return call

    def ended(kind, answer):
        try:
            value, error = _fumehood.tool_value(kind, answer), None
        except Exception as exception:
            value, error = None, exception
        call.settle(value, error)

    call._number = number
    _fumehood_wait.register(number, ended)
    return call


def search_tools(query, limit=10):
    """Find tools by words of their names and descriptions.

    Return a list of `{"name": …, "description": …}`, the best first.
    """
    found = _fumehood.tool_search(query, limit)
    return [{"name": name, "description": text} for name, text in found]


def describe_tool(name):
    """Return the name, description and JSON Schema of a tool as a dict."""
    text = _fumehood.tool_describe(name if isinstance(name, str) else name.__name__)
    if not text:
        raise NameError(f"there is no tool named {name!r}; search_tools() finds some")
    return json.loads(text)


_fumehood.set_future(_future)
