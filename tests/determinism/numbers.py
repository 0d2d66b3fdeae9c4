import array, decimal, math, statistics, struct

nan, inf = float("nan"), float("inf")
values = [nan, -nan, inf - inf, inf * 0, math.fmod(1.5, 0.7), nan * -1, nan + 1, -(inf - inf)]
print([struct.pack("<d", value).hex() for value in values])
print(array.array("f", values).tobytes().hex())
print([math.sin(n / 7) ** 0.37 if math.sin(n / 7) > 0 else math.exp(-n) for n in range(20)])
print(statistics.fmean(range(1000)), decimal.Decimal(2).sqrt(), 7**300 % 10**40, 0.1 + 0.2)
print(complex(nan, inf) * complex(1, 2), hash(nan) == hash(nan), round(2.675, 2))
