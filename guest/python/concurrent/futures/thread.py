"""An executor for a world with one thread: a call runs when it is submitted."""

from concurrent.futures import _base

__all__ = ["BrokenThreadPool", "ThreadPoolExecutor"]


class BrokenThreadPool(_base.BrokenExecutor):
    """Raised when the initializer of an executor failed."""


class ThreadPoolExecutor(_base.Executor):
    """Runs each call to its end in `submit`, in the order of submission."""

    BROKEN = BrokenThreadPool

    def __init__(
        self,
        max_workers=None,
        thread_name_prefix="",
        initializer=None,
        initargs=(),
        **ctxkwargs,
    ):
        """Accept the arguments of the real executor."""
        if max_workers is None:
            max_workers = 1
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._max_workers = max_workers
        self._initializer = initializer
        self._initargs = initargs
        self._broken = False
        self._shutdown = False

    def submit(self, fn, /, *args, **kwargs):
        """Run a call and return its finished future."""
        if self._broken:
            raise BrokenThreadPool(self._broken)
        if self._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._initialise()
        future = _base.Future()
        future.set_running_or_notify_cancel()
        try:
            result = fn(*args, **kwargs)
        except BaseException as exception:
            future.set_exception(exception)
        else:
            future.set_result(result)
        return future

    def _initialise(self):
        initializer, self._initializer = self._initializer, None
        if initializer is None:
            return
        try:
            initializer(*self._initargs)
        except BaseException:
            _base.LOGGER.critical("Exception in initializer:", exc_info=True)
            self._broken = "A thread initializer failed"
            raise BrokenThreadPool(self._broken) from None

    def shutdown(self, wait=True, *, cancel_futures=False):
        """Refuse further calls; none is outstanding."""
        self._shutdown = True
