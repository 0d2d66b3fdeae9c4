#: {"cell": true, "oracle": false, "inputs": {"limit": 4, "names": ["x", "y"], "nested": {"half": 0.5, "none": null, "ok": true}}}
import math
table = [{"n": n, "root": math.isqrt(n), "even": n % 2 == 0} for n in range(limit)]
print(names, nested["half"], nested["none"])
{"table": table, "names": names, **nested}
