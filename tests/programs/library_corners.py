import array
import copy
import enum
import fcntl
import grp
import os
import pwd
import re
import time

match = re.match("(a)", "a")
print(copy.copy(match) is match, copy.deepcopy([match.re])[0] is match.re)


class Colour(enum.IntEnum):
    RED = 3


print(repr(Colour.from_bytes(b"\0\3", "big")), "d" in array.typecodes)
try:
    Colour.from_bytes(b"\4")
except ValueError as error:
    print(error)

with open("/tmp/numbers", "w+b") as file:
    file.write(b"0123456789")
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(os.pread(file.fileno(), 3, 4), os.pwrite(file.fileno(), b"xy", 1), file.tell())
    file.seek(0)
    print(file.read())
    fcntl.lockf(file, fcntl.LOCK_UN)
print(os.waitstatus_to_exitcode(256), os.WEXITSTATUS(512), os.EX_USAGE, os.EX_CONFIG)
print(time.clock_gettime(time.CLOCK_MONOTONIC) <= time.monotonic(), len(os.times()))
print(pwd.getpwuid(0).pw_name, grp.getgrgid(0).gr_name, pwd.getpwnam("root").pw_dir)
try:
    os.sysconf("SC_NOTHING")
except ValueError as error:
    print(error)
