import os
import pathlib

os.makedirs("/tmp/links/deep")
os.chdir("/tmp/links")
with open("deep/file", "w") as stream:
    stream.write("text")
os.symlink("deep/file", "to-file")
os.symlink("deep", "to-directory", target_is_directory=True)
pathlib.Path("dangling").symlink_to("none")
print(open("to-file").read(), os.listdir("to-directory"))
print(os.readlink("to-file"), os.path.islink("to-file"), os.path.islink("deep/file"))
print(os.path.exists("dangling"), os.path.lexists("dangling"))
print(pathlib.Path("to-file").resolve(), os.path.realpath("to-directory"))
os.chdir("to-directory")
print(os.getcwd())
os.chdir("..")
print(os.getcwd())
try:
    os.symlink("x", "to-file")
except FileExistsError as error:
    print(error.errno, error.filename, error.filename2)
os.unlink("to-file")
print(os.path.exists("deep/file"))
