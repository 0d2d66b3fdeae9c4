import re
from collections import Counter

LOG = '''127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /index.html HTTP/1.0" 200 2326
10.0.0.7 - ann [10/Oct/2000:13:56:01 -0700] "POST /login?next=%2Fhome HTTP/1.1" 302 -
10.0.0.7 - ann [10/Oct/2000:13:56:02 -0700] "GET /home HTTP/1.1" 500 17
garbage line
'''
LINE = re.compile(r'''
    (?P<ip>\d+(?:\.\d+){3})\s\S+\s(?P<user>\S+)\s
    \[(?P<when>[^\]]+)\]\s
    "(?P<method>[A-Z]+)\s(?P<path>\S+)\s[^"]*"\s
    (?P<status>\d{3})\s(?P<size>\d+|-)
''', re.VERBOSE)
hits = [m.groupdict() for m in map(LINE.match, LOG.splitlines()) if m]
print(len(hits), hits[1]["path"], Counter(h["status"][0] + "xx" for h in hits))
print(re.sub(r"(\d{2})/(\w{3})/(\d{4})", lambda m: f"{m[3]}-{m[2]}-{m[1]}", hits[0]["when"]))
print(re.split(r"[,;]\s*", "a, b;c,d"), re.findall(r"(?i)\bthe\b", "The other the"))
print(re.fullmatch(r"(?:(\w)(?!\1))+", "abab"), re.search(r"(?<=\$)\d+(?=\.)", "cost $42.10").group())
print(re.sub(r"\s+", " ", " a \n b\t c ").strip(), re.escape("a.b*c"))
print([m.span() for m in re.finditer(r"é+", "caféé é")])
try:
    re.compile("(unclosed")
except re.error as error:
    print("re.error", error.pos)
