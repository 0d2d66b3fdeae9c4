"""Requests before they are sent, and responses."""

import datetime
import json as _json
import os
from http.client import responses as _reasons
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from _fumehood_fetch import FetchError, title

from . import exceptions
from .auth import HTTPBasicAuth
from .cookies import RequestsCookieJar, cookie_header, cookiejar_from_dict
from .status_codes import codes
from .structures import CaseInsensitiveDict
from .utils import get_encoding_from_headers, guess_encoding, parse_header_links

_SAFE = "!#$%&'()*+,/:;=?@[]~"
REDIRECTS = (301, 302, 303, 307, 308)


def raised(error, request=None):
    """Return the exception of this package for a failure."""
    kinds = {
        "denied": exceptions.ConnectionError,
        "invalid": exceptions.InvalidURL,
        "name": exceptions.ConnectionError,
        "connect": exceptions.ConnectionError,
        "tls": exceptions.SSLError,
        "timeout": exceptions.ReadTimeout,
        "protocol": exceptions.ConnectionError,
        "closed": exceptions.ConnectionError,
        "too_large": exceptions.ContentDecodingError,
        "decode": exceptions.ContentDecodingError,
        "redirect": exceptions.TooManyRedirects,
    }
    kind = kinds.get(error.kind, exceptions.RequestException)
    if kind is exceptions.ReadTimeout and "connecting" in (error.strerror or ""):
        kind = exceptions.ConnectTimeout
    return kind(error.strerror, request=request)


class Request:
    """A request as a program describes it."""

    def __init__(
        self,
        method=None,
        url=None,
        headers=None,
        files=None,
        data=None,
        params=None,
        auth=None,
        cookies=None,
        hooks=None,
        json=None,
    ):
        """Keep what was given."""
        self.method, self.url = method, url
        self.headers, self.files = headers or {}, files or []
        self.data, self.params = data or [], params or {}
        self.auth, self.cookies = auth, cookies
        self.hooks, self.json = hooks or {}, json

    def prepare(self):
        """Return the request as it is sent."""
        prepared = PreparedRequest()
        prepared.prepare(
            self.method,
            self.url,
            self.headers,
            self.files,
            self.data,
            self.params,
            self.auth,
            self.cookies,
            self.json,
        )
        return prepared

    def __repr__(self):
        return f"<Request [{self.method}]>"


