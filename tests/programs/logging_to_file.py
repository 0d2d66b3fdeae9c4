import io
import logging
import logging.handlers

buffer = io.StringIO()
handler = logging.StreamHandler(buffer)
handler.setFormatter(logging.Formatter("%(levelname)-8s|%(name)s|%(funcName)s|%(message)s"))
log = logging.getLogger("app.db")
log.setLevel(logging.DEBUG)
log.addHandler(handler)
log.propagate = False

def work(value):
    log.debug("working on %r", value)
    try:
        return 10 / value
    except ZeroDivisionError:
        log.exception("no result for %s", value)

work(2)
work(0)
log.getChild("pool").warning("low: %d%%", 7, extra={"who": "me"})
log.log(25, "custom level")
for line in buffer.getvalue().splitlines():
    if not line.startswith("  "):
        print(line)

logging.basicConfig(filename="/tmp/app.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%Y")
logging.info("to a file")
logging.debug("hidden")
logging.shutdown()
text = open("/tmp/app.log").read()
print(len(text.splitlines()), text.split()[1:])

rotating = logging.handlers.RotatingFileHandler("/tmp/rot.log", maxBytes=60, backupCount=2)
other = logging.Logger("rot")
other.addHandler(rotating)
for number in range(9):
    other.info("line number %d", number)
rotating.close()
import glob
print(sorted(glob.glob("/tmp/rot.log*")))
