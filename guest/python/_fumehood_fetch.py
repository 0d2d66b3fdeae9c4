"""Network requests: the host carries them out, this module asks for them.

Everything else that speaks HTTP here (`http.client`, `urllib.request`,
`requests`, `fetch`) is built on `Exchange`.
"""

import errno
import json

import _fumehood
import _fumehood_wait

START = 48
WRITE = 49
HEAD = 50
READ = 51
CLOSE = 52

# Bytes that one operation moves at most.
PIECE = 1 << 20

# Parts of the names of headers that do not follow to another origin.
_CREDENTIALS = (
    "auth",
    "cookie",
    "token",
    "secret",
    "password",
    "api-key",
    "apikey",
    "credential",
    "session",
    "signature",
)

_MORE = b'{"data":{"end":false}}'
_LAST = b'{"data":{"end":true}}'


class FetchError(OSError):
    """A request failed; `kind` says how."""

    kind = "failed"


class FetchDenied(FetchError, PermissionError):
    """The policy or a budget refused the request: no fault of the network."""


class FetchTimeout(FetchError, TimeoutError):
    """The request took longer than it may."""


class FetchInvalid(FetchError, ValueError):
    """It is no request that can be made."""


_ERRORS = {
    "denied": (FetchDenied, errno.EACCES),
    "invalid": (FetchInvalid, errno.EINVAL),
    "name": (FetchError, errno.EHOSTUNREACH),
    "connect": (FetchError, errno.ECONNREFUSED),
    "tls": (FetchError, errno.ECONNABORTED),
    "timeout": (FetchTimeout, errno.ETIMEDOUT),
    "closed": (FetchError, errno.ECONNRESET),
}


def error_of(kind, message):
    """Return the exception for a failure that the host told of."""
    cls, number = _ERRORS.get(kind, (FetchError, errno.EIO))
    error = cls(number, message)
    error.kind = kind
    return error


def is_credential(name):
    """Tell whether a header must not follow to another origin."""
    name = name.lower()
    return any(part in name for part in _CREDENTIALS)


def _reply(response):
    """Return what a whole frame says."""
    end = 4 + int.from_bytes(response[:4], "little")
    return _said(response[4:end], response[end:])


def _said(text, piece):
    """Return the answer's text and bytes, or raise what it says."""
    if text == _MORE or text == _LAST:
        return text, piece
    answer = json.loads(text)
    failed = answer.get("error")
    if failed is not None:
        raise error_of(failed["kind"], failed["message"])
    return answer, b""


def _call(operation, text, body=b"", most=0):
    return _said(*_fumehood.exchange(operation, text, body, most))


class Head:
    """The head of a response."""

    __slots__ = (
        "status",
        "reason",
        "version",
        "url",
        "method",
        "headers",
        "decoded",
        "hops",
    )

    def __init__(self, answer):
        """Take what the host said."""
        for name in self.__slots__:
            setattr(self, name, answer[name])


