import itertools
from contextlib import closing

def numbers():
    try:
        n = 0
        while True:
            received = yield n
            n = received if received is not None else n + 1
    finally:
        print("closed")

def evens(source):
    for n in source:
        if n % 2 == 0:
            yield n

def squares(source):
    yield from (n * n for n in source)

print(list(itertools.islice(squares(evens(numbers())), 5)))
with closing(numbers()) as gen:
    print(next(gen), next(gen), gen.send(40), next(gen))

def averager():
    total = count = 0
    while True:
        value = yield total / count if count else None
        if value is None:
            return total, count
        total, count = total + value, count + 1

def delegate(results):
    results.append((yield from averager()))

results = []
d = delegate(results)
next(d)
for v in (10, 20, 60, None):
    try:
        print("avg", d.send(v))
    except StopIteration:
        print("done", results)

def guarded():
    while True:
        try:
            yield "ok"
        except ValueError as error:
            yield f"caught {error}"

g = guarded()
print(next(g), g.throw(ValueError("boom")), next(g))

def leaks():
    yield 1
    raise StopIteration

try:
    list(leaks())
except RuntimeError as error:
    print("RuntimeError", error)
print(sum(x for row in [[1, 2], [3]] for x in row), max((len(w), w) for w in ["aa", "b", "cc"]))
