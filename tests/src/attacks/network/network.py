# Requests by records that are encoded here, and by the usual libraries.
import _fumehood, json


def call(operation, record, body=b""):
    text = json.dumps(record).encode()
    answer = _fumehood.call(operation, len(text).to_bytes(4, "little") + text + body)
    end = 4 + int.from_bytes(answer[:4], "little")
    return json.loads(answer[4:end]), answer[end:]


# What a request gives: the text of the response, or the word for its failure.
def raw(url, method="GET", headers=(), body=None, **more):
    record = {
        "method": method,
        "url": url,
        "headers": list(headers),
        "body": "none" if body is None else "bytes",
        "decode": True,
        **more,
    }
    answer, _ = call(48, record, body or b"")
    if "error" in answer:
        return answer["error"]["kind"]
    number, pieces = answer["started"]["id"], []
    answer, _ = call(50, {"id": number})
    while "error" not in answer:
        answer, piece = call(51, {"id": number, "max": 1 << 20})
        if answer == {"data": {"end": True}}:
            call(52, {"id": number})
            return b"".join(pieces).decode("latin-1")
        pieces.append(piece)
    call(52, {"id": number})
    return answer["error"]["kind"]


def words(urls, **more):
    return " ".join(raw(url, **more) for url in urls)


def library(url, **more):
    import urllib.request

    return urllib.request.urlopen(urllib.request.Request(url, **more)).read().decode("latin-1")


# Those that were not refused as records.
def unrefused(urls):
    return [url for url in urls if raw(url) not in ("denied", "invalid")]


# What came back by libraries, which read a URL in their own way first.
def by_library(urls):
    import requests

    found = []
    for url in urls:
        for get in library, lambda url: requests.get(url).text:
            try:
                found.append(get(url))
            except Exception:
                pass
    return found


# Those that got through, by record or by library.
def through(urls):
    return unrefused(urls) + by_library(urls)
