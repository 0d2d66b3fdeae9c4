import errno
import os

os.makedirs("/tmp/numbers/full/x")
open("/tmp/numbers/file", "w").close()
os.chdir("/tmp/numbers")
for action in (
    lambda: open("none"),
    lambda: os.mkdir("file"),
    lambda: os.rmdir("full"),
    lambda: os.listdir("file"),
    lambda: open("full"),
    lambda: os.open("file/x", os.O_RDONLY),
    lambda: os.read(99, 1),
    lambda: os.stat("n" * 300),
):
    try:
        action()
    except OSError as error:
        print(type(error).__name__, error.errno, errno.errorcode[error.errno], error.strerror)
print(errno.ENOENT, errno.EACCES, errno.EAGAIN == errno.EWOULDBLOCK, os.strerror(2))
for number in (errno.ENOENT, errno.EEXIST, errno.EPIPE, errno.ETIMEDOUT, errno.EPERM):
    error = OSError(number, os.strerror(number))
    print(type(error).__name__, error)


class Own(OSError):
    def __init__(self, name):
        super().__init__(errno.ENOENT, "gone", name)


try:
    raise Own("it")
except FileNotFoundError:
    print("not reached")
except OSError as error:
    print(error, error.filename)
