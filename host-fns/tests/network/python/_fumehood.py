"""The guest's native module, over pipes to the broker of the test."""

import struct
import sys

_to = sys.stdout.buffer
_from = sys.stdin.buffer
sys.stdout = sys.stderr

_ERRORS = {-4: PermissionError}
TOOL_WAIT = 6


def call(operation, request):
    """Carry out one brokered operation."""
    request = bytes(request)
    _to.write(struct.pack("<II", operation, len(request)) + request)
    _to.flush()
    (length,) = struct.unpack("<q", _from.read(8))
    if length < 0:
        raise _ERRORS.get(length, RuntimeError)(f"brokered call failed: {length}")
    return _from.read(length)


def exchange(operation, text, body, most):
    """Carry out one brokered operation on frames."""
    text = bytes(text)
    response = call(operation, len(text).to_bytes(4, "little") + text + bytes(body))
    end = 4 + int.from_bytes(response[:4], "little")
    return response[4:end], response[end:]


def wait(seconds):
    """Wait for started operations; give number, error or None, and value."""
    request = b"\0" if seconds is None else b"\1" + _varint(int(max(0, seconds) * 1e9))
    reader = _Reader(call(TOOL_WAIT, request))
    ended = []
    for _ in range(reader.number()):
        number = reader.number()
        if reader.number() == 0:
            ended.append((number, None, reader.bytes()))
        else:
            kind = reader.number()
            ended.append((number, kind, reader.bytes().decode("utf-8", "replace")))
    return ended


def _varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Reader:
    """Reads the records of the host."""

    def __init__(self, data):
        self._data = data
        self._at = 0

    def number(self):
        """Read a number."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def bytes(self):
        """Read bytes with their length before them."""
        length = self.number()
        start = self._at
        self._at += length
        return self._data[start : self._at]
