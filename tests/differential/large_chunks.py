import hashlib
block = bytes(range(256)) * 4096
digest = hashlib.sha256()
with open("big", "wb", buffering=0) as file:
    for n in range(3):
        chunk = bytes([n]) + block + b"tail"
        done = 0
        while done < len(chunk):
            done += file.write(chunk[done:])
        digest.update(chunk)
print(os.path.getsize("big"), digest.hexdigest())
with open("big", "rb") as file:
    whole = file.read()
    print(len(whole), hashlib.sha256(whole).hexdigest())
    file.seek(len(block))
    print(file.read(16), file.tell())
    buffer = bytearray(5000)
    print(file.seek(-3000, 2) > 0, file.readinto(buffer), bytes(buffer[:4]))
with open("big", "rb") as file:
    sizes = [len(part) for part in iter(lambda: file.read(1 << 19), b"")]
print(sizes)
with open("lines", "w") as file:
    for n in range(20000):
        file.write(f"{n}:{'x' * (n % 50)}\n")
with open("lines") as file:
    print(sum(1 for _ in file), os.path.getsize("lines"))
with open("lines") as file:
    lines = file.readlines()
    print(lines[12345].strip(), len(lines[-1]))
with open("sparse", "wb") as file:
    file.seek(5_000_000)
    file.write(b"end")
print(os.path.getsize("sparse"), get("sparse")[4_999_998:])
