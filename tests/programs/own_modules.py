import importlib
import os
import sys

os.makedirs("/tmp/lib/shapes", exist_ok=True)
with open("/tmp/lib/shapes/__init__.py", "w") as file:
    file.write("from .circle import area\n__all__ = ['area']\nNAME = __name__\n")
with open("/tmp/lib/shapes/circle.py", "w") as file:
    file.write("import math\ndef area(r):\n    return round(math.pi * r * r, 3)\n")
with open("/tmp/lib/config.py", "w") as file:
    file.write("VALUE = 1\nprint('loading', __name__)\n")
sys.path.insert(0, "/tmp/lib")
import shapes
import config
from shapes.circle import area
print(shapes.area(2), area is shapes.area, shapes.NAME, config.VALUE)
with open("/tmp/lib/config.py", "w") as file:
    file.write("VALUE = 'changed'\n")
sys.dont_write_bytecode = True
sys.modules.pop("config")
importlib.invalidate_caches()
import config
print(config.VALUE, "config" in sys.modules, os.path.basename(config.__file__))
try:
    import shapes.square
except ModuleNotFoundError as error:
    print(error.name)
try:
    from shapes import triangle
except ImportError as error:
    print("cannot import" in str(error))
