import datetime, time, timeit, uuid

start = time.time()
print(start, time.monotonic(), time.perf_counter(), time.process_time(), time.time_ns())
print(datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), time.localtime())
time.sleep(86_400)
assert 86_400 <= time.time() - start < 86_401
# Work takes time too, so that a loop on the clock ends.
end = time.monotonic() + 0.01
rounds = 0
while time.monotonic() < end:
    rounds += 1
assert rounds > 10
print(rounds, timeit.timeit("sum(range(100))", number=100), timeit.Timer("pass").autorange())
print(uuid.uuid1(), time.get_clock_info("monotonic"))
