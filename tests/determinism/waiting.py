import asyncio, concurrent.futures, queue, sched, select, threading, time


async def worker(name, seconds, log):
    await asyncio.sleep(seconds)
    log.append((name, round(asyncio.get_running_loop().time(), 6)))


async def main():
    log = []
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(worker(number, (number * 7) % 5 + 0.5, log))
    print(log)
    try:
        await asyncio.wait_for(asyncio.sleep(3600), 60)
    except asyncio.TimeoutError:
        print("timed out", asyncio.get_running_loop().time())


start = time.monotonic()
asyncio.run(main())
scheduler = sched.scheduler()
for delay in (3, 1, 2):
    scheduler.enter(delay, 1, print, (delay,))
scheduler.run()
with concurrent.futures.ThreadPoolExecutor() as pool:
    print(list(pool.map(lambda n: n * n, range(5))))
try:
    queue.Queue().get(timeout=5)
except queue.Empty:
    print("empty")
except RuntimeError as error:
    print(error)
print(threading.Event().wait(2) if hasattr(threading.Event, "wait") else None)
print(time.monotonic() - start)
