from datetime import datetime, timezone
from zoneinfo import ZoneInfo

start = datetime(2024, 2, 28, 23, 30, 15, tzinfo=timezone.utc)
for zone in ("Europe/Berlin", "America/New_York", "Asia/Kolkata"):
    local = start.astimezone(ZoneInfo(zone))
    print(zone, local.isoformat(), local.tzname())
summer = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
print(summer.utcoffset(), summer.dst(), summer.timestamp())
