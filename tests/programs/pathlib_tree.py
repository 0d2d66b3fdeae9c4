import errno
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath

root = Path(tempfile.mkdtemp(prefix="tree-"))
(root / "src" / "pkg").mkdir(parents=True)
(root / "src" / "pkg" / "__init__.py").write_text("x = 1\n")
(root / "src" / "pkg" / "a.tar.gz").write_bytes(b"\x00\x01")
(root / "README.md").write_text("# héllo\n", encoding="utf-8")
show = lambda paths: sorted(p.relative_to(root).as_posix() for p in paths)
print(show(root.rglob("*")))
print(show(root.glob("**/*.py")), show(root.glob("*.md")), show(root.iterdir()))
p = root / "src/pkg/a.tar.gz"
print(p.name, p.stem, p.suffix, p.suffixes, p.parent.name, p.with_suffix(".zip").name, p.exists(), p.is_file())
print((root / "README.md").read_text(encoding="utf-8").strip(), (root / "README.md").stat().st_size)
print(PurePosixPath("/a/b/../c").parts, Path("a") / "/b", Path("x/./y//z"))
(root / "README.md").rename(root / "READ.me")
(root / "READ.me").touch(exist_ok=True)
try:
    (root / "none").read_text()
except FileNotFoundError as error:
    print(type(error).__name__, error.errno == errno.ENOENT, os.path.basename(error.filename))
try:
    (root / "src").mkdir()
except FileExistsError as error:
    print(type(error).__name__, error.errno == errno.EEXIST)
(root / "READ.me").unlink()
(root / "READ.me").unlink(missing_ok=True)
for directory, folders, files in os.walk(root):
    print(os.path.relpath(directory, root), sorted(folders), sorted(files))
shutil.copytree(root / "src", root / "copy")
print(show((root / "copy").rglob("*")))
shutil.rmtree(root)
print(root.exists(), Path.cwd() == Path(os.getcwd()))
