"""Usual HTTP code on the guest's modules, with a real broker behind them.

Run as `run.py GUEST_PYTHON_DIRECTORY`. Each function whose name begins with
`test_` is a test.
"""

import asyncio
import importlib.util
import io
import json
import pathlib
import selectors
import sys
import traceback

GUEST = pathlib.Path(sys.argv[1])
HERE = pathlib.Path(__file__).parent


class Finder:
    """Finds the guest's own modules, and none that would shadow others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Look in the guest's directory."""
        top = name.partition(".")[0]
        if name == "_fumehood":
            return importlib.util.spec_from_file_location(name, HERE / "_fumehood.py")
        if top not in ("_fumehood_fetch", "_fumehood_wait", "_fumehood_http", "requests"):
            return None
        file = GUEST.joinpath(*name.split("."))
        if file.is_dir():
            return importlib.util.spec_from_file_location(
                name, file / "__init__.py", submodule_search_locations=[str(file)]
            )
        return importlib.util.spec_from_file_location(name, file.with_suffix(".py"))


sys.meta_path.insert(0, Finder)

import _fumehood_fetch
import _fumehood_http
import _fumehood_wait

_fumehood_http.install()

import http.client
import urllib.error
import urllib.request

import requests

BASE = "http://api.test"
fetch = _fumehood_fetch.fetch


class Selector(selectors.SelectSelector):
    """Waits where the guest's loop waits."""

    def select(self, timeout=None):
        """Wait for the host if anything was started."""
        if _fumehood_wait.is_waiting():
            _fumehood_wait.wait(timeout)
            return []
        return super().select(timeout)


def run(coroutine):
    """Run a coroutine as a cell would."""
    loop = asyncio.SelectorEventLoop(Selector())
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def raises(kind, function, *args, **kwargs):
    """Return the exception that a call raises."""
    try:
        function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


def test_urlopen():
    with urllib.request.urlopen(f"{BASE}/echo?a=1") as response:
        assert response.status == 200 and response.getcode() == 200
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers.get_content_type() == "application/json"
        assert response.geturl() == f"{BASE}/echo?a=1"
        seen = json.load(response)
    assert seen["method"] == "GET" and seen["target"] == "/echo?a=1", seen
    assert seen["headers"]["user-agent"].startswith("Python-urllib/")


def test_urlopen_posts_and_sets_headers():
    request = urllib.request.Request(
        f"{BASE}/echo", data=b"x=1", headers={"X-Own": "yes"}, method="PUT"
    )
    seen = json.loads(urllib.request.urlopen(request, timeout=5).read())
    assert (seen["method"], seen["body"], seen["headers"]["x-own"]) == ("PUT", "x=1", "yes")
    assert seen["headers"]["content-length"] == "3"


def test_urlopen_errors():
    error = raises(urllib.error.HTTPError, urllib.request.urlopen, f"{BASE}/status/404")
    assert error.code == 404 and error.read() == b"status"
    denied = raises(urllib.error.URLError, urllib.request.urlopen, "https://denied.test/x")
    for part in ("denied by policy", "default-deny", "--allow denied.test", "do not retry"):
        assert part in str(denied), denied
    assert isinstance(denied.reason, PermissionError)
    missing = raises(urllib.error.URLError, urllib.request.urlopen, "http://nowhere.test/")
    assert "policy" not in str(missing) and "no address" in str(missing), missing
    refused = raises(urllib.error.URLError, urllib.request.urlopen, "http://closed.test/")
    assert isinstance(refused.reason, ConnectionRefusedError), refused
    raises((TimeoutError, urllib.error.URLError), urllib.request.urlopen, f"{BASE}/slow", timeout=0.2)


