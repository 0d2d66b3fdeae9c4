#: {"cell": true, "oracle": false}
import asyncio
async def double(n):
    await asyncio.sleep(0.001)
    return n * 2
await asyncio.gather(double(1), double(2))
