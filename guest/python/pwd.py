"""The one user there is, and root, who owns things in archives."""

import collections

struct_passwd = collections.namedtuple(
    "struct_passwd", "pw_name pw_passwd pw_uid pw_gid pw_gecos pw_dir pw_shell"
)
_ENTRIES = (
    struct_passwd("root", "x", 0, 0, "root", "/root", "/bin/sh"),
    struct_passwd("agent", "x", 1000, 1000, "", "/home/agent", "/bin/sh"),
)


def getpwuid(uid, /):
    """Return the entry of a numeric user id."""
    for entry in _ENTRIES:
        if entry.pw_uid == uid:
            return entry
    raise KeyError(f"getpwuid(): uid not found: {uid}")


def getpwnam(name, /):
    """Return the entry of a user name."""
    for entry in _ENTRIES:
        if entry.pw_name == name:
            return entry
    raise KeyError(f"getpwnam(): name not found: {name!r}")


def getpwall():
    """Return all entries."""
    return list(_ENTRIES)
