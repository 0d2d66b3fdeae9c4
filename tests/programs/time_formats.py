import datetime
import time

DIRECTIVES = "aAbBcdeHIjmMnpPrRStTuUVwWxXyYzGgCDFh%s"
for moment in (0, 86400 * 45 + 3661, 1709164800 + 43200, 1735603200):
    parts = time.gmtime(moment)
    shown = [time.strftime("%" + directive, parts) for directive in DIRECTIVES]
    print(shown)
    at = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
    print([at.strftime("%" + directive) for directive in DIRECTIVES] == shown)
    print(at.date().strftime("%x %c %%c %%%x|%Z|"), at.strftime("%Z%z"))
print(time.asctime(time.gmtime(0)), time.ctime(0))