class PreparedRequest:
    """A request as it is sent."""

    def __init__(self):
        """Start with nothing."""
        self.method = self.url = self.body = None
        self.headers = CaseInsensitiveDict()
        self._cookies = RequestsCookieJar()
        self.hooks = {}

    def prepare(
        self,
        method=None,
        url=None,
        headers=None,
        files=None,
        data=None,
        params=None,
        auth=None,
        cookies=None,
        json=None,
    ):
        """Fill every part in."""
        self.method = method.upper() if method else method
        self.prepare_url(url, params)
        self.headers = CaseInsensitiveDict(
            {_text(name): _text(value) for name, value in (headers or {}).items()}
        )
        for name, value in self.headers.items():
            if any(end in name + value for end in "\r\n\0"):
                raise exceptions.InvalidHeader(f"Invalid header {name!r}: {value!r}")
        self._cookies = (
            cookies if isinstance(cookies, RequestsCookieJar) else cookiejar_from_dict(cookies)
        )
        self.prepare_body(data, files, json)
        self.prepare_cookies()
        self.prepare_auth(auth)

    def prepare_url(self, url, params):
        """Make the URL whole."""
        url = _text(url).lstrip()
        parts = urlsplit(url)
        if not parts.scheme:
            raise exceptions.MissingSchema(
                f"Invalid URL {url!r}: No scheme supplied. Perhaps you meant https://{url}?"
            )
        if parts.scheme.lower() not in ("http", "https"):
            raise exceptions.InvalidSchema(f"No connection adapters were found for {url!r}")
        if not parts.hostname:
            raise exceptions.InvalidURL(f"Invalid URL {url!r}: No host supplied")
        self._login = (parts.username, parts.password)
        host = parts.netloc.rpartition("@")[2]
        more = params if isinstance(params, str) else _encode_params(params)
        query = "&".join(part for part in (parts.query, more) if part)
        path = quote(parts.path or "/", safe=_SAFE)
        query = quote(query, safe=_SAFE)
        self.url = urlunsplit((parts.scheme, host, path, query, ""))

    def prepare_body(self, data, files=None, json=None):
        """Make the body, and the headers that describe it."""
        body, kind = None, None
        if not data and json is not None:
            try:
                body = _json.dumps(json, allow_nan=False).encode()
            except ValueError as error:
                raise exceptions.InvalidJSONError(error, request=self) from None
            kind = "application/json"
        elif files:
            body, kind = _encode_files(files, data)
        elif isinstance(data, (bytes, bytearray)):
            body = bytes(data)
        elif isinstance(data, str):
            body, kind = data.encode(), "application/x-www-form-urlencoded"
        elif hasattr(data, "read") or (
            hasattr(data, "__iter__") and not isinstance(data, (dict, list, tuple))
        ):
            body = data
        elif data:
            body = _encode_params(data).encode()
            kind = "application/x-www-form-urlencoded"
        self.body = body
        if kind and "content-type" not in self.headers:
            self.headers["Content-Type"] = kind
        if isinstance(body, bytes):
            self.headers["Content-Length"] = str(len(body))
        elif body is None and self.method not in ("GET", "HEAD"):
            self.headers["Content-Length"] = "0"

    def prepare_cookies(self):
        """Add the cookies that belong to the URL."""
        if "cookie" not in self.headers:
            header = cookie_header(self._cookies, self.url)
            if header is not None:
                self.headers["Cookie"] = header

    def prepare_auth(self, auth):
        """Add who asks."""
        if auth is None and self._login[0]:
            from urllib.parse import unquote

            auth = tuple(unquote(part or "") for part in self._login)
        if isinstance(auth, tuple) and len(auth) == 2:
            auth = HTTPBasicAuth(*auth)
        if auth is not None:
            changed = auth(self)
            if changed is not None and changed is not self:
                self.__dict__.update(changed.__dict__)

    def copy(self):
        """Return a copy."""
        new = PreparedRequest()
        new.__dict__.update(self.__dict__)
        new.headers = self.headers.copy()
        return new

    @property
    def path_url(self):
        """Path and query."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def __repr__(self):
        return f"<PreparedRequest [{self.method}]>"


def _text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _encode_params(params):
    if not params:
        return ""
    if isinstance(params, bytes):
        return params.decode()
    pairs = params.items() if hasattr(params, "items") else params
    listed = []
    for name, values in pairs:
        if values is None:
            continue
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            values = [values]
        listed.extend((name, value) for value in values if value is not None)
    return urlencode(listed)


def _encode_files(files, data):
    boundary = os.urandom(16).hex()
    parts = []

    def add(name, content, filename=None, kind=None, headers=None):
        disposition = f'form-data; name="{_quoted(name)}"'
        if filename is not None:
            disposition += f'; filename="{_quoted(filename)}"'
        lines = [f"--{boundary}", f"Content-Disposition: {disposition}"]
        if kind:
            lines.append(f"Content-Type: {kind}")
        lines.extend(f"{key}: {value}" for key, value in (headers or {}).items())
        head = "\r\n".join(lines) + "\r\n\r\n"
        parts.append(head.encode() + content + b"\r\n")

    pairs = data.items() if hasattr(data, "items") else (data or [])
    for name, values in pairs:
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            values = [values]
        for value in values:
            if value is not None:
                add(name, value if isinstance(value, bytes) else str(value).encode())
    for name, given in files.items() if hasattr(files, "items") else files:
        filename, content, kind, headers = None, given, None, None
        if isinstance(given, (tuple, list)):
            filename, content, kind, headers = (*given, None, None)[:4]
        else:
            filename = os.path.basename(str(getattr(given, "name", name)))
        if hasattr(content, "read"):
            content = content.read()
        if isinstance(content, str):
            content = content.encode()
        if content is not None:
            add(name, bytes(content), filename, kind, headers)
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def _quoted(text):
    text = text.decode() if isinstance(text, bytes) else str(text)
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


class _Raw:
    """The body as a file."""

    def __init__(self, response):
        self._response = response
        self._rest = b""
        self.decode_content = True

    def read(self, amt=None, decode_content=None):
        """Read some or all of the body."""
        pieces, size = [self._rest], len(self._rest)
        self._rest = b""
        while amt is None or size < amt:
            piece = self._response._read(1 << 20 if amt is None else amt - size)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        data = b"".join(pieces)
        if amt is not None:
            data, self._rest = data[:amt], data[amt:]
        return data

    def stream(self, amt=65536, decode_content=None):
        """Give the body in pieces."""
        while piece := self.read(amt):
            yield piece

    def readable(self):
        """Tell that it can be read."""
        return True

    def close(self):
        """Give the rest up."""
        self._response.close()


class Response:
    """What a server answered."""

    def __init__(self):
        """Start with nothing."""
        self._content = False
        self._content_consumed = False
        self._exchange = None
        self.status_code = self.url = self.encoding = self.reason = self.request = None
        self.headers = CaseInsensitiveDict()
        self.history = []
        self.cookies = RequestsCookieJar()
        self.elapsed = datetime.timedelta(0)
        self.raw = _Raw(self)
        self.connection = None

    def _take(self, exchange, head):
        self._exchange = exchange
        self.status_code = head.status
        self.reason = head.reason or _reasons.get(head.status, "")
        self.url = head.url
        for name, value in head.headers:
            known = self.headers.get(name)
            self.headers[title(name)] = value if known is None else f"{known}, {value}"
        self.encoding = get_encoding_from_headers(self.headers)

    def _read(self, most):
        if self._exchange is None:
            return b""
        try:
            piece = self._exchange.read(max(1, most))
        except FetchError as error:
            if error.kind == "closed":
                raise exceptions.ChunkedEncodingError(error.strerror, request=self.request) from None
            raise raised(error, self.request) from None
        return piece

    def iter_content(self, chunk_size=1, decode_unicode=False):
        """Give the body in pieces of at most this many bytes."""
        if self._content_consumed and isinstance(self._content, bool):
            raise exceptions.StreamConsumedError()
        if chunk_size is not None and not isinstance(chunk_size, int):
            raise TypeError(f"chunk_size must be an int, it is instead a {type(chunk_size)}.")

        def pieces():
            if isinstance(self._content, bytes):
                step = chunk_size or len(self._content) or 1
                for at in range(0, len(self._content), step):
                    yield self._content[at : at + step]
                return
            if chunk_size is None:
                while piece := self._read(1 << 20):
                    yield piece
            else:
                while piece := self.raw.read(chunk_size):
                    yield piece
            self._content_consumed = True

        if decode_unicode and self.encoding:
            import codecs

            return _decoded(pieces(), codecs.getincrementaldecoder(self.encoding)("replace"))
        return pieces()

    def iter_lines(self, chunk_size=512, decode_unicode=False, delimiter=None):
        """Give the body line by line."""
        pending = None
        for chunk in self.iter_content(max(chunk_size, 8192), decode_unicode):
            if pending is not None:
                chunk = pending + chunk
            lines = chunk.split(delimiter) if delimiter else chunk.splitlines()
            last = lines and lines[-1] and chunk and lines[-1][-1] == chunk[-1]
            pending = lines.pop() if last else None
            yield from lines
        if pending is not None:
            yield pending

    @property
    def content(self):
        """The whole body."""
        if self._content is False:
            if self._content_consumed:
                raise RuntimeError("The content for this response was already consumed")
            self._content = b"".join(self.iter_content(None)) if self._exchange else b""
            self._content_consumed = True
        return self._content

    @property
    def apparent_encoding(self):
        """The encoding that the body looks like."""
        return guess_encoding(self.content)

    @property
    def text(self):
        """The whole body as text."""
        encoding = self.encoding or self.apparent_encoding
        try:
            return self.content.decode(encoding, "replace")
        except LookupError:
            return self.content.decode("utf-8", "replace")

    def json(self, **kwargs):
        """Return the JSON value of the body."""
        try:
            if not self.encoding and self.content:
                return _json.loads(self.content.decode("utf-8-sig"), **kwargs)
            return _json.loads(self.text, **kwargs)
        except UnicodeDecodeError:
            return _json.loads(self.text, **kwargs)
        except _json.JSONDecodeError as error:
            raise exceptions.JSONDecodeError(
                error.msg, error.doc, error.pos, response=self
            ) from None

    @property
    def ok(self):
        """Whether the status is not one of failure."""
        return self.status_code < 400

    @property
    def is_redirect(self):
        """Whether it leads elsewhere."""
        return "location" in self.headers and self.status_code in REDIRECTS

    @property
    def is_permanent_redirect(self):
        """Whether it leads elsewhere for good."""
        return self.is_redirect and self.status_code in (
            codes.moved_permanently,
            codes.permanent_redirect,
        )

    @property
    def links(self):
        """The links of the `Link` header, by their relation."""
        header = self.headers.get("link")
        links = parse_header_links(header) if header else []
        return {link.get("rel") or link.get("url"): link for link in links}

    def raise_for_status(self):
        """Raise `HTTPError` if the status is one of failure."""
        if 400 <= self.status_code < 500:
            blame = "Client"
        elif 500 <= self.status_code < 600:
            blame = "Server"
        else:
            return
        message = f"{self.status_code} {blame} Error: {self.reason} for url: {self.url}"
        raise exceptions.HTTPError(message, response=self)

    def close(self):
        """Give the rest of the body up."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def __bool__(self):
        return self.ok

    def __iter__(self):
        return self.iter_content(128)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()

    def __repr__(self):
        return f"<Response [{self.status_code}]>"


def _decoded(pieces, decoder):
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    if text := decoder.decode(b"", True):
        yield text
