"""Ways to say who asks."""

from base64 import b64encode


def _basic_auth_str(username, password):
    def encode(text):
        return text if isinstance(text, bytes) else str(text).encode("latin-1")

    return "Basic " + b64encode(encode(username) + b":" + encode(password)).decode("ascii")


class AuthBase:
    """The base of every way."""

    def __call__(self, r):
        """Return the request with what it needs."""
        raise NotImplementedError("Auth hooks must be callable.")


class HTTPBasicAuth(AuthBase):
    """A name and a password."""

    def __init__(self, username, password):
        """Keep both."""
        self.username = username
        self.password = password

    def __eq__(self, other):
        mine = (self.username, self.password)
        return mine == (getattr(other, "username", None), getattr(other, "password", None))

    def __call__(self, r):
        r.headers["Authorization"] = _basic_auth_str(self.username, self.password)
        return r


class HTTPProxyAuth(HTTPBasicAuth):
    """For a proxy, which the operator sets."""

    def __call__(self, r):
        return r
