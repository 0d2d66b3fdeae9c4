#: {"stdin": "b 2\na 1\n\nlast line without newline é"}
import sys
lines = [line.rstrip("\n") for line in sys.stdin]
print(len(lines), sorted(lines))
print(sys.stdin.isatty(), sys.stdin.encoding.lower().replace("_", "-"))
