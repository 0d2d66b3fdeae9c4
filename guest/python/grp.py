"""The one group there is, and the group of root, which owns things in archives."""

import collections

struct_group = collections.namedtuple("struct_group", "gr_name gr_passwd gr_gid gr_mem")
_ENTRIES = (struct_group("root", "x", 0, []), struct_group("agent", "x", 1000, []))


def getgrgid(id):
    """Return the entry of a numeric group id."""
    for entry in _ENTRIES:
        if entry.gr_gid == id:
            return entry
    raise KeyError(f"getgrgid(): gid not found: {id}")


def getgrnam(name):
    """Return the entry of a group name."""
    for entry in _ENTRIES:
        if entry.gr_name == name:
            return entry
    raise KeyError(f"getgrnam(): name not found: {name!r}")


def getgrall():
    """Return all entries."""
    return list(_ENTRIES)
