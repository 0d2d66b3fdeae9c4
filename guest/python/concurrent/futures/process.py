"""Stands where the executor of processes is expected, and says what it needs."""

from _fumehood_patches import needs_native
from concurrent.futures import _base

__all__ = ["BrokenProcessPool", "ProcessPoolExecutor"]


class BrokenProcessPool(_base.BrokenExecutor):
    """Raised when a process of an executor ended early."""


class ProcessPoolExecutor(_base.Executor):
    """Cannot be made here."""

    def __init__(self, *args, **kwargs):
        """Say what it needs."""
        raise needs_native("ProcessPoolExecutor")
