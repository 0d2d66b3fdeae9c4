"""Requests for people: the usual interface, carried by the host.

It has what programs use of the library of this name: the functions, sessions,
responses, cookies, files and errors. The host makes connections, checks
certificates and decides; there are no adapters to choose.
"""

from types import SimpleNamespace

from . import adapters, auth, cookies, exceptions, models, structures, utils
from .api import delete, get, head, options, patch, post, put, request
from .exceptions import (
    ConnectionError,
    ConnectTimeout,
    HTTPError,
    JSONDecodeError,
    ReadTimeout,
    RequestException,
    Timeout,
    TooManyRedirects,
    URLRequired,
)
from .models import PreparedRequest, Request, Response
from .sessions import Session, session
from .status_codes import codes

__version__ = "2.32.0+fumehood"

# Programs switch warnings off that are never given here.
packages = SimpleNamespace(
    urllib3=SimpleNamespace(
        disable_warnings=lambda *categories: None,
        exceptions=SimpleNamespace(InsecureRequestWarning=Warning),
    )
)
