#: {"links": [["a", "e/to-a"]]}
for path in ("a/b/c", "a/d", "e", ".hidden/x"):
    os.makedirs(path, exist_ok=True)
for path in ("a/1", "a/b/2", "a/b/c/3", "e/4", ".hidden/5", "top"):
    put(path, path.encode())
for order in (True, False):
    for root, dirs, files in sorted(os.walk(".", topdown=order)):
        print(order, root, sorted(dirs), sorted(files))
print(sorted(root for root, _, _ in os.walk(".", followlinks=True)))
import glob
import pathlib
import shutil
print(sorted(glob.glob("**", recursive=True)))
print(sorted(str(p) for p in pathlib.Path(".").rglob("[0-9]")))
attempt("copytree", lambda: (shutil.copytree("a", "copy"), sorted(os.listdir("copy")))[1])
attempt("copy", lambda: shutil.copyfile("top", "e/top2"))
attempt("same file", lambda: shutil.copyfile("top", "top"))
attempt("move", lambda: shutil.move("e/top2", "a"))
attempt("rmtree", lambda: shutil.rmtree("a/b"))
attempt("rmtree of a link", lambda: shutil.rmtree("e/to-a"))
attempt("rmtree none", lambda: shutil.rmtree("none"))
print(sorted(glob.glob("**", recursive=True)))
