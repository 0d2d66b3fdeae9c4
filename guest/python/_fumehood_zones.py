"""The time zone database, unpacked when the first zone is asked for."""

import functools
import io
import zlib
import zoneinfo
import zoneinfo._common as common

import _fumehood


@functools.cache
def _zones():
    index, _, data = zlib.decompress(_fumehood.zone_data()).partition(b"\n\n")
    zones = {}
    for line in index.decode().splitlines():
        name, offset, length = line.split()
        zones[name] = data[int(offset) : int(offset) + int(length)]
    return zones


def _load_tzdata(key):
    """Return the TZif file of a zone."""
    content = _zones().get(key)
    if content is None:
        raise common.ZoneInfoNotFoundError(f"No time zone found with key {key}")
    return io.BytesIO(content)


def _available_timezones():
    """Return the set of all time zones."""
    return set(_zones())


def install():
    """Make `zoneinfo` use the database that is built in."""
    common.load_tzdata = _load_tzdata
    zoneinfo.available_timezones = _available_timezones