class Exchange:
    """One request that is on its way.

    `body` is `None`, bytes, or `...` for a body that comes by `write`, of
    `length` bytes if that is known.
    """

    def __init__(
        self,
        method,
        url,
        headers=(),
        body=None,
        *,
        length=None,
        follow=True,
        decode=True,
        timeout=None,
    ):
        """Start the request."""
        self._id = None
        kind = "none"
        payload = b""
        if body is ... or (body is not None and len(body) > PIECE):
            kind = {"stream": {"length": length if body is ... else len(body)}}
        elif body is not None:
            kind, payload = "bytes", body
        record = {
            "method": method,
            "url": url,
            "headers": list(headers),
            "body": kind,
            "redirect": "follow" if follow else "manual",
            "decode": decode,
        }
        if timeout is not None:
            record["timeout_ms"] = max(1, int(timeout * 1000))
        answer, _ = _call(START, json.dumps(record).encode(), bytes(payload))
        self._id = answer["started"]["id"]
        if kind not in ("none", "bytes") and body is not ...:
            view = memoryview(body)
            for at in range(0, len(view), PIECE):
                self.write(view[at : at + PIECE])
            self.end()

    def write(self, piece):
        """Send a piece of the body; wait while there is no room for it."""
        view = memoryview(piece).cast("B")
        for at in range(0, len(view), PIECE):
            text = b'{"id":%d,"end":false}' % self._id
            _call(WRITE, text, view[at : at + PIECE])

    def end(self):
        """Say that the body is complete."""
        _call(WRITE, b'{"id":%d,"end":true}' % self._id)

    def head(self):
        """Wait for the head of the response."""
        answer, _ = _call(HEAD, b'{"id":%d}' % self._id)
        return Head(answer["head"])

    def read(self, most=PIECE):
        """Wait for a piece of the body; empty at its end."""
        if self._id is None:
            return b""
        most = min(most, PIECE)
        text, piece = _call(READ, b'{"id":%d,"max":%d}' % (self._id, most), b"", most)
        if text == _LAST:
            self.close()
        return piece

    async def _later(self, operation, text, most=0):
        answer, piece = _call(operation, text, b"", most)
        if type(answer) is bytes or "pending" not in answer:
            return answer, piece
        number = answer["pending"]["id"]
        from asyncio import get_running_loop

        future = get_running_loop().create_future()

        def done(kind, value):
            if future.done():
                return
            if kind is None:
                future.set_result(value)
            else:
                future.set_exception(error_of("denied" if kind == 0 else "failed", value))

        _fumehood_wait.register(number, done)
        try:
            value = await future
        except BaseException:
            _fumehood_wait.forget(number)
            self.close()
            raise
        return _reply(value)

    async def head_later(self):
        """Wait for the head while other tasks go on."""
        answer, _ = await self._later(HEAD, b'{"id":%d,"wait":false}' % self._id)
        return Head(answer["head"])

    async def read_later(self, most=PIECE):
        """Wait for a piece of the body while other tasks go on."""
        if self._id is None:
            return b""
        most = min(most, PIECE)
        request = b'{"id":%d,"max":%d,"wait":false}' % (self._id, most)
        text, piece = await self._later(READ, request, most)
        if text == _LAST:
            self.close()
        return piece

    def close(self):
        """Give the request up, or forget it if it has ended."""
        number, self._id = self._id, None
        if number is not None:
            _call(CLOSE, b'{"id":%d}' % number)

    def __del__(self):
        """Give it up when nobody holds it any more."""
        try:
            self.close()
        except Exception:
            pass


def title(name):
    """Return a header's name as it is usually written."""
    return "-".join(part.capitalize() for part in name.split("-"))


class Response:
    """What `fetch` gives: the head at once, the body when it is asked for."""

    def __init__(self, exchange, head):
        """Hold an exchange whose head has come."""
        self._exchange = exchange
        self._body = None
        self.status = self.status_code = head.status
        self.url = head.url
        self.headers = {}
        for name, value in head.headers:
            known = self.headers.get(name)
            self.headers[name] = value if known is None else f"{known}, {value}"

    @property
    def ok(self):
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    async def bytes(self):
        """Return the whole body."""
        if self._body is None:
            pieces = []
            async for piece in self.pieces():
                pieces.append(piece)
            self._body = b"".join(pieces)
        return self._body

    async def text(self, encoding="utf-8"):
        """Return the whole body as text."""
        return (await self.bytes()).decode(encoding, "replace")

    async def json(self):
        """Return the body's JSON value."""
        return json.loads(await self.bytes())

    async def pieces(self, most=PIECE):
        """Give the body in pieces, as they come."""
        while piece := await self._exchange.read_later(most):
            yield piece

    def close(self):
        """Give the rest of the response up."""
        self._exchange.close()

    def __repr__(self):
        return f"<Response [{self.status}]>"


async def fetch(
    url,
    *,
    method="GET",
    headers=None,
    body=None,
    json=None,
    redirect="follow",
    timeout=None,
):
    """Make a network request while other tasks go on.

    `body` is bytes or text, `json` a value to send as JSON. Returns a response
    with `status`, `headers`, `ok` and awaitable `bytes()`, `text()`, `json()`.
    """
    listed = [(str(name), str(value)) for name, value in dict(headers or {}).items()]
    if json is not None:
        body = _dumps(json).encode()
        if not any(name.lower() == "content-type" for name, _ in listed):
            listed.append(("content-type", "application/json"))
    if isinstance(body, str):
        body = body.encode()
    exchange = Exchange(
        method.upper(),
        url,
        listed,
        body,
        follow=redirect == "follow",
        timeout=timeout,
    )
    return Response(exchange, await exchange.head_later())


_dumps = json.dumps
