#: {"args": ["summarise", "--top", "2", "-v", "sales.csv", "--scale", "1.5"]}
import argparse
import sys

def build():
    parser = argparse.ArgumentParser(prog="report", description="Summarise a file.")
    parser.add_argument("-v", "--verbose", action="count", default=0)
    sub = parser.add_subparsers(dest="command", required=True)
    one = sub.add_parser("summarise", help="print a summary")
    one.add_argument("path")
    one.add_argument("--top", type=int, default=3, metavar="N", help="rows to keep")
    one.add_argument("--scale", type=float, default=1.0)
    one.add_argument("-v", "--verbose", action="store_true")
    two = sub.add_parser("list")
    two.add_argument("--kind", choices=["a", "b"], required=True)
    return parser

parser = build()
options = parser.parse_args()
print(sorted(vars(options).items()))
print(parser.parse_args(["list", "--kind", "b"]))
for bad in (["list", "--kind", "z"], ["list"], ["nope"], ["summarise", "x", "--top", "many"]):
    try:
        sys.stderr = open("/tmp/discard", "w")
        parser.parse_args(bad)
    except SystemExit as stop:
        print(bad[0], "exits with", stop.code)
    finally:
        sys.stderr.close()
        sys.stderr = sys.__stderr__
print(build().format_usage().strip())
