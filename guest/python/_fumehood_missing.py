"""Says in one line why a module that cannot work here cannot be imported."""

import sys

_EXTENSIONS = """
numpy pandas scipy matplotlib sklearn torch tensorflow jax PIL cv2 lxml pyarrow
polars numba cython psycopg2 pydantic_core cryptography grpc h5py shapely
skimage seaborn xgboost lightgbm statsmodels sympy.core.ntheory_ext
""".split()
_PROCESSES = "multiprocessing pty".split()
_SOCKETS = "ftplib imaplib poplib smtplib socketserver wsgiref xmlrpc".split()
_LIBRARIES = {
    "ctypes": "calls native libraries",
    "sqlite3": "needs the SQLite library",
    "ssl": "opens encrypted sockets",
}
_SYSTEM = {
    "mmap": "maps files into memory; read the file, or use a memoryview of its bytes",
    "resource": "measures processes; the usage is in the result of the run",
    "_tracemalloc": "needs hooks in the allocator; the peak of the memory is in the result",
    "curses": "needs a terminal",
    "readline": "needs a terminal",
    "termios": "needs a terminal",
    "tty": "needs a terminal",
    "syslog": "sends to the log of a host; use logging",
}
# What Python 3.12 and 3.13 took out of the library.
_REMOVED = """
aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp
lib2to3 mailcap msilib nis nntplib ossaudiodev pipes smtpd sndhdr spwd sunau
telnetlib uu xdrlib
""".split()
_OTHERS = """
dbm mailbox tkinter turtle venv webbrowser ensurepip idlelib turtledemo
compileall zipapp modulefinder nturl2path antigravity pydoc_data msvcrt nt
winreg winsound
""".split()


def reason(name):
    """Return why the module is absent, or `None` if nothing is known of it."""
    root = name.partition(".")[0]
    if root in _EXTENSIONS:
        return "it is a compiled extension, which needs a native tier"
    if root in _PROCESSES:
        return "it starts processes, which needs a native tier"
    if root in _LIBRARIES:
        return f"it {_LIBRARIES[root]}, which needs a native tier"
    if root in _SOCKETS:
        return "it opens sockets, and only http and https lead out of here, by urllib.request"
    if root in _SYSTEM:
        return f"it {_SYSTEM[root]}"
    if root in _REMOVED:
        return "it is no longer part of Python's library"
    if root in _OTHERS:
        return "it cannot work inside this sandbox"
    return None


class _Finder:
    """Asked last, when no other finder knows the module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Raise with a hint for an import; answer a mere question with None."""
        text = reason(name)
        caller = sys._getframe(1).f_back
        if text is None or caller.f_code.co_name == "find_spec":
            return None
        raise ModuleNotFoundError(f"No module named {name!r}: {text}", name=name)


def install():
    """Start giving hints."""
    sys.meta_path.append(_Finder)
