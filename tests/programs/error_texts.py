#: {"python": "3.13"}
"""Texts that agents read to find out what went wrong."""
import os

CASES = r"""
[1].remove(2)
[].pop()
{}.popitem()
(1, 2).index(3)
"abc".index("z")
"a" * "b"
1 < "a"
int("1.5")
float("x")
int(None)
max([])
next(iter([]))
x = [1, 2]\nx[None]
{}[[]]
len(None)
x = None\nx()
(1).foo
"x".foo()
print(sep=1)
sorted([1, "a"])
"{} {}".format(1)
"%d" % "x"
bytes([256])
chr(-1)
1 / 0
a, b, c = (1,)
a, b, c = (1, 2)
open("/no/such/file")
os.listdir("/no/such/dir")
import no_such_module
lambda: (yield)
range(0, 1, 0)
"abc".encode("ascii").decode("utf-8", "strict") + b""
b"\xff".decode()
"\udc80".encode()
sum(["a"])
isinstance(1, "int")
super().x
def f(a, b): pass\nf(1)
def f(a): pass\nf(1, 2)
def f(a): pass\nf(b=1)
class A: pass\nA(1)
x: int = undefined_name
del missing
"""
for case in CASES.strip().splitlines():
    source = case.replace("\\n", "\n")
    try:
        exec(source, {"os": os})
        print("no error:", case)
    except Exception as error:
        text = str(error).replace("[Errno 44]", "[Errno 2]")
        print(f"{case}  =>  {type(error).__name__}: {text}")
