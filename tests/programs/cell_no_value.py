#: {"cell": true, "oracle": false}
total = 0
for n in range(4):
    total += n
print(total)
