#: {"stderr": true, "python": "3.13"}
def outer(n):
    return inner(n - 1)

def inner(n):
    value = {"a": n}
    return value["b"]

print("start")
outer(5)
