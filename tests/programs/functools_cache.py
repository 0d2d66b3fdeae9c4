import functools
import operator
import time

@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

print(fib(90), fib.cache_info())

def retry(times, exceptions=(Exception,)):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for attempt in range(1, times + 1):
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    print(f"attempt {attempt} failed: {error}")
            raise RuntimeError(f"{function.__name__} failed {times} times")
        return wrapper
    return decorate

calls = iter([ValueError("one"), KeyError("two"), "fine"])

@retry(3, (ValueError, KeyError))
def flaky():
    """Docs stay."""
    value = next(calls)
    if isinstance(value, Exception):
        raise value
    return value

print(flaky(), flaky.__name__, flaky.__doc__)

@functools.singledispatch
def describe(value):
    return "thing"

@describe.register
def _(value: int):
    return "int"

@describe.register(list)
def _(value):
    return "list of " + ", ".join(describe(v) for v in value)

print(describe([1, "a", [2]]))

@functools.total_ordering
class Version:
    def __init__(self, text):
        self.parts = tuple(map(int, text.split(".")))
    def __eq__(self, other):
        return self.parts == other.parts
    def __lt__(self, other):
        return self.parts < other.parts

print(Version("1.10") >= Version("1.9"), functools.reduce(operator.mul, range(1, 11)), functools.partial(int, base=2)("1011"))

class Lazy:
    @functools.cached_property
    def value(self):
        print("computed")
        return 42

lazy = Lazy()
print(lazy.value, lazy.value)
print(sorted(["b10", "a2", "a10"], key=functools.cmp_to_key(lambda a, b: (int(a[1:]) > int(b[1:])) - (int(a[1:]) < int(b[1:])))))
print(operator.itemgetter(1, 0)("xy"), operator.attrgetter("real")(3), operator.methodcaller("upper")("m"), list(map(operator.add, [1, 2], [3, 4])))
