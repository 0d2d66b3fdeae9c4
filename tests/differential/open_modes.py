put("old", b"0123456789")
for mode in ("r", "w", "a", "x", "r+", "w+", "a+", "x+", "rb", "wb", "ab", "xb", "r+b", "w+b"):
    for path in ("old", "new-" + mode):
        put("old", b"0123456789")

        def use():
            with open(path, mode) as file:
                seen = [file.tell(), file.readable(), file.writable(), file.seekable()]
                data = b"AB" if "b" in mode else "AB"
                if file.writable():
                    file.write(data)
                if file.readable():
                    file.seek(0)
                    seen.append(file.read())
                return seen

        attempt(f"{mode} {path}", use)
        attempt("   then", lambda: get(path))
for flags in ("O_RDONLY", "O_WRONLY", "O_RDWR"):
    def raw():
        fd = os.open("old", getattr(os, flags))
        out = []
        for action in (lambda: os.read(fd, 4), lambda: os.write(fd, b"zz")):
            try:
                out.append(action())
            except OSError as error:
                out.append(errno.errorcode.get(error.errno))
        os.close(fd)
        return out
    attempt(flags, raw)
attempt("O_EXCL", lambda: os.open("old", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
attempt("O_TRUNC", lambda: os.close(os.open("old", os.O_WRONLY | os.O_TRUNC)))
attempt("size", lambda: os.path.getsize("old"))
attempt("dir as file", lambda: open("/work/m").read())
attempt("dir for writing", lambda: open("/work/m", "w"))
attempt("O_DIRECTORY on a file", lambda: os.open("old", os.O_RDONLY | os.O_DIRECTORY))