def test_urlopen_follows_redirects_without_credentials():
    request = urllib.request.Request(f"{BASE}/redirect/302?to=http://other.test/echo")
    request.add_header("Authorization", "secret")
    request.add_header("X-Plain", "kept")
    seen = json.load(urllib.request.urlopen(request))
    assert "authorization" not in seen["headers"] and seen["headers"]["x-plain"] == "kept"
    request.full_url = f"{BASE}/redirect/302?to=/echo"
    assert json.load(urllib.request.urlopen(request))["headers"]["authorization"] == "secret"


def test_urlopen_reads_by_line_and_piece():
    response = urllib.request.urlopen(f"{BASE}/lines/5")
    assert response.readline() == b"line 0\n"
    assert list(response) == [b"line 1\n", b"line 2\n", b"line 3\n", b"line 4\n"]
    response = urllib.request.urlopen(f"{BASE}/bytes/3000000")
    assert len(response.read(10)) == 10
    assert len(response.read1(100)) in range(1, 101)
    buffer = bytearray(50)
    assert response.readinto(buffer) == 50
    rest = response.read()
    assert 3000000 - 160 <= len(rest) <= 3000000 - 61 and set(rest) == {120}
    assert response.read() == b""
    cut = urllib.request.urlopen(f"{BASE}/cut")
    raises((http.client.HTTPException, ConnectionError), cut.read)


def test_http_client():
    connection = http.client.HTTPConnection("api.test", timeout=5)
    for number in range(3):
        connection.request("POST", f"/echo?{number}", body="text", headers={"X-A": "b"})
        response = connection.getresponse()
        assert (response.status, response.reason, response.version) == (200, "OK", 11)
        assert response.getheader("content-type") == "application/json"
        assert ("Content-Type", "application/json") in response.getheaders()
        assert json.loads(response.read())["body"] == "text"
        assert response.isclosed()
    connection.request("HEAD", "/echo")
    response = connection.getresponse()
    assert response.read() == b"" and response.status == 200
    connection.close()
    connection = http.client.HTTPConnection("api.test:80")
    connection.putrequest("PUT", "/echo")
    connection.putheader("Content-Length", "6")
    connection.endheaders()
    connection.send(b"abc")
    connection.send(b"def")
    assert json.loads(connection.getresponse().read())["body"] == "abcdef"
    connection.request("PUT", "/echo", body=iter([b"in ", b"pieces"]), encode_chunked=True)
    assert json.loads(connection.getresponse().read())["body"] == "in pieces"
    connection.request("PUT", "/echo", body=io.BytesIO(b"a file"))
    assert json.loads(connection.getresponse().read())["body"] == "a file"
    raises(http.client.ResponseNotReady, connection.getresponse)
    raises(ValueError, connection.request, "GET", "/", headers={"X": "a\r\nB: c"})
    raises(OSError, http.client.HTTPSConnection("x.test").set_tunnel, "y.test")
    assert http.client.HTTPSConnection("api.test").port == 443
    denied = http.client.HTTPConnection("denied.test")
    assert "denied by policy" in str(raises(PermissionError, denied.request, "GET", "/"))
    odd = http.client.HTTPConnection("api.test")
    assert "Host" in str(raises(PermissionError, odd.request, "GET", "/", headers={"Host": "evil.test"}))


def test_requests_basics():
    response = requests.get(f"{BASE}/echo", params={"q": "a b", "n": [1, 2], "none": None})
    assert response.ok and response.status_code == requests.codes.ok
    assert response.json()["target"] == "/echo?q=a+b&n=1&n=2"
    assert response.headers["CONTENT-TYPE"] == "application/json"
    assert response.url == f"{BASE}/echo?q=a+b&n=1&n=2" and response.history == []
    assert response.elapsed.total_seconds() >= 0 and response.request.method == "GET"
    response.raise_for_status()
    for method in ("post", "put", "patch", "delete", "options"):
        assert getattr(requests, method)(f"{BASE}/echo").json()["method"] == method.upper()
    assert requests.head(f"{BASE}/echo").text == ""
    assert requests.request("GET", f"{BASE}/echo").status_code == 200


