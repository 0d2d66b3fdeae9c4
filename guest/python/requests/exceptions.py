"""The errors of this package."""

import json


class RequestException(IOError):
    """Something went wrong with a request."""

    def __init__(self, *args, **kwargs):
        """Keep the request and the response, if there are any."""
        self.response = kwargs.pop("response", None)
        self.request = kwargs.pop("request", None)
        if self.response is not None and self.request is None:
            self.request = getattr(self.response, "request", None)
        super().__init__(*args, **kwargs)


class InvalidJSONError(RequestException):
    """A value is no JSON."""


class JSONDecodeError(InvalidJSONError, json.JSONDecodeError):
    """The body of a response is no JSON."""

    def __init__(self, *args, **kwargs):
        """Build both bases."""
        json.JSONDecodeError.__init__(self, *args)
        InvalidJSONError.__init__(self, *self.args, **kwargs)

    def __reduce__(self):
        return json.JSONDecodeError.__reduce__(self)


class HTTPError(RequestException):
    """The status is one of failure."""


class ConnectionError(RequestException):
    """No connection came about, or it ended, or the policy refused it."""


class ProxyError(ConnectionError):
    """A proxy failed."""


class SSLError(ConnectionError):
    """The encrypted connection could not be made."""


class Timeout(RequestException):
    """It took too long."""


class ConnectTimeout(ConnectionError, Timeout):
    """Connecting took too long."""


class ReadTimeout(Timeout):
    """The response took too long."""


class URLRequired(RequestException):
    """There is no URL."""


class TooManyRedirects(RequestException):
    """The request was redirected too often."""


class MissingSchema(RequestException, ValueError):
    """The URL has no scheme."""


class InvalidSchema(RequestException, ValueError):
    """The scheme is neither http nor https."""


class InvalidURL(RequestException, ValueError):
    """The URL is none."""


class InvalidHeader(RequestException, ValueError):
    """A header is none."""


class InvalidProxyURL(InvalidURL):
    """A proxy was asked for; the operator sets it."""


class ChunkedEncodingError(RequestException):
    """The body ended too early."""


class ContentDecodingError(RequestException):
    """The body could not be decompressed."""


class StreamConsumedError(RequestException, TypeError):
    """The body was read before."""


class RetryError(RequestException):
    """Tried too often."""


class UnrewindableBodyError(RequestException):
    """A body cannot be sent again."""


class RequestsWarning(Warning):
    """The base of warnings."""
