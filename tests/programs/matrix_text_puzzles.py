import string
from collections import deque
from math import inf

GRID = """
#########
#S..#...#
#.#.#.#.#
#.#...#E#
#########
""".strip().splitlines()
find = lambda c: next((r, row.index(c)) for r, row in enumerate(GRID) if c in row)
start, goal = find("S"), find("E")
queue, seen = deque([(start, 0)]), {start}
steps = inf
while queue:
    (r, c), d = queue.popleft()
    if (r, c) == goal:
        steps = d
        break
    for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        p = r + dr, c + dc
        if GRID[p[0]][p[1]] != "#" and p not in seen:
            seen.add(p)
            queue.append((p, d + 1))
print(steps)
def caesar(text, k):
    low = string.ascii_lowercase
    return text.translate(str.maketrans(low + low.upper(), low[k:] + low[:k] + (low[k:] + low[:k]).upper()))
print(caesar("Hello, World!", 3), caesar(caesar("Round trip", 5), 21))
A, B = [[1, 2], [3, 4]], [[0, 1], [1, 0]]
print([[sum(x * y for x, y in zip(row, col)) for col in zip(*B)] for row in A], list(zip(*A)))
def queens(n, row=0, cols=(), d1=(), d2=()):
    if row == n:
        return 1
    return sum(queens(n, row + 1, cols + (c,), d1 + (row + c,), d2 + (row - c,)) for c in range(n) if c not in cols and row + c not in d1 and row - c not in d2)
print(queens(6), f"{2**200}", pow(3, 10**6, 1_000_007), int("ff", 16), bin(10), round(2.675, 2), 0.1 + 0.2, 1e16, 1e-7, float("nan"), complex("1+2j") ** 2)
def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]
print(levenshtein("kitten", "sitting"), "racecar" == "racecar"[::-1], sorted("hello", reverse=True), "".join(dict.fromkeys("mississippi")))
