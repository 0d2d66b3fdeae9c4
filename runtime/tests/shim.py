# Tools by the operations of the guest's ABI.
import _fumehood, json

KINDS = ["Denied", "Arguments", "Failed", "TimedOut", "TooLarge", "Unknown"]

def _number(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)

def _text(data):
    return _number(len(data)) + data

class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self):
        n = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n

    def text(self):
        length = self.number()
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def reply(self):
        if self.number() == 0:
            return json.loads(self.text())
        return [KINDS[self.number()], self.text()]

def raw(name, arguments):
    request = _text(name.encode()) + _text(arguments)
    return _Reader(_fumehood.call(4, request)).reply()

def tool(name, **arguments):
    return raw(name, json.dumps(arguments).encode())

def start(name, **arguments):
    request = _text(name.encode()) + _text(json.dumps(arguments).encode())
    reader = _Reader(_fumehood.call(5, request))
    return reader.reply() if reader.number() == 0 else reader.number()

def wait():
    reader = _Reader(_fumehood.call(6, b"\0"))
    return [(reader.number(), reader.reply()) for _ in range(reader.number())]

def search(query):
    reader = _Reader(_fumehood.call(8, _text(query.encode()) + _number(10)))
    return [(reader.text(), reader.text()) for _ in range(reader.number())]

def describe(name):
    return json.loads(_fumehood.call(9, _text(name.encode())))
