import cProfile
import io
import marshal
import pstats


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def work():
    return sum(fibonacci(n) for n in (3, 4)), sorted([3, 1, 2]), len("text")


def fails():
    raise ValueError("no")


def figures(profile):
    profile.create_stats()
    return {
        name: (calls, outer)
        for (_, _, name), (outer, calls, *_) in sorted(profile.stats.items())
        if name in ("fibonacci", "work", "fails", "<genexpr>")
    }


with cProfile.Profile() as profile:
    print(work())
print(figures(profile))

profile = cProfile.Profile()
print(profile.runcall(fibonacci, 5))
try:
    profile.runcall(fails)
except ValueError as error:
    print(error)
print(figures(profile))

profile = cProfile.Profile()
profile.enable()
work()
profile.disable()
work()
print(figures(profile))
text = io.StringIO()
stats = pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative")
stats.print_stats("fibonacci")
print("14/2" in text.getvalue(), "profiler.py:7(fibonacci)" in text.getvalue())
callers = stats.stats[("profiler.py", 7, "fibonacci")][4]
print(sorted((name, counts[:2]) for (_, _, name), counts in callers.items()))
own, total = stats.stats[("profiler.py", 7, "fibonacci")][2:4]
print(0 <= own <= total)
profile.dump_stats("/tmp/profile")
with open("/tmp/profile", "rb") as file:
    print(len(marshal.load(file)) > 3)
cProfile.run("fibonacci(3)", "/tmp/other")
print(pstats.Stats("/tmp/other").total_calls > 4)
