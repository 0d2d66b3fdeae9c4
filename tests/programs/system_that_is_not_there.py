#: {"oracle": false}
import importlib
import os
import shutil
import socket


def attempt(action):
    try:
        print(action())
    except Exception as error:
        print(type(error).__name__, error)


attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt(socket.socket)
attempt(os.get_terminal_size)
attempt(os.getloadavg)
print(shutil.get_terminal_size(), os.sysconf("SC_NPROCESSORS_ONLN"), socket.has_ipv6)
for name in ("mmap", "resource", "tracemalloc", "termios", "imp", "smtplib", "winreg"):
    attempt(lambda: importlib.import_module(name))
