# Calls of tools by records that are encoded here.
import _fumehood, json

KINDS = ["Denied", "Arguments", "Failed", "TimedOut", "TooLarge", "Unknown"]


def number(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def text(data):
    return number(len(data)) + data


class Reader:
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
    return Reader(_fumehood.call(4, text(name.encode()) + text(arguments))).reply()


def tool(name, **arguments):
    return raw(name, json.dumps(arguments).encode())


def start(name, **arguments):
    request = text(name.encode()) + text(json.dumps(arguments).encode())
    reader = Reader(_fumehood.call(5, request))
    return reader.reply() if reader.number() == 0 else reader.number()


def wait():
    reader = Reader(_fumehood.call(6, b"\0"))
    return [(reader.number(), reader.reply()) for _ in range(reader.number())]


def search(query, limit):
    reader = Reader(_fumehood.call(8, text(query.encode()) + number(limit)))
    return [(reader.text(), reader.text()) for _ in range(reader.number())]
