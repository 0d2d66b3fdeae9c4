#: {"oracle": false}
import io
import warnings
import zipfile

# An archive whose two members are the same bytes gets a warning that names this file.
plain = io.BytesIO()
with zipfile.ZipFile(plain, "w") as archive:
    archive.writestr("a", "text")
data = plain.getvalue()
start = data.index(b"PK\1\2")
end = data.index(b"PK\5\6")
entry = data[start:end]
tail = bytearray(data[end:])
tail[8:12] = b"\2\0\2\0"
tail[12:16] = (2 * len(entry)).to_bytes(4, "little")
with zipfile.ZipFile(io.BytesIO(data[:start] + entry + entry + bytes(tail))) as archive:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for info in archive.infolist():
            try:
                print(archive.read(info))
            except zipfile.BadZipFile as error:
                print(error)
print(*(warning.message for warning in caught), sep="\n")
