import os
import sys
import time

print(sorted(name for name in os.environ))
print(os.environ["HOME"], os.path.expanduser("~/x"), os.getenv("USER"), os.environ.get("NOPE"), time.tzname[0])
os.environ["SET_HERE"] = "1"
print(os.environ["SET_HERE"], os.getenv("SET_HERE"), "SET_HERE" in os.environ)
del os.environ["SET_HERE"]
print(sys.stdout.encoding.lower(), sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.byteorder)
print(os.sep, os.linesep == "\n", os.pathsep, os.name, os.curdir)
print("ünïcödé ✓ 🎉", "\N{SNOWMAN}")
sys.stdout.write("no newline")
sys.stdout.flush()
sys.stdout.buffer.write(b" raw bytes\n")
print("a", "b", sep="|", end="!\n")
