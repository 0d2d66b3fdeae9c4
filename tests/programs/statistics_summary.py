import math
import random
import statistics
from fractions import Fraction

data = [2, 4, 4, 4, 5, 5, 7, 9, 12.5]
print(statistics.mean(data), statistics.median(data), statistics.mode(data), statistics.multimode([1, 1, 2, 2]))
print(round(statistics.stdev(data), 6), round(statistics.pvariance(data), 6), statistics.median_low([1, 2, 3, 4]))
print([round(q, 4) for q in statistics.quantiles(data, n=4)], statistics.fmean([1, 2, 3]), statistics.harmonic_mean([40, 60]))
print(statistics.mean([Fraction(1, 3), Fraction(1, 6)]), round(statistics.geometric_mean([1, 10, 100]), 6))
normal = statistics.NormalDist(100, 15)
print(round(normal.cdf(130), 6), round(normal.inv_cdf(0.5), 6), round(statistics.correlation([1, 2, 3], [2, 4, 7]), 6))
print(statistics.linear_regression([1, 2, 3], [2, 4, 6]))
try:
    statistics.mean([])
except statistics.StatisticsError as error:
    print("StatisticsError", error)
print(math.isclose(math.fsum([0.1] * 10), 1.0), math.prod([1, 2, 3]), math.comb(52, 5), math.gcd(12, 18), math.lcm(4, 6), math.hypot(3, 4), math.isqrt(10**20))
rng = random.Random(42)
print(rng.randint(1, 100), round(rng.random(), 12), rng.choice("abc"), rng.sample(range(50), 5))
deck = list(range(8))
rng.shuffle(deck)
print(deck, rng.choices("xyz", weights=[5, 1, 1], k=6), round(rng.gauss(0, 1), 10))
