#: {"stdin": "Ann\n3\nabc\n4\n"}
import sys

name = input("Name? ")
print(f"hello {name}")
total = 0
while True:
    try:
        total += int(input("> "))
    except ValueError as error:
        print("ignored:", error)
    except EOFError:
        print("eof")
        break
print(total, repr(sys.stdin.read()), sys.stdin.readline() == "")
