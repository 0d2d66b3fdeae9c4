"""A second verifier of audit logs, written from docs/audit-format.md alone.

python3 verify.py LOG [--install-key HEX] [--witness FILE]
Prints `intact`, `broken N` or `unverifiable WHAT…`; exits with 0, 1 or 2.
"""
import argparse, functools, hashlib, json, re, sys
from ed25519 import verify

ORDER = """v seq time_us type session tier guest policy program every durability witness call parent op target to
decision rule generation ended error count failed budget before after bytes_in bytes_out sha256 preview us unknown
last_signed torn_bytes torn_sha256 at hash install key cert prev sig""".split()
HEX = dict(guest=64, policy=64, program=64, sha256=64, torn_sha256=64, hash=64, install=64, key=64, prev=64, cert=128, sig=128)
TEXT = "type session tier durability op target to decision rule ended error budget preview".split()
COMMON, CERT = "seq time_us type session prev ", "install key cert sig "
CALL = COMMON + "tier call parent op target decision rule generation budget before after bytes_in bytes_out "
TORN, ENTRY = "torn_bytes torn_sha256", COMMON + CERT + "at hash"
LOG = {"header": (COMMON + CERT + "v tier guest policy every durability", "program witness"), "checkpoint": (COMMON + "sig", ""),
       "intent": (CALL, "to policy sha256 preview"), "outcome": (CALL + "ended", "to policy error sha256 us"), "sum": (CALL + "count failed", "to policy"),
       "recovery": (COMMON + CERT + "last_signed unknown", TORN), "close": (COMMON + "sig unknown", "")}
WITNESS = {kind: (ENTRY, TORN) for kind in "open checkpoint recovery close".split()} | {"removed": (COMMON + CERT, TORN)}
verify = functools.lru_cache(None)(verify)  # a fuzzer asks the same again


class Broken(Exception):
    pass


def need(condition):
    if not condition:
        raise Broken


def parse(raw, kinds):
    try:
        line = json.loads(raw.decode("ascii"))
        need(type(line) is dict and json.dumps(line, separators=(",", ":")).encode() == raw and len(raw) <= 131072)
    except (ValueError, RecursionError):
        raise Broken
    required, optional = map(str.split, kinds.get(line["type"], "") if type(line.get("type")) is str and line["type"] in kinds else need(False))
    need(set(required) <= set(line) <= set(required + optional) and list(line) == [key for key in ORDER if key in line])
    for key, value in line.items():
        if key in HEX:
            need(type(value) is str and re.fullmatch("[0-9a-f]{%d}" % HEX[key], value))
        elif key in TEXT:
            need(type(value) is str and not re.search("[\ud800-\udfff]", value))
        else:
            need(type(value) is int and 0 <= value < 2**64)
    return line


def lines(data, kinds):
    """Yields (line, bytes, hash) along the chain; None where it breaks; and the torn end."""
    parts, prev, seq, time, at, first = data.split(b"\n"), bytes(32), 0, 0, 0, 0
    while at < len(parts) - 1:
        torn, first = None, at
        while at < len(parts) - 1 and parts[at].endswith(b"#"):
            at += 1
        try:
            need(all(len(part) <= 131073 for part in parts[first:at]))
            if at == len(parts) - 1:  # perhaps a recovery that was torn as well
                break
            if at > first:
                aside = b"\n".join(parts[first:at])
                torn = [len(aside), hashlib.sha256(aside).hexdigest()]
            raw = parts[at]
            line = parse(raw, kinds)
            need(line["seq"] == seq and line["prev"] == prev.hex() and line["time_us"] >= time)
            need(torn == ([line.get("torn_bytes"), line.get("torn_sha256")] if TORN.split()[0] in line or TORN.split()[1] in line else None))
        except Broken:
            yield None, seq, None
            return
        prev, seq, time, at = hashlib.sha256(prev + raw).digest(), seq + 1, line["time_us"], at + 1
        first = at
        yield line, raw, prev.hex()
    if len(parts[-1]) > 131073:
        yield None, seq, None
    else:
        yield "end", seq, b"\n".join(parts[first:])


