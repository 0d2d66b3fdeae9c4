"""Makes `zones.zlib` from an unpacked `tzdata` wheel: python3 generate.py DIRECTORY.

An index line `name offset length` for each zone, an empty line, then the
TZif files, equal ones once; all of it compressed.
"""

import pathlib
import sys
import zlib

source = pathlib.Path(sys.argv[1]) / "tzdata"
data, places, index = b"", {}, []
for name in sorted((source / "zones").read_text().split()):
    content = (source / "zoneinfo" / name).read_bytes()
    if content not in places:
        places[content] = len(data)
        data += content
    index.append(f"{name} {places[content]} {len(content)}\n")
text = "".join(index).encode() + b"\n" + data
pathlib.Path(__file__).with_name("zones.zlib").write_bytes(zlib.compress(text, 9))