def test_requests_bodies():
    seen = requests.post(f"{BASE}/echo", json={"a": [1, None]}).json()
    assert json.loads(seen["body"]) == {"a": [1, None]}
    assert seen["headers"]["content-type"] == "application/json"
    seen = requests.post(f"{BASE}/echo", data={"a": "1", "b": ["x", "y"]}).json()
    assert seen["body"] == "a=1&b=x&b=y"
    assert seen["headers"]["content-type"] == "application/x-www-form-urlencoded"
    assert requests.post(f"{BASE}/echo", data="text").json()["body"] == "text"
    assert requests.post(f"{BASE}/echo", data=b"bytes").json()["body"] == "bytes"
    assert requests.post(f"{BASE}/echo", data=io.BytesIO(b"file")).json()["body"] == "file"
    assert requests.post(f"{BASE}/echo", data=iter([b"a", b"b"])).json()["body"] == "ab"
    seen = requests.post(
        f"{BASE}/echo", files={"f": ("n.txt", b"content", "text/plain")}, data={"k": "v"}
    ).json()
    assert seen["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    for part in ('name="k"', 'name="f"; filename="n.txt"', "Content-Type: text/plain", "content"):
        assert part in seen["body"], seen
    large = b"x" * 3_000_000
    assert requests.post(f"{BASE}/length", data=large).text == "3000000"


def test_requests_headers_auth_and_cookies():
    seen = requests.get(f"{BASE}/echo", auth=("user", "pass"), headers={"X-A": "1"}).json()
    assert seen["headers"]["authorization"] == "Basic dXNlcjpwYXNz"
    assert seen["headers"]["x-a"] == "1"
    with requests.Session() as session:
        session.headers["X-Session"] = "s"
        session.params = {"always": "1"}
        response = session.get(f"{BASE}/cookie")
        assert response.cookies["token"] == "abc" and session.cookies.get("token") == "abc"
        seen = session.get(f"{BASE}/echo", cookies={"more": "m"}).json()
        assert "token=abc" in seen["headers"]["cookie"] and "more=m" in seen["headers"]["cookie"]
        assert seen["headers"]["x-session"] == "s" and seen["target"] == "/echo?always=1"
        assert "more" not in session.cookies
        assert "cookie" not in session.get("http://other.test/echo").json()["headers"]
        # A cookie of a redirect is there at the next hop.
        session.cookies.clear()
        assert "token=abc" in session.get(f"{BASE}/login").json()["headers"]["cookie"]


def test_requests_redirects():
    response = requests.get(f"{BASE}/redirect/302?to=/redirect/301?to=/echo")
    assert [hop.status_code for hop in response.history] == [302, 301]
    assert response.url == f"{BASE}/echo"
    response = requests.get(f"{BASE}/redirect/302?to=/echo", allow_redirects=False)
    assert response.status_code == 302 and response.is_redirect
    assert requests.post(f"{BASE}/redirect/302?to=/echo", data="x").json()["method"] == "GET"
    seen = requests.post(f"{BASE}/redirect/307?to=/echo", data="x").json()
    assert (seen["method"], seen["body"]) == ("POST", "x")
    headers = {"Authorization": "secret", "X-Api-Key": "secret", "X-Plain": "kept"}
    seen = requests.get(f"{BASE}/redirect/302?to=http://other.test/echo", headers=headers).json()
    assert "authorization" not in seen["headers"] and "x-api-key" not in seen["headers"]
    assert seen["headers"]["x-plain"] == "kept"
    raises(requests.TooManyRedirects, requests.get, f"{BASE}/circle")
    denied = raises(requests.ConnectionError, requests.get, f"{BASE}/redirect/302?to=http://denied.test/")
    assert "denied by policy" in str(denied)


def test_requests_errors():
    error = raises(requests.HTTPError, requests.get(f"{BASE}/status/503").raise_for_status)
    assert error.response.status_code == 503 and "503 Server Error" in str(error)
    assert not requests.get(f"{BASE}/status/404")
    denied = raises(requests.exceptions.ConnectionError, requests.get, "https://denied.test/")
    for part in ("denied by policy", "--allow denied.test", "not a fault"):
        assert part in str(denied), denied
    assert isinstance(denied, requests.RequestException) and isinstance(denied, IOError)
    raises(requests.exceptions.MissingSchema, requests.get, "api.test/x")
    raises(requests.exceptions.InvalidSchema, requests.get, "ftp://api.test/x")
    raises(requests.exceptions.InvalidURL, requests.get, "http://2130706433/")
    raises(requests.exceptions.InvalidHeader, requests.get, BASE, headers={"A": "b\r\nC: d"})
    raises(requests.Timeout, requests.get, f"{BASE}/slow", timeout=0.2)
    raises(requests.ConnectionError, requests.get, "http://nowhere.test/")
    raises(requests.exceptions.InvalidProxyURL, requests.get, BASE, proxies={"http": "http://p"})
    bad = raises(requests.exceptions.JSONDecodeError, requests.get(f"{BASE}/lines/1").json)
    assert isinstance(bad, ValueError) and isinstance(bad, requests.RequestException)
    cut = requests.get(f"{BASE}/cut", stream=True)
    raises(requests.exceptions.ChunkedEncodingError, lambda: cut.content)


def test_requests_streams():
    with requests.get(f"{BASE}/bytes/1000000", stream=True) as response:
        sizes = [len(piece) for piece in response.iter_content(300000)]
    assert sizes == [300000, 300000, 300000, 100000], sizes
    lines = list(requests.get(f"{BASE}/lines/100", stream=True).iter_lines(decode_unicode=True))
    assert lines == [f"line {number}" for number in range(100)]
    raw = requests.get(f"{BASE}/bytes/10", stream=True).raw
    assert raw.read(4) == b"xxxx" and raw.read() == b"xxxxxx"
    response = requests.get(f"{BASE}/gzip")
    assert response.text == "compressed " * 1000
    assert requests.get(f"{BASE}/text").encoding == "ISO-8859-1"


def test_fetch_at_once():
    async def main():
        responses = await asyncio.gather(*(fetch(f"{BASE}/wait/{n}") for n in range(30)))
        return [await response.text() for response in responses]

    import time

    started = time.perf_counter()
    assert run(main()) == [f"waited {n}" for n in range(30)]
    assert time.perf_counter() - started < 8


def test_fetch():
    async def main():
        response = await fetch(f"{BASE}/echo", method="post", json={"a": 1}, headers={"x-a": 1})
        seen = await response.json()
        assert response.ok and response.status == 200
        assert (seen["method"], seen["body"], seen["headers"]["x-a"]) == ("POST", '{"a": 1}', "1")
        response = await fetch(f"{BASE}/redirect/302?to=/echo")
        assert response.url == f"{BASE}/echo"
        assert (await fetch(f"{BASE}/redirect/302?to=/echo", redirect="manual")).status == 302
        assert len(await (await fetch(f"{BASE}/bytes/3000000")).bytes()) == 3000000
        try:
            await fetch("https://denied.test/")
        except PermissionError as error:
            assert "denied by policy" in str(error)
        else:
            raise AssertionError("not denied")
        try:
            await asyncio.wait_for(fetch(f"{BASE}/slow"), 0.2)
        except asyncio.TimeoutError:
            pass
        else:
            raise AssertionError("no timeout")
        await asyncio.sleep(0.01)

    run(main())
    assert not _fumehood_wait.is_waiting()


def test_closed_and_forgotten_requests_leave_nothing_open():
    for _ in range(300):
        requests.get(f"{BASE}/bytes/100000", stream=True)
    for _ in range(300):
        urllib.request.urlopen(f"{BASE}/echo").close()


def main():
    """Run every test; the exit code tells whether all passed."""
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
        except BaseException:
            failed += 1
            print(f"FAILED {name}", file=sys.stderr)
            traceback.print_exc()
    sys.exit(1 if failed else 0)


main()
