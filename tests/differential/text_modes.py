put("mixed", b"unix\nmac\rdos\r\nlast")
for newline in (None, "", "\n", "\r", "\r\n"):
    with open("mixed", newline=newline) as file:
        print(repr(newline), file.readlines(), file.newlines)
    with open("out", "w", newline=newline) as file:
        file.write("a\nb\r\nc\r")
    print("   ", get("out"))
for encoding in ("utf-8", "utf-16", "latin-1", "utf-8-sig", "ascii"):
    def round_trip():
        with open("enc", "w", encoding=encoding) as file:
            file.write("é€\n" if encoding.startswith("utf") else "é\n")
        with open("enc", encoding=encoding) as file:
            return get("enc"), file.read()
    attempt(encoding, round_trip)
put("bad", b"ok \xff\xfe end")
for errors in ("strict", "replace", "ignore", "surrogateescape", "backslashreplace"):
    attempt(errors, lambda: open("bad", encoding="utf-8", errors=errors).read())
with open("buf", "w", buffering=1) as file:
    file.write("line\npart")
    print(get("buf"))
print(get("buf"))
with open("b", "w+b") as file:
    file.write(b"abc\ndef\n")
    file.seek(0)
    print(file.readline(), file.peek(2)[:2], file.read1(2), list(file))
    file.writelines([b"x", b"y"])
print(get("b"))
os.mkdir("unicode ünïcödé ✓")
put("unicode ünïcödé ✓/spaced name.txt", b"1")
print(os.listdir("."), os.listdir("unicode ünïcödé ✓")) if False else print(sorted(os.listdir(".")), os.listdir("unicode ünïcödé ✓"))
