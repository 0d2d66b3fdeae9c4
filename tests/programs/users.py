import getpass
import grp
import os
import pwd

print(pwd.getpwuid(os.getuid()).pw_name, pwd.getpwnam("agent").pw_dir, len(pwd.getpwall()))
print(grp.getgrgid(os.getgid()).gr_name, getpass.getuser(), os.path.expanduser("~/x"))
for action in (lambda: pwd.getpwnam("nobody"), lambda: grp.getgrgid(1)):
    try:
        action()
    except KeyError as error:
        print(error)
