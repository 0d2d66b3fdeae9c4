import gzip
import io

lines = [b"x" * (number % 977) + b"\n" for number in range(3000)] + [b"no end"]
with open("/tmp/lines", "wb") as stream:
    stream.writelines(lines)
with open("/tmp/lines", "rb") as stream:
    print(list(stream) == lines)
with open("/tmp/lines", "rb") as stream:
    print(stream.readline(5), stream.readline(-1), stream.readline(0), stream.readline(2))
    stream.seek(0)
    print(len(stream.readlines()), stream.readline(), stream.read())
with gzip.open("/tmp/lines.gz", "wb") as stream:
    stream.writelines(lines)
with gzip.open("/tmp/lines.gz") as stream:
    print(sum(len(line) for line in stream), sum(map(len, lines)))
with open("/tmp/lines", "r+b") as stream:
    stream.readline()
    first = stream.tell()
    stream.write(b"##")
    stream.seek(first)
    print(stream.readline()[:4])
reader = io.BufferedReader(io.BytesIO(b"a\nbb\n\nccc"), buffer_size=2)
print(list(reader))
try:
    reader.close()
    reader.readline()
except ValueError as error:
    print(type(error).__name__)
