import json
from datetime import date
from decimal import Decimal

document = json.loads('''{"users": [{"id": 1, "name": "Zoë", "tags": ["a", "b"], "balance": 10.50},
 {"id": 2, "name": "Bob", "tags": [], "balance": -3, "extra": {"nested": [null, true, 1e3, "\\ud83d\\ude00"]}}]}''')
print(sorted(document["users"][1]["extra"]["nested"][2:], key=str))
print(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))
print(json.dumps(document["users"][0], separators=(",", ":")))

class Encoder(json.JSONEncoder):
    def default(self, value):
        if isinstance(value, (set, frozenset)):
            return sorted(value)
        if isinstance(value, date):
            return value.isoformat()
        return super().default(value)

print(json.dumps({"when": date(2024, 1, 2), "set": {3, 1, 2}, 5: None, True: float("inf")}, cls=Encoder))
print(json.loads('{"x": 1.10}', parse_float=Decimal), json.loads("[1, 2]", parse_int=str))
print(json.loads('{"a": {"b": 1}}', object_pairs_hook=list))
for bad in ('{"a" 1}', "[1, 2", "nan", '"\\x"', ""):
    try:
        print(json.loads(bad))
    except json.JSONDecodeError as error:
        print(bad, "->", error.lineno, error.colno)
try:
    json.dumps(object())
except TypeError as error:
    print(error)
with open("/tmp/data.ndjson", "w") as file:
    for user in document["users"]:
        print(json.dumps(user), file=file)
with open("/tmp/data.ndjson") as file:
    print([json.loads(line)["name"] for line in file])
