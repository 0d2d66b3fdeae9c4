import contextlib
import sys
import traceback

class AppError(Exception):
    def __init__(self, message, *, code):
        super().__init__(message)
        self.code = code

def fail(n):
    if n == 0:
        raise KeyError("missing")
    if n == 1:
        raise AppError("bad state", code=7)
    raise ValueError(f"value {n}")

errors = []
for n in range(3):
    try:
        fail(n)
    except Exception as error:
        error.add_note(f"while doing {n}")
        errors.append(error)
try:
    raise ExceptionGroup("several", errors)
except* (KeyError, ValueError) as group:
    print("group", group.message, [type(e).__name__ for e in group.exceptions])
except* AppError as group:
    print("app", group.exceptions[0].code, group.exceptions[0].__notes__)

try:
    try:
        fail(0)
    except KeyError as error:
        raise AppError("wrapped", code=2) from error
except AppError as error:
    print(type(error.__cause__).__name__, error.code, error.__suppress_context__)
    lines = traceback.format_exception(error)
    print(sum("Traceback" in line for line in lines), lines[-1].strip())
try:
    try:
        1 / 0
    finally:
        raise TypeError("second")
except TypeError as error:
    print(repr(error.__context__))

def order():
    log = []
    try:
        log.append("try")
        return log
    except Exception:
        log.append("except")
    else:
        log.append("else")
    finally:
        log.append("finally")

print(order(), sys.exc_info())
with contextlib.suppress(ZeroDivisionError):
    1 / 0
for code in ("[][1]", "{}['k']", "int('z')", "None.x", "'a' + 1", "undefined", "(lambda: 0)(1)", "len(5)"):
    try:
        eval(code)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
try:
    exec("def broken(:\n  pass")
except SyntaxError as error:
    print("SyntaxError", error.lineno)
try:
    assert 1 == 2, "math works"
except AssertionError as error:
    print(error)
