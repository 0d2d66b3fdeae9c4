"""The Python half of the guest: what a cell needs that is not plain execution.

The functions here are called by the guest's Rust code and by nothing else.
They may be called after a program changed any module, so what they use of the
standard library they hold on to at import.
"""

# ruff: noqa: E402
import _fumehood_patches

_fumehood_patches.install()

import asyncio
import atexit
import builtins
import gc
import importlib
import json
import linecache
import os
import random
import sys
import tempfile
import tokenize
import traceback
import uuid
import weakref

import _fumehood
import _fumehood_http
import _fumehood_missing
import _fumehood_tools
from _fumehood_bash import bash
from _fumehood_display import display
from _fumehood_fetch import fetch

# Agent programs import these most; they are in the snapshot already.
_WARM = """
abc argparse base64 bisect calendar collections.abc configparser contextlib copy
csv dataclasses datetime decimal difflib enum fnmatch fractions functools glob
gzip hashlib heapq hmac html inspect io itertools keyword locale logging math
numbers operator pathlib pickle platform pprint queue re reprlib secrets shlex
shutil signal socket statistics string struct subprocess tempfile textwrap
threading time timeit tomllib types typing unicodedata unittest urllib.parse
uuid warnings weakref xml.etree.ElementTree zipfile zlib concurrent.futures
"""

_MAX_DEPTH = 64
_MAX_TRACEBACK = 64 * 1024
_MAIN = sys.modules["__main__"].__dict__
_loop = None


def offer_tools():
    """Make the two functions that find tools builtin names."""
    builtins.search_tools = _fumehood_tools.search_tools
    builtins.describe_tool = _fumehood_tools.describe_tool
    builtins.ToolError = _fumehood.ToolError


def reseed(seed):
    """Reseed every generator that the program never seeded itself."""
    _generators.reseed(seed)


class _Generators:
    """Knows the `random.Random` objects whose seed nobody chose."""

    def __init__(self):
        """Wrap the two ways to choose a seed."""
        self._known = []
        seed = random.Random.seed
        setstate = random.Random.setstate

        def watched_seed(generator, a=None, version=2):
            """Initialize internal state from a seed."""
            if a is None:
                # The native default would come from the snapshot.
                self._add(generator)
                a = os.urandom(32)
            else:
                self._remove(generator)
            return seed(generator, a, version)

        def watched_setstate(generator, state):
            """Restore internal state from object returned by getstate()."""
            self._remove(generator)
            return setstate(generator, state)

        self._seed = seed
        random.Random.seed = watched_seed
        random.Random.setstate = watched_setstate
        random.seed = random._inst.seed
        random.setstate = random._inst.setstate
        self._add(random._inst)

    def _add(self, generator):
        if type(generator) is random.SystemRandom:
            return
        self._remove(generator)
        self._known.append(weakref.ref(generator))

    def _remove(self, generator):
        self._known = [
            known for known in self._known if known() not in (None, generator)
        ]

    def reseed(self, seed):
        """Give each generator a seed of its own made from `seed`."""
        for index, known in enumerate(self._known):
            generator = known()
            if generator is not None:
                self._seed(generator, seed + index.to_bytes(4, "little"))


def begin(is_script, filename, inputs):
    """Prepare `__main__` for a script, or for a cell with inputs."""
    if is_script:
        _MAIN["__file__"] = filename
    if inputs is not None:
        members = json.loads(inputs)
        if not isinstance(members, dict):
            raise TypeError("inputs must be a JSON object")
        _MAIN.update(members)


def decode(source, filename):
    """Return the text of source bytes, by the rules of CPython."""
    if 0 in source:
        raise SyntaxError("source code string cannot contain null bytes")
    lines = iter(source.splitlines(keepends=True))
    try:
        encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
        return source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        pass
    # The compiler finds the same fault and words it as CPython does.
    compile(source, filename, "exec")
    raise SyntaxError("the source cannot be decoded")


def run_coroutine(coroutine):
    """Run a cell that awaits, in a loop that lives as long as the session."""
    global _loop
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
    asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(coroutine)


def describe(value, limit):
    """Return the `repr` and, for plain data, the JSON text of a value."""
    return _cut(repr(value), limit), _as_json(value, limit)


def _as_json(value, limit):
    if not _is_plain(value, _MAX_DEPTH, [limit]):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return text if len(text.encode()) <= limit else None
    except (ValueError, RecursionError):
        return None


def _is_plain(value, depth, budget):
    budget[0] -= 1
    if depth < 0 or budget[0] < 0:
        return False
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return True
    if kind is float:
        return value - value == 0
    if kind in (list, tuple):
        return all(_is_plain(item, depth - 1, budget) for item in value)
    if kind is dict:
        return all(
            type(key) is str and _is_plain(item, depth - 1, budget)
            for key, item in value.items()
        )
    return False


def _cut(text, limit):
    if len(text) * 4 <= limit:
        return text
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text
    marker = f"… ({len(encoded)} bytes, cut)"
    room = max(0, limit - len(marker.encode()))
    return encoded[:room].decode("utf-8", "ignore") + marker


def report(exception, limit):
    """Print an uncaught exception; return its exit code or its description."""
    if isinstance(exception, SystemExit):
        return _exit_code(exception)
    kind = type(exception)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        message = str(exception)
    except BaseException:
        message = "<exception str() failed>"
    text = _traceback(exception, kind)
    _print_error(text)
    return name, _cut(message, limit), _cut(text, max(limit, _MAX_TRACEBACK))


def _exit_code(exception):
    code = exception.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    try:
        text = str(code)
    except BaseException:
        text = ""
    _print_error(text + "\n")
    return 1


def _traceback(exception, kind):
    try:
        shown = traceback.TracebackException(kind, exception, exception.__traceback__)
        _hide(shown, set())
        return "".join(shown.format())
    except BaseException:
        return f"{kind.__name__}: <exception could not be shown>\n"


def _hide(shown, seen):
    """Take our own frames, and the event loop below them, out of a traceback."""
    if shown is None or id(shown) in seen:
        return
    seen.add(id(shown))
    while shown.stack and shown.stack[0].filename.startswith("<frozen "):
        del shown.stack[0]
    for index in reversed(range(len(shown.stack))):
        if shown.stack[index].filename.startswith("<frozen _fumehood"):
            del shown.stack[index]
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        _hide(other, seen)


def _print_error(text):
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is sys.stderr:
                stream.write(text)
            stream.flush()
        except BaseException:
            continue


def finish():
    """Do what the end of a program does: run its exit handlers."""
    atexit._run_exitfuncs()


def settle():
    """Build what is built lazily; forget what the snapshot should not hold."""
    try:
        compile("1 +", "<cell>", "exec")
    except SyntaxError as exception:
        _traceback(exception, SyntaxError)
    for name in list(_MAIN):
        if name not in _MAIN_AT_START:
            del _MAIN[name]
    linecache.clearcache()
    linecache._interactive_cache.clear()
    sys.path_importer_cache.clear()
    tempfile.tempdir = None
    tempfile._name_sequence = None
    uuid._node = None
    uuid._last_timestamp = None
    gc.collect()
    # A collection need not look at what every instance starts with.
    gc.freeze()


def _install():
    for name in _WARM.split():
        importlib.import_module(name)
    _fumehood_patches.install_late()
    _fumehood_http.install()
    _fumehood_missing.install()
    builtins.bash = bash
    builtins.display = display
    builtins.fetch = fetch
    sys.stdout.reconfigure(line_buffering=True)


_generators = _Generators()
_install()
_MAIN_AT_START = frozenset(_MAIN)
