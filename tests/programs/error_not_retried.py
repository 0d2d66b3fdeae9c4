# An error is never taken for another one that has its number elsewhere: only
# EINTR is tried again, every other number is raised at the first attempt.
import errno
import io


class Broken(io.RawIOBase):
    def __init__(self, number):
        self.number = number
        self.attempts = 0

    def readable(self):
        return True

    def writable(self):
        return True

    def fail(self, amount):
        self.attempts += 1
        if self.attempts < 4:
            raise OSError(self.number, "not now")
        return amount

    def write(self, data):
        return self.fail(len(data))

    def readinto(self, data):
        return self.fail(0)


def attempts(number, act):
    raw = Broken(number)
    try:
        act(raw)
    except OSError as error:
        assert error.errno == number, (error.errno, number)
    return raw.attempts


def write(raw):
    writer = io.BufferedWriter(raw)
    writer.write(b"x")
    try:
        writer.flush()
    finally:
        raw.attempts, seen = 9, raw.attempts
        writer.detach()
        raw.attempts = seen


def read(raw):
    io.BufferedReader(raw).read(1)


for number, name in sorted(errno.errorcode.items()):
    for act in (write, read):
        if (seen := attempts(number, act)) != 1:
            print(name, act.__name__, seen)
