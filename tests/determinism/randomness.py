import os, random, secrets, tempfile, uuid

print(random.random(), random.getrandbits(100), random.choice("abcdef"))
print(uuid.uuid4(), secrets.token_urlsafe(), secrets.randbelow(10**9), os.urandom(16).hex())
print(random.Random().random(), random.SystemRandom().random())
print(tempfile.mkdtemp(), tempfile.mkstemp()[1])
print({"a", "b", "c", "d"}, hash("text"), hash(b"bytes"), hash(object()), id(object()))