def certified(line):
    return verify(bytes.fromhex(line["install"]), f"fumehood audit certificate v1\n{line['session']}\n{line['key']}\n".encode(), bytes.fromhex(line["cert"]))


def signed(line, raw, key, purpose):
    return verify(bytes.fromhex(key), f"fumehood audit {purpose} v1\n".encode() + raw[:-138], bytes.fromhex(line["sig"]))


def entries(data, session, install, state):
    def holds(line, raw):
        return line["install"] == install and certified(line) and signed(line, raw, line["key"], "witness")

    last = None  # of another session, not checked: the signature of the last entry covers all before it
    for line, raw, _ in lines(data, WITNESS):
        if line == "end":
            state["holds"] = last is None or holds(*last)
            return
        own = line is not None and line["session"] == session
        if line is None or own and not holds(line, raw):
            state["holds"] = False
            return
        last = None if own else (line, raw)
        if own and "at" in line:
            yield line


def check(log, trusted=None, witness=None):
    missing, state, opened, header, closed, last, unsigned, ahead, seen = set(), {"holds": True}, set(), None, False, 0, 0, None, False
    for line, raw, hashed in lines(log, LOG):
        if line == "end":
            seq, torn = raw, hashed
            break
        seq = raw if line is None else line["seq"]
        try:
            need(line is not None and (seq == 0) == (line["type"] == "header") and (seq == 0 or line["session"] == header["session"]))
            kind = line["type"]
            need(not closed or kind == "recovery")
            if kind in ("header", "recovery"):
                need((kind == "recovery" or line["v"] == 1) and (trusted is None or line["install"] == trusted) and certified(line))
                need(kind == "header" or line["last_signed"] == last and line["install"] == header["install"])
                header, key, opened = header or line, line["key"], set()
            if kind in ("intent", "outcome", "sum"):
                need(line["decision"] in ("allow", "deny", "ask"))
                need(kind != "outcome" or line["decision"] == "allow" and line["call"] in opened)
                if kind == "intent" and line["decision"] == "allow":
                    need(line["call"] not in opened and len(opened) < 100000)
                    opened.add(line["call"])
                opened -= {line["call"]} if kind == "outcome" else set()
                unsigned += 1
                need(unsigned <= header["every"])
            else:
                need(signed(line, raw, key, "log"))
                last, unsigned, closed = seq, 0, kind == "close"
            if seq == 0 and witness is not None:
                following = entries(witness, line["session"], line["install"], state)
                ahead = next(following, None)
                if ahead and ahead["at"] == 0 and "witness" in line and ahead["seq"] != line["witness"]:
                    missing.add("witness_entry")
            while ahead and ahead["at"] <= seq:
                need(ahead["at"] == seq and ahead["hash"] == hashed)
                seen, ahead = True, next(following, None)
        except Broken:
            return "broken", seq
    if torn and closed or ahead:
        return "broken", seq
    if header is None:
        return "unverifiable", {"log"}
    missing |= ({"install_key"} if trusted is None else set()) | ({"witness"} if "witness" in header and witness is None else set())
    if not state["holds"]:
        missing.add("whole_witness")
    elif "witness" in header and witness is not None and not seen and seq > 1:
        missing.add("witness_entry")
    return ("unverifiable", missing) if missing else ("intact", last)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--install-key")
    parser.add_argument("--witness")
    arguments = parser.parse_args()
    witness = open(arguments.witness, "rb").read() if arguments.witness else None
    verdict, what = check(open(arguments.log, "rb").read(), arguments.install_key, witness)
    print(verdict, *(sorted(what) if isinstance(what, set) else [what]))
    sys.exit(["intact", "broken", "unverifiable"].index(verdict))
