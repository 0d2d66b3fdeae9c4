"""Says in one line why a module that cannot work here cannot be imported."""

import sys

_EXTENSIONS = """
numpy pandas scipy matplotlib sklearn torch tensorflow jax PIL cv2 lxml pyarrow
polars numba cython psycopg2 pydantic_core cryptography grpc h5py shapely
skimage seaborn xgboost lightgbm statsmodels sympy.core.ntheory_ext
""".split()
_PROCESSES = "multiprocessing pty".split()
_LIBRARIES = {
    "ctypes": "calls native libraries",
    "sqlite3": "needs the SQLite library",
    "ssl": "opens encrypted sockets",
}
_OTHERS = """
dbm ftplib imaplib mailbox poplib smtplib socketserver tkinter turtle venv
webbrowser wsgiref xmlrpc ensurepip idlelib
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
