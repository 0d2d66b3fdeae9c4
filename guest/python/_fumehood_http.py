"""Puts the host's requests under `http.client` and `urllib.request`.

Only what moved bytes over a socket is replaced. The modules keep their
functions, errors and ways to be extended.
"""

import http.client
import io
import socket

from _fumehood_fetch import Exchange, FetchError, is_credential, title

_Connection = http.client.HTTPConnection
_Response = http.client.HTTPResponse

# The host frames messages and keeps connections.
_HOST_OWNED = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
    )
)
# Failures that show while a connection is made.
_BEFORE_SENDING = ("denied", "invalid", "name", "connect", "tls")
_LINE = 1 << 16


def raised(error):
    """Return the exception that `http.client` would raise for a failure."""
    text = error.strerror
    if error.kind == "name":
        return socket.gaierror(getattr(socket, "EAI_NONAME", -2), text)
    if error.kind == "connect":
        return ConnectionRefusedError(error.errno, text)
    if error.kind == "tls":
        return ConnectionAbortedError(error.errno, text)
    if error.kind == "closed":
        return http.client.RemoteDisconnected(text)
    if error.kind == "invalid":
        return http.client.InvalidURL(text)
    if error.kind in ("protocol", "decode", "too_large"):
        return http.client.HTTPException(text)
    return error


class _Body(io.BufferedIOBase):
    """The body of a response as a file."""

    def __init__(self, exchange):
        self._exchange = exchange
        self._piece = b""
        self._at = 0

    def readable(self):
        return True

    def _more(self, most=_LINE):
        try:
            piece = self._exchange.read(most)
        except FetchError as error:
            raise raised(error) from None
        self._piece, self._at = piece, 0
        return piece

    def read1(self, size=-1):
        if self._at >= len(self._piece) and not self._more():
            return b""
        end = len(self._piece) if size is None or size < 0 else self._at + size
        found = self._piece[self._at : end]
        self._at += len(found)
        return found

    def read(self, size=-1):
        if size is None or size < 0:
            size = float("inf")
        pieces = []
        while size > 0:
            if self._at >= len(self._piece):
                if not self._more(int(min(size, 1 << 20)) or 1):
                    break
            if not self._at and len(self._piece) <= size:
                piece, self._piece = self._piece, b""
            else:
                end = min(len(self._piece), self._at + size)
                piece = self._piece[self._at : int(end)]
                self._at += len(piece)
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def readinto1(self, buffer):
        view = memoryview(buffer).cast("B")
        found = self.read1(len(view))
        view[: len(found)] = found
        return len(found)

    def peek(self, size=0):
        if self._at >= len(self._piece):
            self._more()
        return self._piece[self._at :]

    def readline(self, limit=-1):
        pieces = []
        room = float("inf") if limit is None or limit < 0 else limit
        while room > 0:
            if self._at >= len(self._piece) and not self._more():
                break
            end = self._piece.find(b"\n", self._at) + 1 or len(self._piece)
            end = int(min(end, self._at + room))
            piece = self._piece[self._at : end]
            self._at = end
            pieces.append(piece)
            room -= len(piece)
            if piece.endswith(b"\n"):
                break
        return b"".join(pieces)

    def close(self):
        if not self.closed:
            self._exchange.close()
        super().close()


class HTTPResponse(_Response):
    """A response that the host carries."""

    def __init__(self, sock, debuglevel=0, method=None, url=None):
        """Take an exchange; `begin` waits for its head."""
        self.fp = _Body(sock)
        self._exchange = sock
        self.debuglevel = debuglevel
        self._method = method
        self.head = self.headers = self.msg = None
        self.version = self.status = self.reason = http.client._UNKNOWN
        self.chunked = False
        self.chunk_left = self.length = None
        self.will_close = True

    def begin(self):
        """Wait for the head."""
        if self.headers is not None:
            return
        try:
            head = self.head or self._exchange.head()
        except FetchError as error:
            self._close_conn()
            raise raised(error) from None
        self.code = self.status = head.status
        self.reason = head.reason or http.client.responses.get(head.status, "")
        self.version = 10 if head.version == 10 else 11
        message = http.client.HTTPMessage()
        message._headers = [(title(name), value) for name, value in head.headers]
        self.headers = self.msg = message
        length = self.headers.get("content-length")
        try:
            self.length = None if length is None else max(0, int(length))
        except ValueError:
            self.length = None
        if self._method == "HEAD" or head.status in (204, 304) or head.status < 200:
            self.length = 0
        if self.length == 0:
            self._close_conn()


class _Wire:
    """Stands where a socket is expected."""

    def __init__(self, connection):
        self._connection = connection

    def close(self):
        """Do nothing: the response holds what is open."""

    def settimeout(self, timeout):
        """Set the timeout of later requests."""
        self._connection.timeout = timeout

    def gettimeout(self):
        """Return the timeout."""
        return self._connection.timeout

    def setsockopt(self, *options):
        """Do nothing: there are no options."""

    def sendall(self, data):
        """Send a piece of the body."""
        self._connection.send(data)


