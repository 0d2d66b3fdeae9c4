"""Writes `names.json`: the modules of CPython 3.11's library and their public names.

    python3.13 record.py > /tmp/later.json
    python3.11 record.py /tmp/later.json > names.json

Names that are gone in the later version are left out, and so are those that
Python 3.14 took away.
"""

import contextlib
import importlib
import io
import json
import sys
import types
import warnings

# These open a browser or a window, print, or are no library.
NOT_IMPORTED = {"antigravity", "this", "idlelib", "turtledemo"}
GONE_IN_3_14 = {
    "ast": {"IntEnum", "auto", "contextmanager", "nullcontext"},
    "asyncio": {
        "AbstractChildWatcher",
        "FastChildWatcher",
        "MultiLoopChildWatcher",
        "PidfdChildWatcher",
        "SafeChildWatcher",
        "ThreadedChildWatcher",
        "get_child_watcher",
        "set_child_watcher",
    },
    "pkgutil": {"find_loader", "get_loader"},
}


def public(name):
    if name in NOT_IMPORTED:
        return []
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module(name)
    except ImportError:
        return []
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and not isinstance(value, types.ModuleType)
    ]


warnings.simplefilter("ignore")
found = {name: public(name) for name in sys.stdlib_module_names if not name.startswith("_")}
if len(sys.argv) > 1:
    with open(sys.argv[1]) as file:
        later = json.load(file)
    for name, members in found.items():
        kept = set(members) & set(later.get(name, []))
        found[name] = kept - GONE_IN_3_14.get(name, set())
lines = (f"{json.dumps(name)}: {json.dumps(sorted(found[name]))}" for name in sorted(found))
print("{" + ",\n".join(lines) + "}")
