import csv
import io
from collections import defaultdict
from decimal import Decimal

TEXT = '''order,customer,amount,note
1,Ann,10.50,"first, of many"
2,Bob,3.25,"said ""hi"""
3,Ann,7.00,
4,Cid,1e2,"two
lines"
'''
rows = list(csv.DictReader(io.StringIO(TEXT)))
totals = defaultdict(Decimal)
for row in rows:
    totals[row["customer"]] += Decimal(row["amount"])
for name, total in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
    print(f"{name:<5}{total:>10.2f}")
print([row["note"] for row in rows])

with open("/tmp/out.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, fieldnames=["customer", "total"], quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    for name in sorted(totals):
        writer.writerow({"customer": name, "total": float(totals[name])})
with open("/tmp/out.csv", newline="") as file:
    print(repr(file.read()))
print(csv.Sniffer().sniff("a;b;c\n1;2;3\n").delimiter)
