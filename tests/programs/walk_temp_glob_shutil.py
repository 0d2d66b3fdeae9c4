import fnmatch
import glob
import os
import shutil
import tempfile

base = tempfile.mkdtemp()
os.chdir(base)
for name in ("a/1.txt", "a/2.log", "a/deep/3.txt", "b/4.txt", "b/.hidden"):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w") as file:
        file.write(name * 3)
print(sorted(glob.glob("**/*.txt", recursive=True)), sorted(glob.glob("b/*")), sorted(glob.glob("[ab]/?.txt")))
for root, dirs, files in os.walk(".", topdown=True):
    dirs.sort()
    if "deep" in dirs:
        dirs.remove("deep")
    print(root, sorted(files))
print([r for r, _, _ in sorted(os.walk(".", topdown=False))])
shutil.copy("a/1.txt", "b/copied.txt")
shutil.copy2("a/1.txt", "b/copied2.txt")
shutil.move("a/2.log", "b/moved.log")
print(sorted(os.listdir("b")), os.path.exists("a/2.log"), open("b/copied.txt").read())
shutil.copytree("a", "c", ignore=shutil.ignore_patterns("deep"))
print(sorted(os.listdir("c")))
print(os.path.basename(shutil.make_archive("packed", "zip", "b")))
os.rename("c", "d")
os.replace("b/copied.txt", "b/4.txt")
print(open("b/4.txt").read(), fnmatch.filter(["x.py", "y.txt"], "*.py"))
with tempfile.NamedTemporaryFile("w+", suffix=".tmp", delete=True) as file:
    file.write("hello")
    file.flush()
    file.seek(0)
    print(file.read(), file.name.endswith(".tmp"), os.path.exists(file.name))
print(os.path.exists(file.name))
with tempfile.TemporaryFile() as file:
    file.write(b"x" * 10)
    print(file.tell())
with tempfile.SpooledTemporaryFile(max_size=4) as file:
    file.write(b"longer than four")
    file.seek(0)
    print(file.read())
usage = shutil.disk_usage if hasattr(shutil, "disk_usage") else None
total = sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk("a") for f in fs)
print(total, shutil.which("no-such-program"))
os.chdir("/tmp")
shutil.rmtree(base)
print(os.path.exists(base), os.path.isabs(base), os.path.normpath("/a/./b/../c"), os.path.splitext("x.tar.gz"), os.path.commonpath(["/a/b", "/a/c"]))
