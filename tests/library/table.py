"""Prints the table of the library's modules in docs/guest.md, inside the sandbox.

Globals: `names`, the public names of each module of CPython 3.11, and `notes`,
what is to be known of modules that do not do all that CPython's do.
"""

import importlib
import warnings

SHOWN = 10


def state_of(module, members):
    """Return what a module is and what there is to know of it."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if module in notes:
            raise ValueError(f"{module} has a note and is not there") from error
        _, _, hint = str(error).partition(": ")
        if not hint:
            raise ValueError(f"importing {module} does not say why it is not there") from error
        return "not there", hint
    missing = [name for name in members if not has(found, name)]
    parts = [notes[module]] if module in notes else []
    if missing:
        # What is called comes first, then constants.
        missing.sort(key=lambda name: (name.isupper(), name))
        text = "without " + ", ".join(f"`{name}`" for name in missing[:SHOWN])
        if len(missing) > SHOWN:
            text += f" and {len(missing) - SHOWN} more"
        parts.append(text)
    return ("in part", "; ".join(parts)) if parts else ("works", "")


def has(module, name):
    if hasattr(module, name):
        return True
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return False
    return True


warnings.simplefilter("ignore")
unknown = notes.keys() - names.keys()
if unknown:
    raise ValueError(f"notes on what is no module: {unknown}")
print("| module | state | what to know |")
print("|---|---|---|")
for module, members in sorted(names.items()):
    # It prints when it is imported.
    state, text = ("works", "") if module == "this" else state_of(module, members)
    print(f"| `{module}` | {state} | {text} |")
