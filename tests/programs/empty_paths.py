import os
print(os.path.exists(""), os.path.isdir(""), os.path.isfile(""))
for action in (os.stat, os.listdir, open, os.mkdir, os.remove, os.chdir):
    try:
        print(action.__name__, action(""))
    except OSError as error:
        print(action.__name__, type(error).__name__)
os.makedirs("/tmp/a/b")
os.chdir("/tmp/a/b")
os.chdir("..")
print(os.path.basename(os.getcwd()), os.listdir("."))
os.chdir("./b/../b")
print(os.path.basename(os.getcwd()))
