#: {"stderr": true, "oracle": false}
print("never printed")
def broken(x)
    return x