class HTTPConnection(_Connection):
    """Connections to one host that the host of the sandbox makes."""

    response_class = HTTPResponse
    _scheme = "http"

    def __init__(self, host, port=None, *args, context=None, **options):
        """Remember host and port; nothing connects yet."""
        for name in ("key_file", "cert_file", "check_hostname"):
            options.pop(name, None)
        super().__init__(host, port, *args, **options)
        self._pending = None
        self._exchange = None
        self._streams = False
        self._left = None
        self._head = None

    def connect(self):
        """Do nothing: the connection comes with the request."""
        self.sock = _Wire(self)

    def set_tunnel(self, host, port=None, headers=None):
        """Refuse: proxies are the operator's to set."""
        raise OSError("a proxy is set by the operator of this sandbox, not by its code")

    def close(self):
        """Forget the present request."""
        self.sock = None
        self._pending = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def putrequest(self, method, url, skip_host=False, skip_accept_encoding=False):
        """Begin a request."""
        if self._pending is not None or self._exchange is not None:
            raise http.client.CannotSendRequest("Request-started")
        self._validate_method(method)
        url = url or "/"
        self._validate_path(url)
        self._pending = (method, url, [])
        self._method = method
        if not skip_accept_encoding:
            self.putheader("Accept-Encoding", "identity")

    def putheader(self, header, *values):
        """Add a header."""
        if self._pending is None:
            raise http.client.CannotSendHeader()
        name = header.decode("ascii") if isinstance(header, bytes) else str(header)
        texts = []
        for value in values:
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            texts.append(str(value))
        value = "\r\n\t".join(texts)
        if not http.client._is_legal_header_name(name.encode("ascii")):
            raise ValueError(f"Invalid header name {name!r}")
        if http.client._is_illegal_header_value(value.encode("latin-1")):
            raise ValueError(f"Invalid header value {value!r}")
        self._pending[2].append((name, value.replace("\r\n\t", " ")))

    def _location(self, url):
        if url.lower().startswith(("http://", "https://")):
            return url
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == self.default_port else f":{self.port}"
        slash = "" if url.startswith("/") else "/"
        return f"{self._scheme}://{host}{port}{slash}{url}"

    def endheaders(self, message_body=None, *, encode_chunked=False):
        """Send the request."""
        if self._pending is None:
            raise http.client.CannotSendHeader()
        (method, url, listed), self._pending = self._pending, None
        given = {name.lower(): value for name, value in listed}
        url = self._location(url)
        own = (self.host, f"{self.host}:{self.port}")
        headers = [
            (name, value)
            for name, value in listed
            if name.lower() not in _HOST_OWNED
            and not (name.lower() == "host" and value in own)
        ]
        body, length = message_body, None
        if isinstance(body, str):
            body = body.encode("latin-1")
        whole = body is None or isinstance(body, (bytes, bytearray, memoryview))
        streams = not whole
        if body is None and (
            "transfer-encoding" in given or given.get("content-length", "0") != "0"
        ):
            streams = True
        if streams and "content-length" in given:
            length = int(given["content-length"])
        timeout = self.timeout if isinstance(self.timeout, (int, float)) else None
        try:
            self._exchange = Exchange(
                method,
                url,
                headers,
                ... if streams else body,
                length=length,
                follow=False,
                decode=False,
                timeout=timeout,
            )
            self._left = length if streams and message_body is None else None
            self._streams = streams and message_body is None
            if streams and message_body is not None:
                for piece in _pieces(message_body):
                    self._exchange.write(piece)
                self._exchange.end()
            self._head = None if self._streams else self._exchange.head()
        except FetchError as error:
            if error.kind not in _BEFORE_SENDING and self._exchange is not None:
                # The request was made; the response is what failed.
                self._head = error
            else:
                self.close()
                raise raised(error) from None
        self.connect()

    def send(self, data):
        """Send a piece of a body that was announced."""
        if self._exchange is None or not self._streams:
            raise http.client.CannotSendRequest("Idle")
        try:
            for piece in _pieces(data):
                self._exchange.write(piece)
                if self._left is not None:
                    self._left -= len(piece)
        except FetchError as error:
            raise raised(error) from None

    def getresponse(self):
        """Wait for the response."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            raise http.client.ResponseNotReady("Idle")
        if self._streams:
            self._streams = False
            try:
                exchange.end()
            except FetchError as error:
                raise raised(error) from None
        response = self.response_class(exchange, method=self._method)
        response.head, self._head = self._head, None
        if isinstance(response.head, FetchError):
            response.close()
            raise raised(response.head) from None
        response.begin()
        return response


def _pieces(body):
    if isinstance(body, str):
        yield body.encode("latin-1")
    elif isinstance(body, (bytes, bytearray, memoryview)):
        yield body
    elif hasattr(body, "read"):
        while piece := body.read(1 << 20):
            yield piece.encode("latin-1") if isinstance(piece, str) else piece
    else:
        for piece in body:
            if piece:
                yield piece


class HTTPSConnection(HTTPConnection):
    """Encrypted connections; the host checks certificates, always."""

    default_port = 443
    _scheme = "https"


def install():
    """Replace what moved bytes."""
    http.client.HTTPConnection = HTTPConnection
    http.client.HTTPSConnection = HTTPSConnection
    http.client.HTTPResponse = HTTPResponse
    http.client._create_https_context = lambda version: None
    if "HTTPSConnection" not in http.client.__all__:
        http.client.__all__.append("HTTPSConnection")
    import urllib.request

    urllib.request.getproxies = dict
    handler = urllib.request.HTTPRedirectHandler
    redirect_request = handler.redirect_request

    def careful(self, req, fp, code, msg, headers, newurl):
        """Return the request that a redirect leads to, without credentials
        for another origin.
        """
        new = redirect_request(self, req, fp, code, msg, headers, newurl)
        if new is None:
            return None
        if req.type == "https" and new.type == "http":
            text = f"{msg} - the redirect leads from https to http, which is refused"
            raise urllib.request.HTTPError(req.full_url, code, text, headers, fp)
        if (req.type, req.host) != (new.type, new.host):
            for store in (new.headers, new.unredirected_hdrs):
                for name in [name for name in store if is_credential(name)]:
                    del store[name]
        return new

    handler.redirect_request = careful
