#: {"stderr": true}
import sys
print("before")
sys.exit("fatal: no input")
