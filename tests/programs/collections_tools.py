from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple

words = "the cat the dog a cat the end".split()
count = Counter(words)
print(count.most_common(2), count["missing"], count - Counter(the=2), sorted((count | Counter(zoo=4)).items()))
recent = deque(maxlen=3)
for n in range(6):
    recent.append(n)
recent.rotate(1)
print(recent, list(reversed(recent)))
Point = namedtuple("Point", "x y", defaults=[0])
p = Point(3)
print(p, p._replace(y=4), p._asdict(), Point._make([1, 2]), Point._fields)
graph = defaultdict(set)
for a, b in [("a", "b"), ("b", "c"), ("a", "c")]:
    graph[a].add(b)
print({k: sorted(v) for k, v in sorted(graph.items())})
order = OrderedDict(a=1, b=2, c=3)
order.move_to_end("a")
print(list(order), order.popitem(last=False))
settings = ChainMap({"debug": True}, {"debug": False, "level": 1})
print(settings["debug"], settings["level"], settings.parents["debug"])

class Lower(UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)

print(Lower(A=1, b=2), {**{"x": 1}, **{"y": 2}}, {"a": 1} | {"b": 2})
