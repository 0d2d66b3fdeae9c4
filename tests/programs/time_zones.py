import time
import zoneinfo
from datetime import datetime, timedelta, timezone

for key in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"):
    zone = zoneinfo.ZoneInfo(key)
    for moment in (datetime(2024, 1, 15, 12), datetime(2024, 7, 15, 12), datetime(2090, 7, 1)):
        local = moment.replace(tzinfo=timezone.utc).astimezone(zone)
        print(key, local.isoformat(), local.tzname(), local.dst())
gap = datetime(2024, 3, 31, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
print(gap.utcoffset(), (gap + timedelta(hours=1)).isoformat())
print(len(zoneinfo.available_timezones()) > 500)
try:
    zoneinfo.ZoneInfo("Nowhere/City")
except zoneinfo.ZoneInfoNotFoundError as error:
    print(error)
print(time.strftime("%Y %Z %z %%Z", time.localtime(0)), time.tzname)
print(datetime(2024, 2, 3, tzinfo=timezone.utc).strftime("%d %b %Z %z"))
print(time.strptime("3 Feb 2024", "%d %b %Y").tm_yday)
