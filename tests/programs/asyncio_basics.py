import asyncio

async def worker(name, queue, results):
    while True:
        item = await queue.get()
        await asyncio.sleep(0.001 * item)
        results.append((name, item * item))
        queue.task_done()

async def fetch(n):
    await asyncio.sleep(0.01 * (3 - n))
    if n == 2:
        raise ValueError("two")
    return n

async def ticker(limit):
    for n in range(limit):
        yield n
        await asyncio.sleep(0)

async def main():
    queue, results = asyncio.Queue(), []
    workers = [asyncio.create_task(worker(f"w{n}", queue, results)) for n in range(2)]
    for item in (1, 2, 3, 4):
        queue.put_nowait(item)
    await queue.join()
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    print(sorted(value for _, value in results))
    print(await asyncio.gather(fetch(0), fetch(1)))
    print([type(r).__name__ for r in await asyncio.gather(fetch(1), fetch(2), return_exceptions=True)])
    try:
        await asyncio.wait_for(asyncio.sleep(5), timeout=0.01)
    except asyncio.TimeoutError:
        print("timed out")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(fetch(0))
    print(task.result())
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        print("deadline")
    print([n async for n in ticker(3)])
    lock, order = asyncio.Lock(), []
    async def locked(n):
        async with lock:
            order.append(n)
            await asyncio.sleep(0)
            order.append(n)
    await asyncio.gather(locked(1), locked(2))
    print(order)
    done, pending = await asyncio.wait([asyncio.create_task(fetch(1)), asyncio.create_task(asyncio.sleep(3))], return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    print(len(done), len(pending))
    first = None
    for future in asyncio.as_completed([fetch(0), fetch(1)]):
        first = first if first is not None else await future
        if first is not None:
            break
    print(first)
    loop = asyncio.get_running_loop()
    print(await loop.run_in_executor(None, sum, [1, 2, 3]), await asyncio.to_thread(max, 4, 9))

asyncio.run(main())
print("end")
