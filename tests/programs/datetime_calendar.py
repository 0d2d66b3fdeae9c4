import calendar
import time
from datetime import date, datetime, timedelta, timezone

start = datetime(2024, 2, 28, 23, 30, 15, 123456, tzinfo=timezone.utc)
print(start.isoformat(), (start + timedelta(days=1, minutes=45)).isoformat())
print(start.strftime("%Y-%m-%d %H:%M:%S.%f %a %A %b %B %j %U %w %y %p %I %Z %z %%"))
print(datetime.strptime("03/04/2021 05:06 PM", "%d/%m/%Y %I:%M %p"))
print(datetime.fromisoformat("2024-03-10T12:00:00+02:00").astimezone(timezone.utc))
print(date(2024, 12, 31).isocalendar(), date(2024, 2, 29).replace(year=2023, day=28))
fixed = timezone(timedelta(hours=5, minutes=30), "IST")
local = start.astimezone(fixed)
print(local.isoformat(), local.tzname(), local.utcoffset(), local.timestamp())
print(tuple(map(int, calendar.monthrange(2024, 2))), calendar.month_name[5], calendar.isleap(1900))
print(calendar.TextCalendar().formatmonth(2024, 2))
print(time.strftime("%d %b %Y", time.gmtime(86400 * 365)), time.tzname, time.timezone)
print(timedelta(seconds=-90), timedelta(weeks=2) / timedelta(days=1), str(timedelta(days=3, hours=4)))
