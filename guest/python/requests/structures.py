"""Dictionaries that look names up in their own way."""

from collections.abc import Mapping, MutableMapping


class CaseInsensitiveDict(MutableMapping):
    """A dictionary in which `Accept` and `accept` are one."""

    def __init__(self, data=None, **kwargs):
        """Take the entries of `data`."""
        self._store = {}
        self.update(data or {}, **kwargs)

    def __setitem__(self, key, value):
        self._store[key.lower()] = (key, value)

    def __getitem__(self, key):
        return self._store[key.lower()][1]

    def __delitem__(self, key):
        del self._store[key.lower()]

    def __iter__(self):
        return (key for key, _ in self._store.values())

    def __len__(self):
        return len(self._store)

    def lower_items(self):
        """Give names in small letters, and values."""
        return ((key, item[1]) for key, item in self._store.items())

    def __eq__(self, other):
        if not isinstance(other, Mapping):
            return NotImplemented
        return dict(self.lower_items()) == dict(CaseInsensitiveDict(other).lower_items())

    def copy(self):
        """Return a copy."""
        return CaseInsensitiveDict(self._store.values())

    def __repr__(self):
        return str(dict(self.items()))


class LookupDict(dict):
    """Names as attributes; what is not there is `None`."""

    def __getattr__(self, name):
        return self.get(name)

    def __getitem__(self, key):
        return self.get(key)
