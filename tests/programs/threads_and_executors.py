import queue
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

counter, lock = 0, threading.Lock()

def add(n):
    global counter
    for _ in range(n):
        with lock:
            counter += 1

threads = [threading.Thread(target=add, args=(100,), name=f"t{i}") for i in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(counter, [t.is_alive() for t in threads])
with ThreadPoolExecutor(max_workers=3) as pool:
    print(list(pool.map(lambda n: n * n, range(5))))
    futures = {pool.submit(pow, 2, n): n for n in range(4)}
    print(sorted((futures[f], f.result()) for f in as_completed(futures)))
    bad = pool.submit(lambda: 1 / 0)
    print(type(bad.exception()).__name__)
done = threading.Event()
box = queue.Queue()
threading.Thread(target=lambda: (box.put("made"), done.set())).start()
print(box.get(timeout=1), done.wait(1), threading.current_thread().name)
local = threading.local()
local.x = 1
print(local.x, threading.active_count())
