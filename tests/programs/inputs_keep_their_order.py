#: {"cell": true, "oracle": false, "inputs": {"zebra": 1, "row": {"name": "x", "age": 3, "city": "y"}}}
print([name for name in ("zebra", "row") if name in globals()], list(row))
row
