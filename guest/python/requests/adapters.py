"""Adapters, of which there is one."""


class BaseAdapter:
    """The base of adapters."""

    def close(self):
        """Do nothing."""


class HTTPAdapter(BaseAdapter):
    """Stands where programs mount an adapter.

    `max_retries`, as a number, is how often a connection that did not come
    about is tried again.
    """

    def __init__(self, pool_connections=10, pool_maxsize=10, max_retries=0, pool_block=False):
        """Keep the number of retries."""
        total = getattr(max_retries, "total", max_retries)
        self.max_retries = total if isinstance(total, int) else 0
