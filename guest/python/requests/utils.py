"""Small helpers that programs import."""

import codecs
from urllib.parse import quote, unquote, urlparse  # noqa: F401

from .structures import CaseInsensitiveDict


def default_user_agent(name="python-requests"):
    """Return what this package calls itself."""
    from . import __version__

    return f"{name}/{__version__}"


def default_headers():
    """Return the headers that every request starts with."""
    return CaseInsensitiveDict(
        {"User-Agent": default_user_agent(), "Accept": "*/*", "Connection": "keep-alive"}
    )


def get_encoding_from_headers(headers):
    """Return the encoding that the type of the content names or implies."""
    content = headers.get("content-type")
    if not content:
        return None
    kind, *parameters = content.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip("'\" ")
    kind = kind.strip().lower()
    if kind.startswith("text"):
        return "ISO-8859-1"
    return "utf-8" if kind == "application/json" else None


def guess_encoding(data):
    """Return the encoding of bytes that nobody described."""
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "ISO-8859-1"
    return "utf-8"


def dict_from_cookiejar(jar):
    """Return the cookies as a dictionary."""
    return {cookie.name: cookie.value for cookie in jar}


def parse_header_links(value):
    """Return the links of a `Link` header."""
    links = []
    for part in value.strip(" '\"").split(", <"):
        url, _, parameters = part.partition(";")
        link = {"url": url.strip("<> '\"")}
        for parameter in parameters.split(";"):
            key, equals, text = parameter.partition("=")
            if equals:
                link[key.strip(" '\"")] = text.strip(" '\"")
        links.append(link)
    return links
