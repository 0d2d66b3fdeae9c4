import bz2
import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import zipfile
import zlib

payload = b"".join(b"line %d\n" % n for n in range(2000))
with tempfile.TemporaryDirectory() as place:
    path = os.path.join(place, "data.txt.gz")
    with gzip.open(path, "wb", compresslevel=6) as file:
        file.write(payload)
    with gzip.open(path, "rt") as file:
        print(sum(1 for _ in file), os.path.getsize(path) < len(payload))
    with gzip.open(path) as file:
        file.seek(5000)
        print(file.readline(), file.tell())
    archive = os.path.join(place, "a.zip")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("dir/one.txt", "one")
        z.write(path, "data.gz")
    with zipfile.ZipFile(archive) as z:
        print(z.namelist(), z.testzip(), z.read("dir/one.txt"), z.getinfo("data.gz").file_size == os.path.getsize(path))
        z.extractall(os.path.join(place, "unzipped"))
    print(sorted(os.listdir(os.path.join(place, "unzipped"))))
    tarball = os.path.join(place, "a.tar.gz")
    with tarfile.open(tarball, "w:gz") as t:
        t.add(os.path.join(place, "unzipped"), arcname="root")
        info = tarfile.TarInfo("memo.txt")
        info.size = 4
        t.addfile(info, io.BytesIO(b"memo"))
    with tarfile.open(tarball) as t:
        print(sorted(t.getnames()), t.extractfile("memo.txt").read())
        t.extractall(os.path.join(place, "untarred"), filter="data")
    print(open(os.path.join(place, "untarred/root/dir/one.txt")).read())
print(os.path.exists(place), zlib.crc32(payload), hashlib.sha256(payload).hexdigest()[:16], hashlib.md5(b"").hexdigest())
decompressor = zlib.decompressobj()
squeezed = zlib.compress(payload, 9)
print(decompressor.decompress(squeezed, 10), len(decompressor.unconsumed_tail) > 0)
print(hashlib.blake2b(b"x", digest_size=8).hexdigest(), hashlib.new("sha1", b"x").hexdigest()[:8])
