import copy
import heapq
import itertools
from abc import ABC, abstractmethod

class Account(ABC):
    _ids = itertools.count(1)

    def __init__(self, owner, balance=0):
        self.id, self.owner, self._balance = next(self._ids), owner, balance
        self.history = []

    @property
    def balance(self):
        return self._balance

    @balance.setter
    def balance(self, value):
        if value < self.floor():
            raise ValueError(f"insufficient funds: {value}")
        self.history.append(value - self._balance)
        self._balance = value

    @abstractmethod
    def floor(self): ...

    def __repr__(self):
        return f"<{type(self).__name__} {self.id} {self.owner} {self.balance}>"

class Current(Account):
    def floor(self):
        return -100

class Savings(Account):
    def floor(self):
        return 0

def transfer(a, b, amount):
    before = a.balance
    a.balance -= amount
    try:
        b.balance += amount
    except ValueError:
        a.balance = before
        raise

a, b = Current("ann", 50), Savings("bob", 20)
transfer(a, b, 120)
print(a, b)
try:
    transfer(b, a, 1000)
except ValueError as error:
    print(error, a.history, b.history)
clone = copy.deepcopy(b)
clone.balance += 1
print(clone.balance - b.balance, clone.history is b.history)

def dijkstra(graph, start):
    best, heap = {}, [(0, start)]
    while heap:
        cost, node = heapq.heappop(heap)
        if node in best:
            continue
        best[node] = cost
        for other, weight in graph.get(node, {}).items():
            heapq.heappush(heap, (cost + weight, other))
    return best

print(dijkstra({"a": {"b": 7, "c": 3}, "c": {"b": 1, "d": 8}, "b": {"d": 2}}, "a"))
