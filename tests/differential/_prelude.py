import errno
import os
import stat

os.chdir("/work/m")


def attempt(label, action):
    """Prints the result of an action, or the error it raised."""
    try:
        print(label, "->", repr(action()))
    except OSError as error:
        name = errno.errorcode.get(error.errno, error.errno)
        print(label, "!", type(error).__name__, name, error.filename, error.filename2)
    except Exception as error:
        print(label, "!", type(error).__name__, error)


def put(path, data):
    with open(path, "wb") as file:
        return file.write(data)


def get(path):
    with open(path, "rb") as file:
        return file.read()


def kind(path, follow=False):
    s = os.stat(path, follow_symlinks=follow)
    return stat.S_IFMT(s.st_mode) == stat.S_IFDIR, stat.S_ISLNK(s.st_mode), s.st_size if stat.S_ISREG(s.st_mode) else None
