#: {"links": [["plain", "link"], ["dir", "dirlink"], ["nowhere", "dangling"]]}
put("plain", b"12345")
os.mkdir("dir")
for entry in sorted(os.scandir("."), key=lambda e: e.name):
    print(entry.name, entry.path, entry.is_file(), entry.is_dir(), entry.is_symlink(), entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False))
for path in ("plain", "dir", "link", "dirlink", "dangling", "none", "plain/", "dir/", "link/", "dirlink/"):
    attempt(f"stat {path}", lambda: kind(path, True))
    attempt(f"lstat {path}", lambda: kind(path, False))
    print(path, os.path.exists(path), os.path.lexists(path), os.path.isfile(path), os.path.isdir(path), os.path.islink(path))
s = os.stat("plain")
print(s.st_size, s.st_nlink, stat.filemode(s.st_mode)[0])
with open("plain") as file:
    f = os.fstat(file.fileno())
    print(f.st_size, f.st_ino == s.st_ino, f.st_dev == s.st_dev, os.path.sameopenfile(file.fileno(), file.fileno()))
print(os.path.samefile("plain", "link"), os.path.samefile("plain", "dir"), os.stat("plain").st_ino == os.stat("plain").st_ino)
print(s.st_ino != os.stat("dir").st_ino)
attempt("getsize", lambda: os.path.getsize("link"))
attempt("empty", lambda: stat.S_ISDIR(os.stat("").st_mode))
attempt("nul", lambda: os.stat("a\0b"))
attempt("access", lambda: (os.access("plain", os.R_OK), os.access("none", os.F_OK)))
attempt("long name", lambda: open("n" * 300, "w"))
