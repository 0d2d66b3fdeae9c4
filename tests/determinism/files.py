import glob, os, pathlib, shutil, tarfile, zipfile, io

print(os.listdir("/data"), [e.name for e in os.scandir("/data/sub")])
for top, directories, files in os.walk("/data"):
    print(top, directories, files)
for path in sorted(glob.glob("/data/**", recursive=True)):
    print(path, tuple(os.stat(path)), tuple(os.lstat(path)))
assert os.stat("/data/c").st_nlink == 1
assert os.path.samefile("/data/link", "/data/sub/x.csv")
assert not os.path.samefile("/data/a.txt", "/data/c")
print([(e.name, e.inode() == e.stat(follow_symlinks=False).st_ino) for e in os.scandir("/data")])

out = pathlib.Path("/out")
(out / "made").write_text("text")
made = (out / "made").stat()
assert made.st_mtime > os.stat("/data/c").st_mtime
shutil.copy2("/data/a.txt", out / "copied")
assert (out / "copied").stat().st_mtime == os.stat("/data/a.txt").st_mtime
os.makedirs(out / "d/e")
os.rename(out / "made", out / "d/e/moved")
assert (out / "d/e/moved").stat().st_ino == made.st_ino
(out / "made").write_text("another")
assert (out / "made").stat().st_ino != made.st_ino
os.link(out / "made", out / "twin")
assert os.path.samefile(out / "made", out / "twin")
os.utime(out / "twin", (11, 22))
assert (os.stat(out / "twin").st_atime, os.stat(out / "twin").st_mtime) == (11, 22)
with open(out / "copied", "a") as file:
    before = os.fstat(file.fileno()).st_mtime_ns
    file.write("more")
    file.flush()
    assert os.fstat(file.fileno()).st_mtime_ns > before
    os.remove(out / "copied")
    print(tuple(os.fstat(file.fileno())))
for path in [out, *sorted(out.rglob("*"))]:
    print(path, tuple(os.stat(path)))

tar = io.BytesIO()
with tarfile.open(fileobj=tar, mode="w") as archive:
    archive.add("/data")
print(hash(tar.getvalue()))
archive = io.BytesIO()
with zipfile.ZipFile(archive, "w") as zipped:
    zipped.write("/data/a.txt")
print(hash(archive.getvalue()))
pathlib.Path("/work/memory").write_text("m")
print(tuple(os.stat("/work/memory")), tuple(os.stat("/work")), os.listdir("/"))
