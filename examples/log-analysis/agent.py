"""Three questions about a month of access logs, answered by streaming every file once.

Usage: agent.py [DIRECTORY]        (default: /logs, files 2026-06-DD.ndjson.gz)

A first look at the files showed that they cannot be taken at their word. Each check below is made
on the data of the file at hand, never on a date at which something is believed to have changed:

  * some lines stop in the middle                   -> counted as broken, not as requests
  * one day holds the same request ids twice        -> an id counts once
  * the route is called `route`, later `path`       -> either name
  * later files begin at 20:00 the day before       -> their clock is local, whatever the Z says
  * later latencies are about 1000 times the usual  -> microseconds under the millisecond name
"""

import gzip
import json
import os
import sys
from time import perf_counter

SUFFIX = ".ndjson.gz"
ROUTE = "/checkout"
LIMIT_MS = 500


def percentile_95(values):
    """Nearest rank: the smallest value that at least 95 % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[(95 * len(ordered) + 99) // 100 - 1]


def median(values):
    return sorted(values)[len(values) // 2]


def read_day(path, seen):
    """Return ({"2026-06-01T00": requests as stamped}, [checkout latencies as written], broken)."""
    stamped = {}
    latencies = []
    broken = 0
    loads = json.loads
    remember = seen.add
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            try:
                row = loads(line)
            except ValueError:
                broken += 1
                continue
            request = row["request_id"]
            if request in seen:
                continue
            remember(request)
            hour = row["ts"][:13]
            stamped[hour] = stamped.get(hour, 0) + 1
            if (row.get("route") or row.get("path")) == ROUTE:
                latencies.append(row["latency_ms"])
    return stamped, latencies, broken


def hours_behind_utc(day, stamped):
    """How far the clock of this file runs behind UTC.

    A file holds one UTC day and has traffic in all of its 24 hours, so its earliest stamp is
    midnight of that day, read off the clock that wrote it.
    """
    if len(stamped) != 24:
        raise SystemExit(f"{day}: {len(stamped)} different hours instead of 24")
    first = min(stamped)
    hour = int(first[11:13])
    return -hour if first[:10] == day else 24 - hour


def main(folder):
    seen = set()
    by_hour = [0] * 24
    checkout = {}
    broken = shifted = 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith(SUFFIX):
            continue
        day = name[: -len(SUFFIX)]
        stamped, latencies, cut = read_day(os.path.join(folder, name), seen)
        broken += cut
        behind = hours_behind_utc(day, stamped)
        for hour, count in stamped.items():
            by_hour[(int(hour[11:13]) + behind) % 24] += count
        if latencies:
            checkout[day] = latencies
        shifted += behind != 0
    print(f"{broken} broken lines; {shifted} files whose clock is not UTC", file=sys.stderr)

    # A slow day is a few times slower than a good one; a thousand times is another unit.
    usual = min(median(latencies) for latencies in checkout.values())
    breach = 0
    for day in sorted(checkout):
        scale = 1000 if median(checkout[day]) > 100 * usual else 1
        if percentile_95(checkout[day]) > LIMIT_MS * scale:
            breach = int(day[8:10])
            break
    return len(seen), breach, by_hour.index(max(by_hour))


if __name__ == "__main__":
    started = perf_counter()
    requests, breach, busiest = main(sys.argv[1] if len(sys.argv) > 1 else "/logs")
    seconds = perf_counter() - started
    print(f"requests: {requests}")
    print(f"breach day: {breach}")
    print(f"busiest hour: {busiest}")
    print(f"RESULT {requests} {breach} {busiest} {seconds:.3f}")
