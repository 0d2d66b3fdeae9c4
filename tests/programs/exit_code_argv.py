#: {"args": ["one", "--two=2", "", "späce d"], "stderr": true}
import atexit
import sys

atexit.register(lambda: print("goodbye"))
print(sys.argv[1:], len(sys.argv), __name__)
print("to stderr", file=sys.stderr)
try:
    sys.exit(3)
finally:
    print("finally")
