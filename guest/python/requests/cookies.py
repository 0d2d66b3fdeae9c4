"""Cookies, kept by the rules of the standard library."""

import http.cookiejar
import urllib.request
from collections.abc import MutableMapping

from _fumehood_fetch import title


class _Headers:
    def __init__(self, listed):
        self._listed = [(name.lower(), value) for name, value in listed]

    def get_all(self, name, default=None):
        found = [value for known, value in self._listed if known == name.lower()]
        return found or default


class _Answer:
    def __init__(self, listed):
        self._headers = _Headers(listed)

    def info(self):
        return self._headers


class RequestsCookieJar(http.cookiejar.CookieJar, MutableMapping):
    """A jar that is also a dictionary of names and values."""

    def get(self, name, default=None, domain=None, path=None):
        """Return the value of a cookie."""
        for cookie in self:
            if cookie.name == name and domain in (None, cookie.domain):
                if path in (None, cookie.path):
                    return cookie.value
        return default

    def set(self, name, value, **options):
        """Put a cookie into the jar; `None` takes it out."""
        if value is None:
            for cookie in [cookie for cookie in self if cookie.name == name]:
                self.clear(cookie.domain, cookie.path, cookie.name)
            return None
        cookie = create_cookie(name, value, **options)
        self.set_cookie(cookie)
        return cookie

    def keys(self):
        """Return the names."""
        return [cookie.name for cookie in self]

    def values(self):
        """Return the values."""
        return [cookie.value for cookie in self]

    def items(self):
        """Return names and values."""
        return [(cookie.name, cookie.value) for cookie in self]

    def get_dict(self, domain=None, path=None):
        """Return names and values as a dictionary."""
        return {
            cookie.name: cookie.value
            for cookie in self
            if domain in (None, cookie.domain) and path in (None, cookie.path)
        }

    def update(self, other):
        """Take the cookies of another jar or dictionary."""
        if isinstance(other, http.cookiejar.CookieJar):
            for cookie in other:
                self.set_cookie(cookie)
        else:
            for name, value in dict(other).items():
                self.set(name, value)

    def copy(self):
        """Return a jar of the same cookies."""
        jar = RequestsCookieJar()
        jar.update(self)
        return jar

    def __contains__(self, name):
        return any(cookie.name == name for cookie in self)

    def __getitem__(self, name):
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name, value):
        self.set(name, value)

    def __delitem__(self, name):
        if name not in self:
            raise KeyError(name)
        self.set(name, None)


def create_cookie(name, value, **options):
    """Return a cookie."""
    domain = options.get("domain", "")
    path = options.get("path", "/")
    return http.cookiejar.Cookie(
        version=options.get("version", 0),
        name=name,
        value=value,
        port=None,
        port_specified=False,
        domain=domain,
        domain_specified=bool(domain),
        domain_initial_dot=domain.startswith("."),
        path=path,
        path_specified=bool(path),
        secure=options.get("secure", False),
        expires=options.get("expires"),
        discard=options.get("discard", True),
        comment=None,
        comment_url=None,
        rest=options.get("rest", {"HttpOnly": None}),
        rfc2109=False,
    )


def cookiejar_from_dict(values, cookiejar=None, overwrite=True):
    """Put the entries of a dictionary into a jar."""
    jar = RequestsCookieJar() if cookiejar is None else cookiejar
    for name, value in (values or {}).items():
        if overwrite or name not in jar:
            jar.set(name, value)
    return jar


def extract_cookies(jar, url, listed):
    """Take the cookies of a response."""
    if any(name.lower() == "set-cookie" for name, _ in listed):
        jar.extract_cookies(_Answer(listed), urllib.request.Request(url))


def cookie_header(jar, url):
    """Return the `Cookie` header for a URL, or `None`."""
    if not len(jar):
        return None
    request = urllib.request.Request(url)
    # Cookies that were given without a host go to every host.
    free = [f"{cookie.name}={cookie.value}" for cookie in jar if not cookie.domain]
    jar.add_cookie_header(request)
    bound = request.get_header(title("cookie"))
    both = free + ([bound] if bound else [])
    return "; ".join(both) or None
