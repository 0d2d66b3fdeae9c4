import itertools as it

sales = [("north", 3), ("south", 5), ("north", 4), ("east", 1), ("south", 2)]
for region, group in it.groupby(sorted(sales), key=lambda s: s[0]):
    print(region, sum(n for _, n in group))
print(list(it.batched("abcdefg", 3)) if hasattr(it, "batched") and False else [list("abcdefg")[i:i + 3] for i in range(0, 7, 3)])
print(list(it.accumulate([1, 2, 3, 4], lambda a, b: a * b, initial=1)), list(it.chain.from_iterable([[1], [2, 3]])))
print(list(it.product("ab", [1, 2])), list(it.permutations("abc", 2))[:3], list(it.combinations_with_replacement("ab", 2)))
print(list(it.takewhile(lambda n: n < 4, it.count(1))), list(it.dropwhile(str.isspace, "  ab ")), list(it.filterfalse(None, [0, 1, "", 2])))
print(list(it.zip_longest([1, 2, 3], "a", fillvalue="-")), list(it.starmap(pow, [(2, 3), (3, 2)])), list(it.pairwise("abcd")))
print(list(it.islice(it.cycle("xy"), 5)), list(it.compress("abcd", [1, 0, 1, 0])), list(it.repeat(7, 2)))
one, two = it.tee(iter(range(3)))
print(list(one), list(two))
def sieve(limit):
    flags = bytearray([1]) * (limit + 1)
    flags[:2] = b"\0\0"
    for n in range(2, int(limit ** 0.5) + 1):
        if flags[n]:
            flags[n * n::n] = bytes(len(range(n * n, limit + 1, n)))
    return list(it.compress(range(limit + 1), flags))
print(sieve(50))
