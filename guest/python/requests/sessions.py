"""Sessions: what stays the same from request to request."""

import datetime
import time
from urllib.parse import urljoin, urlsplit

from _fumehood_fetch import Exchange, FetchError, is_credential

from . import exceptions
from .adapters import HTTPAdapter
from .cookies import cookiejar_from_dict, extract_cookies
from .models import PreparedRequest, Request, Response, raised
from .utils import default_headers

# The host frames messages, keeps connections and decompresses.
_HOST_OWNED = frozenset(
    ("accept-encoding", "connection", "content-length", "host", "transfer-encoding")
)


def _origin(url):
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname, port


class Session:
    """Headers, cookies and the like for many requests."""

    def __init__(self):
        """Start with the usual headers and no cookies."""
        self.headers = default_headers()
        self.auth = None
        self.params = {}
        self.cookies = cookiejar_from_dict({})
        self.hooks = {"response": []}
        self.max_redirects = 30
        self.stream = False
        self.verify = True
        self.cert = None
        self.proxies = {}
        self.trust_env = False
        self.adapters = {}
        self.mount("https://", HTTPAdapter())
        self.mount("http://", HTTPAdapter())

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()

    def mount(self, prefix, adapter):
        """Use an adapter for URLs that begin so."""
        self.adapters[prefix] = adapter

    def get_adapter(self, url):
        """Return the adapter for a URL."""
        fits = [prefix for prefix in self.adapters if url.lower().startswith(prefix.lower())]
        if not fits:
            raise exceptions.InvalidSchema(f"No connection adapters were found for {url!r}")
        return self.adapters[max(fits, key=len)]

    def close(self):
        """Do nothing: the host closes connections."""

    def prepare_request(self, request):
        """Return a request with what the session adds."""
        cookies = self.cookies.copy()
        cookies.update(request.cookies or {})
        headers = self.headers.copy()
        for name, value in (request.headers or {}).items():
            if value is None:
                headers.pop(name, None)
            else:
                headers[name] = value
        headers = {name: value for name, value in headers.items() if value is not None}
        params = request.params
        if self.params and not isinstance(params, (str, bytes)):
            params = {**dict(self.params), **dict(params or {})}
        prepared = PreparedRequest()
        prepared.prepare(
            request.method,
            request.url,
            headers,
            request.files,
            request.data,
            params,
            request.auth or self.auth,
            cookies,
            request.json,
        )
        return prepared

    def request(
        self,
        method,
        url,
        params=None,
        data=None,
        headers=None,
        cookies=None,
        files=None,
        auth=None,
        timeout=None,
        allow_redirects=True,
        proxies=None,
        hooks=None,
        stream=None,
        verify=None,
        cert=None,
        json=None,
    ):
        """Send a request and return its response."""
        request = Request(
            method, url, headers, files, data, params, auth, cookies, hooks, json
        )
        return self.send(
            self.prepare_request(request),
            timeout=timeout,
            allow_redirects=allow_redirects,
            proxies=proxies or self.proxies,
            stream=self.stream if stream is None else stream,
            hooks=hooks,
            cert=cert or self.cert,
        )

    def send(self, request, timeout=None, allow_redirects=True, stream=False, **options):
        """Send a prepared request."""
        if options.get("proxies"):
            raise exceptions.InvalidProxyURL(
                "a proxy is set by the operator of this sandbox, not by its code"
            )
        if options.get("cert"):
            raise exceptions.RequestException(
                "certificates of clients are not available in this sandbox"
            )
        history = []
        while True:
            response = self._exchange(request, timeout)
            response.history = list(history)
            if not (allow_redirects and response.is_redirect):
                break
            if len(history) >= self.max_redirects:
                raise exceptions.TooManyRedirects(
                    f"Exceeded {self.max_redirects} redirects.", response=response
                )
            response.content
            history.append(response)
            request = self._redirected(request, response)
        for hook in _hooks(self.hooks, options.get("hooks")):
            response = hook(response) or response
        if not stream:
            response.content
        return response

    def _exchange(self, request, timeout):
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOST_OWNED
        ]
        body, length = request.body, None
        streams = body is not None and not isinstance(body, bytes)
        if streams and "content-length" in request.headers:
            length = int(request.headers["content-length"])
        tries = self.get_adapter(request.url).max_retries if not streams else 0
        started = time.perf_counter()
        while True:
            try:
                exchange = Exchange(
                    request.method,
                    request.url,
                    headers,
                    ... if streams else body,
                    length=length,
                    follow=False,
                    timeout=_seconds(timeout),
                )
                if streams:
                    _send_pieces(exchange, body)
                head = exchange.head()
                break
            except FetchError as error:
                if tries <= 0 or error.kind not in ("name", "connect"):
                    raise raised(error, request) from None
                tries -= 1
        response = Response()
        response._take(exchange, head)
        response.request = request
        response.elapsed = datetime.timedelta(seconds=time.perf_counter() - started)
        extract_cookies(self.cookies, request.url, head.headers)
        extract_cookies(response.cookies, request.url, head.headers)
        return response

    def _redirected(self, request, response):
        new = request.copy()
        new.url = urljoin(request.url, response.headers["location"].replace(" ", "%20"))
        new.url = new.url.partition("#")[0]
        if urlsplit(request.url).scheme == "https" and urlsplit(new.url).scheme == "http":
            raise exceptions.ConnectionError(
                "the redirect leads from https to http, which is refused", response=response
            )
        status, method = response.status_code, request.method
        if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
            new.method = "GET"
        if status not in (307, 308):
            new.body = None
            for name in ("Content-Length", "Content-Type", "Transfer-Encoding"):
                new.headers.pop(name, None)
        elif new.body is not None and not isinstance(new.body, bytes):
            raise exceptions.UnrewindableBodyError(
                "the body was sent in pieces and cannot be sent again"
            )
        if _origin(request.url) != _origin(new.url):
            for name in [name for name in new.headers if is_credential(name)]:
                del new.headers[name]
        new.headers.pop("Cookie", None)
        new._cookies = self.cookies
        new.prepare_cookies()
        return new

    def get(self, url, **kwargs):
        """Send a GET request."""
        return self.request("GET", url, **kwargs)

    def options(self, url, **kwargs):
        """Send an OPTIONS request."""
        return self.request("OPTIONS", url, **kwargs)

    def head(self, url, **kwargs):
        """Send a HEAD request; a redirect is not followed."""
        kwargs.setdefault("allow_redirects", False)
        return self.request("HEAD", url, **kwargs)

    def post(self, url, data=None, json=None, **kwargs):
        """Send a POST request."""
        return self.request("POST", url, data=data, json=json, **kwargs)

    def put(self, url, data=None, **kwargs):
        """Send a PUT request."""
        return self.request("PUT", url, data=data, **kwargs)

    def patch(self, url, data=None, **kwargs):
        """Send a PATCH request."""
        return self.request("PATCH", url, data=data, **kwargs)

    def delete(self, url, **kwargs):
        """Send a DELETE request."""
        return self.request("DELETE", url, **kwargs)


def _hooks(*given):
    for hooks in given:
        found = (hooks or {}).get("response") or []
        yield from found if isinstance(found, (list, tuple)) else [found]


def _seconds(timeout):
    if isinstance(timeout, tuple):
        known = [part for part in timeout if part is not None]
        return max(known) if known else None
    return timeout


def _send_pieces(exchange, body):
    pieces = iter(lambda: body.read(1 << 20), b"") if hasattr(body, "read") else body
    for piece in pieces:
        if piece:
            exchange.write(piece.encode() if isinstance(piece, str) else piece)
    exchange.end()


def session():
    """Return a new session."""
    return Session()
