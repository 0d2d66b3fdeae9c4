"""Runs the tests of one of CPython's own test modules, inside the sandbox.

CPython's package `test` is mounted at /cpython/test; the name of the module and
the tests that are not to run again are globals (`module`, `finished`).
Everything that happens is a line on standard output that starts with a record
separator and is one JSON object:

    {"begin": ID}                           a test starts, or what a class needs
    {"end": ID, "status": S, "why": TEXT}   passed, skipped or failed
    {"done": NUMBER}                        all tests ran; so many were found

The host times each test, ends the run when one hangs, and starts again with
that one (or one that ended the interpreter) among the finished ones.
"""

import _imp
import importlib
import json
import os
import sys
import tempfile
import unittest

# Tests that show modules without their accelerators switch frozen modules off,
# and the whole library of the sandbox is frozen.
_imp._override_frozen_modules_for_tests = lambda choice: None

report_to = sys.stdout


def report(**record):
    report_to.write("\x1e" + json.dumps(record) + "\n")
    report_to.flush()


def name_of(test):
    """Return the id without the part that is the same for the whole module."""
    name = test.id()
    for prefix in (f"test.{module}.", "test."):
        if name.startswith(prefix):
            return name[len(prefix):]
    return name.replace(f"(test.{module}.", "(").replace("(test.", "(")


def in_one_line(error):
    """Return the exception's type and the start of its text."""
    kind, value, _ = error
    if issubclass(kind, AssertionError):
        return f"AssertionError at {place(error)}"
    text = " ".join(str(value).split())
    return f"{kind.__name__}: {text}"[:200]


def place(error):
    """Return the line of the test that failed."""
    found = "?"
    trace = error[2]
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith("/cpython/"):
            found = f"{name.removeprefix('/cpython/test/')}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


class Reporter(unittest.TestResult):
    """Says what happens while it happens."""

    def startTest(self, test):
        super().startTest(test)
        self.status = ("passed", "")
        report(begin=name_of(test))

    def stopTest(self, test):
        super().stopTest(test)
        status, why = self.status
        report(end=name_of(test), status=status, why=why)

    def _settle(self, test, status, why):
        if isinstance(test, unittest.TestCase):
            # The first failure counts, and no skip after it.
            if self.status[0] != "failed":
                self.status = (status, why)
        else:
            # What a class or module needs is no test of its own.
            report(begin=name_of(test))
            report(end=name_of(test), status=status, why=why)

    def addError(self, test, err):
        self._settle(test, "failed", in_one_line(err))

    def addFailure(self, test, err):
        self._settle(test, "failed", in_one_line(err))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._settle(test, "failed", in_one_line(err))

    def addSkip(self, test, reason):
        self._settle(test, "skipped", reason)

    def addUnexpectedSuccess(self, test):
        self._settle(test, "failed", "an unexpected success")


def each(suite):
    for item in suite:
        if isinstance(item, unittest.TestCase):
            yield item
        else:
            yield from each(item)


class Suite(unittest.TestSuite):
    """Names the class whose set-up runs."""

    def _handleClassSetUp(self, test, result):
        cls = test.__class__
        known = getattr(result, "_previousTestClass", None) is cls
        if not known and cls.setUpClass.__func__ is not unittest.TestCase.setUpClass.__func__:
            report(begin=set_up(test))
        super()._handleClassSetUp(test, result)


def set_up(test):
    return f"setUpClass ({unittest.util.strclass(test.__class__)})".replace("(test.", "(").replace(
        f"({module}.", "(")


def prepare():
    """Supply what test modules look at before any of their tests.

    Without it, one detail would fail all tests of a module; what tests that very
    detail still fails.
    """
    import grp
    import ntpath
    import pathlib
    import posixpath
    import pwd
    import socket

    socket.has_ipv6 = False
    # `parser` under its name of 3.11.
    pathlib.PurePath._flavour = pathlib._posix_flavour = posixpath
    pathlib.PureWindowsPath._flavour = pathlib._windows_flavour = ntpath
    for module, name in ((pwd, "getpwuid"), (grp, "getgrgid")):
        try:
            getattr(module, name)(0)
        except KeyError:
            add_root(module, name)


def add_root(module, name):
    given = getattr(module, name)
    entry = given(1000)
    root = entry._replace(**{entry._fields[0]: "root", entry._fields[2]: 0})
    setattr(module, name, lambda number: root if number == 0 else given(number))


def load(support):
    """Return all tests, chosen as CPython's own runner chooses them."""
    suites = []
    support.run_unittest = lambda *given: suites.extend(given)
    support.run_doctest = lambda *given, **options: (0, 0)
    imported = importlib.import_module(f"test.{module}")
    loader = unittest.defaultTestLoader
    if hasattr(imported, "test_main"):
        imported.test_main()
    else:
        suites.append(loader.loadTestsFromModule(imported))
    suites = [
        loader.loadTestsFromTestCase(suite) if isinstance(suite, type) else suite
        for suite in suites
    ]
    return list(each(suites))


def main():
    sys.path.insert(0, "/cpython")
    os.chdir(tempfile.mkdtemp())
    from test import support

    prepare()
    support.verbose = False
    # None of the resources that CPython's own runner asks before using.
    support.use_resources = {}
    report(begin="import")
    tests = load(support)
    report(end="import", status="passed", why="")
    seen = set(finished)
    wanted = [test for test in tests if name_of(test) not in seen and set_up(test) not in seen]
    Suite(wanted).run(Reporter())
    report(done=len(tests))


main()
