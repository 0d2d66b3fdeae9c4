import io
import os
import pathlib
import stat
import tarfile
import zipfile

place = pathlib.Path("/tmp/modes")
(place / "inner").mkdir(parents=True)
file = place / "inner" / "file.txt"
file.write_text("text")
os.symlink("file.txt", place / "inner" / "link")
for path in (place, file):
    print(stat.filemode(path.stat().st_mode), path.stat().st_uid == os.getuid())
print(stat.filemode(os.lstat(place / "inner" / "link").st_mode))
with open(file) as opened:
    print(oct(os.fstat(opened.fileno()).st_mode))

buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w") as archive:
    archive.add(place, arcname="modes")
buffer.seek(0)
with tarfile.open(fileobj=buffer) as archive:
    for member in archive:
        print(member.name, oct(member.mode))

with zipfile.ZipFile(place / "a.zip", "w") as archive:
    archive.write(file, "file.txt")
    print(oct(archive.getinfo("file.txt").external_attr >> 16))

pathlib.Path("/tmp/dangling").symlink_to("nowhere")
os.utime("/tmp/dangling", (5, 6), follow_symlinks=False)
print(int(os.lstat("/tmp/dangling").st_mtime))
try:
    os.chmod("/tmp/dangling", 0o600)
except FileNotFoundError as error:
    print(type(error).__name__, error.errno)
